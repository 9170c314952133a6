"""One request's owner with a real core, scripted connections to engines, and a sink that records what it is given."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import events
from gateway.core.kernel.config import AttemptConfig, CoreConfig, ObservationConfig
from gateway.core.kernel.description import gauges_of
from gateway.core.kernel.effects import EndRequest, RefuseForward, StartLeg
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import (
    Extra,
    GatewayId,
    LegResult,
    Outcome,
    PeerObservation,
    ReplicaId,
    ReplicaObservation,
    RequestProfile,
    TargetKind,
)
from gateway.request.answers import TokenUsage
from gateway.request.driver import Driver, GatewayStep, GatewaySubscriptions
from gateway.request.legs import Leg, LegFailure, LegHead, OutboundRequest, RanAt, RequestSummary
from gateway.request.owner import OwnerContext, RequestOwner
from gateway.request.relay import RelaySettings
from mesh.clock import Clock
from mesh.pump import Step
from tests.fakes.engine import (
    GOOD_STREAM,
)
from tests.fakes.liar import idle_report
from tests.support.core import EU, LAYERED, SECOND, US, peer_spec, policy, profile, replica_spec, under
from tests.support.legs import Pouring
from tests.support.orders import forward_from_eu

EVENT_STREAM = (("Content-Type", "text/event-stream; charset=utf-8"),)
MESSAGE_OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
RESPONSE_LIMITED = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1","error":null}}\n\n'
    b"event: response.failed\n"
    b'data: {"type":"response.failed","response":{"id":"resp_1","error":{"code":"rate_limit_exceeded"}}}\n\n'
)
JSON = (("content-type", "application/json"),)
FAILED = LegFailure(LegResult.FAILED, "connection refused")
GOOD = b"".join(GOOD_STREAM)

NEVER_STALE = ObservationConfig(replica_stale_ns=3600 * SECOND, keep_alive_ns=3600 * SECOND)
"""Observations that never go stale: each is reported once, and the real clock of a slow machine may run on."""

Piece = bytes | BaseException | asyncio.Event
"""Bytes that arrive, an exception raised in place of more, or an event to wait for."""


@dataclass
class Reply:
    """Script of one attempt, as an engine would play it."""

    pieces: tuple[Piece, ...] = GOOD_STREAM
    status: int = 200
    headers: tuple[tuple[str, str], ...] = EVENT_STREAM
    extras: tuple[Extra, ...] = ()
    counted: TokenUsage | None = None


class ScriptedLeg(Pouring):
    def __init__(self, reply: Reply, order: StartLeg) -> None:
        ran_at = RanAt(ReplicaId(order.target.id), US)
        self.head = LegHead(reply.status, reply.headers, ran_at, order.attempt, extras=reply.extras)
        self.counted = reply.counted
        self._pieces = iter(reply.pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            match piece:
                case bytes():
                    yield piece
                case asyncio.Event():
                    await piece.wait()
                case BaseException():
                    raise piece


class ScriptedOpener:
    """Plays one reply per attempt, and counts connections."""

    def __init__(self) -> None:
        self.replies: deque[Reply | BaseException | asyncio.Event] = deque()
        self.opened = 0
        self.closed = 0
        self.has_opened = asyncio.Event()

    @asynccontextmanager
    async def open(
        self, order: StartLeg, request: OutboundRequest, *, on_accepted: Callable[[], None]
    ) -> AsyncIterator[Leg]:
        self.opened += 1
        self.has_opened.set()
        try:
            reply = self.replies.popleft()
            if isinstance(reply, BaseException):
                raise reply
            if isinstance(reply, asyncio.Event):
                await reply.wait()
                return
            if reply.status < 400:
                on_accepted()
            yield ScriptedLeg(reply, order)
        finally:
            self.closed += 1


class RecordingSink:
    def __init__(self) -> None:
        self.is_immediate = True
        self.head: LegHead | None = None
        self.body = b""
        self.is_accepted = False
        self.ends: list[EndRequest] = []
        self.has_written = asyncio.Event()
        self.failure: BaseException | None = None
        self.drain_s = 0.0
        self.drains = 0
        self._is_full = False

    async def start(self, head: LegHead) -> None:
        assert self.head is None, "started twice"
        self.head = head

    def put(self, data: bytes) -> bool:
        """Record the bytes, and report that there is room for no more, so that each piece is waited for."""
        assert self.head is not None
        assert not self._is_full, "put before it was drained"
        if self.failure is not None:
            raise self.failure
        self.body += data
        self._is_full = True
        self.has_written.set()
        return False

    async def drain(self) -> None:
        self.drains += 1
        await asyncio.sleep(self.drain_s)
        self._is_full = False

    @property
    def has_drained(self) -> bool:
        return self.drains > 0 and not self._is_full

    async def accepted(self) -> None:
        self.is_accepted = True

    async def end(self, end: EndRequest, summary: RequestSummary) -> None:
        self.ends.append(end)


@dataclass
class Scene:
    """A live driver with the real core and two idle replicas, `a` and `b`."""

    settings: RelaySettings = field(default_factory=RelaySettings)
    attempts: AttemptConfig = field(default_factory=lambda: AttemptConfig(attempts_max=2))

    def __post_init__(self) -> None:
        self.events: list[Event] = []
        self.has_arrived = asyncio.Event()
        self.finished: list[tuple[RequestProfile, EndRequest, RequestSummary]] = []
        self.records: list[RequestRecord | None] = []
        """Records that were handed over with finished requests."""
        self.refused: list[RequestRecord] = []
        self.seen_at_end: list[Event] = []
        """Events that the driver's observers had been told when the request was finished."""
        self.opened_at_arrival: int | None = None
        """Connections that had been opened when the observers were told of the request."""
        self.tasks: list[asyncio.Task[None]] = []
        """Tasks of legs that ran beside another one."""
        self.opener = ScriptedOpener()
        self.faults: list[BaseException] = []
        """Internal errors that were reported."""
        self.sink = RecordingSink()
        self.clock = Clock()
        self.core = GatewayCore(GatewayId("us-1"), US, seed=1)
        self.subscriptions: GatewaySubscriptions = {Step: self._step_taken}
        self.driver = Driver(self.core, self.clock, observers=[self])
        config = CoreConfig(attempt=self.attempts, observation=NEVER_STALE)
        self.driver.submit(events.ConfigApplied(under(LAYERED, config)))
        self.driver.submit(events.PolicyApplied(policy(US)))
        self.driver.submit(
            events.AssignmentApplied(1, (replica_spec("a"), replica_spec("b")), (peer_spec("eu-1", EU),))
        )
        self.probe(waiting=0)

    def probe(self, *, waiting: int) -> None:
        now_ns = self.clock.now_ns()
        names = (ReplicaId("a"), ReplicaId("b"))
        observed = tuple(ReplicaObservation(name, now_ns, healthy=True, waiting=waiting) for name in names)
        self.driver.submit(events.ReplicasObserved(observed))

    def hear(self) -> None:
        """Report a heartbeat of the peer with a free replica."""
        now_ns = self.clock.now_ns()
        self.driver.submit(events.PeersObserved((PeerObservation(idle_report(1), now_ns, now_ns, 0, 0),)))

    def _step_taken(self, step: GatewayStep, _told: GatewayStep) -> None:
        self.events.append(step.event)
        if isinstance(step.event, events.RequestArrived):
            self.opened_at_arrival = self.opener.opened
            self.has_arrived.set()

    def start_task(self, leg: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(leg)
        self.tasks.append(task)
        return task

    def on_refused(self, _profile: RequestProfile, record: RequestRecord) -> None:
        self.refused.append(record)

    def on_finished(
        self, profile: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        self.finished.append((profile, end, summary))
        self.records.append(record)
        self.seen_at_end = list(self.events)

    def owner(
        self,
        *replies: Reply | BaseException | asyncio.Event,
        forwarded: bool = False,
        stores_response: bool = False,
        is_control: bool = False,
    ) -> RequestOwner:
        self.opener.replies.extend(replies)
        context = OwnerContext(
            self.driver,
            self.clock,
            {TargetKind.REPLICA: self.opener, TargetKind.PEER: self.opener},
            self.start_task,
            self.settings,
            self.on_finished,
            self.on_refused,
            on_fault=self.faults.append,
        )
        asked = replace(profile("r1"), is_control=is_control)
        deadline_ns = self.clock.now_ns() + 60 * SECOND
        arrival = forward_from_eu(asked, deadline_ns) if forwarded else events.RequestArrived(asked, deadline_ns)
        outbound = OutboundRequest(asked, "/v1/chat/completions", (), b"{}", stores_response=stores_response)
        return RequestOwner(context, arrival, outbound, self.sink)

    async def play(
        self,
        *replies: Reply | BaseException | asyncio.Event,
        forwarded: bool = False,
        stores_response: bool = False,
        is_control: bool = False,
    ) -> Outcome:
        owner = self.owner(*replies, forwarded=forwarded, stores_response=stores_response, is_control=is_control)
        end = await self.run(owner)
        assert isinstance(end, EndRequest)
        self.check()
        return end.outcome

    async def run(self, owner: RequestOwner) -> EndRequest | RefuseForward:
        try:
            return await owner.run()
        finally:
            assert all(task.done() for task in self.tasks), "a leg outlived its owner"

    def check(self) -> None:
        """Assert what holds however a request ended."""
        started = gauges_of(self.core, self.clock.now_ns())
        assert (started.requests, started.attempts, self.driver.open_requests) == (0, 0, 0)
        assert self.opener.opened == self.opener.closed == len(self.attempts_ended)
        assert len(self.finished) == 1
        assert not self.driver.failed.is_set(), self.driver.crash
        self.driver.close()

    @property
    def attempts_ended(self) -> list[events.LegEnded]:
        return [event for event in self.events if isinstance(event, events.LegEnded)]

    @property
    def results(self) -> list[LegResult]:
        return [event.result for event in self.attempts_ended]

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)
