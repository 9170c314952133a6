"""Questions whose answers are known: each request of a history at ages along its life, with what was known of it then.

Ages lie equally far apart, as in service, where a request is asked about again and again while it lasts: so long ones
make more questions, as they do there. Source: BalanceRoute, Appendix C.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.core.decode.predictor import Numbers
from gateway.core.decode.predictors.estimator import Ages, Features
from gateway.core.decode.predictors.history import Ended, Snapshot, recent_at_admission

QUESTIONS_MAX = 100_000
_GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole part, are spread evenly: so are the first ages of requests."""


@dataclass(frozen=True, slots=True)
class Questions:
    """One entry a question in each column."""

    ages: Ages
    features: list[Features]
    remaining: Ages
    """What was still generated; never 0, since who has ended is asked about no more."""

    def __len__(self) -> int:
        return len(self.features)

    def leaves(self, horizon: int) -> npt.NDArray[np.bool_]:
        return self.remaining <= horizon

    def within(self, horizon: int) -> Numbers:
        """What is to be estimated: min(D, H)."""
        return np.minimum(self.remaining, horizon).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Split:
    """Of a history, what something is fitted to, and what came later."""

    earlier: Sequence[tuple[Ended, Features]]
    later: Sequence[tuple[Ended, Features]]


def split_in_time(snapshot: Snapshot, held_out: float) -> Split:
    """The last share of those who ended is held out. Of the others, nothing that a request could learn from the later
    ones is in its features."""
    known = list(with_features(snapshot))
    border = len(known) - round(len(known) * held_out)
    return Split(known[:border], known[border:])


def with_features(snapshot: Snapshot) -> Iterator[tuple[Ended, Features]]:
    recent = recent_at_admission(snapshot.ended, snapshot.first)
    for ended, lengths in zip(snapshot.ended, recent, strict=True):
        yield ended, Features(ended.prompt_tokens, ended.prompt_key, lengths)


def questions_about(
    requests: Sequence[tuple[Ended, Features]], *, every_tokens: int, questions_max: int = QUESTIONS_MAX
) -> Questions:
    """Of each request every so many tokens; less often where that would be too many."""
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
    return Questions(np.array(ages, np.int64), features, np.array(remaining, np.int64))
