from __future__ import annotations

import numpy as np
import pytest

from gateway.core.features.disaggregated.config import BalanceConfig, DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.features.disaggregated.predictors.arrays import (
    ForestArrays,
    LearnedArrays,
    PredictorKind,
    PromptKey,
    SurvivalArrays,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.catalogue import kind_of
from gateway.core.features.disaggregated.predictors.exact_match import fit_exact_match
from gateway.core.features.disaggregated.predictors.fitted import FittedPredictor
from gateway.core.features.disaggregated.predictors.history import Ended, History
from gateway.core.features.disaggregated.predictors.learned import FEATURES
from gateway.core.features.disaggregated.predictors.survival import fit_survival
from gateway.core.vocabulary import RequestId
from tests.support.decode import bench

HORIZON = 20
ALWAYS = 1 << 62
LEAF = ForestArrays(3.0, (0,), (0,), (0.0,), (0,), (0,), (4.0,))


def predictor() -> FittedPredictor:
    return FittedPredictor(HORIZON, History(100))


def facts(made: FittedPredictor, prompt: bytes = b"a prompt", tokens: int = 50) -> Facts:
    found = Facts(RequestId("r"), tokens, prompt)
    found.noted = made.note(found)
    return found


def probability(made: FittedPredictor, asked: Facts, age: int = 0, horizon: int = HORIZON) -> float:
    return float(made.estimate(np.array([age], np.int64), [asked], horizon)[0][0])


def test_without_arrays_or_with_old_ones_it_is_not_ready_and_says_nothing() -> None:
    made = predictor()
    assert not made.is_ready(0)
    assert np.isnan(probability(made, facts(made)))
    made.take(fit_survival([10]), until_ns=5)
    assert (made.is_ready(4), made.is_ready(5)) == (True, False)


def test_arrays_that_are_none_change_nothing() -> None:
    made = predictor()
    made.take(fit_survival([10]), ALWAYS)
    with pytest.raises(UnusableArrays):
        made.take(SurvivalArrays(()), ALWAYS)
    assert probability(made, facts(made)) == 1.0


def test_a_request_keeps_its_features_while_estimators_are_exchanged() -> None:
    made = predictor()
    asked = facts(made, b"same")
    made.take(fit_survival([10, 100]), ALWAYS)
    assert probability(made, asked) == 0.5
    made.ended(asked, 100, 7)
    history = made.history.snapshot().ended
    made.take(fit_exact_match(history, PromptKey.PROMPT), ALWAYS)
    assert probability(made, asked, age=90) == 1.0


def test_ends_are_remembered_with_what_was_known_at_admission() -> None:
    made = predictor()
    first, second = facts(made, b"first", 50), facts(made, b"", 60)
    made.ended(second, 9, now_ns=5)
    third = facts(made, b"first", 50)
    made.ended(third, 11, now_ns=6)
    made.ended(first, 12, now_ns=7)
    ended = made.history.snapshot().ended
    assert [(each.prompt_tokens, each.output_tokens, each.after, each.ended_ns) for each in ended] == [
        (60, 9, 0, 5),
        (50, 11, 1, 6),
        (50, 12, 0, 7),
    ]
    assert ended[0].prompt_key == 0
    assert ended[1].prompt_key == ended[2].prompt_key != 0


def test_who_was_noted_by_nobody_is_estimated_and_not_remembered() -> None:
    made = predictor()
    made.take(fit_survival([10]), ALWAYS)
    stranger = Facts(RequestId("r"), 50, b"")
    assert probability(made, stranger) == 1.0
    made.ended(stranger, 9, 5)
    assert len(made.history) == 0


def test_what_left_before_a_restart_counts_as_recent_after_it() -> None:
    made = FittedPredictor(HORIZON, History(100, [Ended(0, 10, 300, 0, 0)]))
    noted = made.note(Facts(RequestId("r"), 50, b""))
    assert noted.features.recent.output_mean == 300.0


def test_learned_answers_for_its_own_horizon_alone() -> None:
    made = predictor()
    with pytest.raises(UnusableArrays, match="another horizon"):
        made.take(LearnedArrays(HORIZON + 1, FEATURES, LEAF, LEAF), ALWAYS)
    made.take(LearnedArrays(HORIZON, FEATURES, LEAF, LEAF), ALWAYS)
    assert probability(made, facts(made)) == pytest.approx(1 / (1 + np.exp(-7.0)))
    assert np.isnan(probability(made, facts(made), horizon=HORIZON + 1))
    assert made.estimate(np.array([0], np.int64), [facts(made)], HORIZON)[1].tolist() == [7.0]


@pytest.mark.parametrize(
    "arrays",
    [LearnedArrays(HORIZON, FEATURES[:-1], LEAF, LEAF), LearnedArrays(0, FEATURES, LEAF, LEAF)],
)
def test_learned_arrays_that_are_none_are_refused(arrays: LearnedArrays) -> None:
    with pytest.raises(UnusableArrays):
        predictor().take(arrays, ALWAYS)


def test_every_kind_of_arrays_has_a_name() -> None:
    everybody = fit_survival([1])
    assert kind_of(everybody) is PredictorKind.SURVIVAL
    assert kind_of(fit_exact_match([Ended(1, 1, 1, 0, 0)], PromptKey.LENGTH)) is PredictorKind.EXACT_MATCH
    assert kind_of(LearnedArrays(HORIZON, FEATURES, LEAF, LEAF)) is PredictorKind.LEARNED


def test_a_tier_whose_predictor_has_nothing_or_grows_stale_goes_on_without_it_and_says_so() -> None:
    made = predictor()
    config = DecodeConfig(policy=DecodePolicyName.BR_H, balance=BalanceConfig(horizon_steps=HORIZON, refresh_tokens=4))
    tier = bench(2, config=config, predictor=made)
    degraded = []
    for number in range(3):
        tier.add(f"r{number}", 100)
        assert len(tier.tick()) == 1
        degraded.append(tier.tier.figures(tier.now_ns).is_degraded)
        made.take(fit_survival([10, 500]), until_ns=tier.now_ns + 15_000_000)
        if number == 1:
            tier.now_ns += 20_000_000
    assert degraded == [True, False, True]
    assert tier.tier.figures(tier.now_ns).ticks_degraded == 2


def test_a_tier_feeds_the_history_with_those_that_came_to_their_own_end() -> None:
    made = predictor()
    tier = bench(1, config=DecodeConfig(policy=DecodePolicyName.JOIN_SHORTEST_QUEUE), predictor=made)
    for key in ("whole", "cut off"):
        tier.add(key, 100)
    tier.tick()
    tier.end("whole", 7)
    tier.end("cut off")
    assert [each.output_tokens for each in made.history.snapshot().ended] == [7]
