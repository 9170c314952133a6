"""Opens a leg at a peer and turns the peer's answer into a head, body bytes or a LegFailure.

Leaving a leg early cancels the request at the peer, down to its engine. The transport makes no difference to what the
words of a forward mean: they travel on a stream that all forwards to the peer share (`exchange`) or, to a peer that
does not serve that, in a gRPC call of their own (`calls.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.vocabulary import GatewayId, LegResult, RefusalReason
from gateway.peers import codec
from gateway.peers.calls import CallWords
from gateway.peers.exchange.origin import Unserved
from gateway.peers.link import PeerLink
from gateway.peers.trust import Tell
from gateway.peers.words import Word, Words, faults_as_leg_failures
from gateway.request.answers import TokenUsage, believed
from gateway.request.legs import Leg, LegFailure, LegHead, OutboundRequest, RanAt
from mesh.clock import Clock
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
_DEADLINE_GRACE_S = 10.0
"""Seconds that the call outlives the request's deadline, so that the peer's own outcome arrives even when late. The
core does not wait for it: it closes the leg at the deadline."""


class PeerLegOpener:
    """Opens legs at peers."""

    def __init__(
        self,
        links: Mapping[GatewayId, PeerLink],
        gateway_id: GatewayId,
        clock: Clock,
        *,
        on_violation: Tell = lambda *_: None,
    ) -> None:
        """`on_violation` is called for each answer from a place that the request's residency rule forbids."""
        self._on_violation = on_violation
        self._links = links
        self._gateway_id = gateway_id
        self._clock = clock

    @asynccontextmanager
    async def open(
        self, order: StartLeg, request: OutboundRequest, *, on_accepted: Callable[[], None]
    ) -> AsyncIterator[Leg]:
        link = self._links.get(GatewayId(order.target.id))
        if link is None:
            detail = f"no connection to peer {order.target.id}: it is none of ours any more"
            raise LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
        now_ns = self._clock.now_ns()
        message = codec.forward_to_pb(order, request, self._gateway_id, now_ns)
        timeout_s = max(order.deadline_ns - now_ns, 0) / _SECOND_NS + _DEADLINE_GRACE_S
        words = _send(link, message, timeout_s)
        try:
            words = await _accepted(words, link, partial(CallWords, link, message, timeout_s))
            on_accepted()
            check_place = partial(self._check_place, order)
            head = replace(await _until_head(words, check_place), attempt=order.attempt, leg=order.leg)
            check_place(head.ran_at)
            yield PeerLeg(words, head, check_place)
        finally:
            words.leave()

    def _check_place(self, order: StartLeg, ran_at: RanAt) -> None:
        """Raise LegFailure where the peer reports a place that the request's residency rule forbids, so that no more of
        the answer reaches the client. The report can be trusted, since it speaks against the peer itself."""
        assert order.stamp is not None, "the core gives every forward its stamp"
        if order.stamp.rule.allows(ran_at.place):
            return
        self._on_violation(GatewayId(order.target.id), order.request_id, ran_at)
        where = f"{ran_at.place.region}/{ran_at.place.jurisdiction}"
        raise LegFailure(LegResult.FAILED, f"it ran in {where}, which the request's residency rule forbids")


class PeerLeg:
    """A forward that the peer has begun to answer."""

    __slots__ = ("_check_place", "_words", "counted", "head")

    def __init__(self, words: Words, head: LegHead, check_place: Callable[[RanAt], None]) -> None:
        self._check_place = check_place
        self.head = head
        self.counted: TokenUsage | None = None
        self._words = words

    async def chunks(self) -> AsyncIterator[bytes]:
        while (word := await self._words.next()).kind == "data":
            yield word.said
        await self._end(word)

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        word = await self._words.pour(take)
        if word is None:
            return False
        await self._end(word)
        return True

    async def _end(self, word: Word) -> None:
        if word.kind != "ended":
            raise LegFailure(LegResult.FAILED, f"the peer sent {word.kind} in the middle of a body")
        with faults_as_leg_failures():
            ended = codec.read_ended(word.said)
        if ended.ran_at is not None:
            self._check_place(ended.ran_at)
        check_end(ended)
        self.counted = TokenUsage(believed(ended.prompt_tokens), believed(ended.output_tokens))
        await self._words.until_closed()


def check_end(ended: codec.EndedForward) -> None:
    """Raise LegFailure if the peer's answer is incomplete."""
    result, refusal, detail = leg_end_of(ended.outcome, ended.detail)
    if result not in (LegResult.COMPLETED, LegResult.CLIENT_ERROR):
        raise LegFailure(result, detail, refusal, is_final=ended.is_final, resumes_used=ended.resumes_used)


def _send(link: PeerLink, message: pb.ForwardRequest, timeout_s: float) -> Words:
    request = message.SerializeToString()
    if len(request) > link.peering.message_max_bytes:
        detail = f"a request of {len(request)} bytes is larger than max, {link.peering.message_max_bytes}"
        raise LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
    return link.carrier.open(request) or CallWords(link, message, timeout_s)


async def _accepted(words: Words, link: PeerLink, call: Callable[[], Words]) -> Words:
    """Wait until the peer accepts the forward and return the words that follow. A peer that turns out not to serve
    `Exchange` is asked by a `Forward` call instead: it has not seen the request yet. Raises LegFailure if the peer
    refuses, fails or does not answer in time."""
    try:
        async with asyncio.timeout(link.peering.accept_timeout_ns / _SECOND_NS):
            try:
                word = await words.next()
            except Unserved:
                words = call()
                word = await words.next()
    except TimeoutError as error:
        words.leave()
        raise LegFailure(LegResult.FAILED, "the peer neither accepted nor refused in time") from error
    except BaseException:
        words.leave()
        raise
    if word.kind == "accepted":
        return words
    words.leave()
    if word.kind == "refused":
        with faults_as_leg_failures():
            reason, detail = codec.read_refused(word.said)
            raise LegFailure(LegResult.REFUSED, detail, reason)
    raise LegFailure(LegResult.FAILED, f"the peer's first word was {word.kind}")


async def _until_head(words: Words, check_place: Callable[[RanAt], None]) -> LegHead:
    word = await words.next()
    with faults_as_leg_failures():
        if word.kind == "ended":
            ended = codec.read_ended(word.said)
            if ended.ran_at is not None:
                check_place(ended.ran_at)
            check_end(ended)
            raise LegFailure(LegResult.FAILED, f"it ended as {ended.outcome} without a head")
        if word.kind != "head":
            raise LegFailure(LegResult.FAILED, f"the peer sent {word.kind} before a head")
        return codec.read_head(word.said)
