from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.envelope import Envelope

ranks = st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 300)), min_size=1, max_size=8)


def one_by_one(lines: list[tuple[int, int]], steps: int) -> list[int]:
    """Time at which each step is over."""
    lasts = [max(first + step * growth for first, growth in lines) for step in range(steps)]
    return list(accumulate(lasts, initial=0))


@given(lines=ranks, steps=st.integers(1, 200))
def test_it_sums_up_what_the_longest_of_each_step_takes(lines: list[tuple[int, int]], steps: int) -> None:
    envelope = Envelope([first for first, _ in lines], [growth for _, growth in lines], steps)

    ends = one_by_one(lines, steps)
    assert [envelope.duration_ns(ended) for ended in range(steps + 1)] == ends


@given(lines=ranks, steps=st.integers(1, 60), data=st.data())
def test_it_knows_how_many_are_over_by_any_time(lines: list[tuple[int, int]], steps: int, data: st.DataObject) -> None:
    envelope = Envelope([first for first, _ in lines], [growth for _, growth in lines], steps)
    ends = one_by_one(lines, steps)
    elapsed_ns = data.draw(st.sampled_from(ends) | st.integers(0, ends[-1]))

    assert envelope.ended_by(elapsed_ns) == sum(end <= elapsed_ns for end in ends[1:])


def test_the_lead_goes_from_the_fullest_to_the_one_that_grows_fastest() -> None:
    envelope = Envelope([100, 91, 1], [0, 4, 20], 8)

    lasts = [envelope.duration_ns(step + 1) - envelope.duration_ns(step) for step in range(8)]
    assert lasts == [100, 100, 100, 103, 107, 111, 121, 141]
