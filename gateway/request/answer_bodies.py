"""Bodies of engines' answers, as they arrive: event streams, answers in one piece, and errors. Pure.

A stream is held until its first token, an answer in one piece until it is complete, so that one that breaks off before
can be tried elsewhere without the client's knowing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from gateway.core.kernel.events import LegEnded
from gateway.core.vocabulary import Extra, LegResult, LegRole, TargetKind
from gateway.request.answer_events import TokenUsage
from gateway.request.answers import (
    USAGE_WITHIN_BYTES,
    AnswerFault,
    first_id_of,
    inspect_answer,
    usage_at_end,
    with_opening,
)
from gateway.request.engine_errors import in_openai_shape
from gateway.request.event_scanner import EventScanner
from gateway.request.extras import Withheld
from gateway.request.kept_answer import SegmentAdapter
from gateway.request.leg_answer import AnswerBody, LegAnswer, leg_ended
from gateway.request.legs import LegFailure, LegHead
from gateway.request.too_long import too_long_in

EVENT_STREAM = "text/event-stream"
JSON_HEADERS = (("content-type", "application/json"),)
_OPAQUE_BYTES = "application/octet-stream"
_BODILESS = frozenset({204, 205})
"""Statuses after which no client expects a body: bytes sent would be read as the beginning of another answer."""


def body_of(leg: LegAnswer, head: LegHead) -> AnswerBody:
    """Choose how the body of a leg's answer is understood. Raises LegFailure for an answer that is of no use."""
    if not 200 <= head.status < 300:
        return ErrorBody(leg, head)
    check_has_body(head)
    kind = media_type(head)
    return EventBody(leg, head) if kind.startswith(EVENT_STREAM) else WholeBody(leg, head, kind)


def check_has_body(head: LegHead) -> None:
    if head.status in _BODILESS:
        raise LegFailure(LegResult.FAILED, f"status {head.status}, which answers nothing")


class ErrorBody(AnswerBody):
    """Body of an error that is about the client's request."""

    __slots__ = ("_head", "_leg", "_pieces", "_size")

    def __init__(self, leg: LegAnswer, head: LegHead) -> None:
        """Raises LegFailure if the error is the engine's own."""
        check_engine(head.status, f"status {head.status}")
        self._leg = leg
        self._head = head
        self._pieces: list[bytes] = []
        self._size = 0

    def data(self, data: bytes) -> LegEnded | None:
        leg, head = self._leg, self._head
        if leg.order.segment:
            return _other_engines_may_accept(leg, head.status)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > leg.answer.settings.held_bytes_max:
            raise LegFailure(LegResult.FAILED, f"status {head.status} with an endless body")
        return None

    def end(self, counted: TokenUsage | None) -> LegEnded:  # noqa: ARG002
        if self._leg.order.segment:
            return _other_engines_may_accept(self._leg, self._head.status)
        return answer_client_error(self._leg, self._head, b"".join(self._pieces))


def _other_engines_may_accept(leg: LegAnswer, status: int) -> LegEnded:
    """Result of a leg that refuses the rest of an answer: another engine may accept it."""
    return leg_ended(leg.order, LegResult.CLIENT_ERROR, f"status {status}")


def answer_client_error(leg: LegAnswer, head: LegHead, body: bytes) -> LegEnded:
    """Send a client error. One about the request's length is withheld if a longer pool may still serve the request."""
    answer, order = leg.answer, leg.order
    answer.expect_nothing_sent(f"status {head.status}")
    too_long = too_long_in(head.status, body)
    if too_long is not None and order.may_be_longer:
        return replace(leg_ended(order, LegResult.TOO_LONG, f"status {head.status}: too long"), too_long=too_long)
    body = answer.named_as_asked(body)
    answer.begin(order, with_length(head, body))
    answer.sink.write(body)
    return replace(leg_ended(order, LegResult.CLIENT_ERROR, f"status {head.status}"), too_long=too_long)


def answer_fault(leg: LegAnswer, head: LegHead, fault: AnswerFault) -> LegEnded:
    """Fail so that the core may retry elsewhere, or send the client its own error. Nothing has been sent yet.

    An event stream that begins with a 4xx error is answered with that status, which clients handle better.
    """
    status = fault.code or 500
    check_engine(status, fault.detail)
    if leg.order.segment:
        return _other_engines_may_accept(leg, status)
    leg.answer.summary.is_event_stream = False
    body = in_openai_shape(fault.body, status)
    return answer_client_error(leg, replace(head, status=status, headers=JSON_HEADERS), body)


