"""Thresholds: no worse, far better, a curve that bends, and goodput."""

from __future__ import annotations

import pytest

from loadgen.figures import Figures
from loadgen.studies.experiments import Experiment, Point
from loadgen.studies.placement.judgement import PointVerdict, all_goodputs, bends, goodput, verdict, verdicts
from loadgen.studies.placement.systems import BEFORE, LLM_D, LMETRIC, OURS, SGLANG

QUANTILES = ("p50", "p90", "mean")


def figures(rate: float, ttft_s: float | None) -> Figures:
    ttft = None if ttft_s is None else dict.fromkeys(QUANTILES, 1000 * ttft_s)
    return {"total": {"requests_per_s": rate, "ttft_ms": ttft}}


def judged(**runs: tuple[float, float | None]) -> PointVerdict:
    """Verdict on runs by throughput and mean TTFT; Nightside has 100 requests/s and 1 s unless given."""
    names = {"ours": OURS, "before": BEFORE, "sglang": SGLANG, "lmetric": LMETRIC, "llm_d": LLM_D}
    told = {names[key]: figures(*value) for key, value in ({"ours": (100.0, 1.0)} | runs).items()}
    experiment = Experiment("test", (Point("point", "day.yaml"),), tuple({"name": name} for name in told), (1,))
    return verdict(experiment, "point", lambda _, __, run: [told[run]])


def test_the_baseline_with_most_throughput_is_the_one_to_reach() -> None:
    found = judged(sglang=(90.0, 0.1), lmetric=(101.0, 1.5))
    assert (found.best, found.quickest, found.is_met, found.misses) == (LMETRIC, LMETRIC, True, [])


def test_of_those_with_as_much_throughput_the_quickest_counts() -> None:
    found = judged(sglang=(100.5, 0.8), lmetric=(101.0, 1.5))
    assert (found.best, found.quickest) == (LMETRIC, SGLANG)
    assert found.misses == [f"mean TTFT +25% of {SGLANG}"]


def test_a_miss_says_by_how_much_and_of_whom() -> None:
    found = judged(llm_d=(125.0, 0.5))
    assert not found.is_met
    assert found.misses == [f"throughput -20.0% of {LLM_D}", f"mean TTFT +100% of {LLM_D}"]


def test_what_we_were_is_no_baseline() -> None:
    assert judged(before=(500.0, 0.01), sglang=(80.0, 2.0)).best == SGLANG


@pytest.mark.parametrize(
    ("rival", "is_far"), [((83.0, 1.0), True), ((84.0, 1.0), False), ((100.0, 2.0), True), ((100.0, 1.9), False)]
)
def test_far_better_is_a_fifth_more_or_half_the_wait(rival: tuple[float, float], is_far: bool) -> None:
    assert judged(sglang=rival).is_far_better is is_far


def test_who_answers_nobody_is_not_judged_and_has_met_nothing() -> None:
    found = judged(ours=(0.0, None), sglang=(80.0, 2.0))
    assert (found.is_judged, found.is_met) == (False, False)
    assert found.misses == [f"throughput -100.0% of {SGLANG}"]


def test_a_point_that_was_not_played_is_not_judged() -> None:
    experiment = Experiment("test", (Point("point", "day.yaml"),), ({"name": OURS}, {"name": SGLANG}), (1,))
    (found,) = verdicts(experiment, lambda *_: [{}])
    assert (found.is_judged, found.misses) == (False, [])


@pytest.mark.parametrize(
    ("values", "depth"),
    [
        ([10.0, 12.0, 12.0], None),
        ([10.0, 12.0, 11.7], None),
        ([10.0, 12.0, 9.0, 11.9], 0.75),
        ([10.0, None, 5.0], 0.5),
        ([0.0, 0.0], None),
        ([], None),
    ],
)
def test_a_curve_bends_where_more_load_gives_less(values: list[float | None], depth: float | None) -> None:
    assert bends(values) == depth


def test_goodput_is_the_most_that_comes_in_time() -> None:
    points = tuple(Point(str(load), "day.yaml") for load in range(4))
    told = [figures(10.0, 0.2), figures(20.0, 0.9), figures(30.0, 1.5), figures(40.0, 9.0)]
    late = [figures(10.0, 3.0), figures(10.0, None), {}, figures(0.0, None)]
    experiment = Experiment("test", points, ({"name": OURS}, {"name": SGLANG}), (1,))

    def runs_of(_: Experiment, point: str, run: str) -> list[Figures]:
        return [(told if run == OURS else late)[int(point)]]

    assert [goodput(experiment, OURS, bound_s, runs_of) for bound_s in (0.1, 1.0, 2.0)] == [None, 20.0, 30.0]
    assert all_goodputs(experiment, 2.0, runs_of) == {OURS: 30.0, SGLANG: None}
