from __future__ import annotations

import random

import pytest

from gateway.core.features.disaggregated.predictors.arrays import PredictorKind, SurvivalArrays
from gateway.core.features.disaggregated.predictors.catalogue import kind_of
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.features.disaggregated.fit.fitting import FitRules, fit_predictor
from gateway.features.disaggregated.fit.trees import TooLittle


def snapshot(requests: int, seed: int = 1) -> Snapshot:
    """Requests of ten prompts: two of them determine the length of their answer; a third of the others are short."""
    rng = random.Random(seed)
    ended = []
    for number in range(requests):
        key = rng.randrange(10)
        output = 20 + key if key < 2 else rng.choice((15, 300, 900)) + rng.randrange(10)
        ended.append(Ended(key, 50 + 100 * key, output, number, number))
    return Snapshot(tuple(ended), requests)


@pytest.mark.parametrize("kind", list(PredictorKind))
def test_every_kind_is_fitted_to_all_and_scored_on_what_came_later(kind: PredictorKind) -> None:
    steps: list[str] = []
    made = fit_predictor(snapshot(400), FitRules(kind), steps.append)
    assert kind_of(made.arrays) is kind
    assert made.scores is not None
    assert made.scores.requests == 100
    assert made.scores.auc is not None
    assert made.scores.auc > 0.5
    assert steps[-1] == "fitting to all 400 requests"


def brier(snapshot: Snapshot, kind: PredictorKind) -> float:
    scores = fit_predictor(snapshot, FitRules(kind)).scores
    assert scores is not None
    return scores.brier


def test_knowing_the_prompt_helps_where_prompts_recur() -> None:
    rng = random.Random(3)
    keys = [rng.randrange(1, 20) for _ in range(400)]
    ended = tuple(Ended(key, 100, 100 * key + rng.randrange(20), number, 0) for number, key in enumerate(keys))
    recurring = Snapshot(ended, len(ended))
    assert brier(recurring, PredictorKind.EXACT_MATCH) < 0.5 * brier(recurring, PredictorKind.SURVIVAL)


def test_knowing_its_length_helps_where_answers_go_with_it() -> None:
    rng = random.Random(3)
    prompts = [rng.randrange(200, 4000) for _ in range(400)]
    ended = tuple(
        Ended(0, tokens, tokens // 10 + rng.randrange(20), number, 0) for number, tokens in enumerate(prompts)
    )
    spread = Snapshot(ended, len(ended))
    assert brier(spread, PredictorKind.LEARNED) < 0.5 * brier(spread, PredictorKind.SURVIVAL)


def test_what_is_scored_has_not_seen_what_it_is_asked_about() -> None:
    """The later answers are longer than every earlier one."""
    ended = tuple(Ended(0, 10, 30 if number < 75 else 3000, number, 0) for number in range(100))
    made = fit_predictor(Snapshot(ended, 100), FitRules(PredictorKind.SURVIVAL))
    assert made.scores is not None
    assert made.scores.believed_right_share == 0.0
    assert made.arrays == SurvivalArrays((30,) * 75 + (3000,) * 25)


@pytest.mark.parametrize("kind", [PredictorKind.SURVIVAL, PredictorKind.EXACT_MATCH])
def test_one_record_is_fitted_and_not_scored(kind: PredictorKind) -> None:
    made = fit_predictor(snapshot(1), FitRules(kind))
    assert made.scores is None
    assert "nothing could be held out" in made.unscored


def test_an_empty_history_and_one_without_answers_are_refused_in_words() -> None:
    with pytest.raises(TooLittle, match="empty"):
        fit_predictor(Snapshot((), 0), FitRules(PredictorKind.SURVIVAL))
    silent = Snapshot((Ended(1, 10, 0, 0, 0),) * 8, 8)
    with pytest.raises(TooLittle, match="generated"):
        fit_predictor(silent, FitRules(PredictorKind.LEARNED))
