"""A core whose steps are reported to a ledger and other observers, with the part of an owner that ends a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gateway.core import events
from gateway.core.effects import Effect, EndRequest
from gateway.core.events import Event
from gateway.core.vocabulary import (
    LegResult,
    Outcome,
    RefusalReason,
    ReplicaId,
    RequestId,
    RequestProfile,
    replica_target,
)
from gateway.records.ledger import Ledger
from gateway.request.driver import GatewayObserver
from gateway.request.legs import RanAt, RequestSummary
from tests.support.core import MS, SECOND, US, Desk, profile
from tests.support.orders import forward_from_eu, leg_order

FAILS = {1: (LegResult.FAILED, LegResult.CANCELLED), 2: (LegResult.CANCELLED, LegResult.FAILED)}
"""Results of both legs, by the leg that fails."""


class Followed:
    """Core and ledger at the gateway us-1."""

    def __init__(self, core: Desk, *, open_max: int = 100) -> None:
        self.desk = core
        self.ledger = Ledger(US, open_max=open_max)
        self.profiles: dict[str, RequestProfile] = {}
        self.ends: dict[str, EndRequest] = {}
        self._observers: list[GatewayObserver] = [self.ledger]

    def watch(self, observers: Iterable[GatewayObserver] = ()) -> None:
        """Add observers after the ledger, and report the core's assignment and policy to all."""
        self._observers += observers
        replicas = tuple(state.spec for state in self.desk.core.replicas)
        peers = tuple(state.spec for state in self.desk.core.peers)
        self.step(events.AssignmentApplied(1, replicas, peers))
        self.step(events.PolicyApplied(self.desk.core.policy))

    def step(self, event: Event, effects: Iterable[Effect] = ()) -> None:
        """Report a step that the core has not taken."""
        told = list(effects)
        for observer in self._observers:
            observer.on_step(self.desk.now_ns, event, told)
        self.ends |= {each.request_id: each for each in told if isinstance(each, EndRequest)}

    def tell(self, event: Event) -> None:
        self.step(event, self.desk.tell(event))

    def probe(self) -> None:
        """Observe every replica as free."""
        self.step(events.TimePassed(), self.desk.probe())

    def ask(self, request_id: str, **changes: object) -> None:
        self.tell(self._arrival(request_id, **changes))

    def forward(self, request_id: str, **changes: object) -> None:
        made = self.profiles[request_id] = profile(request_id)
        arrival = forward_from_eu(made, self.desk.now_ns + 60 * SECOND)
        self.tell(replace(arrival, **changes))  # type: ignore[arg-type]

    def first_token(self, request_id: str, attempt: int = 1, leg: int = 1) -> None:
        event = events.FirstToken(RequestId(request_id), attempt, leg)
        self.step(event, self.desk.tell(event) if leg == 1 else ())

    def end(
        self, request_id: str, result: LegResult = LegResult.COMPLETED, attempt: int = 1, **more: int | str
    ) -> None:
        refusal = RefusalReason.BUSY if result is LegResult.REFUSED else None
        self.tell(events.LegEnded(RequestId(request_id), attempt, 1, result, refusal, **more))  # type: ignore[arg-type]

    def finish(self, request_id: str, ran_at: RanAt | None = None, **more: object) -> None:
        """Report the end of a request as its owner does, after the core's last effect."""
        summary = RequestSummary(ran_at=ran_at, **more)  # type: ignore[arg-type]
        self.ledger.on_finished(self.profiles.pop(request_id), self.ends.pop(request_id), summary)

    def serve(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self.ask(request_id)
            self.end(request_id)
            self.finish(request_id)

    def two_legs(self, request_id: str) -> None:
        """Report one attempt with two legs, at r0 and r1, that the core has not made."""
        started = [leg_order(request_id, leg, replica_target(ReplicaId(f"r{leg - 1}"))) for leg in (1, 2)]
        self.step(self._arrival(request_id), started)

    def two_ends(self, request_id: str, results: Iterable[LegResult], outcome: Outcome | None = None) -> None:
        """Report the end of both legs, a millisecond apart, and that of the request if an outcome is given."""
        for leg, result in enumerate(results, start=1):
            end = EndRequest(RequestId(request_id), outcome, "", 1) if outcome and leg == 2 else None
            self.desk.now_ns += MS
            ended = events.LegEnded(RequestId(request_id), 1, leg, result, None, 7, 11)
            self.step(ended, () if end is None else (end,))

    def _arrival(self, request_id: str, **changes: object) -> events.RequestArrived:
        made = self.profiles[request_id] = replace(profile(request_id), **changes)  # type: ignore[arg-type]
        return events.RequestArrived(made, self.desk.now_ns + 60 * SECOND)
