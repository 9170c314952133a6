"""Reads along while an engine's answer is relayed: first token, errors, aborts, the end, usage. Changes no byte.

It knows three kinds of stream by what their events say: chat and completions (`choices`, ended by `[DONE]`), responses
(`response.…` types) and messages (`message_…` and `content_block_…` types), both ended by an event of their own. Only
whole events are released, so that a stream which breaks never leaves half an event behind, and an engine's own error
event can be held back. JSON is decoded up to the first token and where a raw marker shows; otherwise bytes are only
searched.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.core.value import value

EVENT_BYTES_MAX_DEFAULT = 1 << 20
_BLOCKS_REMEMBERED = 4
"""The end of a stream is looked at once more in these: the last finish reason, the usage event, `[DONE]`."""
_ABORTS = frozenset({"abort", "error"})
"""Finish reasons that nobody asked for: the engine stopped by itself."""
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
"""Types of events that may come before anything is generated."""
_ENDS = frozenset({"response.completed", "response.incomplete", "message_stop"})
_STATUS_BY_WORD = {
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded": 503,
    "overloaded_error": 503,
    "Service Unavailable": 503,
    "ServiceUnavailableError": 503,
}
"""Errors of the messages API name a type in place of a status, those of the responses API a code in words, TGI's an
`error_type`; any other word is a fault of the engine's."""
_VLLM_FULL = re.compile(r"'code': (429|503)\}\}, input_type=dict\]")
"""vLLM's messages API (0.32) reads vLLM's own chat stream, trips over an error event there, and tells only of that, as
an `internal_error`: with the end of the event's repr."""
_RESPONSE_ID_LENGTH_MAX = 256
_FIRST_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\]{1,256})"')


@value
class TokenUsage:
    """What the engine counted; None where it did not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@value
class Fault:
    """Why an answer must not reach the client as it is."""

    detail: str
    """Without any text of the engine's: that may quote the prompt."""
    code: int | None = None
    """The status that an error event names."""
    body: bytes = b""
    """The error event's JSON."""


@value
class Answer:
    """What a whole answer says about itself."""

    fault: Fault | None
    usage: TokenUsage | None = None
    response_id: str | None = None
    """The id under which a responses API may keep it."""


class EventScanner:
    """Follows one event stream. Feed it pieces of any size; what it returns may be relayed."""

    __slots__ = (
        "_crossing",
        "_ends_by_type",
        "_event_bytes_max",
        "_has_choices",
        "_has_stop_reason",
        "_opening_usage",
        "_pending",
        "_recent",
        "_searched",
        "data_events",
        "done",
        "fault",
        "response_id",
        "saw_token",
    )

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX_DEFAULT) -> None:
        self.saw_token = False
        self.done = False
        """`[DONE]`, or the event that stands for it, has passed."""
        self.fault: Fault | None = None
        """Once set, the stream is of no more use; what was returned ends right before the event at fault."""
        self.data_events = 0
        self.response_id: str | None = None
        """The id under which a responses API may keep this answer."""
        self._event_bytes_max = event_bytes_max
        self._pending = bytearray()
        self._searched = 0
        self._crossing = False
        """Inside an event too large to look at, whose beginning is released already."""
        self._has_choices = False
        self._ends_by_type = False
        self._has_stop_reason = False
        self._opening_usage = TokenUsage()
        """A message counts its prompt at the beginning."""
        self._recent: deque[bytes] = deque(maxlen=_BLOCKS_REMEMBERED)

    def feed(self, data: bytes) -> bytes:
        """Take in what arrived; returns the bytes that complete whole events."""
        if not self._pending and data.endswith(b"\n\n"):  # as engines write: whole events, to be copied nowhere
            if not self.saw_token or self._is_marked(data):
                return self._examine(data)
            self._pass_over(data)
            return data
        self._pending += data
        end = _last_boundary(self._pending, self._searched)
        if end == 0:
            return self._release_oversized()
        block = bytes(self._pending[:end])
        del self._pending[:end]
        self._searched = 0
        return self._examine(block)

    def close(self) -> bytes:
        """The connection has ended properly; returns a last event that lacks its blank line."""
        rest = bytes(self._pending)
        self._pending.clear()
        if self._crossing or not rest.strip():
            return rest
        return self._examine(rest, is_last=True)

    @property
    def is_finished(self) -> bool:
        """Did the stream come to a proper end, rather than break off between two events?"""
        if self.done or self._ends_by_type:
            return self.done
        return not self._has_choices or any(_ends_stream(each) for each in self._recent_payloads(b"data:"))

    @property
    def usage(self) -> TokenUsage | None:
        """The last usage that went by. Decodes; ask once, at the end."""
        for payload in self._recent_payloads(b'"usage"'):
            usage = usage_of(_decode(payload))
            if usage is not None:
                return _with_opening(usage, self._opening_usage)
        return None

    def _examine(self, block: bytes, *, is_last: bool = False) -> bytes:
        if self.saw_token and not is_last and b"\r" not in block and not self._is_marked(block):
            self._pass_over(block)
            return block
        offset = 0
        for event in _events(block):
            if not self._crossing:
                self._take(event, is_last=is_last)
            self._crossing = False
            if self.fault is not None:
                return block[:offset]
            offset += len(event)
        self._recent.append(block)
        return block

    def _is_marked(self, data: bytes) -> bool:
        return _is_marked(data) or (self._ends_by_type and _is_typed_mark(data))

    def _pass_over(self, block: bytes) -> None:
        self.data_events += block.count(b"\ndata:") + block.startswith(b"data:")
        self._crossing = False
        self._recent.append(block)

    def _take(self, event: bytes, *, is_last: bool) -> None:
        name, payload = _fields(event)
        if payload is None:
            return
        if payload.startswith(b"[DONE]"):
            self.done = True
            return
        self.data_events += 1
        if self.saw_token and not is_last and name != b"error" and not self._is_marked(payload):
            return
        document = _decode(payload)
        if document is None and name != b"error":
            if is_last or not self.saw_token:
                self.fault = Fault("the stream broke off inside an event" if is_last else "an event is not JSON")
            return
        self.fault = _fault_of(document, payload, is_error=name == b"error")
        if self.fault is None and isinstance(document, dict):
            self._note(document)
        self.saw_token = self.saw_token or (self.fault is None and is_token(document))

    def _note(self, document: dict[str, Any]) -> None:
        """What this event tells about the stream as a whole."""
        kind = _type_of(document)
        if "choices" in document:
            self._has_choices = True
        elif kind.startswith("response."):
            self._ends_by_type = True
            self.response_id = self.response_id or _response_id_of(document.get("response"))
        elif kind.startswith(("message_", "content_block_")):
            self._ends_by_type = True
            self._note_message_event(kind, document)
        self.done = self.done or (self.fault is None and kind in _ENDS)

    def _note_message_event(self, kind: str, document: dict[str, Any]) -> None:
        if kind == "message_start":
            self._opening_usage = usage_of(document) or self._opening_usage
        elif kind == "message_delta":
            self._has_stop_reason = self._has_stop_reason or _stop_reason_of(document.get("delta")) is not None
        elif kind == "message_stop" and not self._has_stop_reason:
            self.fault = Fault("the engine aborted the request")

    def _release_oversized(self) -> bytes:
        """An event over the limit goes through unseen, as a token; its end is still found."""
        if not self._crossing and len(self._pending) <= self._event_bytes_max:
            self._searched = max(0, len(self._pending) - 2)
            return b""
        body = bytes(self._pending.rstrip(b"\r\n"))
        del self._pending[: len(body)]
        self._searched = 0
        if not self._crossing:
            self.data_events += 1
        self._crossing = self.saw_token = True
        return body

    def _recent_payloads(self, marker: bytes) -> Iterator[bytes]:
        """Those near a marker, from the newest back."""
        for block in reversed(self._recent):
            for event in reversed(list(_events(block))) if marker in block else ():
                payload = _fields(event)[1]
                if payload is not None:
                    yield payload


