from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.features.scaling.flows import Flow

_Problem = tuple[list[int], list[list[int]], list[int]]


@st.composite
def problems(draw: st.DrawFn) -> _Problem:
    supplies = draw(st.integers(1, 4))
    demands = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    ways = [draw(st.lists(st.integers(0, supplies - 1), min_size=1, unique=True)) for _ in demands]
    return demands, ways, draw(st.lists(st.integers(0, 12), min_size=supplies, max_size=supplies))


def largest(demands: list[int], ways: list[list[int]], room: list[int]) -> int:
    """Largest flow, as the smallest cut: no group of demands is met beyond the room of the supplies it can reach."""
    numbers = range(len(demands))
    groups = [set(group) for size in range(len(demands) + 1) for group in combinations(numbers, size)]
    return min(
        sum(demands[each] for each in numbers if each not in group)
        + sum(room[supply] for supply in {supply for each in group for supply in ways[each]})
        for group in groups
    )


@given(problems())
def test_it_is_as_large_as_any_flow_can_be(problem: _Problem) -> None:
    demands, ways, room = problem
    flow = Flow(demands, ways, room)
    flow.settle()
    assert sum(demands) - flow.unmet == largest(demands, ways, room)


@given(problems())
def test_nothing_is_used_twice_or_lost(problem: _Problem) -> None:
    demands, ways, room = problem
    flow = Flow(demands, ways, room)
    flow.settle()
    for supply, there in enumerate(room):
        users = flow.users(supply)
        assert sum(users.values()) + flow.room[supply] == there
        assert all(supply in ways[demand] and amount > 0 for demand, amount in users.items())
    for demand, wanted in enumerate(demands):
        assert sum(flow.used(supply, demand) for supply in range(len(room))) + flow.left[demand] == wanted


@given(problems(), st.data())
def test_more_room_helps_exactly_where_it_says(problem: _Problem, data: st.DataObject) -> None:
    demands, ways, room = problem
    flow = Flow(demands, ways, room)
    reached = flow.settle()
    supply = data.draw(st.integers(0, len(room) - 1))
    more = [there + (each == supply) for each, there in enumerate(room)]
    gained = largest(demands, ways, more) - largest(demands, ways, room)
    assert bool(gained) == (supply in reached)


@given(problems(), st.data())
def test_what_changes_is_settled_as_if_it_had_been_so_from_the_beginning(
    problem: _Problem, data: st.DataObject
) -> None:
    demands, ways, room = problem
    flow = Flow(demands, ways, room)
    flow.settle()
    supply = data.draw(st.integers(0, len(room) - 1))
    less = data.draw(st.integers(0, room[supply]))
    other = flow.copy()
    other.remove(supply, less)
    other.settle()
    changed = [there - less * (each == supply) for each, there in enumerate(room)]
    assert sum(demands) - other.unmet == largest(demands, ways, changed)
    assert sum(demands) - flow.unmet == largest(demands, ways, room), "a copy is another one"
    other.add(supply, less)
    other.settle()
    assert other.unmet == flow.unmet


def test_a_region_uses_its_own_room_before_a_neighbours() -> None:
    flow = Flow([4, 4], [[0, 1], [1, 0]], [6, 6])
    flow.settle()
    assert flow.users(0) == {0: 4}
    assert flow.users(1) == {1: 4}


def test_who_has_a_choice_makes_room_for_who_has_none() -> None:
    flow = Flow([5, 5], [[0, 1], [0]], [5, 5])
    flow.settle()
    assert flow.unmet == 0
    assert flow.users(0) == {1: 5}
