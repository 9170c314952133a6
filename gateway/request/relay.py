"""Relay of a request's answer from its legs to its client. Nothing is sent until it is known to be worth sending.

One relay serves a request for all its life and knows what has been sent; each leg feeds it. It opens no connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial

from gateway.core.features.stored_responses.events import ResponseStored
from gateway.core.features.stored_responses.key import stored_response_key
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import FirstToken, LegAccepted, LegEnded
from gateway.core.nearness import Nearness
from gateway.core.vocabulary import (
    Extra,
    LegResult,
    LegRole,
    PoolName,
    RefusalReason,
    RequestProfile,
    Target,
    TargetKind,
)
from gateway.request.answers import (
    USAGE_WITHIN_BYTES,
    Fault,
    TokenUsage,
    first_id_of,
    inspect_answer,
    usage_at_end,
    with_opening,
)
from gateway.request.assembling import Assembler
from gateway.request.driver import Driver
from gateway.request.engine_errors import in_openai_shape
from gateway.request.event_scanner import EventScanner
from gateway.request.extras import Withheld
from gateway.request.legs import Leg, LegFailure, LegHead, OutboundRequest, RequestSummary, Sink
from gateway.request.mailbox import LegScope
from gateway.request.model_names import Renamer
from gateway.request.resuming import Rest, rest_of
from gateway.request.rewriting import Rewriter, rewriter_for
from gateway.request.too_long import too_long_in
from gateway.request.transcript import PATHS, Hold, Transcript, Unsound
from mesh.clock import Clock

Compare = Callable[[PoolName, bytes], Nearness | None]
"""Compares the expert counts of a prefill's answer, unchanged or empty, with a pool's workers. Never raises."""

EVENT_STREAM = "text/event-stream"
JSON_HEADERS = (("content-type", "application/json"),)
OPAQUE_BYTES = "application/octet-stream"
_BODILESS = frozenset({204, 205})
"""Statuses after which no client expects a body: bytes sent would be read as the beginning of another answer."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    held_bytes_max: int = 1 << 20
    """Bytes that may be held back before the first byte goes out: a stream's beginning, or a whole answer."""
    event_bytes_max: int = 1 << 20
    trailer_grace_s: float = 1.0
    """Time after `[DONE]` in which the engine may end its response, so that the connection can be used again."""
    engine_stall_s: float = 120.0
    """Time without data after which a stream that has begun is taken to have failed."""
    prefix_blocks_max: int = 4096
    """Largest number of prefix hashes over prompt and answer, for the target that resumes a broken answer."""


OnStray = Callable[[Target, str], None]
"""Called with a prefill worker and the forbidden host to which it directed its decode worker."""


def ignore_stray(worker: Target, host: str) -> None:
    """Ignore the host."""


