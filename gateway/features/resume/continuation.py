"""Continuation of a broken answer by another target: the transcript of what the client has, the request for the rest,
and the rewriting of that rest. It opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.kernel.effects import StartLeg
from gateway.features.resume.resuming import ResumeRequest, rest_of
from gateway.features.resume.rewriting import Rewriter, rewriter_for
from gateway.features.resume.transcript import PATHS, Transcript
from gateway.request.kept_answer import Hold, NoRemainder
from gateway.request.legs import LegHead, OutboundRequest


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
        self._transcript = Transcript(outbound.path, hold, put, output_tokens_max=outbound.profile.output_tokens_max)
        self.voice = self._transcript.put
        """Sends events to the client, and keeps them."""
        self.keep = self._transcript.keep
        """Keeps events only, where the engine tells more than the client gets."""

    def break_off(self) -> OutboundRequest:
        """Return the request for the rest of an answer that has just broken. Raises NoRemainder where there is none."""
        rest = rest_of(self._outbound, self._transcript.said(), prefix_blocks_max=self._prefix_blocks_max)
        self._make_room_for(rest)
        self._rest = rest
        return rest.outbound

    def _make_room_for(self, rest: ResumeRequest) -> None:
        """Reserve room for the rest's own body beside the client's. Raises NoRemainder."""
        before = 0 if self._rest is None else len(self._rest.outbound.body)
        if not self._hold(len(rest.outbound.body) - before):
            self._has_no_room = True
            raise NoRemainder("there is no room for what is left to ask for")

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

    def adapter(self, order: StartLeg, head: LegHead) -> Rewriter:
        """Rewriter for a leg that resumes another leg's answer."""
        assert self._rest is not None, "the core has been told what is left"
        remark = b": nightside: went on elsewhere, resume %d, in %b\n\n"
        region = head.ran_at.place.region.encode()
        return rewriter_for(self._outbound.path, self._rest, remark=remark % (order.segment, region))


def keep_answer(
    outbound: OutboundRequest, hold: Hold, put: Callable[[bytes], bool], *, prefix_blocks_max: int
) -> Continuation | None:
    """Begin the transcript of an answer; None for a call whose answers cannot be continued."""
    return Continuation(outbound, hold, put, prefix_blocks_max=prefix_blocks_max) if outbound.path in PATHS else None
