"""Scores of an estimator, on questions that it was not fitted to. The module fits no estimator.

Both stages are scored by themselves, as in BalanceRoute's Table 3, and so is what a router makes of them: the number of
steps that a request is expected to stay of the next H.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from sklearn.metrics import brier_score_loss, roc_auc_score

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.estimator import Estimator
from gateway.features.disaggregated.gain import expected_steps, root_mean_square
from gateway.features.disaggregated.samples import PredictionSamples

BINS = 10


class Bin(Struct, frozen=True):
    """Questions with about the same estimated probability."""

    questions: int
    said: float
    """Mean of the probabilities, ..."""
    left: float
    """... and share of the requests that did leave."""


class Scores(Struct, frozen=True):
    """Scores of an estimator. None where a score is undefined, since all requests left within the horizon, or none
    did."""

    questions: int
    requests: int
    leaving_share: float
    auc: float | None
    """Stage 1: of a request that leaves and one that does not, how often the former is given the higher probability."""
    brier: float
    """Stage 1: the mean squared error of the probability."""
    brier_of_share: float
    """Brier score of always answering the true share of requests that leave."""
    mae_tokens: float | None
    """Stage 2: the mean absolute error over requests that left."""
    expected_rms_steps: float
    """Error of ĉ, with the gate, against min(D, H), whose mean it estimates: the root of the mean squared error."""
    anchor_rms_steps: float
    """Error of answering H always, as without a predictor."""
    believed_share: float
    """Share of questions that passed the gate, ..."""
    believed_right_share: float | None
    """... and of them, the share whose request did leave."""
    bins: tuple[Bin, ...]


def score(
    estimator: Estimator, questions: PredictionSamples, horizon: int, *, requests: int, gate: float = 0.5
) -> Scores:
    """Score an estimator on at least one question."""
    probability, tokens = estimator.estimate(questions.ages, questions.features, horizon)
    leaves, truth = questions.leaves(horizon), questions.within(horizon)
    believed = probability >= gate
    expected = np.where(believed, expected_steps(probability, tokens, horizon), horizon)
    share = float(leaves.mean())
    return Scores(
        questions=len(questions),
        requests=requests,
        leaving_share=share,
        auc=float(roc_auc_score(leaves, probability)) if 0 < share < 1 else None,
        brier=float(brier_score_loss(leaves, probability, pos_label=True)),
        brier_of_share=share * (1 - share),
        mae_tokens=float(np.abs(tokens - questions.remaining)[leaves].mean()) if share else None,
        expected_rms_steps=root_mean_square(expected - truth),
        anchor_rms_steps=root_mean_square(horizon - truth),
        believed_share=float(believed.mean()),
        believed_right_share=float(leaves[believed].mean()) if believed.any() else None,
        bins=_bins(probability, leaves.astype(np.float64)),
    )


def _bins(probability: Numbers, leaves: Numbers) -> tuple[Bin, ...]:
    """Bins of equal width, without those that are empty."""
    place = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    said = np.bincount(place, probability, minlength=BINS)
    left = np.bincount(place, leaves, minlength=BINS)
    return tuple(
        Bin(int(count), float(total / count), float(gone / count))
        for count, total, gone in zip(counts, said, left, strict=True)
        if count
    )
