"""One request's life at the edge: submit it, follow the core's orders, relay the answer, close what was opened.

It runs in the handler's own task and starts no other. Leaving it early, on any path, closes the engine's or peer's
connection and tells the core; it never decides where a request goes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from gateway.core.effects import AcceptForward, EndRequest, RefuseForward, StartLeg, StopLeg
from gateway.core.events import (
    FirstToken,
    ForwardArrived,
    LegAccepted,
    LegEnded,
    RequestArrived,
    ResponseStored,
)
from gateway.core.stored_responses import stored_response_key
from gateway.core.vocabulary import LegResult, RefusalReason, RequestProfile, TargetKind
from gateway.ground.clock import Clock
from gateway.request.answers import Fault, TokenUsage, first_id_of, inspect_answer
from gateway.request.driver import Driver
from gateway.request.engine_errors import in_openai_shape
from gateway.request.event_scanner import EventScanner
from gateway.request.legs import Leg, LegFailure, LegHead, LegOpener, OutboundRequest, RequestSummary, Sink
from gateway.request.mailbox import Mailbox

EVENT_STREAM = "text/event-stream"
JSON_HEADERS = (("content-type", "application/json"),)
OPAQUE_BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    held_bytes_max: int = 1 << 20
    """What may be held back before the first byte goes out: a stream's beginning, or a whole answer."""
    event_bytes_max: int = 1 << 20
    trailer_grace_s: float = 1.0
    """After `[DONE]` the engine may take this long to end its response, so that the connection can be used again."""
    engine_stall_s: float = 120.0
    """A stream that has begun and then brings nothing for this long has failed."""


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """What every request's owner needs; built once by the composition root."""

    driver: Driver
    clock: Clock
    openers: Mapping[TargetKind, LegOpener]
    settings: OwnerSettings = field(default_factory=OwnerSettings)
    on_finished: Callable[[RequestProfile, EndRequest, RequestSummary], None] | None = None
    """Told once about each request that was ours, whichever way it ended."""


class RequestOwner:
    """Runs one request from its arrival to its last byte."""

    __slots__ = ("_arrival", "_arrived_ns", "_context", "_driver", "_mailbox", "_outbound", "_sink", "_summary")

    def __init__(
        self, context: OwnerContext, arrival: RequestArrived | ForwardArrived, outbound: OutboundRequest, sink: Sink
    ) -> None:
        self._context = context
        self._driver = context.driver
        self._arrival = arrival
        self._outbound = outbound
        self._sink = sink
        self._summary = RequestSummary()
        self._arrived_ns = context.clock.now_ns()

    @property
    def profile(self) -> RequestProfile:
        return self._arrival.profile

    @property
    def summary(self) -> RequestSummary:
        """What is known so far; complete once `run` is over."""
        return self._summary

    async def run(self) -> EndRequest | RefuseForward:
        """Returns when the client has its answer. A refused forward is returned untouched: the sink saw nothing of it.

        Cancel it, or let the sink raise, when the client has gone.
        """
        profile = self._arrival.profile
        if self._driver.has_mailbox(profile.request_id):
            return RefuseForward(profile.request_id, RefusalReason.DUPLICATE, "a request of this id is here already")
        self._mailbox = self._driver.open_mailbox(profile.request_id)
        try:
            with self._mailbox:
                self._driver.submit(self._arrival)
                end = await self._follow_orders()
            if isinstance(end, EndRequest):
                await self._sink.end(end, self._summary)
            return end
        finally:
            self._report()

    async def _follow_orders(self) -> EndRequest | RefuseForward:
        while True:
            order = await self._mailbox.next()
            match order:
                case StartLeg():
                    await self._run_leg(order)
                case StopLeg():
                    pass  # that leg is over already
                case AcceptForward():
                    await self._sink.accepted()
                case EndRequest() | RefuseForward():
                    return order
                case _:
                    assert_never(order)

    def _report(self) -> None:
        """After the mailbox is closed there is a last word for everything but a refused forward. Whoever is told of it
        has watched the request up to its end."""
        self._summary.duration_ns = self._context.clock.now_ns() - self._arrived_ns
        if self._mailbox.end is not None and self._context.on_finished is not None:
            self._driver.tell_observers()
            self._context.on_finished(self._arrival.profile, self._mailbox.end, self._summary)

    async def _run_leg(self, order: StartLeg) -> None:
        """Run one attempt and answer it with its one LegEnded, whatever happens."""
        relay = _Relay(
            self._context,
            self._mailbox,
            order,
            self._sink,
            outbound=self._outbound,
            summary=self._summary,
            arrived_ns=self._arrived_ns,
        )
        ended = _ended(order, LegResult.CANCELLED, "the owner left")
        scope = self._mailbox.leg_scope(order.attempt)
        try:
            with scope:
                opener = self._context.openers[order.target.kind]
                async with opener.open(order, self._outbound, on_accepted=relay.accepted) as leg:
                    ended = await relay.run(leg)
        except LegFailure as failure:
            ended = relay.ended_early(failure.result, failure.detail, failure.refusal)
        except TimeoutError:
            if not scope.is_expired:
                raise
            how = (LegResult.FAILED, "it fell silent") if scope.is_silent else (LegResult.CANCELLED, "stopped")
            ended = relay.ended_early(*how)
        finally:
            self._summary.attempts.append(f"{order.target}: {ended.result}")
            self._mailbox.end_attempt(ended)


