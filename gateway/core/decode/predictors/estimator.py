"""What estimates from fitted arrays: whether running requests leave within the next steps, and when then.

An estimator never learns, never raises over what it is asked, and says NaN where it cannot say anything.
Source: BalanceRoute, Appendix C.1.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from gateway.core.decode.predictor import Numbers
from gateway.core.decode.predictors.recent import RecentLengths
from gateway.core.value import value

Ages = npt.NDArray[np.int64]
UNKNOWN_PROMPT = 0
KEY_MAX = (1 << 63) - 1
"""An integer that every reader of JSON can hold."""


@value
class Features:
    """What is known of a request from its admission on."""

    prompt_tokens: int
    prompt_key: int
    """Of its prompt, or UNKNOWN_PROMPT."""
    recent: RecentLengths
    """As of then."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Estimator(ABC):
    """One fitted way to estimate."""

    def answers_for(self, horizon: int) -> bool:  # noqa: ARG002
        """Can it be asked about so many steps?"""
        return True

    @abstractmethod
    def estimate(self, ages: Ages, features: list[Features], horizon: int) -> tuple[Numbers, Numbers]:
        """For each request of such an age in tokens: p̂, the probability that it leaves within `horizon` more, and μ̂,
        how many more it generates if it does; that is the horizon where the probability is 0."""


def prompt_key(prompt_hash: bytes, prompt_tokens: int, secret: bytes) -> int:
    """A number for what stands for a prompt of such a length; UNKNOWN_PROMPT where nothing does. The length counts,
    since a hash may leave out the end of a prompt: two that differ only there, and are equally long, look the same.

    These numbers are written to files. Whoever has a file and not the secret cannot confirm a guess at a prompt.
    """
    if not prompt_hash:
        return UNKNOWN_PROMPT
    named = hashlib.blake2b(prompt_hash + prompt_tokens.to_bytes(8), digest_size=8, key=secret)
    return (int.from_bytes(named.digest()) & KEY_MAX) or 1
