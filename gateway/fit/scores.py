"""How good estimates are, on questions that nothing was fitted to. It fits nothing.

Both stages by themselves, as BalanceRoute has them in its Table 3, and what a router makes of them: the number of steps
that a request is expected to stay of the next H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import brier_score_loss, roc_auc_score

from gateway.core.decode.predictor import Numbers
from gateway.core.decode.predictors.estimator import Estimator
from gateway.fit.samples import Questions

BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Questions whose probability was said to be about the same."""

    questions: int
    said: float
    """The mean of the probabilities,"""
    left: float
    """and the share that did leave."""


@dataclass(frozen=True, slots=True)
class Scores:
    """None: it cannot be told, since all left within the horizon, or nobody did."""

    questions: int
    requests: int
    leaving_share: float
    auc: float | None
    """Stage 1: of one that leaves and one that does not, how often the former is given the higher probability."""
    brier: float
    """Stage 1: the mean squared error of the probability."""
    brier_of_share: float
    """What one would get who always said the share of those who leave, had he known it."""
    mae_tokens: float | None
    """Stage 2: the mean error over those who left."""
    expected_rms_steps: float
    """Of ĉ, with the gate, against min(D, H), whose mean it estimates: so the error is squared, and its root taken."""
    anchor_rms_steps: float
    """Of saying H always, as without a predictor."""
    believed_share: float
    """Of questions: those that passed the gate,"""
    believed_right_share: float | None
    """and of them, those whose request did leave."""
    bins: tuple[Bin, ...]


def score(estimator: Estimator, questions: Questions, horizon: int, *, requests: int, gate: float = 0.5) -> Scores:
    """Of at least one question."""
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
        expected_rms_steps=_root_mean_square(expected - truth),
        anchor_rms_steps=_root_mean_square(horizon - truth),
        believed_share=float(believed.mean()),
        believed_right_share=float(leaves[believed].mean()) if believed.any() else None,
        bins=_bins(probability, leaves.astype(np.float64)),
    )


def expected_steps(probability: Numbers, tokens: Numbers, horizon: int) -> Numbers:
    """ĉ = p̂·μ̂ + (1 − p̂)·H, held to 1…H."""
    return np.clip(probability * tokens + (1 - probability) * horizon, 1.0, float(horizon))


def _root_mean_square(errors: Numbers) -> float:
    return float(np.sqrt(np.square(errors).mean()))


def _bins(probability: Numbers, leaves: Numbers) -> tuple[Bin, ...]:
    """Equally wide; those that nobody fell into are left out."""
    place = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    said = np.bincount(place, probability, minlength=BINS)
    left = np.bincount(place, leaves, minlength=BINS)
    return tuple(
        Bin(int(count), float(total / count), float(gone / count))
        for count, total, gone in zip(counts, said, left, strict=True)
        if count
    )
