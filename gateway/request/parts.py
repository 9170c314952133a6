"""Legs of a request that a prefill and a decode worker share. The hand-off from a prefill is kept for its decode, and a
streamed decode may be assembled for a client that wants the answer in one piece. It opens no connection and does not
interpret the hand-off."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import FirstToken, LegEnded
from gateway.core.nearness import Nearness
from gateway.core.vocabulary import LegResult, LegRole, PoolName, Target
from gateway.request.answer import ClientAnswer
from gateway.request.answer_bodies import (
    EVENT_STREAM,
    JSON_HEADERS,
    ErrorBody,
    answer_fault,
    body_of,
    check_has_body,
    media_type,
    settle_progress,
    with_length,
)
from gateway.request.answer_events import TokenUsage
from gateway.request.answers import inspect_answer
from gateway.request.assembling import AnswerTooLong, Assembler, Unassembled, can_be_assembled
from gateway.request.event_scanner import EventScanner
from gateway.request.handoffs import Handoff, handoff_in
from gateway.request.leg_answer import AnswerBody, LegAnswer, leg_ended
from gateway.request.legs import NONCE_BYTES, LegFailure, LegHead, OutboundRequest, PartInput

Compare = Callable[[PoolName, bytes], Nearness | None]
"""Compares the expert counts of a prefill's answer, unchanged or empty, with a pool's workers. Never raises."""
OnStray = Callable[[Target, str], None]
"""Called with a prefill worker and the forbidden host to which it directed its decode worker."""


def ignore_stray(worker: Target, host: str) -> None:
    """Ignore the host."""


class Parts:
    """State of one request between its prefill and its decode."""

    __slots__ = ("_answer", "_assembler", "_assembles", "_compare", "_handed_over", "_nonce", "_on_stray")

    def __init__(
        self, answer: ClientAnswer, draw: Callable[[int], bytes], compare: Compare | None, on_stray: OnStray
    ) -> None:
        """Set up the state. `draw` draws random bytes."""
        self._answer = answer
        self._compare = compare
        self._on_stray = on_stray
        self._nonce = draw(NONCE_BYTES)
        """Random bytes from which both engines' id of the request is derived."""
        self._handed_over = b""
        """Hand-off of the last prefill to its decode, opaque to the gateway."""
        self._assembler: Assembler | None = None
        """Assembler for the next decode's stream, if the client gets the answer in one piece."""
        self._assembles = not answer.outbound.profile.stream
        """False once assembling this answer has failed."""

    def outbound_of(self, order: StartLeg, outbound: OutboundRequest) -> OutboundRequest:
        """Return the request for an engine that runs only a part of it."""
        if order.role is not LegRole.DECODE:
            return replace(outbound, part=PartInput(self._nonce))
        part = PartInput(self._nonce, self._handed_over, assembled=self._will_assemble(order))
        return replace(outbound, part=part)

    def body_of(self, leg: LegAnswer, head: LegHead) -> AnswerBody:
        """Choose how the body of a part's answer is understood. Raises LegFailure."""
        if not 200 <= head.status < 300:
            return ErrorBody(leg, head)
        check_has_body(head)
        if leg.order.role is LegRole.PREFILL:
            return PrefillBody(self, leg, head)
        if self._assembler is None or not media_type(head).startswith(EVENT_STREAM):
            return body_of(leg, head)
        return AssembledBody(self, leg, head, self._assembler)

    def take(self, handed: Handoff, *, is_sequential: bool) -> None:
        """Keep a prefill's hand-off for its decode. `is_sequential`: the decode follows the prefill."""
        self._handed_over = handed.told
        self._assembler = self._assembler_of(handed) if is_sequential else None

    def nearness_of(self, order: StartLeg, counts: bytes) -> Nearness | None:
        """Nearness of the prompt's experts to those of the pool's workers. None where it is not needed."""
        return None if self._compare is None or order.pool is None else self._compare(order.pool, counts)

    def stray(self, worker: Target, host: str) -> None:
        self._on_stray(worker, host)

    def leave_whole(self, order: StartLeg, *, is_lasting: bool) -> None:
        """Note that a stream could not be assembled, which is not the engine's fault: the next leg is asked for the
        whole answer. `is_lasting`: the same holds for later requests to this engine."""
        self._assembles = False
        if is_lasting:
            port = self._answer.port
            port.progress.leave_whole(order.target, self._answer.outbound.path, port.now_ns())

    def _will_assemble(self, order: StartLeg) -> bool:
        """Return true if this decode is streamed and assembled for the client."""
        port = self._answer.port
        is_left_whole = port.progress.is_left_whole(order.target, self._answer.outbound.path, port.now_ns())
        if self._assembler is not None and is_left_whole:
            self._assembler = None
        return self._assembler is not None

    def _assembler_of(self, handed: Handoff) -> Assembler | None:
        """Return the assembler for the decode's stream; None if the decode has to be asked for the whole answer."""
        outbound = self._answer.outbound
        if not self._assembles or not can_be_assembled(outbound.path, outbound.body):
            return None
        try:
            return Assembler(outbound.path, handed.answer, bytes_max=self._answer.settings.held_bytes_max)
        except Unassembled:
            return None


