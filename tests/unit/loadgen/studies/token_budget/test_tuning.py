from __future__ import annotations

from dataclasses import replace

from loadgen.engine.model import EngineConfig
from loadgen.engine.presets import TINY
from loadgen.planner.lengths import RequestShape
from loadgen.studies.token_budget.tuning import TimedRequest, TuningCell, TuningWorld, play

QUICK = TuningCell("Azure-derived", "drift", 0, 1, quick=True)
SECOND = 1_000_000_000


def world(threshold: int, short: EngineConfig) -> TuningWorld:
    return TuningWorld((short, TINY), (1, 2), replace(QUICK, threshold=threshold))


def test_the_same_setting_gives_the_same_figures_and_another_seed_others() -> None:
    first, again = play(QUICK, None), play(QUICK, None)
    assert first == again
    assert 0 < first["good_share"] <= 1
    assert play(replace(QUICK, seed=2), None)["ttft_p99_s"] != first["ttft_p99_s"]


def test_requests_go_by_their_estimates() -> None:
    for threshold, in_short in ((16, 0), (2_048, 20)):
        these = world(threshold, replace(TINY, context_tokens_max=2_048))
        for number in range(20):
            these.ask(number, TimedRequest(number * SECOND, RequestShape(40, 10)), is_counted=True)
        these.run_out()
        assert these.score.counted == 20
        assert these.score.in_short == in_short


def test_answers_that_the_short_pool_cuts_bring_a_tuned_threshold_down_and_no_other() -> None:
    """Answers have ten tokens, except one in 25: 95 % are no longer than ten, which is the length planned for."""
    tuned, still = (
        world(0, replace(TINY, context_tokens_max=2_048)),
        world(2_048, replace(TINY, context_tokens_max=2_048)),
    )
    for these in (tuned, still):
        for number in range(600):
            shape = RequestShape(1_700, 600 if number % 25 == 0 else 10)
            these.ask(number, TimedRequest(number * SECOND, shape), is_counted=True)
        these.run_out()
        assert these.score.counted == 600
    assert tuned.score.troubles["cut"] > 0, "half of all name no maximum"
    assert tuned.threshold.tokens < 2_048 == still.threshold.tokens
    assert tuned.score.troubles["cut"] < still.score.troubles["cut"]
