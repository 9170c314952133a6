"""A core whose steps are reported to observers, with the part of an owner that hands a finished request over."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from gateway.core.events import Event
from gateway.core.kernel import events
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import (
    LegResult,
    LegRole,
    RefusalReason,
    RequestId,
    RequestProfile,
)
from gateway.records.finished import FinishedRequests
from gateway.request.driver import GatewayObserver
from gateway.request.legs import RanAt, RequestSummary
from tests.support.core import MS, SECOND, Desk, profile
from tests.support.orders import forward_from_eu
from tests.support.second_legs import open_leg
from tests.support.steps import tell_step

FAILS = {1: (LegResult.FAILED, LegResult.CANCELLED), 2: (LegResult.CANCELLED, LegResult.FAILED)}
"""Results of both legs, by the leg that fails."""


class Followed:
    """Core at the gateway us-1, its observers, and the consumers of its finished requests."""

    def __init__(self, core: Desk) -> None:
        self.desk = core
        self.finished = FinishedRequests()
        self.refused: list[Callable[[RequestProfile, RequestRecord], None]] = []
        """Consumers of refused forwards."""
        self.profiles: dict[str, RequestProfile] = {}
        self.requests: dict[RequestId, RequestRecord] = {}
        """Records of the requests that are not finished; of two with the same id, the later one."""
        self._observers: list[GatewayObserver] = []

    def watch(self, observers: Iterable[GatewayObserver] = ()) -> None:
        """Add observers, and report the core's assignment and policy to them."""
        self._observers += observers
        replicas = tuple(state.spec for state in self.desk.core.replicas)
        peers = tuple(state.spec for state in self.desk.core.peers)
        self.step(events.AssignmentApplied(1, replicas, peers))
        self.step(events.PolicyApplied(self.desk.core.policy))

    def step(self, event: Event, effects: Iterable[Effect] = ()) -> None:
        """Report a step that the core has not taken."""
        told = list(effects)
        for observer in self._observers:
            tell_step(observer, self.desk.now_ns, event, told)

    def tell(self, event: Event) -> None:
        self.step(event, self.desk.tell(event))

    def probe(self) -> None:
        """Observe every replica as free."""
        self.step(events.TimePassed(), self.desk.probe())

    def ask(self, request_id: str, **changes: object) -> None:
        made = self.profiles[request_id] = replace(profile(request_id), **changes)
        self._begin(events.RequestArrived(made, self.desk.now_ns + 60 * SECOND))

    def forward(self, request_id: str, **changes: object) -> None:
        made = self.profiles[request_id] = profile(request_id)
        arrival = forward_from_eu(made, self.desk.now_ns + 60 * SECOND)
        self._begin(replace(arrival, **changes))

    def first_token(self, request_id: str, attempt: int = 1, leg: int = 1) -> None:
        self.tell(events.FirstToken(RequestId(request_id), attempt, leg))

    def end(
        self, request_id: str, result: LegResult = LegResult.COMPLETED, attempt: int = 1, **more: int | str
    ) -> None:
        refusal = RefusalReason.BUSY if result is LegResult.REFUSED else None
        self.tell(events.LegEnded(RequestId(request_id), attempt, 1, result, refusal, **more))  # type: ignore[arg-type]

    def finish(self, request_id: str, ran_at: RanAt | None = None, **more: object) -> None:
        """Hand over an ended request as its owner does, after the core's last effect."""
        record = self.requests.pop(RequestId(request_id))
        assert record.end is not None, "it has ended"
        summary = RequestSummary(ran_at=ran_at, **more)  # type: ignore[arg-type]
        self.finished.on_finished(self.profiles.pop(request_id), record.end, summary, record)

    def serve(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self.ask(request_id)
            self.end(request_id)
            self.finish(request_id)

    def two_legs(self, request_id: str) -> None:
        """Ask for a request that runs at r0, and open a second leg of its attempt at r1."""
        self.ask(request_id)
        self.second_leg(request_id)

    def second_leg(self, request_id: str) -> None:
        """Open a second leg of the request's attempt, at r1."""
        order = open_leg(self.desk.core, request_id, LegRole.WHOLE, "r1", self.desk.now_ns)
        self.desk.checker.after(events.TimePassed(), [order], self.desk.now_ns)
        self.step(events.TimePassed(), [order])

    def two_ends(self, request_id: str, results: tuple[LegResult, LegResult]) -> None:
        """End both legs, a millisecond apart; the one that is cancelled, because of the other, ends last."""
        legs = sorted(enumerate(results, start=1), key=lambda each: each[1] is LegResult.CANCELLED)
        for leg, result in legs:
            self.desk.now_ns += MS
            self.tell(events.LegEnded(RequestId(request_id), 1, leg, result, None, 7, 11))

    def _begin(self, arrival: events.RequestArrived | events.ForwardArrived) -> None:
        effects = self.desk.tell(arrival)
        record = self.desk.core.arrived
        assert record is not None, "the core has begun it"
        if record.refusal is None:
            self.requests[record.request_id] = record
        self.step(arrival, effects)
        if record.refusal is not None:
            for take in self.refused:
                take(arrival.profile, record)
