"""Serves the calls of other gateways: heartbeats, pings, forwards, explanations and replica assignments.

It makes no placement: a forward enters the core like any request, and the core's answer, accepted or refused, goes
back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import PeeringConfig
from gateway.core.vocabulary import GatewayId, Jurisdiction, PeerSpec, Place, RegionName, RequestId
from gateway.peers import codec
from gateway.peers.caller_refusal import CallerRefusal
from gateway.peers.exchange.callers import Callers
from gateway.peers.exchange.serving_stream import ServingStream, StreamFault
from gateway.peers.exchange.stream_callbacks import UNWATCHED, StreamCallbacks
from gateway.peers.forward_memory import ForwardMemory
from gateway.peers.forward_receiver import Reception
from gateway.peers.heartbeats import WriteHeartbeat
from gateway.peers.load_publisher import LoadPublisher
from gateway.records.decisions import ExplainedRequest
from gateway.records.peer_usage import BudgetUse
from gateway.request.cache_salts import CacheSalts
from gateway.request.proxied import RequestContext
from mesh.channels import MalformedCalls, server_options
from mesh.clock import Clock
from mesh.control.vocabulary import Ownership
from mesh.identity import caller_identity
from mesh.listening import why_not
from mesh.logs import LogRateLimit
from mesh.silence import BEAT_NS, next_beat_ns
from mesh.transport import Claim, Transport
from mesh.values import Address
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb
from protos.mesh.v1 import peer_pb2_grpc

SERVICE_NAME = "nightside.mesh.v1.PeerService"

_SECOND_NS = 1_000_000_000
_SIGN_OF_LIFE = pb.SubscribeResponse(is_sign_of_life=True)
_NOWHERE = Place(RegionName(""), Jurisdiction(""))
_OTHER_CALLS_MAX = 256
"""Pings and health checks that may run beside forwards and subscriptions."""
_CUT_OFF_WAIT_S = 5.0
"""Seconds that a forward which was cut off may take to end; it only waits for its turn in the event loop."""
_SUBSCRIPTIONS_EACH_MAX = 8
"""Subscriptions of one peer: two while it moves to a new connection, and some whose connections died unnoticed. A peer
that does not end its old ones takes no other peer's place."""
_SubscribeContext = grpc.aio.ServicerContext[pb.SubscribeRequest, pb.SubscribeResponse]
_PingContext = grpc.aio.ServicerContext[pb.PingRequest, pb.PingResponse]
_ExplainContext = grpc.aio.ServicerContext[pb.ExplainRequest, pb.ExplainResponse]
_OwnershipContext = grpc.aio.ServicerContext[pb.OwnershipRequest, pb.OwnershipResponse]
_ExchangeContext = grpc.aio.ServicerContext[Any, Any]
_AnyContext = _ExchangeContext | _SubscribeContext | _PingContext | _ExplainContext | _OwnershipContext

Explain = Callable[[GatewayId, RequestId], ExplainedRequest | None]
"""Explains the decisions about a request that the given gateway forwarded here; None for any other request."""
BudgetsTold = Callable[[Place | None, int], tuple[Sequence[BudgetUse], int]]


