"""Continuation of a broken answer by another target: the transcript of what the client has, the request for the rest,
and the rewriting of that rest. It opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.core.kernel.effects import StartLeg
from gateway.request.answer_events import TokenUsage
from gateway.request.legs import LegHead, OutboundRequest
from gateway.request.resuming import ResumeRequest, rest_of
from gateway.request.rewriting import Rewriter, rewriter_for
from gateway.request.transcript import Hold, Transcript, Unsound


class Rewrites(Protocol):
    """Rewriter of a leg that resumes another leg's answer (see `Rewriter`)."""

    def rewrite(self, block: bytes) -> bytes: ...

    def close(self) -> bytes: ...

    def usage_of_all(self, usage: TokenUsage | None) -> TokenUsage | None: ...


class Continues(Protocol):
    """Transcript of one request's answer, and its rest once it has broken. The simulator has its own, since its answers
    have no text."""

    @property
    def voice(self) -> Callable[[bytes], bool]: ...

    @property
    def keep(self) -> Callable[[bytes], None]: ...

    def break_off(self) -> OutboundRequest: ...

    @property
    def is_dropped(self) -> bool: ...

    @property
    def said_tokens(self) -> int | None: ...

    @property
    def outbound(self) -> OutboundRequest: ...

    def rewriter(self, order: StartLeg, head: LegHead) -> Rewrites: ...


class BeginContinuation(Protocol):
    def __call__(
        self, outbound: OutboundRequest, hold: Hold, put: Callable[[bytes], bool], *, prefix_blocks_max: int
    ) -> Continues: ...


class Continuation:
    """Transcript of one request's answer, and its rest once it has broken."""

    __slots__ = ("_has_no_room", "_hold", "_outbound", "_prefix_blocks_max", "_rest", "_transcript", "keep", "voice")

    def __init__(
        self, outbound: OutboundRequest, hold: Hold, put: Callable[[bytes], bool], *, prefix_blocks_max: int
    ) -> None:
        """Begin a transcript. `put` sends what passes through it; `hold` reserves memory for it."""
        self._outbound = outbound
        self._hold = hold
        self._prefix_blocks_max = prefix_blocks_max
        self._rest: ResumeRequest | None = None
        """Request for the missing rest, since the answer broke."""
        self._has_no_room = False
        """True if there was no room for the rest's body."""
        self._transcript = Transcript(outbound.path, hold, put)
        self.voice = self._transcript.put
        """Sends events to the client, and keeps them."""
        self.keep = self._transcript.keep
        """Keeps events only, where the engine tells more than the client gets."""

    def break_off(self) -> OutboundRequest:
        """Return the request for the rest of an answer that has just broken. Raises Unsound where there is none."""
        rest = rest_of(self._outbound, self._transcript.said(), prefix_blocks_max=self._prefix_blocks_max)
        self._make_room_for(rest)
        self._rest = rest
        return rest.outbound

    def _make_room_for(self, rest: ResumeRequest) -> None:
        """Reserve room for the rest's own body beside the client's. Raises Unsound."""
        before = 0 if self._rest is None else len(self._rest.outbound.body)
        if not self._hold(len(rest.outbound.body) - before):
            self._has_no_room = True
            raise Unsound("there is no room for what is left to ask for")

    @property
    def is_dropped(self) -> bool:
        """True if there was no room to keep the answer or to ask for its rest."""
        return self._has_no_room or self._transcript.is_dropped

    @property
    def said_tokens(self) -> int:
        """Output tokens that the client had when the answer broke last."""
        return 0 if self._rest is None else self._rest.said.tokens

    @property
    def outbound(self) -> OutboundRequest:
        """Request for the rest, for a leg that resumes."""
        assert self._rest is not None, "the core has been told what is left"
        return self._rest.outbound

    def rewriter(self, order: StartLeg, head: LegHead) -> Rewriter:
        """Rewriter for a leg that resumes another leg's answer."""
        assert self._rest is not None, "the core has been told what is left"
        remark = b": nightside: went on elsewhere, resume %d, in %b\n\n"
        region = head.ran_at.place.region.encode()
        return rewriter_for(self._outbound.path, self._rest, remark=remark % (order.resume, region))
