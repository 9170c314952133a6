"""Interface of estimators over fitted arrays: whether running requests leave within the next steps, and if so, when.

An estimator never learns, never raises on a query, and answers NaN where it cannot tell. Source: BalanceRoute, Appendix
C.1.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from gateway.core.features.disaggregated.predictor import Numbers
from gateway.core.features.disaggregated.predictors.recent import RecentLengths
from gateway.core.value import value

Ages = npt.NDArray[np.int64]
UNKNOWN_PROMPT = 0
KEY_MAX = (1 << 63) - 1
"""Largest prompt key: it fits into a signed 64-bit integer, so that JSON readers can hold it."""


@value
class Features:
    """Known properties of a request from its admission on."""

    prompt_tokens: int
    prompt_key: int
    """Hash of its prompt, or UNKNOWN_PROMPT."""
    recent: RecentLengths
    """Lengths of recent requests at its admission."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Estimator(ABC):
    """Estimation from one set of fitted arrays."""

    def answers_for(self, horizon: int) -> bool:  # noqa: ARG002
        """Return whether estimates over this horizon are possible."""
        return True

    @abstractmethod
    def estimate(self, ages: Ages, features: list[Features], horizon: int) -> tuple[Numbers, Numbers]:
        """Estimate, for each request and its age in tokens, the probability p̂ that it leaves within `horizon` more
        tokens, and the mean number μ̂ of further tokens if it does; the horizon where the probability is 0."""


def prompt_key(prompt_hash: bytes, prompt_tokens: int, secret: bytes) -> int:
    """Integer key for a prompt hash and length; UNKNOWN_PROMPT where there is no hash. The length is included because a
    hash may leave out the end of a prompt; two prompts of equal length that differ only there get the same key.

    Keys are written to files. Without the secret, a reader of a file cannot confirm a guess at a prompt.
    """
    if not prompt_hash:
        return UNKNOWN_PROMPT
    named = hashlib.blake2b(prompt_hash + prompt_tokens.to_bytes(8), digest_size=8, key=secret)
    return (int.from_bytes(named.digest()) & KEY_MAX) or 1