class WholeBody(AnswerBody):
    """Body of an answer in one piece. One too large to hold is relayed from there on."""

    __slots__ = ("_head", "_kind", "_leg", "_pieces", "_sent", "_size", "_tail", "_usage")

    def __init__(self, leg: LegAnswer, head: LegHead, kind: str) -> None:
        leg.answer.expect_nothing_sent("an answer in one piece")
        self._leg = leg
        self._head = head
        self._kind = kind
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent = 0
        """Bytes that were sent before the answer was complete."""
        self._tail = b""
        self._usage: TokenUsage | None = None

    def data(self, data: bytes) -> LegEnded | None:
        if self._sent:
            self._relay(data)
            return None
        self._pieces.append(data)
        self._size += len(data)
        if self._size > self._leg.answer.settings.held_bytes_max:
            self._begin_unfinished(b"".join(self._pieces))
            self._pieces.clear()
        return None

    def end(self, counted: TokenUsage | None) -> LegEnded:  # noqa: ARG002
        leg = self._leg
        if self._sent:
            self._usage = usage_at_end(self._tail)
            if self._usage is not None:
                leg.answer.summary.answer_bytes -= self._sent
            return leg.completed(self._usage)
        body = b"".join(self._pieces)
        if not body:
            raise LegFailure(LegResult.FAILED, "an empty answer")
        fault = self._inspect(body)
        if fault is not None:
            return answer_fault(leg, self._head, fault)
        answer = leg.answer
        named = answer.named_as_asked(body)
        answer.note_first_token()
        answer.expect_nothing_sent("an answer in one piece")
        answer.begin(leg.order, with_length(self._head, named))
        answer.sink.write(named)
        return leg.completed(self._usage)

    def _begin_unfinished(self, body: bytes) -> None:
        answer, order = self._leg.answer, self._leg.order
        named = answer.named_as_asked(body)
        head = self._head if named is body else without_length(self._head)
        answer.stored(order, first_id_of(body))
        answer.expect_nothing_sent("an answer in one piece")
        answer.first_token(order)
        answer.begin(order, head)
        self._sent = len(body)
        answer.summary.answer_bytes += len(body)
        self._tail = body[-USAGE_WITHIN_BYTES:]
        if not answer.sink.write(named):
            self._leg.pause()

    def _relay(self, data: bytes) -> None:
        """Relay the rest of an answer too large to hold; its end has the usage."""
        self._tail = (self._tail + data)[-USAGE_WITHIN_BYTES:]
        if not self._leg.answer.sink.write(data):
            self._leg.pause()

    def _inspect(self, body: bytes) -> AnswerFault | None:
        """Inspect a whole answer. Binary answers are not inspected, and a status inside a stored response is not a
        fault of this call."""
        if self._kind.startswith(_OPAQUE_BYTES):
            return None
        answer, order = self._leg.answer, self._leg.order
        found = inspect_answer(body, may_give_up=order.role is LegRole.DECODE)
        self._usage = found.usage
        if found.usage is None:
            answer.summary.answer_bytes += len(body)
        if answer.outbound.profile.is_control:
            return None
        if found.fault is None:
            answer.stored(order, found.response_id)
        return found.fault