def inspect_answer(body: bytes) -> Answer:
    """Look at a whole JSON answer: is it one, did the engine stop by itself, what did it count, may it be kept?"""
    document = _decode(body)
    if not isinstance(document, dict):
        return Answer(Fault("the answer is not a JSON object"))
    response_id = _response_id_of(document) if document.get("object") == "response" else None
    return Answer(_fault_of(document, body, is_error=False), usage_of(document), response_id)


def first_id_of(beginning: bytes) -> str | None:
    """The id with which an answer begins that is too large to be looked at whole."""
    match = _FIRST_ID.match(beginning)
    return match[1].decode("utf-8", "replace") if match is not None else None


def is_token(document: Any) -> bool:
    """Is this event a sign that generation is under way?

    A role without content is not, since some engines send it before they have scheduled anything; nor is a usage event,
    nor what only announces an item. Empty text without a role is: the token is half a character. Calls of tools and
    reasoning are tokens like any, and so is every event of an unknown shape.
    """
    if not isinstance(document, dict) or "choices" not in document:
        return not isinstance(document, dict) or _type_of(document) not in _PREPARATIONS
    return any(_is_token_choice(choice) for choice in _choices(document))


def usage_of(document: Any) -> TokenUsage | None:
    """What was counted, in the words of whichever API; a stream's events may wrap it in the response or message."""
    if not isinstance(document, dict):
        return None
    for holder in (document, document.get("response"), document.get("message")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            return _newer_usage(usage) if "input_tokens" in usage or "output_tokens" in usage else _older_usage(usage)
    return None


def _older_usage(usage: dict[str, Any]) -> TokenUsage:
    details = usage.get("prompt_tokens_details")
    return TokenUsage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        _count(details, "cached_tokens") if isinstance(details, dict) else None,
    )


def _newer_usage(usage: dict[str, Any]) -> TokenUsage:
    """Responses count cached tokens among the prompt's; messages beside them."""
    prompt, output = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    details = usage.get("input_tokens_details")
    if isinstance(details, dict):
        return TokenUsage(prompt, output, _count(details, "cached_tokens"))
    cached = _count(usage, "cache_read_input_tokens")
    if prompt is not None:
        prompt += (cached or 0) + (_count(usage, "cache_creation_input_tokens") or 0)
    return TokenUsage(prompt, output, cached)