class PeerService:
    """Calls of `peer.proto`."""

    def __init__(
        self,
        context: RequestContext,
        board: LoadPublisher,
        peers: Mapping[GatewayId, PeerSpec],
        *,
        peering: PeeringConfig,
        keep_alive_ns: int,
        transport: Transport,
        clock: Clock,
        turn_over: Callable[[], None],
        on_refused: Callable[[CallerRefusal], None],
        log: FilteringBoundLogger,
        explain: Explain,
        cache_salts: CacheSalts,
        pass_priority: bool = False,
        why_closed: Callable[[], str] = str,
        on_malformed: Callable[[GatewayId], None] = lambda _: None,
        ownership: Callable[[], Ownership] = Ownership,
        watch: StreamCallbacks = UNWATCHED,
        budgets: BudgetsTold = lambda _place, seen: ((), seen),
        on_subscribed: Callable[[GatewayId], None] = lambda _: None,
        writers: Callable[[], Sequence[WriteHeartbeat]] = tuple,
    ) -> None:
        """`turn_over` hands the core what requests have posted. `why_closed` gives the reason for refusing every
        forward without asking the core; empty if the core may be asked. `budgets` takes a peer's place and the point up
        to which it was told, and returns the budget uses that changed since and may be known there, with the new point.
        `writers` makes what adds to each heartbeat of one subscription.

        `on_refused` is called for every caller that is refused for its identity, `on_malformed` for every gateway that
        forwards a malformed request, and `on_subscribed` for every peer that opens a subscription.
        """
        self.reception = Reception(
            context,
            clock,
            turn_over,
            forwards_max=peering.forwards_max,
            cache_salts=cache_salts,
            pass_priority=pass_priority,
            why_closed=why_closed,
            on_malformed=on_malformed,
            log=log,
        )
        self.callers = Callers(clock, peering.subscribers_max)
        self._room = ForwardMemory.of(peering)
        self._watch = watch
        self._explain = explain
        self._ownership = ownership
        self._budgets = budgets
        self._writers = writers
        self._clock = clock
        self._board = board
        self._peers = peers
        self._peering = peering
        self._keep_alive_ns = keep_alive_ns
        self._transport = transport
        self._on_refused = on_refused
        self._on_subscribed = on_subscribed
        self._log = log
        self._seldom = LogRateLimit(clock)
        self._subscribers: Counter[GatewayId] = Counter()

    @property
    def room(self) -> ForwardMemory:
        """Memory that forwards hold, whichever way they come."""
        return self._room

    async def Subscribe(self, request: pb.SubscribeRequest, context: _SubscribeContext) -> None:  # noqa: N802
        """Send heartbeats until either side leaves. A slow reader skips reports; they never queue up."""
        caller = await self._check_subscriber(request, context)
        if self._subscribers.total() >= self._peering.subscribers_max:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many subscribers")
        if self._subscribers[caller] >= _SUBSCRIPTIONS_EACH_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many subscriptions of one gateway")
        self._subscribers[caller] += 1
        self._on_subscribed(caller)
        try:
            await self._publish(caller, context, takes_signs_of_life=request.takes_signs_of_life)
        finally:
            self._leave(caller)

    async def Ping(self, request: pb.PingRequest, context: _PingContext) -> pb.PingResponse:  # noqa: ARG002, N802
        await self._check_caller(context, None)
        return pb.PingResponse()

    async def Exchange(self, _: object, context: _ExchangeContext) -> None:  # noqa: N802
        """Run many of a caller's requests (see `exchange`). The caller is identified once, for the whole stream."""
        await self._check_caller(context, None)
        caller = caller_name(context)
        if why := self.callers.why_not(caller):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        auth = context.auth_context()
        stream = ServingStream(
            context,
            self.reception,
            self._room,
            self.callers.patience_with(caller),
            caller=caller,
            peering=self._peering,
            claim_fault=lambda claim: self._transport.caller_fault(auth, claim),
            on_ignored=self._watch.ignored,
        )
        try:
            with self.callers.holding(caller, stream):
                await stream.serve()
        except StreamFault as fault:
            self.callers.disgrace(caller)
            self._watch.broken(stream.origin, str(fault))
            if fault.code is grpc.StatusCode.PERMISSION_DENIED:
                await self._refuse(context, str(fault))
            await context.abort(fault.code, str(fault))

    async def Explain(self, request: pb.ExplainRequest, context: _ExplainContext) -> pb.ExplainResponse:  # noqa: N802
        """Explain a request to the gateway that forwarded it. Any other caller is told the same as if the request did
        not exist."""
        try:
            caller, request_id = codec.read_explain_request(request)
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._check_named(caller, context)
        explained = self._explain(caller, request_id)
        if explained is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no request of yours is known here by that id")
        return codec.explained_to_pb(explained)

    async def Ownership(  # noqa: N802
        self, request: pb.OwnershipRequest, context: _OwnershipContext
    ) -> pb.OwnershipResponse:
        """Replicas served away from home, as the newest controller snapshot known here says."""
        try:
            caller = codec.read_ownership_request(request)
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._check_named(caller, context)
        return codec.ownership_to_pb(self._ownership())

    async def _publish(self, caller: GatewayId, context: _SubscribeContext, *, takes_signs_of_life: bool) -> None:
        """Send reports, and signs of life beside them, until the board is closed. The last report is sent even then: it
        may announce this gateway's end."""
        sent, sent_ns, seen = None, 0, 0
        writers = self._writers()
        now_ns = self._clock.now_ns()
        beat_ns = now_ns + BEAT_NS if takes_signs_of_life else None
        while True:
            wait_ns = self._keep_alive_ns if beat_ns is None else min(self._keep_alive_ns, max(0, beat_ns - now_ns))
            newest = await self._board.newer_than(sent, wait_max_s=wait_ns / _SECOND_NS)
            if newest is None and self._board.closed:
                return
            now_ns = self._clock.now_ns()
            if beat_ns is not None and now_ns >= beat_ns:
                beat_ns = next_beat_ns(beat_ns, now_ns)
                await context.write(_SIGN_OF_LIFE)
            if newest is not None and newest is sent and now_ns < sent_ns + self._keep_alive_ns:
                continue
            sent, sent_ns = newest, now_ns
            if sent is not None:
                age_ns = now_ns - sent.posted_ns
                told = self._peers.get(caller)
                place = told.place if told else None
                message = codec.load_to_pb(sent.report.told_to(place), age_ns)
                uses, seen = self._budgets(place, seen)
                if uses:
                    codec.write_budget_uses(message, uses)
                if told is not None:
                    for write in writers:
                        write(message, told)
                await context.write(message)

    def _leave(self, caller: GatewayId) -> None:
        self._subscribers[caller] -= 1
        if not self._subscribers[caller]:
            del self._subscribers[caller]

    async def _check_named(self, caller: GatewayId, context: _ExplainContext | _OwnershipContext) -> None:
        """Check that the caller is the gateway that it claims to be."""
        known = self._peers.get(caller)
        await self._check_caller(context, (caller, known.place if known else _NOWHERE))

    async def _check_subscriber(self, request: pb.SubscribeRequest, context: _SubscribeContext) -> GatewayId:
        """Check a subscriber's claim against its certificate, and by id and place against the peers known here. The
        core makes the second check for forwards, and refuses with a reason."""
        try:
            gateway_id, place = codec.read_subscribe_request(request)
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._check_caller(context, (gateway_id, place))
        known = self._peers.get(gateway_id)
        if known is None:
            await self._refuse_stranger(context, gateway_id)
        if known.place != place:
            told = f"{known.place.region}/{known.place.jurisdiction}"
            fault = f"gateway {gateway_id} claims {place.region}/{place.jurisdiction}, we know it in {told}"
            await self._refuse(context, fault)
        return gateway_id

    async def _check_caller(self, context: _AnyContext, claim: Claim | None) -> None:
        """Check the caller's certificate, and its claim if any, before its message is used."""
        fault = self._transport.caller_fault(context.auth_context(), claim)
        if fault is not None:
            await self._refuse(context, fault)

    async def _refuse(self, context: _AnyContext, fault: str) -> Never:
        self._on_refused(CallerRefusal.IDENTITY)
        passed_over = self._seldom.turn(context.peer().rpartition(":")[0])
        if passed_over is not None:
            self._log.error("caller_identity_mismatch", reason=fault, caller=context.peer(), suppressed=passed_over)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, fault)

    async def _refuse_stranger(self, context: _AnyContext, gateway_id: GatewayId) -> Never:
        """Refuse a gateway that is no peer here, or not yet: while a region is added, its gateways know their peers
        first."""
        self._on_refused(CallerRefusal.NOT_A_PEER)
        passed_over = self._seldom.turn(f"{CallerRefusal.NOT_A_PEER} {context.peer().rpartition(':')[0]}")
        if passed_over is not None:
            self._log.warning("caller_not_a_peer", claim=gateway_id, caller=context.peer(), suppressed=passed_over)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"gateway {gateway_id} is not among our peers")


