"""Ratios compare runs of the same requests."""

from __future__ import annotations

from math import inf

import pytest

from loadgen.figures import Figures
from loadgen.studies.numbers import (
    Middle,
    inverse,
    mean_ratio,
    measured,
    middle_box,
    middle_of,
    ratio,
    seconds,
    total,
)


def run(rate: float | None, p50_ms: float | None = None) -> Figures:
    ttft = None if p50_ms is None else {"p50": p50_ms}
    return {"total": {"requests_per_s": rate, "ttft_ms": ttft}}


RATE = total("requests_per_s")


def test_a_median_says_how_far_the_seeds_went() -> None:
    assert middle_of([3.0, 1.0, 2.0, None]) == Middle(2.0, 1.0, 3.0)
    assert middle_of([None]) is None
    assert Middle(2.0, 1.0, 3.0).shown(1) == "2.0 (1.0–3.0)"


def test_who_does_nothing_breaks_no_arithmetic() -> None:
    assert mean_ratio([4.0, 1.0]) == pytest.approx(2.0)
    assert mean_ratio([4.0, 0.0]) == 0.0
    assert inverse(Middle(0.5, 0.0, 2.0)) == Middle(2.0, 0.5, inf)


def test_ratios_are_taken_seed_by_seed() -> None:
    one, other = [run(10), run(30), run(2)], [run(10), run(10), run(1)]
    assert ratio(one, other, RATE) == Middle(2.0, 1.0, 3.0)


def test_a_seed_without_a_value_gives_no_ratio() -> None:
    assert ratio([run(10), run(4)], [run(0), run(2)], RATE) == Middle(2.0, 2.0, 2.0)
    assert ratio([run(10)], [run(0)], RATE) is None


def test_runs_of_different_numbers_of_seeds_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"longer|shorter"):
        ratio([run(1)], [run(1), run(2)], RATE)


def test_times_are_in_seconds_and_may_be_missing() -> None:
    assert measured([run(1, 250.0)], seconds("ttft_ms", "p50")) == Middle(0.25, 0.25, 0.25)
    assert measured([run(1)], seconds("ttft_ms", "p50")) is None


def test_the_inverse_of_a_ratio_turns_its_spread_round() -> None:
    assert inverse(Middle(2.0, 1.0, 4.0)) == Middle(0.5, 0.25, 1.0)


def test_a_box_has_each_part_at_its_median_in_seconds() -> None:
    def boxed(value: float) -> Figures:
        return {"total": {"ttft_ms": dict.fromkeys(("p10", "p25", "p50", "p75", "p90", "mean"), value)}}

    box = middle_box([boxed(1), boxed(5), boxed(3)], "ttft_ms")
    assert box is not None
    assert box["p90"] == 0.003
    assert middle_box([run(1)], "ttft_ms") is None