class Relay:
    """Client's side of one request: where its answer goes, and how much of it has been sent."""

    __slots__ = (
        "_arrived_ns",
        "_clock",
        "_compare",
        "_driver",
        "_has_no_room",
        "_hold",
        "_renamed",
        "_rest",
        "_speaker",
        "_transcript",
        "assembler",
        "assembles",
        "handed_over",
        "on_stray",
        "outbound",
        "put",
        "settings",
        "sink",
        "summary",
    )

    def __init__(
        self,
        driver: Driver,
        clock: Clock,
        settings: RelaySettings,
        sink: Sink,
        *,
        outbound: OutboundRequest,
        summary: RequestSummary,
        arrived_ns: int,
        hold: Hold | None = None,
        compare: Compare | None = None,
        on_stray: OnStray = ignore_stray,
    ) -> None:
        """Set up the relay. `hold`: budget in which a transcript is counted. None: no transcript is kept."""
        self.on_stray = on_stray
        self._compare = compare
        self._hold = hold
        self._transcript: Transcript | None = None
        self._rest: Rest | None = None
        """Request for the missing rest, since the answer broke."""
        self._has_no_room = False
        """True if there was no room for the rest's body."""
        self._driver = driver
        self._clock = clock
        self._arrived_ns = arrived_ns
        self._speaker: StartLeg | None = None
        """Leg whose answer the client is receiving or has received."""
        self._renamed = None if not outbound.asked_model else Renamer(outbound.profile.model, outbound.asked_model)
        self.handed_over = b""
        """Hand-off of the last prefill to its decode, opaque to the gateway."""
        self.assembler: Assembler | None = None
        """Assembler for the next decode's stream, if the client gets the answer in one piece."""
        self.assembles = not outbound.profile.stream
        """False once assembling this answer has failed."""
        self.settings = settings
        self.sink = sink
        self.outbound = outbound
        self.summary = summary
        self.put: Callable[[bytes], bool] = sink.put if self._renamed is None else self._put_renamed
        """Sends whole events of an answer, as `Sink.put` does."""

    def nearness_of(self, order: StartLeg, counts: bytes) -> Nearness | None:
        """Nearness of the prompt's experts to those of the pool's workers. None where it is not needed."""
        return None if self._compare is None or order.pool is None else self._compare(order.pool, counts)

    def named_as_asked(self, body: bytes) -> bytes:
        """Return an answer in one piece with the model name that the client used. Called before its length is set."""
        return body if self._renamed is None else self._renamed(body)

    def _put_renamed(self, data: bytes) -> bool:
        assert self._renamed is not None, "it has another name"
        return self.sink.put(self._renamed(data))

    @property
    def has_begun(self) -> bool:
        """True once status and headers have gone out, from any leg: further legs continue the same answer."""
        return self.summary.started

    async def begin(self, order: StartLeg, head: LegHead) -> None:
        """Let this leg alone write to the client. Raises LegFailure while another one does."""
        if self._speaker is not None:
            raise LegFailure(LegResult.FAILED, f"leg {self._speaker.leg} is answering already")
        self._speaker = order
        self.summary.ran_at = head.ran_at
        if not self.summary.started:
            self.summary.started = True
            await self.sink.start(head)

    def leave(self, order: StartLeg) -> None:
        """Note the end of a leg, after which another one may continue the answer."""
        if self._speaker is order:
            self._speaker = None

    async def write(self, data: bytes) -> None:
        if not self.sink.put(data):
            await self.sink.drain()

    # Resuming a broken answer

    def voice(self, order: StartLeg) -> Callable[[bytes], bool]:
        """Function that sends the events of this leg's stream to the client, and keeps them if the answer may have to
        be resumed."""
        transcript = self._transcript_for(order)
        return self.put if transcript is None else transcript.put

    def keeper(self, order: StartLeg) -> Callable[[bytes], None] | None:
        """Function that only keeps events, where the engine tells more than the client gets; the client's share is sent
        by `put`. None: nothing is kept."""
        transcript = self._transcript_for(order)
        return None if transcript is None else transcript.keep

    def _transcript_for(self, order: StartLeg) -> Transcript | None:
        if self._transcript is None and order.may_break and self._hold is not None and self.outbound.path in PATHS:
            self._transcript = Transcript(self.outbound.path, self._hold, self.put)
        return self._transcript

    def rest_profile(self) -> RequestProfile | None:
        """Profile of the request for the rest of an answer that has just broken. None: it cannot be resumed, and the
        summary says why."""
        try:
            if self._transcript is None:
                raise Unsound("nothing was kept of it")
            said = self._transcript.said()
            rest = rest_of(self.outbound, said, prefix_blocks_max=self.settings.prefix_blocks_max)
            self._make_room_for(rest)
        except Unsound as why:
            self.summary.why_unresumed = str(why)
            return None
        self._rest = rest
        return rest.outbound.profile

    def _make_room_for(self, rest: Rest) -> None:
        """Reserve room for the rest's own body beside the client's. Raises Unsound."""
        before = 0 if self._rest is None else len(self._rest.outbound.body)
        assert self._hold is not None, "what was said was kept"
        if not self._hold(len(rest.outbound.body) - before):
            self._has_no_room = True
            raise Unsound("there is no room for what is left to ask for")

    @property
    def transcript_dropped(self) -> bool:
        return self._has_no_room or (self._transcript is not None and self._transcript.is_dropped)

    @property
    def said_tokens(self) -> int:
        """Output tokens that the client had when the answer broke last."""
        return 0 if self._rest is None else self._rest.said.tokens

    def outbound_of(self, order: StartLeg) -> OutboundRequest:
        """Request for this leg: all of it, or the rest."""
        if not order.resume:
            return self.outbound
        assert self._rest is not None, "the core has been told what is left"
        return self._rest.outbound

    def rewriter(self, order: StartLeg, head: LegHead) -> Rewriter | None:
        """Rewriter for a leg that resumes another leg's answer; else None."""
        if not order.resume:
            return None
        assert self._rest is not None, "the core has been told what is left"
        self.summary.resumes = order.resume
        remark = b": nightside: went on elsewhere, resume %d, in %b\n\n"
        region = head.ran_at.place.region.encode()
        return rewriter_for(self.outbound.path, self._rest, remark=remark % (order.resume, region))

    def accepted(self, order: StartLeg) -> None:
        """Tell the core that a peer accepted the request. For an engine, the first token says so."""
        if order.target.kind is TargetKind.PEER:
            self._driver.submit(LegAccepted(order.request_id, order.attempt, order.leg))

    def stored(self, order: StartLeg, response_id: str | None) -> None:
        """Report a stored response to the core, before the client sees its id and may refer to it."""
        if response_id is not None and self.outbound.stores_response:
            key = stored_response_key(self.outbound.profile.tenant, response_id)
            self._driver.submit(ResponseStored(order.request_id, order.attempt, order.leg, key))

    def first_token(self, order: StartLeg) -> None:
        self.note_first_token()
        self._driver.submit(FirstToken(order.request_id, order.attempt, order.leg))

    def generates(self, order: StartLeg) -> None:
        """Report that the first token has arrived but is held back."""
        self._driver.submit(FirstToken(order.request_id, order.attempt, order.leg, is_sent=False))

    def note_first_token(self) -> None:
        """Note the time to first token. The core hears of an answer in one piece with its end only."""
        if self.summary.first_token_ns is None:
            self.summary.first_token_ns = self._clock.now_ns() - self._arrived_ns

    def note_usage(self, usage: TokenUsage) -> None:
        """Note the usage of a leg that answered: prompt tokens of the first one, and output tokens summed up."""
        summary = self.summary
        if summary.prompt_tokens is None:
            summary.prompt_tokens, summary.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        if usage.output_tokens is not None:
            summary.output_tokens = (summary.output_tokens or 0) + usage.output_tokens

    def decoding(self, order: StartLeg, events: Callable[[], int]) -> None:
        """Let the progress board read this leg's event count until the leg is over."""
        self._driver.progress.begins(order.request_id, order.attempt, order.pool, order.target, events)

    def decoded(self, order: StartLeg, events: int, usage: TokenUsage | None) -> None:
        progress = self._driver.progress
        progress.ends(order.request_id, order.attempt)
        if usage is not None and usage.output_tokens is not None:
            progress.learn(order.target, events, usage.output_tokens)

    def left_whole(self, order: StartLeg, *, is_lasting: bool) -> None:
        """Note that a stream could not be assembled, which is not the engine's fault: the next leg is asked for the
        whole answer. `is_lasting`: the same holds for later requests to this engine."""
        self.assembles = False
        if is_lasting:
            self._driver.progress.leave_whole(order.target, self.outbound.path, self._clock.now_ns())

    def will_assemble(self, order: StartLeg) -> bool:
        """Return true if this decode is streamed and assembled for the client."""
        now_ns = self._clock.now_ns()
        if self.assembler is not None and self._driver.progress.is_left_whole(order.target, self.outbound.path, now_ns):
            self.assembler = None
        return self.assembler is not None

    def completed(self, order: StartLeg, usage: TokenUsage | None) -> LegEnded:
        used = usage or TokenUsage()
        self.note_usage(used)
        return LegEnded(
            order.request_id,
            order.attempt,
            order.leg,
            LegResult.COMPLETED,
            prompt_tokens=used.prompt_tokens,
            output_tokens=used.output_tokens,
        )


