"""Predictor of one pool: an estimator that can be replaced while requests run, the lengths of recent requests, and the
history.

Fitting happens elsewhere; new arrays are passed in. Without arrays, or with outdated ones, the predictor is not ready,
and the caller continues without predictions.
"""

from __future__ import annotations

import math

import numpy as np

from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from gateway.core.features.disaggregated.predictors.arrays import PredictorArrays, UnusableArrays
from gateway.core.features.disaggregated.predictors.catalogue import make_estimator
from gateway.core.features.disaggregated.predictors.estimator import (
    UNKNOWN_PROMPT,
    Ages,
    Estimator,
    Features,
    prompt_key,
)
from gateway.core.features.disaggregated.predictors.history import Ended, History
from gateway.core.features.disaggregated.predictors.recent import NOTHING_RECENT, RecentRequests
from gateway.core.value import value


@value
class Noted:
    """Data recorded for a request at its admission, independent of the estimator used later."""

    features: Features
    after: int
    """Number of requests that had ended by then."""


_UNNOTED = Features(0, UNKNOWN_PROMPT, NOTHING_RECENT)


class FittedPredictor(Predictor):
    """Predictor of one pool. It never raises on a query."""

    def __init__(self, horizon: int, history: History, secret: bytes = b"") -> None:
        """`secret`: key for hashing prompts, at most 64 bytes; the keys in `history` were made with it."""
        self.history = history
        self.is_restored = False
        """The history includes what was stored before this process started."""
        self._ended_here = 0
        """Requests that have ended in this process."""
        self.is_better = False
        """The arrays in use foresee loads better than expecting every request to stay. False again once they are
        dropped or too old."""
        self._secret = secret
        self.horizon = horizon
        self._estimator: Estimator | None = None
        self._until_ns = 0
        self._recent = RecentRequests()
        for ended in history.snapshot().ended:
            self._recent.left(ended.prompt_tokens, ended.output_tokens)

    def take(self, arrays: PredictorArrays, until_ns: int, *, is_better: bool = False) -> None:
        """Use these arrays until `until_ns`. Raises UnusableArrays and keeps the current estimator if they cannot be
        used."""
        estimator = make_estimator(arrays)
        if not estimator.answers_for(self.horizon):
            raise UnusableArrays(f"it was fitted for another horizon than {self.horizon} steps")
        self._estimator = estimator
        self._until_ns = until_ns
        self.is_better = is_better

    def better_until_ns(self) -> int | None:
        """Time at which arrays that are better than none become too old; None where no such arrays are in use."""
        return self._until_ns if self.is_better else None

    def look_at_age(self, now_ns: int) -> None:
        """Stop counting arrays that are too old as better than none."""
        self.is_better = self.is_better and self.is_ready(now_ns)

    def restore(self, history: History) -> None:
        """Replace the history by a restored one, followed by the requests that ended in this process."""
        ended_before = max(0, len(self.history) - self._ended_here)
        for ended in self.history.snapshot().ended[ended_before:]:
            history.add(ended)
        self.history = history
        self.is_restored = True
        self._recent = RecentRequests()
        for ended in history.snapshot().ended:
            self._recent.left(ended.prompt_tokens, ended.output_tokens)

    def look_ahead(self, horizon: int) -> None:
        """Change the horizon; an estimator fitted for another one is dropped."""
        self.horizon = horizon
        if self._estimator is not None and not self._estimator.answers_for(horizon):
            self._estimator = None
            self.is_better = False

    # Queries

    def is_ready(self, now_ns: int) -> bool:
        return self._estimator is not None and now_ns < self._until_ns

    def note(self, facts: Facts) -> Noted:
        key = prompt_key(facts.prompt_hash, facts.prompt_tokens, self._secret)
        features = Features(facts.prompt_tokens, key, self._recent.lengths())
        return Noted(features, self.history.added)

    def estimate(self, ages: Ages, facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        if self._estimator is None:
            nothing = np.full(len(ages), math.nan)
            return nothing, nothing
        return self._estimator.estimate(ages, [_features_of(each) for each in facts], horizon)

    def ended(self, facts: Facts, output_tokens: int, now_ns: int) -> None:
        noted = facts.noted
        if isinstance(noted, Noted):
            features = noted.features
            self.history.add(Ended(features.prompt_key, features.prompt_tokens, output_tokens, noted.after, now_ns))
            self._ended_here += 1
        self._recent.left(facts.prompt_tokens, output_tokens)


def _features_of(facts: Facts) -> Features:
    noted = facts.noted
    return noted.features if isinstance(noted, Noted) else _UNNOTED
