"""Legs of a request that a prefill and a decode worker share. The hand-off from a prefill is kept for its decode, and a
streamed decode may be assembled for a client that wants the answer in one piece. It opens no connection and does not
interpret the hand-off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from gateway.core.kernel.events import LegEnded
from gateway.core.nearness import Nearness
from gateway.core.vocabulary import LegResult, LegRole
from gateway.request.answers import Answer, inspect_answer
from gateway.request.assembling import Assembler, TooLong, Unassembled, can_be_assembled
from gateway.request.event_scanner import EventScanner
from gateway.request.handoffs import Handoff, handoff_in
from gateway.request.legs import Leg, LegFailure, LegHead
from gateway.request.relay import EVENT_STREAM, JSON_HEADERS, Feed, leg_ended, media_type, with_length


class PartFeed(Feed):
    """Answer of a leg that runs only a prefill or a decode."""

    __slots__ = ()

    async def _relay_answer(self, leg: Leg) -> LegEnded:
        if self._order.role is LegRole.PREFILL:
            return await self._keep_part(leg.head, leg.chunks())
        assembler = self._relay.assembler
        if assembler is None or not media_type(leg.head).startswith(EVENT_STREAM):
            return await super()._relay_answer(leg)
        return await self._assemble(leg, assembler)

    async def _keep_part(self, head: LegHead, chunks: AsyncIterator[bytes]) -> LegEnded:
        """Read a prefill's answer, which is not for the client, and keep its hand-off for the decode."""
        body, rest = await self._hold_whole(chunks)
        if rest is not None:
            raise LegFailure(LegResult.FAILED, "an answer too long for a prefill")
        answer = Answer(None) if media_type(head).startswith(EVENT_STREAM) else inspect_answer(body)
        if answer.fault is not None:
            return await self._answer_fault(head, answer.fault)
        nearness: Nearness | None = None
        if self._order.connector is not None:
            handed = handoff_in(body, self._order.connector, head.side_channel, self._stray)
            self._relay.handed_over = handed.told
            self._relay.assembler = self._assembler(handed) if self._order.connector.is_sequential else None
            nearness = self._relay.nearness_of(self._order, handed.counts)
        prompt_tokens = None if answer.usage is None else answer.usage.prompt_tokens
        ended = leg_ended(self._order, LegResult.COMPLETED, "")
        return replace(ended, prompt_tokens=prompt_tokens, nearness=nearness)

    def _stray(self, host: str) -> None:
        self._relay.on_stray(self._order.target, host)

    def _assembler(self, handed: Handoff) -> Assembler | None:
        """Return the assembler for the decode's stream; None if the decode has to be asked for the whole answer."""
        outbound = self._relay.outbound
        if not self._relay.assembles or not can_be_assembled(outbound.path, outbound.body):
            return None
        try:
            return Assembler(outbound.path, handed.answer, bytes_max=self._settings.held_bytes_max)
        except Unassembled:
            return None

    async def _assemble(self, leg: Leg, assembler: Assembler) -> LegEnded:
        """Assemble a stream into an answer in one piece. Until that is complete the client has received nothing, so the
        request may be retried elsewhere."""
        scanner = EventScanner(event_bytes_max=self._settings.event_bytes_max, may_give_up=True)
        self._relay.decoding(self._order, lambda: scanner.events_since_token)
        try:
            await self._gather(leg, scanner, assembler)
            self._usage = scanner.usage
            if scanner.fault is not None:
                return await self._answer_fault(leg.head, scanner.fault)
            if not scanner.is_finished:
                raise LegFailure(LegResult.FAILED, "the stream broke off")
            whole = assembler.finish()
        except Unassembled as reason:
            self._relay.left_whole(self._order, is_lasting=not isinstance(reason, TooLong))
            raise LegFailure(LegResult.INTERNAL, f"its stream cannot be put together: {reason}") from reason
        finally:
            self._relay.decoded(self._order, scanner.events_since_token, self._usage)
        await self._send_whole(replace(leg.head, headers=JSON_HEADERS), whole)
        self._end(self._completed())
        self._scope.hurry(self._settings.trailer_grace_s)
        await leg.pour(lambda _: True)
        return self._completed()

    async def _gather(self, leg: Leg, scanner: EventScanner, assembler: Assembler) -> None:
        """Feed the stream to the assembler until its last event or an error."""
        is_begun = False

        def take(data: bytes) -> bool:
            nonlocal is_begun
            self._pieces += 1
            assembler.feed(scanner.feed(data))
            if scanner.saw_token and not is_begun and scanner.fault is None:
                is_begun = True
                self._relay.generates(self._order)
                self._scope.watch(self._progress, self._settings.engine_stall_s)
            return scanner.fault is None and not scanner.done

        if await leg.pour(take):
            assembler.feed(scanner.close())

    async def _send_whole(self, head: LegHead, body: bytes) -> None:
        relay = self._relay
        relay.note_first_token()
        if not relay.sink.is_immediate:
            relay.first_token(self._order)
        self._expect_nothing_sent("an answer in one piece")
        await relay.begin(self._order, with_length(head, body))
        relay.sink.put(body)