class EventBody(AnswerBody):
    """Body of an event stream."""

    __slots__ = (
        "_adapter",
        "_feed",
        "_has_ended",
        "_head",
        "_held",
        "_held_bytes",
        "_is_begun",
        "_is_told",
        "_keep",
        "_leg",
        "_put",
        "_scanner",
        "_unkept",
        "_usage",
        "_withheld",
    )

    def __init__(self, leg: LegAnswer, head: LegHead) -> None:
        answer, order = leg.answer, leg.order
        answer.summary.is_event_stream = True
        is_decode = order.role is LegRole.DECODE
        scanner = EventScanner(event_bytes_max=answer.settings.event_bytes_max, may_give_up=is_decode)
        self._leg = leg
        self._head = head
        self._scanner = scanner
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_begun = False
        """True once the client is being sent this leg's events."""
        self._has_ended = False
        """True once the last event has passed."""
        self._is_told = False
        """True once the usage is known, as far as it will be reported."""
        self._usage: TokenUsage | None = None
        self._put = answer.put
        self._adapter: SegmentAdapter | None = None
        """Set if the leg appends to another leg's answer."""
        self._keep: Callable[[bytes], None] | None = None
        """Receives all that the engine sends, where it sends more than the client gets."""
        extras = head.extras
        self._withheld = Withheld(extras) if extras else None
        """Filter for members that the client did not ask for."""
        self._unkept: list[bytes] | None = [] if Extra.TOKEN_IDS in extras else None
        """Events received before the client was sent any."""
        self._feed: Callable[[bytes], bytes] = scanner.feed if self._withheld is None else self._feed_filtered
        if is_decode:
            answer.port.progress.begins(
                order.request_id, order.attempt, order.pool, order.target, lambda: scanner.events_since_token
            )

    def data(self, data: bytes) -> LegEnded | None:
        if not self._is_begun:
            return self._hold(data)
        released = self._feed(data)
        has_room = self._put(released) if released else True
        scanner = self._scanner
        if not has_room:
            self._leg.pause()
        elif scanner.done:
            self._finish_soon()
        if scanner.fault is not None:
            self._break_off(scanner.fault)
        return None

    def has_room(self) -> None:
        if self._scanner.done:
            self._finish_soon()

    def end(self, counted: TokenUsage | None) -> LegEnded:
        if not self._is_begun:
            self._held.append(self._close())
            if self._scanner.fault is None and not self._scanner.saw_token:
                raise LegFailure(LegResult.FAILED, "the stream ended without a token")
            ended = self._begin()
            if ended is not None:
                return ended
        rest = self._close()
        scanner = self._scanner
        if scanner.fault is not None:
            self._put_before_fault(rest)
            self._raise(scanner.fault)
        if not scanner.is_finished:
            raise LegFailure(LegResult.FAILED, "the stream broke off")
        if self._adapter is not None:
            rest = self._adapter.adapt(rest) + self._adapter.close()
        if rest:
            self._leg.answer.put(rest)
        if not self._is_told:
            self._usage = self._usage_of_all(scanner.usage)
            if counted is not None:
                self._usage = with_opening(self._usage or TokenUsage(), counted)
        return self._completed()

    def settle(self) -> None:
        """Count what has passed. Tokens are counted by events where the engine reported no usage; only the last events
        are decoded."""
        leg, scanner = self._leg, self._scanner
        answer, order = leg.answer, leg.order
        if order.role is LegRole.DECODE:
            settle_progress(leg, scanner.events_since_token, self._usage)
        if not leg.has_sent:
            return
        summary = answer.summary
        summary.output_events += scanner.data_events
        if leg.result is None:
            self._usage = self._usage_of_all(scanner.usage_so_far) or TokenUsage()
            answer.note_usage(self._usage)
        if self._usage is None or self._usage.output_tokens is None:
            summary.content_events += scanner.content_events

    # First token

    def _hold(self, data: bytes) -> LegEnded | None:
        """Hold everything up to the piece with the first token, or with a fault."""
        released = self._filtered(self._scanner.feed(data))
        self._held.append(released)
        self._held_bytes += len(released)
        scanner = self._scanner
        is_enough = scanner.fault is not None or scanner.saw_token
        if not is_enough and self._held_bytes <= self._leg.answer.settings.held_bytes_max:
            return None
        return self._begin()

    def _begin(self) -> LegEnded | None:
        """Send what was held. Returns the leg's result if the client gets an error in place of a stream."""
        leg, scanner = self._leg, self._scanner
        answer, order = leg.answer, leg.order
        if scanner.fault is not None:
            return answer_fault(leg, self._head, scanner.fault)
        answer.stored(order, scanner.response_id)
        answer.begin(order, without_length(self._head))
        leg.has_sent = self._is_begun = True
        held = b"".join(self._held)
        self._held.clear()
        self._find_voice()
        if order.segment:
            assert answer.kept is not None, "an answer that is appended to was kept"
            answer.summary.segments = order.segment
            self._adapter = adapter = answer.kept.adapter(order, self._head)
            held = adapter.adapt(held)
            self._feed = partial(_adapted, self._feed, adapter)
        has_room = self._put(held) if held else True
        answer.first_token(order)  # the client gets its token before the core counts it
        if not has_room:
            leg.pause()
        elif scanner.done:
            self._finish_soon()
        if not self._has_ended:
            leg.watch()
        return None

    def _find_voice(self) -> None:
        """Send events by the kept answer, if another leg may have to append to it."""
        unkept, self._unkept = self._unkept, None
        kept = self._leg.answer.kept_for(self._leg.order)
        if kept is None:
            return
        if unkept is None:
            self._put = kept.voice
            return
        self._keep = kept.keep
        for block in unkept:
            kept.keep(block)

    # Events

    def _feed_filtered(self, data: bytes) -> bytes:
        """Scan data and return the client's share of it."""
        return self._filtered(self._scanner.feed(data))

    def _filtered(self, released: bytes) -> bytes:
        if self._unkept is not None:
            self._unkept.append(released)
        elif self._keep is not None:
            self._keep(released)
        if self._withheld is None:
            return released
        return self._withheld.feed(released, is_crossing=self._scanner.is_crossing)

    def _close(self) -> bytes:
        """Return the client's share of what is left at the end."""
        rest = self._scanner.close() if self._scanner.fault is None else b""
        if self._withheld is None:
            return rest
        return self._withheld.feed(rest, is_crossing=self._scanner.is_crossing) + self._withheld.close()

    def _finish_soon(self) -> None:
        """Give the engine a short time to end its response once all of the answer has passed; only the reuse of the
        connection depends on it."""
        if self._has_ended:
            return
        self._has_ended = True
        leg = self._leg
        self._usage = self._usage_of_all(self._scanner.usage)
        if self._may_be_counted_yet():
            leg.result = leg_ended(leg.order, LegResult.COMPLETED, "")
        else:
            leg.tell(self._completed())
        leg.hurry()

    def _may_be_counted_yet(self) -> bool:
        """Return true if a peer's final message may still bring usage that its stream lacks. It follows at once."""
        is_peer = self._leg.order.target.kind is TargetKind.PEER
        return is_peer and (self._usage is None or self._usage.prompt_tokens is None)

    def _completed(self) -> LegEnded:
        leg = self._leg
        if leg.result is None or not self._is_told:
            self._is_told = True
            leg.result = leg.completed(self._usage)
        return leg.result

    def _usage_of_all(self, usage: TokenUsage | None) -> TokenUsage | None:
        return usage if self._adapter is None else self._adapter.usage_of_all(usage)

    def _break_off(self, fault: AnswerFault) -> None:
        """End a stream at an event that is at fault."""
        self._put_before_fault(self._close())
        self._raise(fault)

    def _put_before_fault(self, rest: bytes) -> None:
        if rest and self._adapter is not None:
            rest = self._adapter.adapt(rest)
        if rest:
            self._put(rest)

    def _raise(self, fault: AnswerFault) -> None:
        """Raise the failure for a fault in the middle of an answer. An answer that an engine gave up to make room is
        retried elsewhere and does not count as a failure."""
        result = result_of(fault.code or 500)
        self._leg.is_theirs = result is LegResult.CLIENT_ERROR
        raise LegFailure(LegResult.FAILED if self._leg.is_theirs else result, fault.detail)


