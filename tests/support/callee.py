"""A gateway reduced to core and gRPC service, with a scripted engine, and another gateway's connection to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.config.sections import PeeringConfig
from gateway.config.targets import PeerConfig
from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import ObservationConfig, PushingConfig, PushingMode
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, PolicyApplied, ReplicasObserved
from gateway.core.vocabulary import (
    GatewayId,
    ReplicaId,
    ReplicaObservation,
    RequestId,
    TargetKind,
)
from gateway.features.resume.continuation import keep_answer
from gateway.peers.caller_refusal import CallerRefusal
from gateway.peers.client import PeerLegOpener
from gateway.peers.link import PeerLink
from gateway.peers.load_publisher import LoadPublisher
from gateway.peers.server import PeerServer, PeerService
from gateway.records.decisions import ExplainedRequest
from gateway.request.cache_salts import CacheSalts
from gateway.request.driver import Driver
from gateway.request.legs import (
    STOPPED,
    LegFailure,
    LegHandle,
    LegHead,
    LegListener,
    LegOpener,
    OutboundRequest,
    RanAt,
)
from gateway.request.proxied import RequestContext
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from mesh.transport import Plaintext
from mesh.values import parse_address
from tests.support.core import EU, SECOND, US, peer_spec, policy, profile, replica_spec
from tests.support.legs import OpenLeg
from tests.support.links import peer_link
from tests.support.orders import forward_order

HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU))
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
BODY = b'{"model": "llama", "prompt": "hello", "stream": true}'
CALLER = GatewayId("us-1")
SIBLING = GatewayId("us-2")


class Chunks:
    """Chunks of the engine's next answer, or of the one that runs. None ends an answer."""

    def __init__(self) -> None:
        self._queue: deque[bytes | None] = deque()
        self.leg: EngineLeg | None = None

    def put_nowait(self, chunk: bytes | None) -> None:
        self._queue.append(chunk)
        if self.leg is not None:
            self.leg.go_on()

    def next(self) -> bytes | None:
        return self._queue.popleft()

    def __bool__(self) -> bool:
        return bool(self._queue)


class Engine:
    """Stands for all engines: a leg opener whose answers a test writes."""

    def __init__(self) -> None:
        self.chunks = Chunks()
        self.asked: list[OutboundRequest] = []
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.legs: list[EngineLeg] = []
        self.turn_over: Callable[[], None] = lambda: None

    def open(self, order: StartLeg, request: OutboundRequest, listener: LegListener) -> LegHandle:
        self.asked.append(request)
        self.opened.set()
        leg = EngineLeg(self, listener)
        self.legs.append(leg)
        self.chunks.leg = leg
        asyncio.get_running_loop().call_soon(leg.go_on)
        return leg


class EngineLeg:
    """Leg at the engine: it hands on the written chunks, one each turn of the loop, while its request has room."""

    def __init__(self, engine: Engine, listener: LegListener) -> None:
        self._engine = engine
        self._listener = listener
        self._is_paused = self._has_head = self._is_coming = self.is_over = False
        self.pauses = 0

    def stop(self) -> None:
        if not self.is_over:
            self._finish()
            self._listener.on_failed(STOPPED)

    def pause(self) -> None:
        self._is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        self._is_paused = False
        self.go_on()

    def go_on(self) -> None:
        if not self._is_coming:
            self._is_coming = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_coming = False
        chunks = self._engine.chunks
        if self.is_over or self._is_paused or not chunks:
            return
        if not self._has_head:
            self._has_head = True
            self._listener.on_head(HEAD)
        chunk = chunks.next()
        if chunk is None:
            self._finish()
            self._listener.on_end(None)
        else:
            self._listener.on_data(chunk)
        self._engine.turn_over()
        self.go_on()

    def _finish(self) -> None:
        self.is_over = True
        if self._engine.chunks.leg is self:
            self._engine.chunks.leg = None
        self._engine.closed.set()


