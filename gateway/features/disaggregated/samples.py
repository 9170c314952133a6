"""Questions with known answers: each request of a history at ages along its life, with what was known of it then.

Ages are equally far apart, as in service, where a running request is asked about again and again: so long requests
yield more questions, as they do there. Source: BalanceRoute, Appendix C.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.estimator import Ages, Features
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot, recent_at_admission

QUESTIONS_MAX = 100_000
_GOLDEN = 0.6180339887498949
"""Golden ratio less 1. Fractional parts of its multiples are spread evenly, and so are the first ages of requests."""


class PredictionSamples(Struct, frozen=True):
    """Questions in columns, each with one entry per question."""

    ages: Ages
    features: list[Features]
    remaining: Ages
    """Tokens still generated afterwards; never 0, since requests that have ended are not asked about."""

    def __len__(self) -> int:
        return len(self.features)

    def leaves(self, horizon: int) -> npt.NDArray[np.bool_]:
        return self.remaining <= horizon

    def within(self, horizon: int) -> Numbers:
        """Value to be estimated: min(D, H)."""
        return np.minimum(self.remaining, horizon).astype(np.float64)


class Split(Struct, frozen=True):
    """History in two parts: one to fit to, and what came later."""

    earlier: Sequence[tuple[Ended, Features]]
    later: Sequence[tuple[Ended, Features]]


def split_in_time(snapshot: Snapshot, held_out: float) -> Split:
    """Hold out the last share of the requests that ended. No feature of the others comes from the later ones."""
    known = list(with_features(snapshot))
    border = len(known) - round(len(known) * held_out)
    return Split(known[:border], known[border:])


def with_features(snapshot: Snapshot) -> Iterator[tuple[Ended, Features]]:
    recent = recent_at_admission(snapshot.ended, snapshot.first)
    for ended, lengths in zip(snapshot.ended, recent, strict=True):
        yield ended, Features(ended.prompt_tokens, ended.prompt_key, lengths)


def questions_about(
    requests: Sequence[tuple[Ended, Features]], *, every_tokens: int, questions_max: int = QUESTIONS_MAX
) -> PredictionSamples:
    """Questions about each request, one every so many tokens; fewer where they would be more than `questions_max`."""
    tokens = sum(ended.output_tokens for ended, _ in requests)
    step = max(every_tokens, -(-tokens // questions_max))
    ages: list[int] = []
    remaining: list[int] = []
    features: list[Features] = []
    for number, (ended, known) in enumerate(requests):
        first = int(number * _GOLDEN % 1 * step)
        for age in range(first, ended.output_tokens, step):
            ages.append(age)
            remaining.append(ended.output_tokens - age)
            features.append(known)
    return PredictionSamples(np.array(ages, np.int64), features, np.array(remaining, np.int64))
