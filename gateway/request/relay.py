"""A request's answer on its way from its legs to its client. Nothing is sent until it is known to be worth sending.

One relay serves a request for all its life and knows what has been sent; each leg feeds it. It opens no connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial

from gateway.core.decode.locality.nearness import Nearness
from gateway.core.effects import StartLeg
from gateway.core.events import FirstToken, LegAccepted, LegEnded, ResponseStored
from gateway.core.stored_responses import stored_response_key
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
from gateway.ground.clock import Clock
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

Compare = Callable[[PoolName, bytes], Nearness | None]
"""Told what a prefill says of its experts, as it came or empty. It never raises."""

EVENT_STREAM = "text/event-stream"
JSON_HEADERS = (("content-type", "application/json"),)
OPAQUE_BYTES = "application/octet-stream"
_BODILESS = frozenset({204, 205})
"""Behind these no client expects a body: what came would be taken for the beginning of another answer."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    held_bytes_max: int = 1 << 20
    """What may be held back before the first byte goes out: a stream's beginning, or a whole answer."""
    event_bytes_max: int = 1 << 20
    trailer_grace_s: float = 1.0
    """After `[DONE]` the engine may take this long to end its response, so that the connection can be used again."""
    engine_stall_s: float = 120.0
    """A stream that has begun and then brings nothing for this long has failed."""
    prefix_blocks_max: int = 4096
    """Of the prompt with what was answered, hashes for whoever goes on with an answer that broke."""


OnStray = Callable[[Target, str], None]
"""Told of a prefill worker and of a host where it leads its decode worker and may not."""


def ignore_stray(worker: Target, host: str) -> None:
    """Where nothing is told."""


