"""Words (messages) of a peer about one forward. Their allowed order, and their meaning for a leg, are known to
`client.py` alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio

from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.vocabulary import LegResult, RefusalReason
from gateway.request.legs import LegFailure
from mesh.channels import status_in_words
from mesh.shortage import tells_our_shortage
from mesh.wire import WireError

_TOO_LARGE_AN_ANSWER = "CLIENT: Received message larger than max"
"""gRPC has one status for an answer that is too large, for a request that is too large, and for too many calls at once;
this text marks the first."""


class ForwardMessage(NamedTuple):
    kind: str | None
    """`accepted`, `refused`, `head` or `ended`; None for a message without content."""
    said: Any


class MessageReceiver(Protocol):
    """Receiver of one forward's words, in order. It never raises. After `leave`, nothing more is called."""

    def on_word(self, word: ForwardMessage) -> None:
        """Take a word other than `data`."""
        ...

    def on_data(self, data: bytes) -> None: ...

    def on_broken(self, failure: LegFailure) -> None:
        """Take in that the forward breaks off: nothing follows."""
        ...


def closed_without_message(*, after_unknown: bool) -> LegFailure:
    if after_unknown:
        result, refusal, detail = leg_end_of(None, "its last word was of a kind that we do not know")
        return LegFailure(result, detail, refusal)
    return LegFailure(LegResult.FAILED, "the peer closed the forward without a last word")


def malformed(error: WireError) -> LegFailure:
    return LegFailure(LegResult.FAILED, f"the peer's message is malformed: {error}")


def failure_in(error: grpc.aio.AioRpcError) -> LegFailure:
    """LegFailure for the status of a failed call. A message of ours that the peer finds malformed, or that either end
    finds too large, is no failure of the peer's: a client's request must not take the peer out of use."""
    code, words = error.code(), error.details() or ""
    detail = status_in_words(code, words)
    is_about_ours = code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE_AN_ANSWER not in words
    if is_about_ours or code is grpc.StatusCode.INVALID_ARGUMENT:
        return LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
    return LegFailure(LegResult.FAILED, detail)


def is_our_shortage(error: BaseException | None) -> bool:
    """True if the error is a shortage of this gateway's own. Ask only where there was no connection: over one, a peer
    may send the same words."""
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return tells_our_shortage(error.details() or "")
