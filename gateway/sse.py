"""Reads along while an engine's answer is relayed: first token, errors, aborts, the end, usage. Changes no byte.

Only whole events are released, so that a stream which breaks never leaves half an event behind, and an engine's own
error event can be held back. JSON is decoded up to the first token and where a raw marker shows; otherwise bytes are
only searched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

EVENT_BYTES_MAX_DEFAULT = 1 << 20
_BLOCKS_REMEMBERED = 4
"""The end of a stream is looked at once more in these: the last finish reason, the usage event, `[DONE]`."""
_ABORTS = frozenset({"abort", "error"})
"""Finish reasons that nobody asked for: the engine stopped by itself."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What the engine counted; None where it did not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an answer must not reach the client as it is."""

    detail: str
    """Without any text of the engine's: that may quote the prompt."""
    code: int | None = None
    """The status that an error event names."""
    body: bytes = b""
    """The error event's JSON."""


class EventScanner:
    """Follows one event stream. Feed it pieces of any size; what it returns may be relayed."""

    __slots__ = (
        "_crossing",
        "_event_bytes_max",
        "_has_choices",
        "_pending",
        "_recent",
        "_searched",
        "data_events",
        "done",
        "fault",
        "saw_token",
    )

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX_DEFAULT) -> None:
        self.saw_token = False
        self.done = False
        """`[DONE]` has passed."""
        self.fault: Fault | None = None
        """Once set, the stream is of no more use; what was returned ends right before the event at fault."""
        self.data_events = 0
        self._event_bytes_max = event_bytes_max
        self._pending = bytearray()
        self._searched = 0
        self._crossing = False
        """Inside an event too large to look at, whose beginning is released already."""
        self._has_choices = False
        self._recent: deque[bytes] = deque(maxlen=_BLOCKS_REMEMBERED)

    def feed(self, data: bytes) -> bytes:
        """Take in what arrived; returns the bytes that complete whole events."""
        if self.saw_token and not self._pending and data.endswith(b"\n\n") and not _is_marked(data):
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
        return self.done or not self._has_choices or any(_ends_stream(each) for each in self._recent_payloads(b"data:"))

    @property
    def usage(self) -> TokenUsage | None:
        """The last usage that went by. Decodes; ask once, at the end."""
        for payload in self._recent_payloads(b'"usage"'):
            usage = usage_of(_decode(payload))
            if usage is not None:
                return usage
        return None

    def _examine(self, block: bytes, *, is_last: bool = False) -> bytes:
        if self.saw_token and not is_last and b"\r" not in block and not _is_marked(block):
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

    def _pass_over(self, block: bytes) -> None:
        self.data_events += block.count(b"\n\ndata:") + block.startswith(b"data:")
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
        if self.saw_token and not is_last and name != b"error" and not _is_marked(payload):
            return
        document = _decode(payload)
        if document is None and name != b"error":
            if is_last or not self.saw_token:
                self.fault = Fault("the stream broke off inside an event" if is_last else "an event is not JSON")
            return
        self.fault = _fault_of(document, payload, is_error=name == b"error")
        self._has_choices = self._has_choices or (isinstance(document, dict) and "choices" in document)
        self.saw_token = self.saw_token or (self.fault is None and is_token(document))

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


def inspect_answer(body: bytes) -> tuple[Fault | None, TokenUsage | None]:
    """Look at a whole JSON answer: is it one, did the engine stop by itself, and what did it count?"""
    document = _decode(body)
    if not isinstance(document, dict):
        return Fault("the answer is not a JSON object"), None
    return _fault_of(document, body, is_error=False), usage_of(document)


def is_token(document: Any) -> bool:
    """Is this event a sign that generation is under way?

    A role without content is not, since some engines send it before they have scheduled anything; nor is a usage event.
    Empty text without a role is: the token is half a character. Events of an unknown shape count.
    """
    if not isinstance(document, dict) or "choices" not in document:
        return True
    return any(_is_token_choice(choice) for choice in _choices(document))


def usage_of(document: Any) -> TokenUsage | None:
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    return TokenUsage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        _count(details, "cached_tokens") if isinstance(details, dict) else None,
    )


def _is_marked(data: bytes) -> bool:
    """Might an event in here be more than a token? Content may say these words too; then the JSON decides."""
    return b"error" in data or b'"abort"' in data or data.endswith(b"[DONE]\n\n")


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
    if error or is_error or document.get("object") == "error":
        code = _status(error if isinstance(error, dict) else document)
        return Fault(f"the engine reported an error{'' if code is None else f' ({code})'}", code, payload)
    if any(choice.get("finish_reason") in _ABORTS for choice in _choices(document)):
        return Fault("the engine aborted the request")
    return None


def _status(error: dict[str, Any]) -> int | None:
    code = error.get("code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code[:4])
    return code if isinstance(code, int) and 400 <= code <= 599 else None


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