class Relay:
    """The client's side of one request: where its answer goes, and what of it has gone there."""

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
        """`hold`: where a transcript is counted. None: none is kept."""
        self.on_stray = on_stray
        self._compare = compare
        self._hold = hold
        self._transcript: Transcript | None = None
        self._rest: Rest | None = None
        """What is left to do since its answer broke."""
        self._has_no_room = False
        """For that."""
        self._driver = driver
        self._clock = clock
        self._arrived_ns = arrived_ns
        self._speaker: StartLeg | None = None
        """The leg whose answer the client is getting, or has got."""
        self._renamed = None if not outbound.asked_model else Renamer(outbound.profile.model, outbound.asked_model)
        self.handed_over = b""
        """What the last prefill's answer says to its decode: the engines' own affair."""
        self.assembler: Assembler | None = None
        """For the decode that comes next: it is had as a stream, and the client gets it in one piece."""
        self.assembles = not outbound.profile.stream
        """False once it has shown that this answer cannot be put together."""
        self.settings = settings
        self.sink = sink
        self.outbound = outbound
        self.summary = summary
        self.put: Callable[[bytes], bool] = sink.put if self._renamed is None else self._put_renamed
        """Sends whole events of an answer, as `Sink.put` does."""

    def nearness_of(self, order: StartLeg, counts: bytes) -> Nearness | None:
        """What is told of a prompt's experts. None where nobody asks for it."""
        return None if self._compare is None or order.pool is None else self._compare(order.pool, counts)

    def named_as_asked(self, body: bytes) -> bytes:
        """Of an answer in one piece, before its length is told."""
        return body if self._renamed is None else self._renamed(body)

    def _put_renamed(self, data: bytes) -> bool:
        assert self._renamed is not None, "it has another name"
        return self.sink.put(self._renamed(data))

    @property
    def has_begun(self) -> bool:
        """Status and headers have gone out, with whichever leg: a further one goes on behind them."""
        return self.summary.started

    async def begin(self, order: StartLeg, head: LegHead) -> None:
        """From now on this leg alone speaks to the client. Raises LegFailure while another one does."""
        if self._speaker is not None:
            raise LegFailure(LegResult.FAILED, f"leg {self._speaker.leg} is answering already")
        self._speaker = order
        self.summary.ran_at = head.ran_at
        if not self.summary.started:
            self.summary.started = True
            await self.sink.start(head)

    def leave(self, order: StartLeg) -> None:
        """This leg is over: another one may go on behind it."""
        if self._speaker is order:
            self._speaker = None

    async def write(self, data: bytes) -> None:
        if not self.sink.put(data):
            await self.sink.drain()

    # An answer that breaks, and goes on

    def voice(self, order: StartLeg) -> Callable[[bytes], bool]:
        """By which the events of this leg's stream go to the client; and are kept, where somebody may have to go on."""
        transcript = self._transcript_for(order)
        return self.put if transcript is None else transcript.put

    def keeper(self, order: StartLeg) -> Callable[[bytes], None] | None:
        """The same where more is kept than the client gets: what goes to it goes by `put`."""
        transcript = self._transcript_for(order)
        return None if transcript is None else transcript.keep

    def _transcript_for(self, order: StartLeg) -> Transcript | None:
        if self._transcript is None and order.may_break and self._hold is not None and self.outbound.path in PATHS:
            self._transcript = Transcript(self.outbound.path, self._hold, self.put)
        return self._transcript

    def rest_profile(self) -> RequestProfile | None:
        """What is left to do of an answer that has just broken, as a request. None, and the summary says why: nobody
        could go on with it."""
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
        """It has a body of its own, beside the client's. Raises Unsound."""
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
        """Of the answer, when it broke last."""
        return 0 if self._rest is None else self._rest.said.tokens

    def outbound_of(self, order: StartLeg) -> OutboundRequest:
        """What is asked for: all of it, or what is left."""
        if not order.resume:
            return self.outbound
        assert self._rest is not None, "the core has been told what is left"
        return self._rest.outbound

    def rewriter(self, order: StartLeg, head: LegHead) -> Rewriter | None:
        """For a leg that goes on with what another one began."""
        if not order.resume:
            return None
        assert self._rest is not None, "the core has been told what is left"
        self.summary.resumes = order.resume
        remark = b": nightside: went on elsewhere, resume %d, in %b\n\n"
        region = head.ran_at.place.region.encode()
        return rewriter_for(self.outbound.path, self._rest, remark=remark % (order.resume, region))

    def accepted(self, order: StartLeg) -> None:
        """Of an engine, its first token says the same."""
        if order.target.kind is TargetKind.PEER:
            self._driver.submit(LegAccepted(order.request_id, order.attempt, order.leg))

    def stored(self, order: StartLeg, response_id: str | None) -> None:
        """Before the client hears of the answer: it may refer to it at once."""
        if response_id is not None and self.outbound.stores_response:
            key = stored_response_key(self.outbound.profile.tenant, response_id)
            self._driver.submit(ResponseStored(order.request_id, order.attempt, order.leg, key))

    def first_token(self, order: StartLeg) -> None:
        self.note_first_token()
        self._driver.submit(FirstToken(order.request_id, order.attempt, order.leg))

    def generates(self, order: StartLeg) -> None:
        """Its first token is here, and held."""
        self._driver.submit(FirstToken(order.request_id, order.attempt, order.leg, is_sent=False))

    def note_first_token(self) -> None:
        """Of an answer that goes out in one piece, the core hears with its end."""
        if self.summary.first_token_ns is None:
            self.summary.first_token_ns = self._clock.now_ns() - self._arrived_ns

    def note_usage(self, usage: TokenUsage) -> None:
        """Once for each leg that answers: all are given the same prompt, and what each puts out adds up."""
        summary = self.summary
        if summary.prompt_tokens is None:
            summary.prompt_tokens, summary.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        if usage.output_tokens is not None:
            summary.output_tokens = (summary.output_tokens or 0) + usage.output_tokens

    def decoding(self, order: StartLeg, events: Callable[[], int]) -> None:
        """How far it has come may be asked for at any time, until it is over."""
        self._driver.progress.begins(order.request_id, order.attempt, order.pool, order.target, events)

    def decoded(self, order: StartLeg, events: int, usage: TokenUsage | None) -> None:
        progress = self._driver.progress
        progress.ends(order.request_id, order.attempt)
        if usage is not None and usage.output_tokens is not None:
            progress.learn(order.target, events, usage.output_tokens)

    def left_whole(self, order: StartLeg, *, is_lasting: bool) -> None:
        """The stream could not be put together, which is no fault of the engine's: the next one is asked for the whole
        answer. `is_lasting`: so it is of whoever asks this engine next."""
        self.assembles = False
        if is_lasting:
            self._driver.progress.leave_whole(order.target, self.outbound.path, self._clock.now_ns())

    def will_assemble(self, order: StartLeg) -> bool:
        """Is this decode had as a stream whose client gets it in one piece?"""
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
    """One leg's answer. What of it is the client's goes to the relay."""

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
        """`end` is told at once where the client has all of the answer, and the leg's connection is still open."""
        self._relay = relay
        self._end = end
        self._order = order
        self._scope = scope
        self._settings = relay.settings
        self._usage: TokenUsage | None = None
        self._has_sent = False
        """The client has events of this leg."""
        self._ended: LegEnded | None = None
        """Once the client has all of the answer. What the engine does afterwards is between it and us."""
        self._is_told = False
        """It is known what it used, as far as anybody will say."""
        self._pieces = 0
        self._is_draining = False
        self._withheld: Withheld | None = None
        """Of a stream that tells more than its client asked for."""
        self._voice = relay.put
        self._keep: Callable[[bytes], None] | None = None
        """Told of all that the engine says, where it tells more than the client gets."""
        self._unkept: list[bytes] | None = None
        """What it said before the client had anything."""
        self._rewriter: Rewriter | None = None
        """Where it goes on with what another leg began."""
        self._is_theirs = False
        """What broke it is the request's own fault, as the engine says."""

    def accepted(self) -> None:
        self._relay.accepted(self._order)

    def ended_early(self, result: LegResult, detail: str, refusal: RefusalReason | None = None) -> LegEnded:
        """The connection ended before its response did, or the client left; which matters only if the client still
        waited for something."""
        if self._ended is not None:
            return self._ended
        return replace(leg_ended(self._order, result, detail), refusal=refusal)

    def broke_off(self, failure: LegFailure) -> LegEnded:
        """The same where it ends through no fault of the client's: somebody may go on with what there is."""
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
        """Raises LegFailure where the leg failed."""
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
        """Of an engine that has begun well."""
        content_type = media_type(leg.head)
        if content_type.startswith(EVENT_STREAM):
            return await self._relay_events(leg)
        return await self._relay_whole(leg.head, content_type, leg.chunks())

    async def _relay_client_error(self, head: LegHead, chunks: AsyncIterator[bytes]) -> LegEnded:
        _check_engine(head.status, f"status {head.status}")
        if self._order.resume:  # another engine may know better what to do with a rest
            return leg_ended(self._order, LegResult.CLIENT_ERROR, f"status {head.status}")
        body, rest = await self._hold_whole(chunks)
        if rest is not None:
            raise LegFailure(LegResult.FAILED, f"status {head.status} with an endless body")
        return await self._answer_client_error(head, body)

    async def _answer_client_error(self, head: LegHead, body: bytes) -> LegEnded:
        """One that is about the request's length may be had from a longer pool: then nobody is told of it yet."""
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
        """An answer in one piece is held until it is whole, so that one that breaks off can be had elsewhere."""
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
        """What comes behind as much as may be held, whose end tells the usage."""
        tail = body
        async for data in rest:
            tail = (tail + data)[-USAGE_WITHIN_BYTES:]
            await self._relay.write(data)
        self._usage = usage_at_end(tail)
        if self._usage is not None:
            self._relay.summary.answer_bytes -= len(body)

    def _inspect(self, content_type: str, body: bytes) -> Fault | None:
        """Numbers in bytes have nothing to look at, and what a stored response says of itself is no fault of now."""
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
        """The body, and what is still to come of one that is too large to hold."""
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
        """Where the engine told no count, the events stand in for it; they cost a look at the last of them."""
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
        relay.first_token(self._order)  # the client has its token before anybody counts it
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
        """While the client is what we wait for, the engine is not to blame: there is a limit of its own on that."""
        self._pieces += self._is_draining
        return self._pieces

    async def _hold_events(self, scanner: EventScanner, chunks: AsyncIterator[bytes]) -> bytes:
        """Everything up to the chunk with the first token, or with a reason not to go on."""
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
        """What of it is the client's."""
        released = scanner.feed(data)
        if self._unkept is not None:
            self._unkept.append(released)
        elif self._keep is not None:
            self._keep(released)
        return released if self._withheld is None else self._withheld.feed(released, is_crossing=scanner.is_crossing)

    def _close(self, scanner: EventScanner) -> bytes:
        """The same, of what is left at the end."""
        rest = scanner.close() if scanner.fault is None else b""
        if self._withheld is None:
            return rest
        return self._withheld.feed(rest, is_crossing=scanner.is_crossing) + self._withheld.close()

    def _finish_soon(self, scanner: EventScanner) -> None:
        """All that the client wants has passed; what is left is the end of the response itself, which nobody waits for
        but the connection."""
        if self._ended is None:
            self._usage = self._usage_of_all(scanner.usage)
            if self._may_be_counted_yet():
                self._ended = leg_ended(self._order, LegResult.COMPLETED, "")
            else:
                self._end(self._completed())
            self._scope.hurry(self._settings.trailer_grace_s)

    def _may_be_counted_yet(self) -> bool:
        """A peer says with its last word what its stream does not: what its engine was asked for there, and not here.
        It comes right behind."""
        is_peer = self._order.target.kind is TargetKind.PEER
        return is_peer and (self._usage is None or self._usage.prompt_tokens is None)

    @staticmethod
    def _rewritten(feed: Callable[[bytes], bytes], rewriter: Rewriter, data: bytes) -> bytes:
        return rewriter.rewrite(feed(data))

    def _usage_of_all(self, usage: TokenUsage | None) -> TokenUsage | None:
        return usage if self._rewriter is None else self._rewriter.usage_of_all(usage)

    def _broken_by(self, fault: Fault) -> LegFailure:
        """In the middle of an answer. One that an engine gives up to make room is had elsewhere, and is no failure."""
        result = _result_of(fault.code or 500)
        self._is_theirs = result is LegResult.CLIENT_ERROR
        return LegFailure(LegResult.FAILED if self._is_theirs else result, fault.detail)

    async def _answer_fault(self, head: LegHead, fault: Fault) -> LegEnded:
        """Nothing has been sent: fail so that the core may try elsewhere, or give the client its own error.

        An event stream that begins with a 4xx error is answered with that status, which clients understand better.
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
    """Raises LegFailure where the status says something about the engine. One about the client's request passes."""
    result = _result_of(status)
    if result is not LegResult.CLIENT_ERROR:
        raise LegFailure(result, detail)


def _result_of(status: int) -> LegResult:
    """401 is about the engine too: the client's own key never reaches it, so it is the gateway's that was turned
    down."""
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
    """A stream that fails ends with an event of ours, which nobody has counted."""
    kept = tuple(pair for pair in head.headers if pair[0].lower() != "content-length")
    return head if len(kept) == len(head.headers) else replace(head, headers=kept)


def with_length(head: LegHead, body: bytes) -> LegHead:
    """A body that is at hand whole goes out with its length, however it came in."""
    length = str(len(body))
    for name, told in head.headers:
        if name.lower() == "content-length" and told == length:
            return head
    headers = tuple(pair for pair in head.headers if pair[0].lower() != "content-length")
    return replace(head, headers=(*headers, ("content-length", length)))
