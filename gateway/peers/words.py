"""What a peer says of one forward, word by word, whichever way it comes. In which order words may come, and what they
mean for a leg, is not known here: `client.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio

from gateway.core.forwarding import leg_end_of
from gateway.core.vocabulary import LegResult, RefusalReason
from gateway.ground.channels import status_in_words
from gateway.ground.shortage import tells_our_shortage
from gateway.ground.wire import WireError
from gateway.request.legs import LegFailure

_TOO_LARGE_AN_ANSWER = "CLIENT: Received message larger than max"
"""gRPC has one status for this, for a request that is too large, and for too many calls at once."""


class Word(NamedTuple):
    kind: str | None
    """`accepted`, `refused`, `head`, `data` or `ended`; None: it says nothing."""
    said: Any


class Words(Protocol):
    """Of one forward. Raises LegFailure where it breaks off."""

    async def next(self) -> Word:
        """Passes over what is of a kind that we do not know."""
        ...

    async def pour(self, take: Callable[[bytes], bool]) -> Word | None:
        """Hand on what comes of the body until `take` answers False, which gives None, or another word comes."""
        ...

    async def until_closed(self) -> None:
        """The last word has come, and the answer is whole: however its way closes changes nothing."""
        ...

    def leave(self) -> None:
        """Nobody wants more of it: the peer is told, if it might say more. Twice is once."""
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
    """What a call's status says about the peer. That it finds our message malformed, or that either end finds it too
    large, is no failure of the peer's: what a client may send must not close the way to it."""
    code, words = error.code(), error.details() or ""
    detail = status_in_words(code, words)
    is_about_ours = code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE_AN_ANSWER not in words
    if is_about_ours or code is grpc.StatusCode.INVALID_ARGUMENT:
        return LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
    return LegFailure(LegResult.FAILED, detail)


def is_our_shortage(error: BaseException | None) -> bool:
    """Only where there was no connection: over one, a peer may say these words too."""
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return tells_our_shortage(error.details() or "")
