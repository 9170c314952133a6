"""Tenants' limits under any load and any partitions: gateways together keep a limit within the stated bound."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.features.limits.shares import floor_of
from gateway.core.vocabulary import Jurisdiction, Place, RegionName
from tests.support.core import EU, MS, SECOND, US
from tests.support.sharing import Sharing, limited

NAMES = ("gw-a", "gw-b", "gw-c")
PLACES = {"gw-a": US, "gw-b": US, "gw-c": EU}
_QUIET = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

_Acts = list[tuple[str, int, int, int]]
_acts = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 5),  # requests that arrive there, ...
        st.integers(0, 5),  # requests that end there, ...
        st.sampled_from((0, 5, 40, 130, 400, 1500)),  # milliseconds that pass
    ),
    min_size=1,
    max_size=25,
)


def bound_of(limit: int, count: int = 3, floor_share: float = 0.2) -> int:
    """Bound of docs/how_to/tenant_limits.md: the limit, and the floors of gateways whose tenants arrive while others
    use all of it.
    """
    floors = sorted(floor_of(limit, count, rank, floor_share) for rank in range(count))
    return limit + sum(floors[1:])


def act(mesh: Sharing, acts: _Acts, bound: int) -> None:
    for name, asks, ends, milliseconds in acts:
        for _ in range(ends):
            mesh.end_one(name)
        for _ in range(asks):
            mesh.ask(name)
        assert mesh.total <= bound
        mesh.wait(milliseconds * MS)


@_QUIET
@given(_acts, st.sampled_from((1, 2, 3, 6, 10)), st.sampled_from((1, 40, 400)))
def test_while_all_are_heard_no_more_are_under_way_than_the_bound(acts: _Acts, limit: int, way_ms: int) -> None:
    """Holds for any delay of heartbeats."""
    mesh = Sharing(PLACES, limited(concurrency_max=limit), way_ns=way_ms * MS)
    act(mesh, acts, bound_of(limit))


@_QUIET
@given(_acts, _acts, st.sampled_from((2, 3, 6, 10)))
def test_cut_in_two_the_bound_holds_while_the_rest_is_reserved_and_then_for_each_side(
    before: _Acts, after: _Acts, limit: int
) -> None:
    mesh = Sharing(PLACES, limited(concurrency_max=limit))
    act(mesh, before[:5], bound_of(limit))
    mesh.cut = {frozenset(("gw-a", "gw-c")), frozenset(("gw-b", "gw-c"))}
    act(mesh, after, bound_of(limit))
    mesh.wait(16 * SECOND)
    act(mesh, before, bound_of(limit) + limit)


@_QUIET
@given(st.sampled_from(NAMES), st.integers(1, 12))
def test_whoever_asks_alone_comes_to_have_all_of_the_limit(name: str, limit: int) -> None:
    mesh = Sharing(PLACES, limited(concurrency_max=limit))
    for _ in range(8):
        for _ in range(limit):
            mesh.ask(name)
        mesh.wait(500 * MS)
    assert len(mesh.running[name]) == mesh.total == limit


@settings(_QUIET, max_examples=5)
@given(st.lists(st.sampled_from(NAMES), min_size=30, max_size=60), st.sampled_from((30, 60, 120)))
def test_in_any_minute_no_more_are_let_in_than_a_bucket_of_the_limit_holds(names: list[str], limit: int) -> None:
    """Full buckets at the beginning, and a minute's refill; the floors of newcomers on top."""
    mesh = Sharing(PLACES, limited(requests_per_minute=limit))
    let_in = 0
    for number, name in enumerate(names * 4):
        let_in += mesh.ask(name)
        if number % 3 == 0:
            mesh.wait(150 * MS)
    elapsed_minutes = (mesh.now_ns - 4 * SECOND) / (60 * SECOND)
    assert let_in <= bound_of(limit) * (1 + elapsed_minutes) + len(NAMES)


def test_a_limit_is_divided_among_many_places() -> None:
    places = {f"gw-{number}": Place(RegionName(f"r{number}"), Jurisdiction("EU")) for number in range(7)}
    mesh = Sharing(places, limited(concurrency_max=20))
    for _ in range(12):
        for name in places:
            for _ in range(6):
                mesh.ask(name)
        mesh.wait(500 * MS)
    assert 20 <= mesh.total <= bound_of(20, 7)
    assert min(map(len, mesh.running.values())) >= 2