def _adapted(feed: Callable[[bytes], bytes], adapter: SegmentAdapter, data: bytes) -> bytes:
    return adapter.adapt(feed(data))


def settle_progress(leg: LegAnswer, events: int, usage: TokenUsage | None) -> None:
    """Note the end of a decode, and learn how many tokens an event of this engine has."""
    progress, order = leg.answer.port.progress, leg.order
    progress.ends(order.request_id, order.attempt)
    if usage is not None and usage.output_tokens is not None:
        progress.learn(order.target, events, usage.output_tokens)


def check_engine(status: int, detail: str) -> None:
    """Raise LegFailure if the status concerns the engine rather than the client's request."""
    result = result_of(status)
    if result is not LegResult.CLIENT_ERROR:
        raise LegFailure(result, detail)


def result_of(status: int) -> LegResult:
    """Leg result for a status. 401 counts as the engine's: the client's key never reaches it, so the gateway's was
    refused."""
    if status in (429, 503):
        return LegResult.BUSY
    if 400 <= status < 500 and status not in (401, 408):
        return LegResult.CLIENT_ERROR
    return LegResult.FAILED


def media_type(head: LegHead) -> str:
    for name, value in head.headers:
        if name.lower() == "content-type":
            return value.lower()
    return ""


def without_length(head: LegHead) -> LegHead:
    """Remove the length: a stream that fails ends with an error event of this gateway, which the length does not
    include."""
    kept = tuple([pair for pair in head.headers if pair[0].lower() != "content-length"])
    return head if len(kept) == len(head.headers) else replace(head, headers=kept)


def with_length(head: LegHead, body: bytes) -> LegHead:
    """Set the length of a body that is complete, however it arrived."""
    length = str(len(body))
    for name, told in head.headers:
        if name.lower() == "content-length" and told == length:
            return head
    headers = [pair for pair in head.headers if pair[0].lower() != "content-length"]
    return replace(head, headers=(*headers, ("content-length", length)))
