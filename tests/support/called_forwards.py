"""The serving end of one stream without sockets, tasks or time of its own: its frames, its core's orders and its
engine's words are in a test's hands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.config.sections import PeeringConfig
from gateway.core.events import Event
from gateway.core.kernel.effects import AcceptForward, EndRequest, RefuseForward, StartLeg
from gateway.core.kernel.events import ForwardArrived, LegEnded, RequestAbandoned, RequestArrived
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    Outcome,
    RefusalReason,
    ReplicaId,
    RequestId,
    TargetKind,
    replica_target,
)
from gateway.features.resume.continuation import keep_answer
from gateway.peers.exchange.serving_stream import ServedForward, ServingStream
from gateway.peers.exchange.wasted_frames import WastedFrameLimit
from gateway.peers.forward_memory import ForwardMemory
from gateway.peers.forward_receiver import Reception
from gateway.request.cache_salts import CacheSalts
from gateway.request.legs import STOPPED, LegFailure, LegHandle, LegHead, LegListener, OutboundRequest, RanAt
from gateway.request.port import OpenRequest, PortTimer
from gateway.request.progress import ProgressBoard
from gateway.request.proxied import RequestContext
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from mesh.transport import Claim
from protos.mesh.v1 import peer_pb2 as pb
from tests.fakes.engine import DONE, STOP, token
from tests.hostile.peers import forward
from tests.support.clock import StillClock
from tests.support.core import US
from tests.support.manual_loop import ManualLoop
from tests.support.orders import leg_order

CALLER = "spiffe://eu-1"
HEAD = LegHead(200, (("content-type", "text/event-stream"),), RanAt(ReplicaId("a"), US))
LAST = STOP + DONE
DEADLINE_S = 20.0
"""Time left of each request when it arrives."""


def request_of(number: int, body_bytes: int = 0, **changes: Any) -> bytes:
    """Serialised request of a forward, with a prompt of at least so many bytes."""
    body = b'{"model": "llama", "stream": true, "messages": [{"role": "user", "content": "%s"}]}' % (b"x" * body_bytes)
    return forward({"request_id": f"r-{number}", "body": body, **changes}).SerializeToString()


@dataclass
class EngineLeg:
    """Leg at an engine. The test speaks for the engine, as long as the leg is open."""

    order: StartLeg
    listener: LegListener
    is_over: bool = False
    is_paused: bool = False
    has_head: bool = False
    pauses: int = 0

    def stop(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.listener.on_failed(STOPPED)

    def pause(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        self.is_paused = False

    def says(self, data: bytes) -> None:
        if not self.has_head:
            self.has_head = True
            self.listener.on_head(HEAD)
        self.listener.on_data(data)

    def ends(self) -> None:
        self.is_over = True
        self.listener.on_end(None)

    def fails(self) -> None:
        self.is_over = True
        self.listener.on_failed(LegFailure(LegResult.FAILED, "reset"))


@dataclass
class Core:
    """Port, openers and a core that says what a test lets it say. A request is accepted when it arrives, unless
    `refuses`, and gets its first leg with `starts`.
    """

    loop: ManualLoop
    refuses: bool = False
    starts: bool = True
    open: dict[RequestId, OpenRequest] = field(default_factory=dict)
    legs: dict[RequestId, EngineLeg] = field(default_factory=dict)
    """Newest leg of each request."""
    posted: list[Event] = field(default_factory=list)
    abandoned: list[RequestId] = field(default_factory=list)
    legs_ended: Counter[RequestId] = field(default_factory=Counter)
    progress: ProgressBoard = field(default_factory=ProgressBoard)
    attempts: Counter[RequestId] = field(default_factory=Counter)

    # Port

    def post(self, event: Event) -> None:
        self.posted.append(event)

    def now_ns(self) -> int:
        return round(self.loop.now_s * 10**9)

    def after(self, delay_s: float, act: Callable[[], None]) -> PortTimer:
        return self.loop.call_later(delay_s, act)

    def is_open(self, request_id: RequestId) -> bool:
        return request_id in self.open

    def begin(self, request: OpenRequest, arrival: RequestArrived | ForwardArrived) -> None:
        request_id = arrival.profile.request_id
        self.open[request_id] = request
        if self.refuses:
            request.on_effect(RefuseForward(request_id, RefusalReason.QUEUE_FULL, "10 wait"))
            return
        request.on_effect(AcceptForward(request_id))
        if self.starts:
            self.start(request_id)

    def arrived(self) -> RequestRecord | None:
        return None

    def over(self, request_id: RequestId, request: OpenRequest) -> None:
        assert self.open.pop(request_id) is request

    def keep(self, record: RequestRecord) -> None:
        pass

    def done(self, record: RequestRecord) -> None:
        pass

    # Opener

    def open_leg(self, order: StartLeg, request: OutboundRequest, listener: LegListener) -> LegHandle:
        self.legs[order.request_id] = EngineLeg(order, listener)
        return self.legs[order.request_id]

    # Steps of a test

    def turn(self) -> None:
        """Take in what was posted."""
        posted, self.posted = self.posted, []
        for event in posted:
            if isinstance(event, RequestAbandoned):
                self.abandoned.append(event.request_id)
            elif isinstance(event, LegEnded):
                self.legs_ended[event.request_id] += 1

    def start(self, request_id: RequestId) -> None:
        self.attempts[request_id] += 1
        order = leg_order(request_id, 1, replica_target(ReplicaId("a")), self.attempts[request_id])
        self.open[request_id].on_effect(order)

    def end(self, request_id: RequestId, outcome: Outcome = Outcome.COMPLETED) -> None:
        self.open[request_id].on_effect(EndRequest(request_id, outcome, "", self.attempts[request_id]))
        self.turn()


class _Opener:
    def __init__(self, core: Core) -> None:
        self.open = core.open_leg


class Called:
    """The stream, with room for `forwards_max` forwards."""

    def __init__(self, loop: ManualLoop, peering: PeeringConfig) -> None:
        self.loop = loop
        self.core = Core(loop)
        self.clock = StillClock()
        self.faults: list[BaseException] = []
        self.ignored = 0
        self.said: dict[int, list[pb.AnswerFrame]] = {}
        """Frames that went out, by forward."""
        self.patience = WastedFrameLimit()
        self.reception = Reception(
            RequestContext(
                self.core,
                {TargetKind.REPLICA: _Opener(self.core)},
                on_fault=self.faults.append,
                keep_answer=keep_answer,
            ),
            self.clock,
            self.core.turn,
            forwards_max=peering.forwards_max,
            cache_salts=CacheSalts(),
            pass_priority=False,
            why_closed=str,
            on_malformed=lambda _: None,
            log=make_logger(LoggingConfig(), GatewayId("us-1")),
        )
        self.room = ForwardMemory.of(peering)
        self.claim_fault: str | None = None
        self.stream = ServingStream(
            None,  # type: ignore[arg-type]  # the context is used by `serve` alone
            self.reception,
            self.room,
            self.patience,
            caller=CALLER,
            peering=peering,
            claim_fault=self._fault_of,
            on_ignored=self._ignore,
        )

    def _fault_of(self, _: Claim) -> str | None:
        return self.claim_fault

    def _ignore(self, _: GatewayId) -> None:
        self.ignored += 1

    @property
    def held(self) -> tuple[int, int, int]:
        """Forwards that count as running, bytes held, and peers that bytes are held for."""
        return self.reception.forwards, self.room.bytes, self.room.peers

    @property
    def open(self) -> dict[int, ServedForward]:
        return self.stream._forwards

    def hears(self, *frames: pb.OriginFrame) -> None:
        """Take in one message of the origin."""
        try:
            self.stream._take_in(pb.ExchangeRequest(frames=frames).SerializeToString())
        finally:
            self.core.turn()

    def begin(self, number: int, request: bytes, credit: int = 2**20) -> None:
        """Begin a forward whose request comes in one frame."""
        self.hears(pb.OriginFrame(forward=number, request_bytes=len(request), request=request, credit=credit))

    def sends(self) -> list[pb.AnswerFrame]:
        """Frames of the next message to the origin."""
        frames = list(pb.ExchangeResponse.FromString(self.stream._outbox.next_message()).frames)
        for frame in frames:
            self.said.setdefault(frame.forward, []).append(frame)
        self.core.turn()
        return frames

    def sends_all(self) -> None:
        while self.sends():
            pass

    def last_words(self, number: int) -> list[str]:
        """Words that went out and after which the origin expects nothing of the forward."""
        return [
            name
            for frame in self.said.get(number, [])
            for name, is_said in (
                ("refused", frame.HasField("refused")),
                ("ended", frame.HasField("ended")),
                ("last", frame.last),
            )
            if is_said
        ]

    def data(self, number: int) -> bytes:
        return b"".join(frame.data for frame in self.said.get(number, []))

    def leave(self) -> None:
        """The origin's stream is over."""
        self.stream._cancel_all()


PIECE = token("y" * 10_000)
