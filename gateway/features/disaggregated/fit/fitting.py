"""Fits one kind of predictor to a history and scores it on later requests.

The predictor returned is fitted to the whole history, the newest requests included; its scores are those of the same
fit to the earlier part alone, on requests that this fit has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from msgspec import Struct, field

from gateway.core.features.disaggregated.predictors.arrays import PredictorArrays, PredictorKind, PromptKey
from gateway.core.features.disaggregated.predictors.catalogue import make_estimator
from gateway.core.features.disaggregated.predictors.estimator import Features
from gateway.core.features.disaggregated.predictors.exact_match import fit_exact_match
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.features.disaggregated.predictors.survival import fit_survival
from gateway.features.disaggregated.fit.scores import Scores, score
from gateway.features.disaggregated.fit.trees import TooLittle, TreeRules, fit_trees
from gateway.features.disaggregated.samples import PredictionSamples, questions_about, split_in_time, with_features

OnProgress = Callable[[str], object]
_Known = Sequence[tuple[Ended, Features]]


class FitRules(Struct, frozen=True):
    """Kind of predictor, its horizon, and how it is fitted."""

    kind: PredictorKind
    horizon: int = 48
    every_tokens: int = 8
    """Tokens between the ages at which a request is asked about."""
    key_kind: PromptKey = PromptKey.PROMPT_OR_LENGTH
    held_out: float = 0.25
    """Newest share of the history, which scores are taken on."""
    gate: float = 0.5
    trees: TreeRules = field(default_factory=TreeRules)


class Fit(Struct, frozen=True):
    arrays: PredictorArrays
    scores: Scores | None
    """Scores; None where the history is too short to hold any of it out."""
    unscored: str = ""
    """Reason why there are no scores, in words."""


def fit_predictor(snapshot: Snapshot, rules: FitRules, on_progress: OnProgress = lambda _: None) -> Fit:
    """Fit a predictor to the whole history, and score it where there is enough. Raises TooLittle."""
    if not snapshot.ended:
        raise TooLittle("the history is empty")
    scores, unscored = None, ""
    try:
        scores = score_predictor(snapshot, rules, on_progress)
    except TooLittle as reason:
        unscored = f"nothing could be held out: {reason}"
    on_progress(f"fitting to all {len(snapshot.ended):,} requests")
    return Fit(_fitted(list(with_features(snapshot)), rules), scores, unscored)


def score_predictor(snapshot: Snapshot, rules: FitRules, on_progress: OnProgress = lambda _: None) -> Scores:
    """Fit a predictor to the earlier part of the history, and score it on the later. Raises TooLittle."""
    split = split_in_time(snapshot, rules.held_out)
    on_progress(f"fitting to the earlier {len(split.earlier):,} requests")
    earlier = _fitted(split.earlier, rules)
    on_progress(f"asking about the later {len(split.later):,}")
    questions = _questions(split.later, rules)
    return score(make_estimator(earlier), questions, rules.horizon, requests=len(split.later), gate=rules.gate)


def _fitted(known: _Known, rules: FitRules) -> PredictorArrays:
    if not known:
        raise TooLittle("there is no request to fit to")
    ended = [each for each, _ in known]
    match rules.kind:
        case PredictorKind.SURVIVAL:
            return fit_survival(each.output_tokens for each in ended)
        case PredictorKind.EXACT_MATCH:
            return fit_exact_match(ended, rules.key_kind)
        case PredictorKind.LEARNED:
            return fit_trees(_questions(known, rules), rules.horizon, rules.trees).arrays
        case _:
            assert_never(rules.kind)


def _questions(known: _Known, rules: FitRules) -> PredictionSamples:
    questions = questions_about(known, every_tokens=rules.every_tokens)
    if not len(questions):
        raise TooLittle("no request generated anything")
    return questions
