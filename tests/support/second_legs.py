"""Further legs for requests of a real core, which by itself orders one leg an attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.core.effects import Effect, StartLeg
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.placement import Placement
from gateway.core.vocabulary import LegRole, PlacementReason, ReplicaId, RequestId


def open_leg(core: GatewayCore, request_id: str, role: LegRole, replica: str, now_ns: int) -> StartLeg:
    """One more leg of the request's living attempt, ordered as the core itself would order it."""
    request = core.requests[RequestId(request_id)]
    state = core.replicas.get(ReplicaId(replica))
    assert request.attempt is not None
    assert state is not None
    core._open_leg(request, request.attempt, role, Placement(state, PlacementReason.LOCAL_POLICY, 0, 1, 0), now_ns)
    order = core._effects[-1]
    assert isinstance(order, StartLeg)
    return order


@dataclass
class OpensLegs:
    """A core that opens a further leg in the step of some event, for a driver."""

    core: GatewayCore
    after: dict[type[Event], list[tuple[LegRole, str]]]
    """After the first event of a kind: which legs, in which role and where."""
    effects: list[Effect] = field(default_factory=list)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        effects = self.core.handle(event, now_ns)
        for role, replica in self.after.pop(type(event), []):
            (request_id,) = self.core.requests
            open_leg(self.core, request_id, role, replica, now_ns)
        self.effects += effects
        return effects

    def next_wakeup_ns(self) -> int | None:
        return self.core.next_wakeup_ns()
