"""Engine answers of each API: tokens, end, usage, faults, ids. Pure.

A whole answer is one document; in a stream, each event's data is one. The content tells three kinds apart: chat and
completions (`choices`, ended by `[DONE]`), responses (`response.…` types) and messages (`message_…` and
`content_block_…` types), both ended by an event of their own.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.core.value import value
from gateway.request.answer_events import ABSENT, PLAIN, TokenUsage
from gateway.request.engine_errors import decode, status_in

_ABORTS = frozenset({"abort", "error"})
"""Finish reasons of answers that the engine stopped by itself."""
RECOMPUTED = '"recomputed"'
"""Stop reason of vllm-ascend for an answer that a decode worker gave up to make room; the finish reason says `stop`,
although it is no end. A client's stop text may be the same, so only answers of decode workers are checked for it."""
_NO_ROOM = 503
_PREPARATIONS = frozenset(
    {
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_part.added",
        "response.reasoning_summary_part.added",
        "message_start",
        "content_block_start",
        "ping",
    }
)
"""Types of events that may precede all generated output."""
ENDS = frozenset({"response.completed", "response.incomplete", "message_stop"})
"""Types of the events that take the place of `[DONE]`."""
TOKENS_MAX = 1 << 24
"""Upper bound of a plausible token count, beyond any context; larger ones are ignored."""
_RESPONSE_ID_LENGTH_MAX = 256
USAGE_WITHIN_BYTES = 16 * 1024
"""Bytes at the end of an answer that are searched for its usage."""
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
_FIRST_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\]{1,256})"')


@value
class AnswerFault:
    """Reason why an answer must not reach the client as it is."""

    detail: str
    """Reason in this gateway's words; the engine's text may quote the prompt."""
    code: int | None = None
    """Status that an error event names."""
    body: bytes = b""
    """JSON of the error event."""


class AnswerFacts:
    """Facts that a whole answer states about itself."""

    __slots__ = ("fault", "response_id", "usage")

    def __init__(
        self, fault: AnswerFault | None, usage: TokenUsage | None = None, response_id: str | None = None
    ) -> None:
        self.fault = fault
        self.usage = usage
        self.response_id = response_id
        """Id under which a responses API may keep the answer."""


def inspect_answer(body: bytes, *, may_give_up: bool = False) -> AnswerFacts:
    """Inspect a whole JSON answer: validity, abort, usage, and the id of a stored response. `may_give_up`: it comes
    from a decode worker."""
    document = decode(body)
    if not isinstance(document, dict):
        return AnswerFacts(AnswerFault("the answer is not a JSON object"))
    response_id = response_id_of(document) if document.get("object") == "response" else None
    fault = fault_of(document, body, is_error=False) or (given_up(document) if may_give_up else None)
    return AnswerFacts(fault, usage_of(document), response_id)


def first_id_of(beginning: bytes) -> str | None:
    """Id at the beginning of an answer that is too large to be decoded."""
    match = _FIRST_ID.match(beginning)
    return match[1].decode("utf-8", "replace") if match is not None else None


def is_token(document: dict[str, Any]) -> bool:
    """Return true if this event, a JSON object, shows that generation has begun.

    A role without content does not, since some engines send it before they have scheduled the request; nor does a usage
    event, nor the announcement of an item. Empty text without a role does: its token is part of a character. Tool calls
    and reasoning count as tokens, and so does every event of an unknown shape.
    """
    if "choices" not in document:
        return type_of(document) not in _PREPARATIONS
    return any(map(_is_token_choice, _choices(document)))


def is_plain_token(payload: bytes) -> bool | None:
    """Return whether an event of the usual form, of one choice that goes on, shows that generation has begun, as
    `is_token` does. None: the event has another form, and has to be looked at in full."""
    try:
        event = PLAIN.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(event.choices) != 1 or event.error is not ABSENT or event.type is not ABSENT:
        return None
    choice = event.choices[0]
    if choice.finish_reason is not None:
        return None
    delta = choice.delta
    if delta is None or "role" not in delta:
        return True
    del delta["role"]
    return any(delta.values())


def has_content(document: Any) -> bool:
    """Return true if this event, after the first token, has generated content, rather than only a finish reason, usage,
    or the end of an item."""
    if not isinstance(document, dict):
        return True
    if "choices" in document:
        return any(map(_has_content, _choices(document)))
    kind = type_of(document)
    return not kind or (kind.endswith(("_delta", ".delta")) and kind != "message_delta")