@dataclass
class Callee:
    """A gateway in the EU reduced to its core and its gRPC service, and the US gateway's connection to it."""

    link: PeerLink
    driver: Driver
    engine: Engine
    board: LoadPublisher
    server: PeerServer
    core: GatewayCore
    service: PeerService
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    closed_because: list[str] = field(default_factory=list)
    """Reasons for refusing every forward; empty while forwards are accepted."""
    malformed: list[GatewayId] = field(default_factory=list)
    """Gateways that sent a malformed forward."""
    refusals: list[CallerRefusal] = field(default_factory=list)
    """Refused callers."""
    faults: list[BaseException] = field(default_factory=list)
    """Errors of the gateway's own."""
    body: bytes = BODY
    """Body of the forwards."""

    def open(
        self, order: StartLeg | None = None, gateway_id: GatewayId = CALLER, leg: OpenLeg | None = None
    ) -> OpenLeg:
        """Open a forward and return its listener. Raises LegFailure where that is impossible already."""
        opener = PeerLegOpener({self.link.peer.spec.gateway_id: self.link}, gateway_id, Clock())
        order = order or forward_order()
        outbound = OutboundRequest(profile(order.request_id), "/v1/completions", (), self.body)
        leg = leg or OpenLeg()
        leg.handle = opener.open(order, outbound, leg)
        return leg

    @asynccontextmanager
    async def forward(self, order: StartLeg | None = None, gateway_id: GatewayId = CALLER) -> AsyncIterator[OpenLeg]:
        """Open a forward, wait for the head of its answer, and leave it in the end. Raises LegFailure."""
        leg = self.open(order, gateway_id)
        try:
            await leg.until(lambda: "accepted" in leg.told or leg.ends)
            if "accepted" in leg.told:
                self.accepted.set()
            await leg.until_head()
            yield leg
        finally:
            leg.handle.stop()

    async def read(self, order: StartLeg | None = None, gateway_id: GatewayId = CALLER) -> list[bytes]:
        async with self.forward(order, gateway_id) as leg:
            return [chunk async for chunk in leg.chunks()]

    async def failure(self, order: StartLeg | None = None, gateway_id: GatewayId = CALLER) -> LegFailure:
        with pytest.raises(LegFailure) as caught:
            await self.read(order, gateway_id)
        return caught.value


def start_core(driver: Driver) -> None:
    """Give the core its policy and one healthy engine, which no probe observes again: it does not become stale, however
    slow the machine.
    """
    told_once = ObservationConfig(replica_stale_ns=3600 * SECOND)
    driver.submit(ConfigApplied(CoreConfig(pushing=PushingConfig(PushingMode.BLIND), observation=told_once)))
    driver.submit(PolicyApplied(policy(EU)))
    driver.submit(AssignmentApplied(1, (replica_spec("eu-a", EU),), (peer_spec("us-1", US),)))
    driver.submit(ReplicasObserved((ReplicaObservation(ReplicaId("eu-a"), Clock().now_ns(), healthy=True),)))


def explain(caller: GatewayId, request_id: RequestId) -> ExplainedRequest | None:
    """Explain the one request that is known, to its origin."""
    if (caller, request_id) != (CALLER, RequestId("r-1")):
        return None
    return ExplainedRequest("eu-1", EU.region, EU.jurisdiction, request_id, "llama", caller, age_ms=1.0)


@asynccontextmanager
async def serve(peering: PeeringConfig, opener: LegOpener | None = None) -> AsyncIterator[Callee]:
    """Serve the gateway. `opener` replaces the scripted engine."""
    clock, engine, board = Clock(), Engine(), LoadPublisher()
    core = GatewayCore(GatewayId("eu-1"), EU, seed=1)
    driver = Driver(core, clock)
    driver.on_publish(lambda report: board.post(report, clock.now_ns()))
    start_core(driver)
    closed_because: list[str] = []
    malformed: list[GatewayId] = []
    refusals: list[CallerRefusal] = []
    engine.turn_over = driver.run
    faults: list[BaseException] = []
    service = PeerService(
        RequestContext(driver, {TargetKind.REPLICA: opener or engine}, on_fault=faults.append, keep_answer=keep_answer),
        board,
        {CALLER: peer_spec("us-1", US), SIBLING: peer_spec("us-2", US)},
        peering=peering,
        keep_alive_ns=SECOND,
        transport=Plaintext(),
        clock=clock,
        turn_over=driver.run,
        explain=explain,
        cache_salts=CacheSalts(),
        why_closed=lambda: "".join(closed_because),
        on_malformed=malformed.append,
        on_refused=refusals.append,
        log=(log := make_logger(LoggingConfig(), GatewayId("eu-1"))),
    )
    server = PeerServer(service, board, peering, Plaintext(), clock=clock, log=log)
    address = await server.start(parse_address("127.0.0.1:0"))
    link = peer_link(PeerConfig(peer_spec("eu-1", EU), address), peering)
    try:
        yield Callee(
            link,
            driver,
            engine,
            board,
            server,
            core,
            closed_because=closed_because,
            malformed=malformed,
            refusals=refusals,
            faults=faults,
            service=service,
        )
    finally:
        await link.close()
        await server.stop(0)
        driver.close()
        assert driver.open_requests == 0
