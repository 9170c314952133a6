"""One request with a real core in virtual time: scripted legs, and a sink that records what it is given.

There is no event loop and no clock but a number: a test feeds legs, lets the client leave, and lets time pass.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeVar

from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import AttemptConfig, ObservationConfig
from gateway.core.kernel.description import gauges_of
from gateway.core.kernel.effects import (
    Effect,
    EndRequest,
    PublishLoad,
    RecordShadow,
    RefuseForward,
    SampleProgress,
    StartLeg,
)
from gateway.core.kernel.events import ProgressSampled
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    Extra,
    GatewayId,
    LegResult,
    LoadReport,
    ModelCapacity,
    Outcome,
    PeerObservation,
    ReplicaId,
    ReplicaObservation,
    RequestId,
    RequestProfile,
    TargetKind,
)
from gateway.features.resume.continuation import keep_answer
from gateway.request.answer import AnswerSettings
from gateway.request.answer_events import TokenUsage
from gateway.request.engine_api import CHAT_PATH
from gateway.request.kept_answer import Hold
from gateway.request.legs import (
    STOPPED,
    Headers,
    LegFailure,
    LegHead,
    LegListener,
    OutboundRequest,
    RanAt,
    RequestSummary,
)
from gateway.request.port import OpenRequest
from gateway.request.progress import ProgressBoard
from gateway.request.proxied import ProxiedRequest, RequestContext
from tests.fakes.engine import GOOD_STREAM
from tests.support.core import EU, LAYERED, MODEL, SECOND, US, peer_spec, policy, profile, replica_spec, under
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
"""Observations that never go stale: each is reported once."""
_TURNS_MAX = 100_000
_Told = TypeVar("_Told")


class Silence:
    """Pause in a leg's script, of any length: the leg says nothing until the test has it go on."""


SILENCE = Silence()
Piece = bytes | Exception | Silence
"""Bytes that arrive; a LegFailure, or another exception, by which the leg is over; or a silence."""


@dataclass(frozen=True)
class Reply:
    """Script of one leg, as a target would play it. It ends well unless a piece says otherwise."""

    pieces: tuple[Piece, ...] = GOOD_STREAM
    status: int = 200
    headers: Headers = EVENT_STREAM
    extras: tuple[Extra, ...] = ()
    counted: TokenUsage | None = None
    identity: str = ""
    """Identity of the model, as the head tells it."""


Script = Reply | Exception | Silence
"""Reply to a leg; an exception that its opener raises; or a silence, if the leg has no answer at all yet."""


