"""Forwards: opens a leg at a peer and turns whatever comes back into a head, body bytes or a LegFailure.

Leaving a leg early cancels the call, and with it the request at the peer, down to its engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial

import grpc
import grpc.aio

from gateway.core.effects import StartLeg
from gateway.core.forwarding import leg_end_of
from gateway.core.vocabulary import GatewayId, LegResult, RefusalReason
from gateway.ground.clock import Clock
from gateway.ground.shortage import tells_our_shortage
from gateway.ground.wire import WireError
from gateway.peers import codec
from gateway.peers.link import PeerLink
from gateway.peers.trust import Tell
from gateway.request.legs import Leg, LegFailure, LegHead, OutboundRequest, RanAt
from protos.mesh.v1 import peer_pb2 as pb

_SECOND_NS = 1_000_000_000
_DEADLINE_GRACE_S = 10.0
"""The call outlives the request's deadline by this, so that the peer's own word about it arrives, also late. The core
does not wait for it: it has the leg closed at the deadline."""
_CLOSE_WAIT_S = 1.0
_TOO_LARGE_AN_ANSWER = "CLIENT: Received message larger than max"
"""gRPC has one status for this, for a request that is too large, and for too many calls at once."""

_Call = grpc.aio.UnaryStreamCall[pb.ForwardRequest, pb.ForwardResponse]


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
        """`on_violation` is told of each answer that says that it comes from where its request must not run."""
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
        call = link.stub.Forward(message, timeout=timeout_s)
        try:
            await _until_accepted(call, link)
            on_accepted()
            check_place = partial(self._check_place, order)
            head = replace(await _until_head(call, check_place), attempt=order.attempt, leg=order.leg)
            check_place(head.ran_at)
            yield PeerLeg(call, head, check_place)
        finally:
            call.cancel()

    def _check_place(self, order: StartLeg, ran_at: RanAt) -> None:
        """A peer's word is believed where it speaks against itself. Raises LegFailure: of such an answer nothing more
        goes on to the client."""
        assert order.stamp is not None, "the core gives every forward its stamp"
        if order.stamp.rule.allows(ran_at.place):
            return
        self._on_violation(GatewayId(order.target.id), order.request_id, ran_at)
        where = f"{ran_at.place.region}/{ran_at.place.jurisdiction}"
        raise LegFailure(LegResult.FAILED, f"it ran in {where}, which the request's residency rule forbids")


class PeerLeg:
    """A forward that the peer has begun to answer."""

    def __init__(self, call: _Call, head: LegHead, check_place: Callable[[RanAt], None]) -> None:
        self._check_place = check_place
        self.head = head
        self._call = call

    async def chunks(self) -> AsyncIterator[bytes]:
        while (data := await self._next()) is not None:
            yield data

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        while (data := await self._next()) is not None:
            if not take(data):
                return False
        return True

    async def _next(self) -> bytes | None:
        """None at the end."""
        message = await _read(self._call)
        kind = message.WhichOneof("kind")
        if kind == "ended":
            await self._end(message.ended)
            return None
        if kind != "data":
            raise LegFailure(LegResult.FAILED, f"the peer sent {kind} in the middle of a body")
        return message.data

    async def _end(self, message: pb.Ended) -> None:
        with _faults_as_leg_failures():
            ended = codec.read_ended(message)
        if ended.ran_at is not None:
            self._check_place(ended.ran_at)
        failure = failure_of(ended)
        if failure is not None:
            raise failure
        await _until_closed(self._call)


def failure_of(ended: codec.EndedForward) -> LegFailure | None:
    """None where the peer's answer is whole."""
    result, refusal, detail = leg_end_of(ended.outcome, ended.detail)
    return None if result in (LegResult.COMPLETED, LegResult.CLIENT_ERROR) else LegFailure(result, detail, refusal)


async def _until_accepted(call: _Call, link: PeerLink) -> None:
    try:
        async with asyncio.timeout(link.peering.accept_timeout_ns / _SECOND_NS):
            message = await _read(call)
    except TimeoutError as error:
        raise LegFailure(LegResult.FAILED, "the peer neither accepted nor refused in time") from error
    except LegFailure as failure:
        if _is_our_shortage(failure.__cause__) and not link.is_connected:
            raise LegFailure(LegResult.INTERNAL, failure.detail) from failure
        raise
    kind = message.WhichOneof("kind")
    if kind == "refused":
        with _faults_as_leg_failures():
            reason, detail = codec.read_refused(message.refused)
            raise LegFailure(LegResult.REFUSED, detail, reason)
    if kind != "accepted":
        raise LegFailure(LegResult.FAILED, f"the peer's first word was {kind}")


async def _until_head(call: _Call, check_place: Callable[[RanAt], None]) -> LegHead:
    message = await _read(call)
    kind = message.WhichOneof("kind")
    with _faults_as_leg_failures():
        if kind == "ended":
            ended = codec.read_ended(message.ended)
            if ended.ran_at is not None:
                check_place(ended.ran_at)
            raise failure_of(ended) or LegFailure(LegResult.FAILED, f"it ended as {ended.outcome} without a head")
        if kind != "head":
            raise LegFailure(LegResult.FAILED, f"the peer sent {kind} before a head")
        return codec.read_head(message.head)


async def _read(call: _Call) -> pb.ForwardResponse:
    """The next message, passing over those of a kind that we do not know. One after which nothing more comes was the
    peer's last word."""
    passed_over = False
    while True:
        with _faults_as_leg_failures():
            message = await call.read()
        if not isinstance(message, pb.ForwardResponse):
            raise _closed(after_unknown=passed_over)
        if message.WhichOneof("kind") is not None or not message.ByteSize():
            return message
        passed_over = True


def _closed(*, after_unknown: bool) -> LegFailure:
    if after_unknown:
        result, refusal, detail = leg_end_of(None, "its last word was of a kind that we do not know")
        return LegFailure(result, detail, refusal)
    return LegFailure(LegResult.FAILED, "the peer closed the forward without a last word")


async def _until_closed(call: _Call) -> None:
    """Let the peer close an ended call itself; cancelling it now could reach the peer first."""
    try:
        async with asyncio.timeout(_CLOSE_WAIT_S):
            await call.read()
    except (TimeoutError, grpc.aio.AioRpcError):
        pass  # the answer is whole: how the call closes changes nothing


@contextmanager
def _faults_as_leg_failures() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _failure_in(error) from error
    except WireError as error:
        raise LegFailure(LegResult.FAILED, f"the peer's message is malformed: {error}") from error


def _failure_in(error: grpc.aio.AioRpcError) -> LegFailure:
    """What a call's status says about the peer. That it finds our message malformed, or that either end finds it too
    large, is no failure of the peer's: what a client may send must not close the way to it."""
    code, words = error.code(), error.details() or ""
    detail = f"{code.name}: {words}"
    is_about_ours = code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE_AN_ANSWER not in words
    if is_about_ours or code is grpc.StatusCode.INVALID_ARGUMENT:
        return LegFailure(LegResult.REFUSED, detail, RefusalReason.BUSY)
    return LegFailure(LegResult.FAILED, detail)


def _is_our_shortage(error: BaseException | None) -> bool:
    """Only where there was no connection: over one, a peer may say these words too."""
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return tells_our_shortage(error.details() or "")
