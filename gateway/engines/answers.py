"""What an engine means by an error: the request is at fault, the engine is full, is shutting down, or is broken. Pure.

A status alone does not say it: engines answer 500 while they shut down, 503 to a field they do not like, and 400 to a
rank that only we asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.request.engine_errors import error_type_of, in_openai_shape, message_of


class Meaning(StrEnum):
    REQUEST = "request"
    """It is about the request: for the caller to read."""
    FULL = "full"
    """It takes no more just now: another replica may."""
    CLOSING = "closing"
    """It is shutting down and will take no more until it is started again."""
    BROKEN = "broken"
    """It failed, or what we ask of it beyond the caller's request does not suit it."""


@dataclass(frozen=True, slots=True)
class EngineError:
    meaning: Meaning
    status: int
    body: bytes
    """In the shape for the caller."""


_CLOSING = "cannot schedule new futures after shutdown"
"""vLLM between SIGTERM and its end, with status 500, while /health and /metrics stay as they were."""
_REFUSES_PRIORITY = "Using priority is disabled"
"""SGLang, with status 503; no other replica of it would take the field either."""
_RANK_WORDS = ("data_parallel_rank", "dp_rank", "DP rank", "data parallel rank")


def read_error(status: int, body: bytes, *, is_pinned: bool) -> EngineError:
    """`is_pinned`: we asked for a rank. Statuses that mean the same with every engine are left as they are."""
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
    if status == 424 and error_type == "generation":  # TGI's way to say that generating failed
        return Meaning.BROKEN
    is_request = 400 <= status < 500 and status not in (401, 408)
    return Meaning.REQUEST if is_request else Meaning.BROKEN