class PrefillBody(AnswerBody):
    """Body of a prefill's answer, which is not for the client."""

    __slots__ = ("_head", "_leg", "_parts", "_pieces", "_size")

    def __init__(self, parts: Parts, leg: LegAnswer, head: LegHead) -> None:
        self._parts = parts
        self._leg = leg
        self._head = head
        self._pieces: list[bytes] = []
        self._size = 0

    def data(self, data: bytes) -> LegEnded | None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > self._leg.answer.settings.held_bytes_max:
            raise LegFailure(LegResult.FAILED, "an answer too long for a prefill")
        return None

    def end(self, counted: TokenUsage | None) -> LegEnded:  # noqa: ARG002
        body, order, parts = b"".join(self._pieces), self._leg.order, self._parts
        prompt_tokens: int | None = None
        if not media_type(self._head).startswith(EVENT_STREAM):
            found = inspect_answer(body)
            if found.fault is not None:
                return answer_fault(self._leg, self._head, found.fault)
            prompt_tokens = None if found.usage is None else found.usage.prompt_tokens
        nearness: Nearness | None = None
        if order.connector is not None:
            handed = handoff_in(body, order.connector, self._head.side_channel, self._stray)
            parts.take(handed, is_sequential=order.connector.is_sequential)
            nearness = parts.nearness_of(order, handed.counts)
        return replace(leg_ended(order, LegResult.COMPLETED, ""), prompt_tokens=prompt_tokens, nearness=nearness)

    def _stray(self, host: str) -> None:
        self._parts.stray(self._leg.order.target, host)


class AssembledBody(AnswerBody):
    """Body of a decode's stream that is assembled into an answer in one piece. Until that is complete the client has
    received nothing, so the request may be retried elsewhere."""

    __slots__ = ("_assembler", "_head", "_is_begun", "_is_sent", "_leg", "_parts", "_scanner", "_usage")

    def __init__(self, parts: Parts, leg: LegAnswer, head: LegHead, assembler: Assembler) -> None:
        answer, order = leg.answer, leg.order
        scanner = EventScanner(event_bytes_max=answer.settings.event_bytes_max, may_give_up=True)
        self._parts = parts
        self._leg = leg
        self._head = head
        self._assembler = assembler
        self._scanner = scanner
        self._is_begun = False
        self._is_sent = False
        self._usage: TokenUsage | None = None
        answer.port.progress.begins(
            order.request_id, order.attempt, order.pool, order.target, lambda: scanner.events_since_token
        )

    def data(self, data: bytes) -> LegEnded | None:
        """Feed the stream to the assembler until its last event or an error."""
        if self._is_sent:
            return None
        scanner, leg = self._scanner, self._leg
        self._assemble(scanner.feed(data))
        if scanner.saw_token and not self._is_begun and scanner.fault is None:
            self._is_begun = True
            order = leg.order
            leg.answer.port.post(FirstToken(order.request_id, order.attempt, order.leg, is_sent=False))
            leg.watch()
        if scanner.fault is None and not scanner.done:
            return None
        ended = self._send()
        if scanner.fault is not None:
            return ended
        leg.tell(ended)
        leg.hurry()
        return None

    def end(self, counted: TokenUsage | None) -> LegEnded:  # noqa: ARG002
        if not self._is_sent:
            self._assemble(self._scanner.close())
            return self._send()
        assert self._leg.result is not None, "what was sent has a result"
        return self._leg.result

    def settle(self) -> None:
        settle_progress(self._leg, self._scanner.events_since_token, self._usage)

    def _assemble(self, released: bytes) -> None:
        try:
            self._assembler.feed(released)
        except Unassembled as reason:
            raise self._left_whole(reason) from reason

    def _send(self) -> LegEnded:
        leg, scanner = self._leg, self._scanner
        self._usage = scanner.usage
        if scanner.fault is not None:
            return answer_fault(leg, self._head, scanner.fault)
        if not scanner.is_finished:
            raise LegFailure(LegResult.FAILED, "the stream broke off")
        try:
            whole = self._assembler.finish()
        except Unassembled as reason:
            raise self._left_whole(reason) from reason
        answer = leg.answer
        answer.note_first_token()
        answer.expect_nothing_sent("an answer in one piece")
        head = replace(self._head, headers=JSON_HEADERS)
        answer.begin(leg.order, with_length(head, whole))
        answer.sink.write(whole)
        self._is_sent = True
        leg.result = leg.completed(self._usage)
        return leg.result

    def _left_whole(self, reason: Unassembled) -> LegFailure:
        self._parts.leave_whole(self._leg.order, is_lasting=not isinstance(reason, AnswerTooLong))
        return LegFailure(LegResult.INTERNAL, f"its stream cannot be put together: {reason}")
