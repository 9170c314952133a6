"""The predictor of one pool: an estimator that may be exchanged while requests run, what left lately, and the history.

It fits nothing: whoever does hands it new arrays. Without any, or once they are too old, it is not ready, and whoever
asks goes on without predictions.
"""

from __future__ import annotations

import math

import numpy as np

from gateway.core.decode.predictor import Facts, Numbers, Predictor
from gateway.core.decode.predictors.arrays import PredictorArrays, UnusableArrays
from gateway.core.decode.predictors.catalogue import make_estimator
from gateway.core.decode.predictors.estimator import UNKNOWN_PROMPT, Ages, Estimator, Features, prompt_key
from gateway.core.decode.predictors.history import Ended, History
from gateway.core.decode.predictors.recent import NOTHING_RECENT, RecentRequests
from gateway.core.value import value


@value
class Noted:
    """What a request keeps from its admission on, whichever estimator is asked about it later."""

    features: Features
    after: int
    """How many had ended by then."""


_UNNOTED = Features(0, UNKNOWN_PROMPT, NOTHING_RECENT)


class FittedPredictor(Predictor):
    """Of one pool. It never raises over what it is asked."""

    def __init__(self, horizon: int, history: History, secret: bytes = b"") -> None:
        """`secret`: what keys of prompts are made with, at most 64 bytes; those of the history have been."""
        self.history = history
        self.is_restored = False
        """Does it remember what was kept of the time before this process?"""
        self._secret = secret
        self._horizon = horizon
        self._estimator: Estimator | None = None
        self._until_ns = 0
        self._recent = RecentRequests()
        for ended in history.snapshot().ended:
            self._recent.left(ended.prompt_tokens, ended.output_tokens)

    def take(self, arrays: PredictorArrays, until_ns: int) -> None:
        """Use these from now on, and until then. Raises UnusableArrays, and goes on with what it has."""
        estimator = make_estimator(arrays)
        if not estimator.answers_for(self._horizon):
            raise UnusableArrays(f"it was fitted for another horizon than {self._horizon} steps")
        self._estimator = estimator
        self._until_ns = until_ns

    def restore(self, history: History) -> None:
        """Remember these, and what ended since in this process after them."""
        since = self.history.snapshot().ended
        for ended in since:
            history.add(ended)
        self.history = history
        self.is_restored = True
        self._recent = RecentRequests()
        for ended in history.snapshot().ended:
            self._recent.left(ended.prompt_tokens, ended.output_tokens)

    def look_ahead(self, horizon: int) -> None:
        """So many steps from now on; arrays that were fitted for another number are of no use any more."""
        self._horizon = horizon
        if self._estimator is not None and not self._estimator.answers_for(horizon):
            self._estimator = None

    # What it is asked

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
        self._recent.left(facts.prompt_tokens, output_tokens)


def _features_of(facts: Facts) -> Features:
    noted = facts.noted
    return noted.features if isinstance(noted, Noted) else _UNNOTED
