"""A gateway reduced to core and gRPC service, with a scripted engine, and another gateway's connection to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.config.sections import EngineCacheConfig, PeeringConfig
from gateway.config.targets import PeerConfig
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import CoreConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, ConfigApplied, PolicyApplied, ReplicasObserved
from gateway.core.vocabulary import (
    GatewayId,
    ReplicaId,
    ReplicaObservation,
    RequestId,
    TargetKind,
)
from gateway.peers.board import LoadBoard
from gateway.peers.client import PeerLegOpener
from gateway.peers.link import PeerLink
from gateway.peers.server import PeerServer, PeerService
from gateway.records.decisions import ExplainedRequest
from gateway.request.cache_salts import CacheSalts
from gateway.request.driver import Driver
from gateway.request.legs import Leg, LegFailure, LegHead, LegOpener, OutboundRequest, RanAt
from gateway.request.owner import OwnerContext
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from mesh.transport import Plaintext
from mesh.values import parse_address
from tests.support.core import EU, SECOND, US, no_leg_beside, peer_spec, policy, profile, replica_spec
from tests.support.legs import Pouring
from tests.support.links import peer_link
from tests.support.orders import forward_order

HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("eu-a"), EU))
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
BODY = b'{"model": "llama", "prompt": "hello", "stream": true}'
CALLER = GatewayId("us-1")
SIBLING = GatewayId("us-2")


class Engine:
    """Stands for all engines: a leg opener whose answers a test writes."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.asked: list[OutboundRequest] = []
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.failure: LegFailure | None = None

    @asynccontextmanager
    async def open(
        self, order: StartLeg, request: OutboundRequest, *, on_accepted: Callable[[], None]
    ) -> AsyncIterator[Leg]:
        self.asked.append(request)
        self.opened.set()
        try:
            if self.failure is not None:
                raise self.failure
            on_accepted()
            yield EngineLeg(self.chunks)
        finally:
            self.closed.set()


@dataclass
class EngineLeg(Pouring):
    queue: asyncio.Queue[bytes | None]
    head: LegHead = HEAD

    async def chunks(self) -> AsyncIterator[bytes]:
        while (chunk := await self.queue.get()) is not None:
            yield chunk


@dataclass
class Callee:
    """A gateway in the EU reduced to its core and its gRPC service, and the US gateway's connection to it."""

    link: PeerLink
    driver: Driver
    engine: Engine
    board: LoadBoard
    server: PeerServer
    core: GatewayCore
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    closed_because: list[str] = field(default_factory=list)
    """Reasons for refusing every forward; empty while forwards are accepted."""
    malformed: list[GatewayId] = field(default_factory=list)
    """Gateways that sent a malformed forward."""
    body: bytes = BODY
    """Body of the forwards."""

    @asynccontextmanager
    async def forward(self, order: StartLeg | None = None, gateway_id: GatewayId = CALLER) -> AsyncIterator[Leg]:
        opener = PeerLegOpener({self.link.peer.spec.gateway_id: self.link}, gateway_id, Clock())
        order = order or forward_order()
        outbound = OutboundRequest(profile(order.request_id), "/v1/completions", (), self.body)
        async with opener.open(order, outbound, on_accepted=self.accepted.set) as leg:
            yield leg

    async def read(self, order: StartLeg | None = None, gateway_id: GatewayId = CALLER) -> list[bytes]:
        async with self.forward(order, gateway_id) as leg:
            return [chunk async for chunk in leg.chunks()]

    async def failure(self, order: StartLeg | None = None, gateway_id: GatewayId = CALLER) -> LegFailure:
        with pytest.raises(LegFailure) as caught:
            await self.read(order, gateway_id)
        return caught.value


def start_core(driver: Driver) -> None:
    driver.submit(ConfigApplied(CoreConfig()))
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
    clock, engine, board = Clock(), Engine(), LoadBoard()
    core = GatewayCore(GatewayId("eu-1"), EU, seed=1)
    driver = Driver(core, clock)
    driver.on_publish(lambda report: board.post(report, clock.now_ns()))
    start_core(driver)
    closed_because: list[str] = []
    malformed: list[GatewayId] = []
    service = PeerService(
        OwnerContext(driver, clock, {TargetKind.REPLICA: opener or engine}, no_leg_beside),
        board,
        {CALLER: peer_spec("us-1", US), SIBLING: peer_spec("us-2", US)},
        peering=peering,
        keep_alive_ns=SECOND,
        transport=Plaintext(),
        explain=explain,
        cache_salts=CacheSalts(EngineCacheConfig()),
        why_closed=lambda: "".join(closed_because),
        on_malformed=malformed.append,
        on_refused=lambda: None,
        log=(log := make_logger(LoggingConfig(), GatewayId("eu-1"))),
    )
    server = PeerServer(service, board, peering, Plaintext(), clock=clock, log=log)
    address = await server.start(parse_address("127.0.0.1:0"))
    link = peer_link(PeerConfig(peer_spec("eu-1", EU), address), peering)
    try:
        yield Callee(link, driver, engine, board, server, core, closed_because=closed_because, malformed=malformed)
    finally:
        await link.close()
        await server.stop(0)
        driver.close()
        assert driver.open_requests == 0
