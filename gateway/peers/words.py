"""Words (messages) of a peer about one forward, whichever way they travel. Their allowed order, and their meaning for a
leg, are known to `client.py` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class Word(NamedTuple):
    kind: str | None
    """`accepted`, `refused`, `head`, `data` or `ended`; None for a message without content."""
    said: Any


class Words(Protocol):
    """Words of one forward. The methods raise LegFailure where the forward breaks off."""

    async def next(self) -> Word:
        """Wait for the next word; words of an unknown kind are skipped."""
        ...

    async def pour(self, take: Callable[[bytes], bool]) -> Word | None:
        """Hand the body's bytes on until `take` answers False, which returns None, or until another word comes, which
        is returned."""
        ...

    async def until_closed(self) -> None:
        """Wait for the transport to close after the last word of a whole answer; its way of closing changes nothing."""
        ...

    def leave(self) -> None:
        """Stop reading: the peer is told, if it might send more. A second call does nothing."""
        ...


def closed_without_a_word(*, after_unknown: bool) -> LegFailure:
    if after_unknown:
        result, refusal, detail = leg_end_of(None, "its last word was of a kind that we do not know")
        return LegFailure(result, detail, refusal)
    return LegFailure(LegResult.FAILED, "the peer closed the forward without a last word")


@contextmanager
def faults_as_leg_failures() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise failure_in(error) from error
    except WireError as error:
        raise LegFailure(LegResult.FAILED, f"the peer's message is malformed: {error}") from error


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
