"""Classifies an engine's error: the request is at fault, the engine is full, is shutting down, or is broken. Pure.

The status alone does not tell: engines answer 500 while they shut down, 503 to a field that they do not support, and
400 to a data-parallel rank that only this gateway asked for.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from gateway.request.engine_errors import error_type_of, in_openai_shape, message_of


class Meaning(StrEnum):
    REQUEST = "request"
    """The error is about the request, and is passed on to the client."""
    FULL = "full"
    """The engine takes no more requests at the moment; another replica may."""
    CLOSING = "closing"
    """The engine is shutting down and takes no request until it is started again."""
    BROKEN = "broken"
    """The engine failed, or rejected something that this gateway added to the client's request."""


class EngineError(Struct, frozen=True):
    meaning: Meaning
    status: int
    body: bytes
    """Body in the shape for the client."""


_CLOSING = "cannot schedule new futures after shutdown"
"""Message of vLLM between SIGTERM and its end, with status 500, while /health and /metrics answer as before."""
_REFUSES_PRIORITY = "Using priority is disabled"
"""Message of SGLang, with status 503; no other replica of it would take the field either."""
_RANK_WORDS = ("data_parallel_rank", "dp_rank", "DP rank", "data parallel rank")


def read_error(status: int, body: bytes, *, is_pinned: bool) -> EngineError:
    """Classify an error and put its body into the shape for the client. `is_pinned`: this gateway asked for a rank. A
    503 that is about the request becomes 400; other statuses stay as they are."""
    message = message_of(body)
    meaning = _meaning_of(status, message, error_type_of(body), is_pinned=is_pinned)
    if meaning is Meaning.REQUEST and status == 503:
        status = 400
    return EngineError(meaning, status, in_openai_shape(body, status))


def _meaning_of(status: int, message: str, error_type: str, *, is_pinned: bool) -> Meaning:
    if status == 500 and message.strip() == _CLOSING:
        return Meaning.CLOSING
    if status == 503 and message.startswith(_REFUSES_PRIORITY):
        return Meaning.REQUEST
    if status in (429, 503):
        return Meaning.FULL
    if status == 400 and is_pinned and any(words in message for words in _RANK_WORDS):
        return Meaning.BROKEN
    if status == 424 and error_type == "generation":  # generation failed, in TGI's terms
        return Meaning.BROKEN
    is_request = 400 <= status < 500 and status not in (401, 408)
    return Meaning.REQUEST if is_request else Meaning.BROKEN