def _with_opening(usage: TokenUsage, opening: TokenUsage) -> TokenUsage:
    return TokenUsage(
        opening.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
        opening.output_tokens if usage.output_tokens is None else usage.output_tokens,
        opening.cached_tokens if usage.cached_tokens is None else usage.cached_tokens,
    )


def _is_marked(data: bytes) -> bool:
    """Might an event in here be more than a token? Content may say these words too; then the JSON decides."""
    return b"error" in data or b'"abort"' in data or data.endswith(b"[DONE]\n\n")


def _is_typed_mark(data: bytes) -> bool:
    """The same where the end is an event of its own."""
    return (
        b'"message_' in data
        or b'"response.completed"' in data
        or b'"response.incomplete"' in data
        or b'"response.failed"' in data
    )


def _last_boundary(data: bytearray, start: int) -> int:
    """Where the last whole event ends; 0 if none does."""
    plain = data.rfind(b"\n\n", start)
    carriage = data.rfind(b"\n\r\n", start)
    return max(0 if plain < 0 else plain + 2, 0 if carriage < 0 else carriage + 3)


def _events(block: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(block):
        end = _first_boundary(block, start)
        yield block[start:end]
        start = end


def _first_boundary(block: bytes, start: int) -> int:
    plain = block.find(b"\n\n", start)
    carriage = block.find(b"\n\r\n", start, len(block) if plain < 0 else plain)
    if carriage >= 0:
        return carriage + 3
    return len(block) if plain < 0 else plain + 2


def _fields(event: bytes) -> tuple[bytes, bytes | None]:
    """The event's name and its data; None for a comment."""
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return b"", event[5:].strip()  # nearly all are one line of data and an empty one
    name = b""
    data: list[bytes] = []
    for line in event.splitlines():
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif line.startswith(b"event:"):
            name = line[6:].strip()
    return name, b"\n".join(data) if data else None


def _decode(payload: bytes) -> Any:
    """None for anything that is not JSON, and for null."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None


def _fault_of(document: Any, payload: bytes, *, is_error: bool) -> Fault | None:
    if not isinstance(document, dict):
        return Fault("an error event", None, payload) if is_error else None
    error = document.get("error")
    kind = _type_of(document)
    if error or is_error or kind in ("error", "response.failed") or document.get("object") == "error":
        code = _status(_error_in(document))
        return Fault(f"the engine reported an error{'' if code is None else f' ({code})'}", code, payload)
    if _was_aborted(document, kind):
        return Fault("the engine aborted the request")
    return None


def _was_aborted(document: dict[str, Any], kind: str) -> bool:
    """Did the engine end it without saying that it failed? Nobody cancels through the engine's own API here."""
    response = document if document.get("object") == "response" else document.get("response")
    if isinstance(response, dict):
        return response.get("status") in ("cancelled", "failed")
    if kind == "message":
        return _stop_reason_of(document) is None
    return any(choice.get("finish_reason") in _ABORTS for choice in _choices(document))


def _error_in(document: dict[str, Any]) -> dict[str, Any]:
    """Where an error tells its kind: inside, inside the response that failed, or beside the message."""
    response = document.get("response")
    holders = (document, response) if isinstance(response, dict) else (document,)
    errors = [holder.get("error") for holder in holders]
    return next((error for error in errors if isinstance(error, dict)), document)


def _status(error: dict[str, Any]) -> int | None:
    code = error.get("code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code[:4])
    if isinstance(code, int):
        return code if 400 <= code <= 599 else None
    for word in (code, error.get("type"), error.get("error_type")):
        if isinstance(word, str) and word in _STATUS_BY_WORD:
            return _STATUS_BY_WORD[word]
    return _quoted_status(error)


def _quoted_status(error: dict[str, Any]) -> int | None:
    message = error.get("message")
    if error.get("type") != "internal_error" or not isinstance(message, str):
        return None
    quoted = _VLLM_FULL.search(message)
    return int(quoted[1]) if quoted is not None else None


def _type_of(document: dict[str, Any]) -> str:
    kind = document.get("type")
    return kind if isinstance(kind, str) else ""


def _stop_reason_of(part: Any) -> Any:
    return part.get("stop_reason") if isinstance(part, dict) else None


def _response_id_of(response: Any) -> str | None:
    response_id = response.get("id") if isinstance(response, dict) else None
    return response_id if isinstance(response_id, str) and 0 < len(response_id) <= _RESPONSE_ID_LENGTH_MAX else None


def _choices(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _is_token_choice(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if choice.get("finish_reason") is not None or not isinstance(delta, dict):
        return True
    return "role" not in delta or any(value for key, value in delta.items() if key != "role")


def _ends_stream(payload: bytes) -> bool:
    if payload.startswith(b"[DONE]"):
        return True
    document = _decode(payload)
    return isinstance(document, dict) and any(choice.get("finish_reason") for choice in _choices(document))


def _count(counts: dict[str, Any], key: str) -> int | None:
    value = counts.get(key)
    return value if isinstance(value, int) and value >= 0 else None
