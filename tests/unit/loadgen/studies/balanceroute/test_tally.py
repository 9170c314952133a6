"""The tally is exact for each step of a stretch, and ignores steps before it begins."""

from __future__ import annotations

import pytest

from loadgen.engine.decode_group import DecodeGroup, DecodeGroupConfig, Steps
from loadgen.studies.balanceroute.tally import Tally


def test_every_step_of_a_stretch_counts() -> None:
    tally = Tally(keep_steps=100)
    told: list[Steps] = []

    def on_steps(steps: Steps) -> None:
        told.append(steps)
        tally(steps)

    group = DecodeGroup(DecodeGroupConfig(2, 4, 1_000, 10), on_steps)
    tally.begin()
    group.admit("a", 0, 100, 6, 0)
    group.admit("b", 0, 10, 3, 0)
    group.admit("c", 1, 50, 5, 0)
    group.advance(1_000_000)
    a, b = [110, 112, 114, 103, 104, 105], [50, 51, 52, 53, 54, 0]
    assert tally.steps == 6
    assert tally.tokens == 6 + 3 + 5
    assert tally.time_ns == sum(1_000 + 10 * max(pair) for pair in zip(a, b, strict=True))
    assert tally.gap == pytest.approx(sum(x - y for x, y in zip(a, b, strict=True)) / 6)
    assert tally.deficit == pytest.approx(tally.gap)
    assert tally.largest == pytest.approx(sum(a) / 6)
    assert tally.mean == pytest.approx(sum(a + b) / 12)
    assert tally.kept(6) == [a, b]
    assert len(told) > 1


def test_before_it_begins_nothing_counts() -> None:
    tally = Tally()
    group = DecodeGroup(DecodeGroupConfig(2, 4, 1_000, 10), tally)
    group.admit("a", 0, 100, 6, 0)
    group.advance(1_000_000)
    assert (tally.steps, tally.gap, tally.kept(3)) == (0, 0.0, [])