class PeerServer:
    """gRPC listener with PeerService and the standard health service."""

    def __init__(
        self,
        service: PeerService,
        board: LoadPublisher,
        peering: PeeringConfig,
        transport: Transport,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        shares_port: bool = False,
    ) -> None:
        """`shares_port` lets another process of this gateway listen at the same address and take over."""
        self._service = service
        self._board = board
        self._transport = transport
        self._shares_port = shares_port
        self._server = grpc.aio.server(
            options=server_options(peering, shares_port=shares_port),
            maximum_concurrent_rpcs=peering.forwards_max + peering.subscribers_max + _OTHER_CALLS_MAX,
            interceptors=[MalformedCalls(clock, log)],
        )
        self._health = health_aio.HealthServicer()
        # grpc.aio also takes coroutines that write to their context; the generated types know generators alone.
        peer_pb2_grpc.add_PeerServiceServicer_to_server(service, self._server)  # type: ignore[arg-type]
        # Messages of an exchange cross gRPC as bytes, so that malformed ones are detected by `read_message`.
        exchange: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(service.Exchange)
        self._server.add_registered_method_handlers(SERVICE_NAME, {"Exchange": exchange})
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, address: Address, *, takes_over: bool = False) -> Address:
        """Listen. Returns the real address, also where the system chose the port. Raises OSError if the port is taken,
        unless this process takes over from the one that has it."""
        if self._shares_port and not takes_over and (fault := why_not(address)):
            raise OSError(fault, f"cannot listen on {address} for peers")
        try:
            port = self._transport.add_port(self._server, str(address))
        except RuntimeError as error:
            raise OSError(why_not(address), f"cannot listen on {address} for peers") from error
        await self._server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return replace(address, port=port)

    async def drain(self) -> None:
        """Report this gateway as not serving to health checks; the core itself refuses new forwards."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def undrain(self) -> None:
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def leave(self, grace_s: float) -> None:
        """Stop listening: new callers reach the process that has taken over. Running forwards may go on for `grace_s`
        seconds."""
        self._board.close()
        self._service.callers.close()
        await self._server.stop(grace_s)

    async def stop(self, grace_s: float) -> None:
        """End the subscriptions, give running forwards `grace_s` seconds, then close. gRPC does not wait for forwards
        that it cuts off; this method does, so that each reports its end."""
        self._board.close()
        self._service.callers.close()
        await self._server.stop(grace_s)
        await self._service.reception.until_idle(_CUT_OFF_WAIT_S)

    async def _set_health(self, status: int) -> None:
        for service in ("", SERVICE_NAME):
            await self._health.set(service, status)


def caller_name(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Key that a caller's memory is counted under: the URI of its certificate, else its IP address without the port."""
    try:
        return caller_identity(context.auth_context()).uri
    except ValueError:
        return context.peer().rpartition(":")[0]
