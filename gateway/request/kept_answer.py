"""Interface of what is kept of an answer that may break, so that another leg can append to it: a feature defines it.

An answer is written in segments, each by one leg. The simulator has a kept answer of its own, since its answers have no
text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.core.kernel.effects import StartLeg
from gateway.request.answer_events import TokenUsage
from gateway.request.legs import LegHead, OutboundRequest

Hold = Callable[[int], bool]
"""Takes so many more bytes (fewer, if negative) of the budget in which the request's body is counted. False: the budget
is exhausted and nothing was taken."""


class NoRemainder(Exception):
    """Error for an answer that nothing can be appended to, with the reason. It quotes nothing of the answer."""


class SegmentAdapter(Protocol):
    """Adapter of a leg's events to the segments that the client already has."""

    def adapt(self, block: bytes) -> bytes:
        """Return the bytes for the client in place of whole events from the engine, often none."""
        ...

    def close(self) -> bytes:
        """Return what the client still lacks at the end of the engine's stream."""
        ...

    def usage_of_all(self, usage: TokenUsage | None) -> TokenUsage | None:
        """Convert the leg's usage to the request's: segments already sent count as output rather than prompt."""
        ...


class KeptAnswer(Protocol):
    """Segments of one request's answer so far, and the request for the remainder once the answer has broken."""

    @property
    def voice(self) -> Callable[[bytes], bool]:
        """Sends events to the client, and keeps them."""
        ...

    @property
    def keep(self) -> Callable[[bytes], None]:
        """Keeps events only, where the engine tells more than the client gets."""
        ...

    def break_off(self) -> OutboundRequest:
        """Return the request for the remainder of an answer that has just broken. Raises NoRemainder."""
        ...

    @property
    def is_dropped(self) -> bool:
        """True if there was no room to keep the answer or to ask for its remainder."""
        ...

    @property
    def said_tokens(self) -> int | None:
        """Output tokens that the client had when the answer broke last; None: not known."""
        ...

    @property
    def outbound(self) -> OutboundRequest:
        """Request for the remainder, for a leg that writes a further segment."""
        ...

    def adapter(self, order: StartLeg, head: LegHead) -> SegmentAdapter:
        """Adapter for a leg that writes a further segment."""
        ...


class KeepAnswer(Protocol):
    """Begins to keep an answer. `put` sends what passes through; `hold` reserves memory for it. Returns None for a call
    whose answers nothing can be appended to."""

    def __call__(
        self, outbound: OutboundRequest, hold: Hold, put: Callable[[bytes], bool], *, prefix_blocks_max: int
    ) -> KeptAnswer | None: ...