class _Relay:
    """One attempt's answer on its way from leg to sink. Nothing is sent until it is known to be worth sending."""

    __slots__ = (
        "_arrived_ns",
        "_context",
        "_is_complete",
        "_is_draining",
        "_mailbox",
        "_order",
        "_outbound",
        "_pieces",
        "_sink",
        "_summary",
        "_usage",
    )

    def __init__(
        self,
        context: OwnerContext,
        mailbox: Mailbox,
        order: StartLeg,
        sink: Sink,
        *,
        outbound: OutboundRequest,
        summary: RequestSummary,
        arrived_ns: int,
    ) -> None:
        self._context = context
        self._mailbox = mailbox
        self._order = order
        self._sink = sink
        self._outbound = outbound
        self._summary = summary
        self._arrived_ns = arrived_ns
        self._usage: TokenUsage | None = None
        self._is_complete = False
        self._pieces = 0
        self._is_draining = False

    def accepted(self) -> None:
        """Of an engine, its first token says the same."""
        if self._order.target.kind is TargetKind.PEER:
            self._context.driver.submit(LegAccepted(self._order.request_id, self._order.attempt, self._order.leg))

    def ended_early(self, result: LegResult, detail: str, refusal: RefusalReason | None = None) -> LegEnded:
        """The connection ended before its response did, which matters only if the client still waits for something."""
        if self._is_complete:
            return self._completed()
        return replace(_ended(self._order, result, detail), refusal=refusal)

    async def run(self, leg: Leg) -> LegEnded:
        """Raises LegFailure where the attempt failed."""
        try:
            return await self._run(leg)
        finally:
            self._summary.ran_at = leg.head.ran_at

    async def _run(self, leg: Leg) -> LegEnded:
        head = leg.head
        if not 200 <= head.status < 300:
            return await self._relay_client_error(head, leg.chunks())
        if _content_type(head).startswith(EVENT_STREAM):
            return await self._relay_events(leg)
        return await self._relay_whole(head, leg.chunks())

    async def _relay_client_error(self, head: LegHead, chunks: AsyncIterator[bytes]) -> LegEnded:
        failure = _failure_of(head.status, f"status {head.status}")
        if failure is not None:
            raise failure
        body, rest = await self._hold_whole(chunks)
        if rest is not None:
            raise LegFailure(LegResult.FAILED, f"status {head.status} with an endless body")
        return await self._answer_client_error(head, body)

    async def _answer_client_error(self, head: LegHead, body: bytes) -> LegEnded:
        await self._start(_with_length(head, body))
        await self._write(body)
        return _ended(self._order, LegResult.CLIENT_ERROR, f"status {head.status}")

    async def _relay_whole(self, head: LegHead, chunks: AsyncIterator[bytes]) -> LegEnded:
        """An answer in one piece is held until it is whole, so that one that breaks off can be had elsewhere."""
        body, rest = await self._hold_whole(chunks)
        if rest is None:
            if not body:
                raise LegFailure(LegResult.FAILED, "an empty answer")
            fault = self._inspect(head, body)
            if fault is not None:
                return await self._answer_fault(head, fault)
            head = _with_length(head, body)
            self._note_first_token()
        else:
            self._stored(first_id_of(body))
        if rest is not None or not self._sink.is_immediate:
            self._first_token()
        await self._start(head)
        self._sink.put(body)
        if rest is not None:
            await self._sink.drain()
            async for data in rest:
                await self._write(data)
        return self._completed()

    def _inspect(self, head: LegHead, body: bytes) -> Fault | None:
        """Numbers in bytes have nothing to look at, and what a stored response says of itself is no fault of now."""
        if _content_type(head).startswith(OPAQUE_BYTES):
            return None
        answer = inspect_answer(body)
        self._usage = answer.usage
        if self._outbound.profile.is_control:
            return None
        if answer.fault is None:
            self._stored(answer.response_id)
        return answer.fault

    async def _hold_whole(self, chunks: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """The body, and what is still to come of one that is too large to hold."""
        held: list[bytes] = []
        size = 0
        async for data in chunks:
            held.append(data)
            size += len(data)
            if size > self._context.settings.held_bytes_max:
                return b"".join(held), chunks
        return b"".join(held), None

    async def _relay_events(self, leg: Leg) -> LegEnded:
        self._summary.is_event_stream = True
        scanner = EventScanner(event_bytes_max=self._context.settings.event_bytes_max)
        try:
            return await self._relay_scanned(leg, scanner)
        finally:
            self._summary.output_events = scanner.data_events

    async def _relay_scanned(self, leg: Leg, scanner: EventScanner) -> LegEnded:
        held = await self._hold_events(scanner, leg.chunks())
        if scanner.fault is not None:
            return await self._answer_fault(leg.head, scanner.fault)
        self._stored(scanner.response_id)
        await self._start(_without_length(leg.head))
        put = self._sink.put
        has_room = put(held)
        self._first_token()  # the client has its token before anybody counts it
        if not has_room:
            await self._sink.drain()
        if scanner.done:
            self._finish_soon(scanner)
        self._mailbox.watch(self._progress, self._context.settings.engine_stall_s)

        def take(data: bytes) -> bool:
            self._pieces += 1
            released = scanner.feed(data)
            has_room = put(released) if released else True
            if has_room and scanner.done:
                self._finish_soon(scanner)
            return has_room and scanner.fault is None

        while not await leg.pour(take) and scanner.fault is None:
            self._is_draining = True
            await self._sink.drain()
            self._is_draining = False
            if scanner.done:
                self._finish_soon(scanner)
        return await self._end_events(scanner)

    def _progress(self) -> int:
        """While the client is what we wait for, the engine is not to blame: there is a limit of its own on that."""
        self._pieces += self._is_draining
        return self._pieces

    async def _hold_events(self, scanner: EventScanner, chunks: AsyncIterator[bytes]) -> bytes:
        """Everything up to the chunk with the first token, or with a reason not to go on."""
        held: list[bytes] = []
        size = 0
        async for data in chunks:
            released = scanner.feed(data)
            held.append(released)
            size += len(released)
            if scanner.fault is not None or scanner.saw_token or size > self._context.settings.held_bytes_max:
                return b"".join(held)
        held.append(scanner.close())
        if scanner.fault is None and not scanner.saw_token:
            raise LegFailure(LegResult.FAILED, "the stream ended without a token")
        return b"".join(held)

    async def _end_events(self, scanner: EventScanner) -> LegEnded:
        rest = b"" if scanner.fault is not None else scanner.close()
        if scanner.fault is not None:
            raise LegFailure(LegResult.FAILED, scanner.fault.detail)
        if not scanner.is_finished:
            raise LegFailure(LegResult.FAILED, "the stream broke off")
        if rest:
            await self._write(rest)
        if not self._is_complete:
            self._usage = scanner.usage
        return self._completed()

    def _finish_soon(self, scanner: EventScanner) -> None:
        """All that the client wants has passed; what is left is the end of the response itself."""
        if not self._is_complete:
            self._is_complete = True
            self._usage = scanner.usage
            self._mailbox.hurry(self._context.settings.trailer_grace_s)

    async def _answer_fault(self, head: LegHead, fault: Fault) -> LegEnded:
        """Nothing has been sent: fail so that the core may try elsewhere, or give the client its own error.

        An event stream that begins with a 4xx error is answered with that status, which clients understand better.
        """
        failure = _failure_of(fault.code or 500, fault.detail)
        if failure is not None:
            raise failure
        self._summary.is_event_stream = False
        status = fault.code or 500
        body = in_openai_shape(fault.body, status)
        return await self._answer_client_error(LegHead(status, JSON_HEADERS, head.ran_at, head.attempt), body)

    def _stored(self, response_id: str | None) -> None:
        """Before the client hears of the answer: it may refer to it at once."""
        if response_id is not None and self._outbound.stores_response:
            key = stored_response_key(self._outbound.profile.tenant, response_id)
            self._context.driver.submit(
                ResponseStored(self._order.request_id, self._order.attempt, self._order.leg, key)
            )

    def _note_first_token(self) -> None:
        """Of an answer that goes out in one piece, the core hears with its end."""
        if self._summary.first_token_ns is None:
            self._summary.first_token_ns = self._context.clock.now_ns() - self._arrived_ns

    def _first_token(self) -> None:
        self._note_first_token()
        self._context.driver.submit(FirstToken(self._order.request_id, self._order.attempt, self._order.leg))

    async def _write(self, data: bytes) -> None:
        if not self._sink.put(data):
            await self._sink.drain()

    async def _start(self, head: LegHead) -> None:
        self._summary.started = True
        await self._sink.start(head)

    def _completed(self) -> LegEnded:
        usage = self._usage or TokenUsage()
        self._summary.prompt_tokens = usage.prompt_tokens
        self._summary.output_tokens = usage.output_tokens
        self._summary.cached_tokens = usage.cached_tokens
        return LegEnded(
            self._order.request_id,
            self._order.attempt,
            self._order.leg,
            LegResult.COMPLETED,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
        )


def _ended(order: StartLeg, result: LegResult, detail: str) -> LegEnded:
    return LegEnded(order.request_id, order.attempt, order.leg, result, detail=detail)


def _failure_of(status: int, detail: str) -> LegFailure | None:
    """What a status says about the engine; None when it is about the client's request.

    401 is about the engine too: the client's own key never reaches it, so it is the gateway's that was turned down.
    """
    if status in (429, 503):
        return LegFailure(LegResult.BUSY, detail)
    if 400 <= status < 500 and status not in (401, 408):
        return None
    return LegFailure(LegResult.FAILED, detail)


def _content_type(head: LegHead) -> str:
    return next((value for name, value in head.headers if name.lower() == "content-type"), "").lower()


def _without_length(head: LegHead) -> LegHead:
    """A stream that fails ends with an event of ours, which nobody has counted."""
    kept = tuple(pair for pair in head.headers if pair[0].lower() != "content-length")
    return head if len(kept) == len(head.headers) else replace(head, headers=kept)


def _with_length(head: LegHead, body: bytes) -> LegHead:
    """A body that is at hand whole goes out with its length, however it came in."""
    length = str(len(body))
    if any(name.lower() == "content-length" and told == length for name, told in head.headers):
        return head
    headers = tuple(pair for pair in head.headers if pair[0].lower() != "content-length")
    return replace(head, headers=(*headers, ("content-length", length)))
