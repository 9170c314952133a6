"""Scanner of an engine's stream while it is relayed: first token, errors, aborts, end, usage. It changes no byte.

An engine's own error event can be held back. JSON is decoded up to the first token and where a raw marker shows;
otherwise bytes are only searched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from gateway.request import answers
from gateway.request.answer_events import TokenUsage
from gateway.request.answers import AnswerFault
from gateway.request.engine_errors import decode
from gateway.request.sse import CARRIAGE_RETURN, EventFramer, events, fields

EVENT_BYTES_MAX_DEFAULT = 1 << 20
_BLOCKS_REMEMBERED = 4
"""Number of last blocks kept for the end of the stream: the last finish reason, the usage event, `[DONE]`."""


class EventScanner:
    """Scanner of one event stream. It takes pieces of any size; the bytes it returns may be relayed."""

    __slots__ = (
        "_ends_by_type",
        "_events_before_token",
        "_framer",
        "_has_choices",
        "_has_stop_reason",
        "_may_give_up",
        "_opening_usage",
        "_recent",
        "data_events",
        "done",
        "fault",
        "response_id",
        "saw_token",
    )

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX_DEFAULT, may_give_up: bool = False) -> None:
        """Set up the scanner. `may_give_up`: the stream comes from a decode worker, which has its own way to give an
        answer up."""
        self._may_give_up = may_give_up
        self.saw_token = False
        self.done = False
        """True once `[DONE]`, or the event that takes its place, has passed."""
        self.fault: AnswerFault | None = None
        """Fault that makes the rest of the stream useless; the returned bytes end right before the event at fault."""
        self.data_events = 0
        self._events_before_token = 0
        self.response_id: str | None = None
        """Id under which a responses API may keep this answer."""
        self._framer = EventFramer(event_bytes_max)
        self._has_choices = False
        self._ends_by_type = False
        self._has_stop_reason = False
        self._opening_usage = TokenUsage()
        """Usage in a message's opening event, which counts the prompt."""
        self._recent: deque[bytes] = deque(maxlen=_BLOCKS_REMEMBERED)

    def feed(self, data: bytes) -> bytes:
        """Scan a piece; return the bytes that complete whole events."""
        framer = self._framer
        is_within = framer.is_crossing
        if not framer.pending and data.endswith(b"\n\n"):  # most pieces are whole events and need no copy
            framer.is_crossing = False
            return self._examine(data, is_within=is_within)
        block = framer.take(data)
        if not block:
            return block
        if framer.is_crossing:
            return self._pass_unseen(block, is_within=is_within)
        return self._examine(block, is_within=is_within)

    def close(self) -> bytes:
        """Scan the end of a stream whose connection ended properly; return a last event that lacks its blank line."""
        rest = self._framer.rest()
        if self._framer.is_crossing or not rest.strip():
            return rest
        return self._examine(rest, is_last=True)

    @property
    def is_crossing(self) -> bool:
        """True if the bytes returned last are a part of an event too large to be held, whose end is still to come."""
        return self._framer.is_crossing

    @property
    def is_finished(self) -> bool:
        """True if the stream ended properly, rather than between two events."""
        if self.done or self._ends_by_type:
            return self.done
        return not self._has_choices or any(_ends_stream(each) for each in self._recent_payloads(b"data:"))

    @property
    def events_since_token(self) -> int:
        """Number of data events from the first token on, including the last ones. Free of cost at any time."""
        return self.data_events - self._events_before_token if self.saw_token else 0

    @property
    def content_events(self) -> int:
        """Number of data events with generated content: without those before the first token and the last ones with a
        finish reason only. Decodes JSON; call once, at the end, if there is no usage."""
        if not self.saw_token:
            return 0
        count = left = self.data_events - self._events_before_token
        for payload in self._recent_payloads(b"data:"):
            if left == 0:
                break
            if payload.startswith(b"[DONE]"):
                continue
            left -= 1
            count -= not (answers.is_plain_token(payload) or answers.has_content(decode(payload)))
        return count

    @property
    def usage(self) -> TokenUsage | None:
        """Last usage that passed. Decodes JSON; call once, at the end."""
        for payload in self._recent_payloads(b'"usage"'):
            usage = answers.usage_of(decode(payload))
            if usage is not None:
                return answers.with_opening(usage, self._opening_usage)
        return None

    @property
    def usage_so_far(self) -> TokenUsage:
        """Usage reported so far by a stream that is left before its end. An opening's output count is dropped, as it is
        only a start value."""
        usage, opening = self.usage, self._opening_usage
        if usage is not None and usage != opening:
            return usage
        return TokenUsage(opening.prompt_tokens, None, opening.cached_tokens)

    def _examine(self, block: bytes, *, is_within: bool = False, is_last: bool = False) -> bytes:
        """Scan whole events. `is_within`: the block begins with the rest of an event too large to be held."""
        if self.saw_token and not is_last and CARRIAGE_RETURN not in block:
            text = block.decode("latin-1")  # a search by `in` makes and drops an exception in bytes
            if not self._is_marked(text):
                self.data_events += text.count("\ndata:") + text.startswith("data:")
                self._recent.append(block)
                return block
        offset = 0
        for event in events(block):
            if not is_within:
                self._take(event, is_last=is_last)
            is_within = False
            if self.fault is not None:
                return block[:offset]
            offset += len(event)
        self._recent.append(block)
        return block

    def _pass_unseen(self, part: bytes, *, is_within: bool) -> bytes:
        """Release a part of an oversized event, which counts as a token."""
        self.data_events += not is_within
        if not self.saw_token:
            self._saw_first_token()
        return part

    def _is_marked(self, text: str) -> bool:
        """Return true if an event may be more than a token. Content may contain the markers too; then the JSON
        decides."""
        if "error" in text or '"abort"' in text or text.endswith("[DONE]\n\n"):
            return True
        if self._may_give_up and answers.RECOMPUTED in text:
            return True
        return self._ends_by_type and _is_typed_mark(text)

    def _take(self, event: bytes, *, is_last: bool) -> None:
        name, payload = fields(event)
        if payload is None:
            return
        if payload.startswith(b"[DONE]"):
            self.done = True
            return
        self.data_events += 1
        if self.saw_token and not is_last and name != b"error" and not self._is_marked(payload.decode("latin-1")):
            return
        if not name and not self._may_give_up and (is_token := answers.is_plain_token(payload)) is not None:
            self._has_choices = True
            if is_token and not self.saw_token:
                self._saw_first_token()
            return
        document = decode(payload)
        if name != b"error" and not isinstance(document, dict):
            self._pass_odd(is_broken=is_last and document is None)
            return
        self.fault = answers.fault_of(document, payload, is_error=name == b"error")
        if self._may_give_up and self.fault is None:
            self.fault = answers.given_up(document)
        if self.fault is None:
            self._note(document)
            if not self.saw_token and answers.is_token(document):
                self._saw_first_token()

    def _saw_first_token(self) -> None:
        self.saw_token = True
        self._events_before_token = self.data_events - 1

    def _pass_odd(self, *, is_broken: bool) -> None:
        """Handle an event of a shape that no API has: a fault before the first token, ignored after it unless it is cut
        off."""
        if is_broken:
            self.fault = AnswerFault("the stream broke off inside an event")
        elif not self.saw_token:
            self.fault = AnswerFault("an event is not a JSON object")

    def _note(self, document: dict[str, Any]) -> None:
        """Note facts of this event about the stream as a whole."""
        kind = answers.type_of(document)
        if "choices" in document:
            self._has_choices = True
        elif kind.startswith("response."):
            self._ends_by_type = True
            self.response_id = self.response_id or answers.response_id_of(document.get("response"))
        elif kind.startswith(("message_", "content_block_")):
            self._ends_by_type = True
            self._note_message_event(kind, document)
        self.done = self.done or (self.fault is None and kind in answers.ENDS)

    def _note_message_event(self, kind: str, document: dict[str, Any]) -> None:
        if kind == "message_start":
            self._opening_usage = answers.usage_of(document) or self._opening_usage
        elif kind == "message_delta":
            self._has_stop_reason = self._has_stop_reason or answers.stop_reason_of(document.get("delta")) is not None
        elif kind == "message_stop" and not self._has_stop_reason:
            self.fault = AnswerFault("the engine aborted the request")

    def _recent_payloads(self, marker: bytes) -> Iterator[bytes]:
        """Payloads of the last blocks that contain a marker, newest first."""
        for block in reversed(self._recent):
            for event in reversed(events(block)) if block.find(marker) >= 0 else ():
                payload = fields(event)[1]
                if payload is not None:
                    yield payload


def _is_typed_mark(text: str) -> bool:
    """Markers of an end that is an event of its own."""
    return (
        '"message_' in text
        or '"response.completed"' in text
        or '"response.incomplete"' in text
        or '"response.failed"' in text
    )


def _ends_stream(payload: bytes) -> bool:
    return payload.startswith(b"[DONE]") or answers.has_finished(decode(payload))