class VirtualTimer:
    def __init__(self, due_ns: int, number: int, act: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.number = number
        self.act = act
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def __lt__(self, other: VirtualTimer) -> bool:
        return (self.due_ns, self.number) < (other.due_ns, other.number)


class AnyCore(Protocol):
    """Core that the port runs."""

    def handle(self, event: Event, now_ns: int) -> list[Effect]: ...

    def next_wakeup_ns(self) -> int | None: ...

    @property
    def arrived(self) -> RequestRecord | None: ...


class VirtualPort:
    """Driver in virtual time, and the `Port` of its requests. It keeps the live driver's promises: events wait until
    the input that posted them is over, and a finished request is reported after its last step."""

    def __init__(self, core: AnyCore) -> None:
        self.core = core
        self.now = SECOND
        self.progress = ProgressBoard()
        self.requests: dict[RequestId, RequestRecord] = {}
        """Records of the requests that are not reported yet."""
        self.events: list[Event] = []
        """Events that the core was told of."""
        self.effects: list[Effect] = []
        self.has_crashed = False
        self._inbox: deque[Event] = deque()
        self._open: dict[RequestId, OpenRequest] = {}
        self._finished: list[OpenRequest] = []
        self._timers: list[VirtualTimer] = []
        self._timers_made = 0
        self._is_pumping = False
        self._is_in_input = False

    @property
    def open_requests(self) -> int:
        return len(self._open) + len(self._finished)

    @property
    def timers(self) -> list[VirtualTimer]:
        """Timers that were neither cancelled nor called."""
        return [timer for timer in self._timers if not timer.is_cancelled]

    # Port of the requests

    def post(self, event: Event, /) -> None:
        self._inbox.append(event)

    def now_ns(self) -> int:
        return self.now

    def after(self, delay_s: float, act: Callable[[], None]) -> VirtualTimer:
        self._timers_made += 1
        timer = VirtualTimer(self.now + round(delay_s * SECOND), self._timers_made, act)
        heapq.heappush(self._timers, timer)
        return timer

    def is_open(self, request_id: RequestId) -> bool:
        if request_id in self._open:
            self.run()
        return request_id in self._open

    def begin(self, request: OpenRequest, arrival: events.RequestArrived | events.ForwardArrived) -> None:
        request_id = arrival.profile.request_id
        self._open[request_id] = request
        if self.has_crashed:
            request.on_effect(end_after_crash(request_id))
            self._report()
        else:
            self.submit(arrival)

    def arrived(self) -> RequestRecord | None:
        return None if self.has_crashed else self.core.arrived

    def over(self, request_id: RequestId, request: OpenRequest) -> None:
        if self._open.get(request_id) is request:
            del self._open[request_id]
        self._finished.append(request)

    def keep(self, record: RequestRecord) -> None:
        self.requests[record.request_id] = record

    def done(self, record: RequestRecord) -> None:
        if self.requests.get(record.request_id) is record:
            del self.requests[record.request_id]

    # Inputs of tests

    def submit(self, event: Event) -> None:
        self.post(event)
        self.run()

    def give(self, take: Callable[[], None]) -> None:
        """Hand an input to a request as an edge does, and then perform all that follows from it."""
        assert not self._is_in_input, "one input at a time"
        self._is_in_input = True
        try:
            take()
        finally:
            self._is_in_input = False
        self.run()

    def run(self) -> None:
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._inbox and not self.has_crashed:
                self._step(self._inbox.popleft())
        finally:
            self._is_pumping = False
        self._report()

    def crash(self) -> None:
        """Stop for good, as the live driver does once the core has failed."""
        self.has_crashed = True
        for request_id, request in tuple(self._open.items()):
            request.on_effect(end_after_crash(request_id))
        self._report()

    def pass_time(self, until_ns: int) -> None:
        """Let time pass, calling the timers and waking the core whenever they are due."""
        while (due_ns := self.next_ns()) is not None and due_ns <= until_ns:
            self.now = max(due_ns, self.now)
            if self._timers and self._timers[0].due_ns <= self.now:
                self.give(heapq.heappop(self._timers).act)
            else:
                self.submit(events.TimePassed())
        self.now = max(until_ns, self.now)

    def next_ns(self) -> int | None:
        """Time at which something happens by itself; None if nothing does."""
        while self._timers and self._timers[0].is_cancelled:
            heapq.heappop(self._timers)
        wakeup_ns = None if self.has_crashed else self.core.next_wakeup_ns()
        due = [each for each in (wakeup_ns, self._timers[0].due_ns if self._timers else None) if each is not None]
        return min(due, default=None)

    def _step(self, event: Event) -> None:
        self.events.append(event)
        effects = self.core.handle(event, self.now)
        self.effects += effects
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        assert not self._is_in_input, "an effect arrives within an input"
        if isinstance(effect, PublishLoad | RecordShadow):
            return
        if isinstance(effect, SampleProgress):
            self.post(ProgressSampled(effect.pool, self.progress.sample(effect.pool)))
            return
        request = self._open.get(effect.request_id)
        if request is not None:
            request.on_effect(effect)
        else:
            assert not isinstance(effect, StartLeg), "a leg is ordered for a request that is over"

    def _report(self) -> None:
        finished, self._finished = self._finished, []
        for request in finished:
            request.report()


def end_after_crash(request_id: RequestId) -> EndRequest:
    return EndRequest(request_id, Outcome.FAILED_BEFORE_FIRST_BYTE, "the core has failed", attempts=0)


class ScriptedLeg:
    """Leg that plays a reply piece by piece, and keeps a handle's promises."""

    def __init__(self, order: StartLeg, outbound: OutboundRequest, listener: LegListener, reply: Reply | None) -> None:
        """Begin the leg. `reply`: None for a leg that stays without an answer."""
        self.order = order
        self.outbound = outbound
        self.listener = listener
        self.reply = reply
        self.is_over = False
        self.is_paused = False
        self.stops = 0
        self.terminals = 0
        """Terminal callbacks so far: at most one."""
        self.stop_error: Exception | None = None
        """Exception that `stop` raises, once it has stopped the leg."""
        self._has_head = False
        self._pieces: deque[Piece] = deque(() if reply is None else reply.pieces)

    # Handle

    def stop(self) -> None:
        self.stops += 1
        if not self.is_over:
            self._last(self.listener.on_failed, STOPPED)
        if self.stop_error is not None:
            raise self.stop_error

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    # Script

    @property
    def can_speak(self) -> bool:
        if self.is_over or self.is_paused or self.reply is None:
            return False
        return not self._has_head or not self._pieces or not isinstance(self._pieces[0], Silence)

    @property
    def left(self) -> int:
        """Pieces that the leg has not played."""
        return len(self._pieces)

    def speak(self) -> None:
        """Play the next piece: the head, a piece of the body, or the end."""
        reply = self.reply
        assert reply is not None, "a leg with a reply"
        if not self._has_head:
            self.head()
        elif not self._pieces:
            self._last(self.listener.on_end, reply.counted)
        else:
            piece = self._pieces.popleft()
            assert not isinstance(piece, Silence), "a leg that may speak"
            if isinstance(piece, bytes):
                self.listener.on_data(piece)
            elif isinstance(piece, LegFailure):
                self._last(self.listener.on_failed, piece)
            else:
                self._last(self.listener.on_fault, piece)

    def go_on(self) -> None:
        """End a silence."""
        assert isinstance(self._pieces[0], Silence), "the leg is silent"
        self._pieces.popleft()

    def head(self) -> None:
        reply, order = self.reply, self.order
        assert reply is not None, "a leg with a reply"
        self._has_head = True
        if order.target.kind is TargetKind.PEER:
            self.listener.on_accepted()
        ran_at = RanAt(ReplicaId(order.target.id), US)
        head = LegHead(reply.status, reply.headers, ran_at, order.attempt, order.leg, extras=reply.extras)
        self.listener.on_head(replace(head, identity=reply.identity))

    def _last(self, tell: Callable[[_Told], None], told: _Told) -> None:
        assert not self.is_over, "one terminal callback"
        self.is_over = True
        self.terminals += 1
        tell(told)


class ScriptedOpener:
    """Plays one reply per leg, in the order in which they are opened."""

    def __init__(self) -> None:
        self.replies: deque[Script] = deque()
        self.legs: list[ScriptedLeg] = []
        """Legs that were opened."""
        self.refused = 0
        """Legs whose opening raised."""

    @property
    def opened(self) -> int:
        return len(self.legs) + self.refused

    def open(self, order: StartLeg, request: OutboundRequest, listener: LegListener) -> ScriptedLeg:
        script = self.replies.popleft()
        if isinstance(script, Exception):
            self.refused += 1
            raise script
        leg = ScriptedLeg(order, request, listener, None if isinstance(script, Silence) else script)
        self.legs.append(leg)
        return leg


class RecordingSink:
    """Sink that records what it is given, and breaches of its contract."""

    def __init__(self) -> None:
        self.head: LegHead | None = None
        self.body = b""
        self.is_accepted = False
        self.refusals: list[RefuseForward] = []
        self.ends: list[EndRequest] = []
        self.failure: Exception | None = None
        """Exception that `write` raises."""
        self.failure_at_end: Exception | None = None
        self.is_narrow = False
        """True if every write fills the buffer."""
        self.reads_after_s = 0.0
        """Time after which a client empties a full buffer."""
        self.is_full = False
        self.times_full = 0
        self.breaches: list[str] = []
        self.legs: list[ScriptedLeg] = []
        """Legs of the request, which are over before its end."""

    def accepted(self) -> None:
        self._expect(self.head is None and not self.is_accepted, "accepted late or twice")
        self.is_accepted = True

    def refused(self, refusal: RefuseForward) -> None:
        self._expect(not self.is_accepted and not self.refusals, "refused after something else")
        self.refusals.append(refusal)

    def start(self, head: LegHead) -> None:
        self._expect(self.head is None, "started twice")
        self.head = head

    def write(self, data: bytes) -> bool:
        self._expect(self.head is not None, "written to before the start")
        if self.failure is not None:
            raise self.failure
        self.body += data
        if self.is_narrow:
            self.is_full = True
            self.times_full += 1
        return not self.is_full

    def end(self, end: EndRequest, summary: RequestSummary) -> None:
        self._expect(summary.started == (self.head is not None), "a summary that is wrong about the start")
        self._expect(all(leg.is_over for leg in self.legs), "ended while a leg runs")
        self.ends.append(end)
        if self.failure_at_end is not None:
            raise self.failure_at_end

    def _expect(self, holds: bool, breach: str) -> None:
        if not holds:
            self.breaches.append(breach)
        if self.ends or self.refusals:
            self.breaches.append("called after the end")


@dataclass
class Scene:
    """A port with the real core and two idle replicas, `a` and `b`."""

    settings: AnswerSettings = field(default_factory=AnswerSettings)
    attempts: AttemptConfig = field(default_factory=lambda: AttemptConfig(attempts_max=2))
    config: CoreConfig = field(default_factory=CoreConfig)

    def __post_init__(self) -> None:
        self.finished: list[tuple[RequestProfile, EndRequest, RequestSummary]] = []
        self.records: list[RequestRecord | None] = []
        """Records that were handed over with finished requests."""
        self.refused: list[RequestRecord] = []
        self.events_at_end: list[Event] = []
        """Events that the core had been told of when the request was handed over."""
        self.faults: list[BaseException] = []
        """Internal errors that were reported."""
        self.opener = ScriptedOpener()
        self.sink = RecordingSink()
        self.sink.legs = self.opener.legs
        self.core = GatewayCore(GatewayId("us-1"), US, seed=1)
        self.port = VirtualPort(self.core)
        self.context = RequestContext(
            self.port,
            {TargetKind.REPLICA: self.opener, TargetKind.PEER: self.opener},
            self.settings,
            self._on_finished,
            self._on_refused,
            keep_answer=keep_answer,
            on_fault=self.faults.append,
        )
        config = replace(self.config, attempt=self.attempts, observation=NEVER_STALE)
        self.port.submit(events.ConfigApplied(under(LAYERED, config)))
        self.port.submit(events.PolicyApplied(policy(US)))
        replicas = (replica_spec("a"), replica_spec("b"))
        self.port.submit(events.AssignmentApplied(1, replicas, (peer_spec("eu-1", EU),)))
        self.probe()

    def probe(self, *names: str, waiting: int = 0) -> None:
        """Observe replicas; `a` and `b` if none is named."""
        seen = tuple(
            ReplicaObservation(ReplicaId(name), self.port.now, healthy=True, waiting=waiting)
            for name in names or ("a", "b")
        )
        self.port.submit(events.ReplicasObserved(seen))

    def hear(self) -> None:
        """Report a heartbeat of the peer with a free replica."""
        capacity = ModelCapacity(MODEL, DEFAULT_POOL, EU, 1, 1, room=1)
        report = LoadReport(
            GatewayId("eu-1"), EU, 1, accepting=True, assignment_version=1, policy_digest="d", capacities=(capacity,)
        )
        self.port.submit(events.PeersObserved((PeerObservation(report, self.port.now, self.port.now, 0, 0),)))

    def _on_refused(self, _: RequestProfile, record: RequestRecord) -> None:
        self.refused.append(record)

    def _on_finished(
        self, asked: RequestProfile, end: EndRequest, summary: RequestSummary, record: RequestRecord | None
    ) -> None:
        self.finished.append((asked, end, summary))
        self.records.append(record)
        self.events_at_end = list(self.port.events)

    def request(
        self,
        *scripts: Script,
        forwarded: bool = False,
        stores_response: bool = False,
        is_control: bool = False,
        path: str = CHAT_PATH,
        body: bytes = b"{}",
        stream: bool = True,
        deadline_ns: int = 60 * SECOND,
        hold: Hold | None = None,
    ) -> ProxiedRequest:
        """Prepare a request whose legs play these scripts."""
        self.opener.replies.extend(scripts)
        asked = replace(profile("r1"), is_control=is_control, stream=stream)
        deadline_ns += self.port.now
        arrival = forward_from_eu(asked, deadline_ns) if forwarded else events.RequestArrived(asked, deadline_ns)
        outbound = OutboundRequest(asked, path, (), body, stores_response=stores_response)
        return ProxiedRequest(self.context, arrival, outbound, self.sink, hold=hold)

    def begin(self, *scripts: Script, **more: object) -> ProxiedRequest:
        """Begin a request, and play until nothing more happens unless time passes."""
        request = self.request(*scripts, **more)  # type: ignore[arg-type]
        request.begin()
        self.play_on(request)
        return request

    def play(self, *scripts: Script, **more: object) -> Outcome:
        """Play a request to its end."""
        request = self.begin(*scripts, **more)
        self.finish(request)
        self.check()
        return self.end.outcome

    def play_on(self, request: ProxiedRequest) -> None:
        """Play until all legs are silent or over, while time stands still."""
        for _ in range(_TURNS_MAX):
            if not self.turn(request):
                return
        raise AssertionError("it never ends")

    def turn(self, request: ProxiedRequest) -> bool:
        """Let the next leg say one thing, or a client that reads at once read. Returns False if nothing is left."""
        for leg in self.opener.legs:
            if leg.can_speak:
                self.port.give(leg.speak)
                return True
        if self.sink.is_full and not self.sink.reads_after_s:
            self.read(request)
            return True
        return False

    def read(self, request: ProxiedRequest) -> None:
        """Have the client read what it was sent."""
        self.sink.is_full = False
        self.port.give(request.on_writable)

    def finish(self, request: ProxiedRequest) -> None:
        """Let time pass until the request is over."""
        for _ in range(_TURNS_MAX):
            self.play_on(request)
            if self.sink.ends or self.sink.refusals:
                return
            if self.sink.is_full:
                self.wait(self.sink.reads_after_s)
                self.read(request)
                continue
            due_ns = self.port.next_ns()
            assert due_ns is not None, "the request hangs"
            self.port.pass_time(due_ns)
        raise AssertionError("it never ends")

    def wait(self, seconds: float) -> None:
        self.port.pass_time(self.port.now + round(seconds * SECOND))

    def leave(self, request: ProxiedRequest) -> None:
        """Have the client leave."""
        self.port.give(request.client_left)

    @property
    def leg(self) -> ScriptedLeg:
        """Leg that was opened last."""
        return self.opener.legs[-1]

    @property
    def end(self) -> EndRequest:
        """The request's end, as its sink was told."""
        (end,) = self.sink.ends
        return end

    @property
    def summary(self) -> RequestSummary:
        """Results of the request, as they were handed over."""
        ((_, _, summary),) = self.finished
        return summary

    def check(self) -> None:
        """Assert what holds however a request ended."""
        assert self.sink.breaches == []
        assert len(self.sink.ends) == len(self.finished) == 1
        assert self.finished[0][1] is self.end
        ordered = [(each.attempt, each.leg) for each in self.orders]
        assert sorted(ordered) == sorted((each.attempt, each.leg) for each in self.legs_ended)
        assert all(leg.is_over and leg.terminals == 1 for leg in self.opener.legs)
        assert all(leg.stops <= 1 for leg in self.opener.legs)
        assert self.port.timers == [], "a timer outlives its leg"
        assert (self.port.open_requests, self.port.requests) == (0, {})
        gauges = gauges_of(self.core, self.port.now)
        assert (gauges.requests, gauges.attempts) == (0, 0)

    @property
    def orders(self) -> list[StartLeg]:
        return [effect for effect in self.port.effects if isinstance(effect, StartLeg)]

    @property
    def legs_ended(self) -> list[events.LegEnded]:
        return [event for event in self.port.events if isinstance(event, events.LegEnded)]

    @property
    def results(self) -> list[LegResult]:
        return [event.result for event in self.legs_ended]

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.port.events)


def pieces_of(data: bytes, *cuts: int) -> tuple[bytes, ...]:
    """Pieces of the data, cut at these places; empty ones are left out."""
    return tuple(data[start:end] for start, end in pairwise((0, *cuts, len(data))) if start < end)
