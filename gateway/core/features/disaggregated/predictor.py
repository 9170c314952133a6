"""Interface between the decode tier and predictors of how much longer a request will decode. A predictor does no I/O,
reads no clock and uses no randomness: equal queries get equal answers until another end is reported."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from gateway.core.nearness import Nearness, unpack
from gateway.core.vocabulary import RequestId

Numbers = npt.NDArray[np.float64]


class Facts:
    """Known properties of one request from its prefill on."""

    __slots__ = ("_cosines", "nearness", "noted", "output_tokens", "prompt_hash", "prompt_tokens", "request_id")

    def __init__(
        self,
        request_id: RequestId,
        prompt_tokens: int,
        prompt_hash: bytes = b"",
        nearness: Nearness | None = None,
        output_tokens: int = 0,
    ) -> None:
        assert prompt_tokens >= 0, "no prompt is shorter than none"
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.prompt_hash = prompt_hash
        """Hash of the prompt, maybe without its end; empty if none was made. Prompts of two tenants never share one."""
        self.noted: object = None
        """Predictor's own data on the request: the result of `Predictor.note`."""
        self.nearness = nearness
        """Similarity to the centroids of decode workers; None: no information."""
        self.output_tokens = output_tokens
        """Length of the answer that the client expects; 0: not stated."""
        self._cosines: tuple[int, ...] | None = None

    def cosines(self) -> tuple[int, ...]:
        """Cosines to the centroids, unpacked once; empty where there are none."""
        if self._cosines is None:
            self._cosines = () if self.nearness is None else unpack(self.nearness.cosines)
        return self._cosines


@mypyc_attr(allow_interpreted_subclasses=True)
class Predictor(ABC):
    """Prediction in two stages (BalanceRoute C.1): whether a request ends within a horizon, and if so, when.

    The caller combines the two, keeps the bounds [1, H], gates by confidence, counts down between refreshes, and asks
    again at the floor. A predictor never raises on a query: it answers NaN for what it cannot tell, and the tick
    continues as BR-0.
    """

    def is_ready(self, now_ns: int) -> bool:  # noqa: ARG002
        """Return whether the predictor has data that is recent enough. Called once a tick; if False, no estimate is
        asked for."""
        return True

    def note(self, facts: Facts) -> object:  # noqa: ARG002
        """Record data that is needed later about this moment, such as recent answer lengths. Called once per request,
        when its prompt has been prefilled."""
        return None

    @abstractmethod
    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        """Estimate, for each request and its age in generated tokens, the probability that it generates at most
        `horizon` more tokens, and the mean number of further tokens if it does. Values in [0, 1] and [1, horizon];
        where the probability is 0, the mean is ignored. One call covers all requests that are due."""

    def ended(self, facts: Facts, output_tokens: int, now_ns: int) -> None:  # noqa: B027
        """Record that a request came to its own end after so many tokens; requests that were cut off or failed are not
        reported."""
