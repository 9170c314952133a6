"""What predicts how much longer a request will decode, as the decode tier asks it. It does no I/O, reads no clock, and
draws no chance: equal questions get equal answers until it is told of another end."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from gateway.core.decode.locality.nearness import Nearness, unpack
from gateway.core.vocabulary import RequestId

Numbers = npt.NDArray[np.float64]


class Facts:
    """What is known of one request once its prompt has been read, and stays so."""

    __slots__ = ("_cosines", "nearness", "noted", "prompt_hash", "prompt_tokens", "request_id")

    def __init__(
        self,
        request_id: RequestId,
        prompt_tokens: int,
        prompt_hash: bytes = b"",
        nearness: Nearness | None = None,
    ) -> None:
        assert prompt_tokens >= 0, "no prompt is shorter than none"
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.prompt_hash = prompt_hash
        """Of all of it; empty where nobody made one. Prompts with the same one are the same, and one tenant's."""
        self.noted: object = None
        """Whatever the predictor wants to be handed again: what `Predictor.note` answered."""
        self.nearness = nearness
        """To the experts of decode workers; None: nothing was said of them."""
        self._cosines: tuple[int, ...] | None = None

    def cosines(self) -> tuple[int, ...]:
        """To each centroid, unpacked once; empty where there are none."""
        if self._cosines is None:
            self._cosines = () if self.nearness is None else unpack(self.nearness.cosines)
        return self._cosines


@mypyc_attr(allow_interpreted_subclasses=True)
class Predictor(ABC):
    """Two stages (BalanceRoute C.1): whether a request ends within a horizon, and if so, when.

    Who asks composes the two, keeps the bounds [1, H], gates by confidence, counts down between refreshes, and asks
    again at the floor: none of it is a predictor's affair. It never raises over what it is asked. What it cannot tell,
    it tells by NaN, and the tick goes on as BR-0.
    """

    def is_ready(self, now_ns: int) -> bool:  # noqa: ARG002
        """Has it anything to go by, and is that recent enough? Asked once a tick; while it has not, nothing else is."""
        return True

    def note(self, facts: Facts) -> object:  # noqa: ARG002
        """Asked once for each request, when its prompt has been read: what is to be known of this moment later on, such
        as how long answers have been lately."""
        return None

    @abstractmethod
    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        """For each request, which has generated so many tokens: the probability that it generates at most `horizon`
        more, and how many more those are on average, if it does. In [0, 1] and [1, horizon]; where the probability is
        0, the second number is not looked at. All requests that are due are asked about at once."""

    def ended(self, facts: Facts, output_tokens: int, now_ns: int) -> None:  # noqa: B027
        """A request has come to its own end, after so many tokens: who was cut off or has failed tells nothing."""