class Feed:
    """Answer of one leg; the client's share of it goes to the relay."""

    __slots__ = (
        "_end",
        "_ended",
        "_has_sent",
        "_is_draining",
        "_is_theirs",
        "_is_told",
        "_keep",
        "_order",
        "_pieces",
        "_relay",
        "_rewriter",
        "_scope",
        "_settings",
        "_unkept",
        "_usage",
        "_voice",
        "_withheld",
    )

    def __init__(self, relay: Relay, order: StartLeg, scope: LegScope, end: Callable[[LegEnded], None]) -> None:
        """Set up the leg's answer. `end` is called as soon as the client has all of it, while the leg's connection is
        still open."""
        self._relay = relay
        self._end = end
        self._order = order
        self._scope = scope
        self._settings = relay.settings
        self._usage: TokenUsage | None = None
        self._has_sent = False
        """True if the client has events of this leg."""
        self._ended: LegEnded | None = None
        """Result, set once the client has all of the answer; what the engine does afterwards does not change it."""
        self._is_told = False
        """True once the usage is known, as far as it will be reported."""
        self._pieces = 0
        self._is_draining = False
        self._withheld: Withheld | None = None
        """Filter for members that the client did not ask for."""
        self._voice = relay.put
        self._keep: Callable[[bytes], None] | None = None
        """Receives all that the engine sends, where it sends more than the client gets."""
        self._unkept: list[bytes] | None = None
        """Events received before the client was sent any."""
        self._rewriter: Rewriter | None = None
        """Set if the leg resumes another leg's answer."""
        self._is_theirs = False
        """True if the engine blames the request for breaking off."""

    def accepted(self) -> None:
        self._relay.accepted(self._order)

    def ended_early(self, result: LegResult, detail: str, refusal: RefusalReason | None = None) -> LegEnded:
        """Result of a leg whose connection ended before its response, or whose client left. If the client already had
        all of the answer, that result stands."""
        if self._ended is not None:
            return self._ended
        return replace(leg_ended(self._order, result, detail), refusal=refusal)

    def broke_off(self, failure: LegFailure) -> LegEnded:
        """Result of a leg that ended without the client's doing; the answer may be resumed elsewhere."""
        ended = self.ended_early(failure.result, failure.detail, failure.refusal)
        if ended is self._ended:
            return ended
        ended = replace(
            ended,
            is_final=failure.is_final,
            has_reached=failure.has_reached,
            resumes_used=failure.resumes_used,
        )
        if not self._has_sent or not self._order.may_break or self._is_theirs or failure.result is LegResult.INTERNAL:
            return ended
        rest = self._relay.rest_profile()
        return replace(ended, rest=rest, output_tokens=None if rest is None else self._relay.said_tokens)

    async def run(self, leg: Leg) -> LegEnded:
        """Relay the leg's answer. Raises LegFailure if the leg failed."""
        summary = self._relay.summary
        if not summary.started:
            summary.ran_at = leg.head.ran_at
        try:
            return await self._run(leg)
        finally:
            self._relay.leave(self._order)

    async def _run(self, leg: Leg) -> LegEnded:
        head = leg.head
        if head.status in _BODILESS:
            raise LegFailure(LegResult.FAILED, f"status {head.status}, which answers nothing")
        if not 200 <= head.status < 300:
            return await self._relay_client_error(head, leg.chunks())
        return await self._relay_answer(leg)

    async def _relay_answer(self, leg: Leg) -> LegEnded:
        """Relay the answer of a leg with a success status."""
        content_type = media_type(leg.head)
        if content_type.startswith(EVENT_STREAM):
            return await self._relay_events(leg)
        return await self._relay_whole(leg.head, content_type, leg.chunks())

    async def _relay_client_error(self, head: LegHead, chunks: AsyncIterator[bytes]) -> LegEnded:
        _check_engine(head.status, f"status {head.status}")
        if self._order.resume:  # another engine may accept the rest
            return leg_ended(self._order, LegResult.CLIENT_ERROR, f"status {head.status}")
        body, rest = await self._hold_whole(chunks)
        if rest is not None:
            raise LegFailure(LegResult.FAILED, f"status {head.status} with an endless body")
        return await self._answer_client_error(head, body)

    async def _answer_client_error(self, head: LegHead, body: bytes) -> LegEnded:
        """Send a client error. One about the request's length is withheld if a longer pool may still serve the
        request."""
        self._expect_nothing_sent(f"status {head.status}")
        too_long = too_long_in(head.status, body)
        if too_long is not None and self._order.may_be_longer:
            return replace(
                leg_ended(self._order, LegResult.TOO_LONG, f"status {head.status}: too long"), too_long=too_long
            )
        body = self._relay.named_as_asked(body)
        await self._relay.begin(self._order, with_length(head, body))
        await self._relay.write(body)
        return replace(leg_ended(self._order, LegResult.CLIENT_ERROR, f"status {head.status}"), too_long=too_long)

    def _expect_nothing_sent(self, what: str) -> None:
        if self._relay.has_begun:
            raise LegFailure(LegResult.FAILED, f"{what}, after the answer had begun")

    async def _relay_whole(self, head: LegHead, content_type: str, chunks: AsyncIterator[bytes]) -> LegEnded:
        """Relay an answer in one piece, held until it is complete, so that one that breaks off can be retried
        elsewhere."""
        relay = self._relay
        self._expect_nothing_sent("an answer in one piece")
        body, rest = await self._hold_whole(chunks)
        if rest is None:
            if not body:
                raise LegFailure(LegResult.FAILED, "an empty answer")
            fault = self._inspect(content_type, body)
            if fault is not None:
                return await self._answer_fault(head, fault)
            named = relay.named_as_asked(body)
            head = with_length(head, named)
            relay.note_first_token()
        else:
            named = relay.named_as_asked(body)
            head = head if named is body else _without_length(head)
            relay.stored(self._order, first_id_of(body))
            relay.summary.answer_bytes += len(body)
        if rest is not None or not relay.sink.is_immediate:
            relay.first_token(self._order)
        self._expect_nothing_sent("an answer in one piece")
        await relay.begin(self._order, head)
        relay.sink.put(named)
        if rest is not None:
            await relay.sink.drain()
            await self._relay_rest(body, rest)
        return self._completed()

    async def _relay_rest(self, body: bytes, rest: AsyncIterator[bytes]) -> None:
        """Relay the rest of an answer too large to hold; its end has the usage."""
        tail = body
        async for data in rest:
            tail = (tail + data)[-USAGE_WITHIN_BYTES:]
            await self._relay.write(data)
        self._usage = usage_at_end(tail)
        if self._usage is not None:
            self._relay.summary.answer_bytes -= len(body)

    def _inspect(self, content_type: str, body: bytes) -> Fault | None:
        """Inspect a whole answer. Binary answers are not inspected, and a status inside a stored response is not a
        fault of this call."""
        if content_type.startswith(OPAQUE_BYTES):
            return None
        answer = inspect_answer(body, may_give_up=self._order.role is LegRole.DECODE)
        self._usage = answer.usage
        if answer.usage is None:
            self._relay.summary.answer_bytes += len(body)
        if self._relay.outbound.profile.is_control:
            return None
        if answer.fault is None:
            self._relay.stored(self._order, answer.response_id)
        return answer.fault

    async def _hold_whole(self, chunks: AsyncIterator[bytes]) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """Return the body, and the iterator of the rest if it is too large to hold."""
        held: list[bytes] = []
        size = 0
        async for data in chunks:
            held.append(data)
            size += len(data)
            if size > self._settings.held_bytes_max:
                return b"".join(held), chunks
        return b"".join(held), None

    async def _relay_events(self, leg: Leg) -> LegEnded:
        summary = self._relay.summary
        summary.is_event_stream = True
        is_decode = self._order.role is LegRole.DECODE
        scanner = EventScanner(event_bytes_max=self._settings.event_bytes_max, may_give_up=is_decode)
        self._withheld = Withheld(leg.head.extras) if leg.head.extras else None
        self._unkept = [] if Extra.TOKEN_IDS in leg.head.extras else None
        if is_decode:
            self._relay.decoding(self._order, lambda: scanner.events_since_token)
        try:
            return await self._relay_scanned(leg, scanner)
        finally:
            if is_decode:
                self._relay.decoded(self._order, scanner.events_since_token, self._usage)
            if self._has_sent:
                summary.output_events += scanner.data_events
                self._count_tokens(scanner)

    def _count_tokens(self, scanner: EventScanner) -> None:
        """Count stream events with content where the engine reported no usage; only the last events are decoded."""
        if self._ended is None:
            self._usage = self._usage_of_all(scanner.usage_so_far) or TokenUsage()
            self._relay.note_usage(self._usage)
        if self._usage is None or self._usage.output_tokens is None:
            self._relay.summary.content_events += scanner.content_events

    async def _relay_scanned(self, leg: Leg, scanner: EventScanner) -> LegEnded:
        relay = self._relay
        held = await self._hold_events(scanner, leg.chunks())
        if scanner.fault is not None:
            return await self._answer_fault(leg.head, scanner.fault)
        relay.stored(self._order, scanner.response_id)
        await relay.begin(self._order, _without_length(leg.head))
        self._has_sent = True
        put = self._voice = self._find_voice()
        feed = scanner.feed if self._withheld is None else partial(self._feed, scanner)
        if (rewriter := relay.rewriter(self._order, leg.head)) is not None:
            self._rewriter = rewriter
            held = rewriter.rewrite(held)
            feed = partial(self._rewritten, feed, rewriter)
        has_room = put(held) if held else True
        relay.first_token(self._order)  # the client gets its token before the core counts it
        if not has_room:
            await relay.sink.drain()
        if scanner.done:
            self._finish_soon(scanner)
        self._scope.watch(self._progress, self._settings.engine_stall_s)

        def take(data: bytes) -> bool:
            self._pieces += 1
            released = feed(data)
            has_room = put(released) if released else True
            if has_room and scanner.done:
                self._finish_soon(scanner)
            return has_room and scanner.fault is None

        while not await leg.pour(take) and scanner.fault is None:
            self._is_draining = True
            await relay.sink.drain()
            self._is_draining = False
            if scanner.done:
                self._finish_soon(scanner)
        return await self._end_events(leg, scanner)

    def _progress(self) -> int:
        """Progress count for the stall check. Waiting for a slow client counts as progress of the engine; the sink has
        its own limit."""
        self._pieces += self._is_draining
        return self._pieces

    async def _hold_events(self, scanner: EventScanner, chunks: AsyncIterator[bytes]) -> bytes:
        """Return everything up to the chunk with the first token, or with a fault."""
        held: list[bytes] = []
        size = 0
        async for data in chunks:
            released = self._feed(scanner, data)
            held.append(released)
            size += len(released)
            if scanner.fault is not None or scanner.saw_token or size > self._settings.held_bytes_max:
                return b"".join(held)
        held.append(self._close(scanner))
        if scanner.fault is None and not scanner.saw_token:
            raise LegFailure(LegResult.FAILED, "the stream ended without a token")
        return b"".join(held)

    async def _end_events(self, leg: Leg, scanner: EventScanner) -> LegEnded:
        rest = self._close(scanner)
        if scanner.fault is not None:
            if rest:
                self._voice(rest)
            raise self._broken_by(scanner.fault)
        if not scanner.is_finished:
            raise LegFailure(LegResult.FAILED, "the stream broke off")
        if self._rewriter is not None:
            rest = self._rewriter.rewrite(rest) + self._rewriter.close()
        if rest and not self._relay.put(rest):
            await self._relay.sink.drain()
        if not self._is_told:
            self._usage = self._usage_of_all(scanner.usage)
            if leg.counted is not None:
                self._usage = with_opening(self._usage or TokenUsage(), leg.counted)
        return self._completed()

    def _find_voice(self) -> Callable[[bytes], bool]:
        unkept, self._unkept = self._unkept, None
        if unkept is None or (keep := self._relay.keeper(self._order)) is None:
            return self._relay.voice(self._order)
        self._keep = keep
        for block in unkept:
            keep(block)
        return self._relay.put

    def _feed(self, scanner: EventScanner, data: bytes) -> bytes:
        """Scan data and return the client's share of it."""
        released = scanner.feed(data)
        if self._unkept is not None:
            self._unkept.append(released)
        elif self._keep is not None:
            self._keep(released)
        return released if self._withheld is None else self._withheld.feed(released, is_crossing=scanner.is_crossing)

    def _close(self, scanner: EventScanner) -> bytes:
        """Return the client's share of what is left at the end."""
        rest = scanner.close() if scanner.fault is None else b""
        if self._withheld is None:
            return rest
        return self._withheld.feed(rest, is_crossing=scanner.is_crossing) + self._withheld.close()

    def _finish_soon(self, scanner: EventScanner) -> None:
        """Give the engine a short time to end its response once all of the answer has passed; only the reuse of the
        connection depends on it."""
        if self._ended is None:
            self._usage = self._usage_of_all(scanner.usage)
            if self._may_be_counted_yet():
                self._ended = leg_ended(self._order, LegResult.COMPLETED, "")
            else:
                self._end(self._completed())
            self._scope.hurry(self._settings.trailer_grace_s)

    def _may_be_counted_yet(self) -> bool:
        """Return true if a peer's final message may still bring usage that its stream lacks. It follows at once."""
        is_peer = self._order.target.kind is TargetKind.PEER
        return is_peer and (self._usage is None or self._usage.prompt_tokens is None)

    @staticmethod
    def _rewritten(feed: Callable[[bytes], bytes], rewriter: Rewriter, data: bytes) -> bytes:
        return rewriter.rewrite(feed(data))

    def _usage_of_all(self, usage: TokenUsage | None) -> TokenUsage | None:
        return usage if self._rewriter is None else self._rewriter.usage_of_all(usage)

    def _broken_by(self, fault: Fault) -> LegFailure:
        """Failure for a fault in the middle of an answer. An answer that an engine gave up to make room is retried
        elsewhere and does not count as a failure."""
        result = _result_of(fault.code or 500)
        self._is_theirs = result is LegResult.CLIENT_ERROR
        return LegFailure(LegResult.FAILED if self._is_theirs else result, fault.detail)

    async def _answer_fault(self, head: LegHead, fault: Fault) -> LegEnded:
        """Fail so that the core may retry elsewhere, or send the client its own error. Nothing has been sent yet.

        An event stream that begins with a 4xx error is answered with that status, which clients handle better.
        """
        status = fault.code or 500
        _check_engine(status, fault.detail)
        if self._order.resume:
            return leg_ended(self._order, LegResult.CLIENT_ERROR, f"status {status}")
        self._relay.summary.is_event_stream = False
        body = in_openai_shape(fault.body, status)
        return await self._answer_client_error(replace(head, status=status, headers=JSON_HEADERS), body)

    def _completed(self) -> LegEnded:
        if self._ended is None or not self._is_told:
            self._is_told = True
            self._ended = self._relay.completed(self._order, self._usage)
        return self._ended


def leg_ended(order: StartLeg, result: LegResult, detail: str) -> LegEnded:
    return LegEnded(order.request_id, order.attempt, order.leg, result, detail=detail)


def _check_engine(status: int, detail: str) -> None:
    """Raise LegFailure if the status concerns the engine rather than the client's request."""
    result = _result_of(status)
    if result is not LegResult.CLIENT_ERROR:
        raise LegFailure(result, detail)


def _result_of(status: int) -> LegResult:
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


def _without_length(head: LegHead) -> LegHead:
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