def usage_of(document: Any) -> TokenUsage | None:
    """Token usage in the terms of any API; a stream's events may wrap it in the response or message."""
    if not isinstance(document, dict):
        return None
    for holder in (document, document.get("response"), document.get("message")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            return _newer_usage(usage) if "input_tokens" in usage or "output_tokens" in usage else _older_usage(usage)
    return None


def usage_at_end(tail: bytes) -> TokenUsage | None:
    """Usage in the last bytes of an answer too large to hold, where engines write it after all content. Inside text
    every quote has a backslash, so no text matches."""
    found = _USAGE.match(tail, max(tail.rfind(b'"usage"'), 0))
    return None if found is None else usage_of({"usage": decode(found[1])})


def fault_of(document: Any, payload: bytes, *, is_error: bool) -> AnswerFault | None:
    if not isinstance(document, dict):
        return AnswerFault("an error event", None, payload) if is_error else None
    error = document.get("error")
    kind = type_of(document)
    if error or is_error or kind in ("error", "response.failed") or document.get("object") == "error":
        code = status_in(document)
        return AnswerFault(f"the engine reported an error{'' if code is None else f' ({code})'}", code, payload)
    if not _has_sound_choices(document):
        return AnswerFault("its choices are none")
    if _was_aborted(document, kind):
        return AnswerFault("the engine aborted the request")
    return None


def given_up(document: Any) -> AnswerFault | None:
    """Fault if a decode worker gave the answer up to make room; an error like any other unless it is resumed."""
    if isinstance(document, dict) and any(each.get("stop_reason") == "recomputed" for each in _choices(document)):
        return AnswerFault("the engine gave the request up to make room", _NO_ROOM)
    return None


def _has_sound_choices(document: dict[str, Any]) -> bool:
    """Return true if there are no choices, or those have the expected types."""
    choices = document.get("choices")
    if choices is None:
        return True
    return isinstance(choices, list) and all(map(_is_sound, choices))


def _is_sound(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    reason = choice.get("finish_reason")
    return reason is None or isinstance(reason, str)


def _was_aborted(document: dict[str, Any], kind: str) -> bool:
    """Return true if the engine ended the answer without reporting an error. Clients cannot cancel through the engine's
    API here."""
    response = document if document.get("object") == "response" else document.get("response")
    if isinstance(response, dict):
        return response.get("status") in ("cancelled", "failed")
    if kind == "message":
        return stop_reason_of(document) is None
    return any(map(_is_aborted, _choices(document)))


def _is_aborted(choice: dict[str, Any]) -> bool:
    return choice.get("finish_reason") in _ABORTS


def type_of(document: dict[str, Any]) -> str:
    kind = document.get("type")
    return kind if isinstance(kind, str) else ""


def with_opening(usage: TokenUsage, opening: TokenUsage) -> TokenUsage:
    return TokenUsage(
        opening.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
        opening.output_tokens if usage.output_tokens is None else usage.output_tokens,
        opening.cached_tokens if usage.cached_tokens is None else usage.cached_tokens,
    )


def believed(tokens: object) -> int | None:
    """Return a reported token count, or None if it is implausible."""
    return tokens if type(tokens) is int and 0 <= tokens <= TOKENS_MAX else None


def _count(counts: dict[str, Any], key: str) -> int | None:
    tokens = counts.get(key)
    return tokens if type(tokens) is int and 0 <= tokens <= TOKENS_MAX else None


def _choices(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document.get("choices")
    if not isinstance(choices, list):
        return []
    if len(choices) == 1 and isinstance(choices[0], dict):
        return choices  # nearly all events have one choice
    return [choice for choice in choices if isinstance(choice, dict)]


def _is_token_choice(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if choice.get("finish_reason") is not None or not isinstance(delta, dict):
        return True
    return "role" not in delta or any(value for key, value in delta.items() if key != "role")


def _has_content(choice: dict[str, Any]) -> bool:
    if choice.get("finish_reason") is None:
        return _is_token_choice(choice)
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key != "role")
    return bool(choice.get("text"))


def has_finished(document: Any) -> bool:
    """Return true if a choice has a finish reason."""
    return isinstance(document, dict) and any(choice.get("finish_reason") for choice in _choices(document))


def _older_usage(usage: dict[str, Any]) -> TokenUsage:
    details = usage.get("prompt_tokens_details")
    return TokenUsage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        _count(details, "cached_tokens") if isinstance(details, dict) else None,
    )


def response_id_of(response: Any) -> str | None:
    response_id = response.get("id") if isinstance(response, dict) else None
    return response_id if isinstance(response_id, str) and 0 < len(response_id) <= _RESPONSE_ID_LENGTH_MAX else None


def stop_reason_of(part: Any) -> Any:
    return part.get("stop_reason") if isinstance(part, dict) else None


def _newer_usage(usage: dict[str, Any]) -> TokenUsage:
    """Usage in the terms of responses and messages. Responses count cached tokens among the prompt's, messages beside
    them."""
    prompt, output = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    details = usage.get("input_tokens_details")
    if isinstance(details, dict):
        return TokenUsage(prompt, output, _count(details, "cached_tokens"))
    cached = _count(usage, "cache_read_input_tokens")
    if prompt is not None:
        prompt += (cached or 0) + (_count(usage, "cache_creation_input_tokens") or 0)
    return TokenUsage(prompt, output, cached)
