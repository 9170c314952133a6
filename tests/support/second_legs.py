"""Further legs for requests of a real core, which by itself orders one leg an attempt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.core.effects import Effect, StartLeg
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.placement.placer import Placement
from gateway.core.vocabulary import LegRole, PlacementReason, ReplicaId, RequestId


def open_leg(core: GatewayCore, request_id: str, role: LegRole, replica: str, now_ns: int) -> StartLeg:
    """One more leg of the request's living attempt, ordered as the core itself would order it."""
    request = core.requests[RequestId(request_id)]
    state = core.replicas.get(ReplicaId(replica))
    assert request.attempt is not None
    assert state is not None
    core._open_leg(request, request.attempt, role, Placement(state, PlacementReason.LOCAL_POLICY, 0, 1), now_ns)
    order = core._effects[-1]
    assert isinstance(order, StartLeg)
    return order


def role_of(core: GatewayCore, order: StartLeg, role: LegRole) -> None:
    """Have the core take the leg for another one."""
    attempt = core.requests[order.request_id].attempt
    assert attempt is not None
    attempt.legs[order.leg].role = role


@dataclass
class OpensLegs:
    """A core that opens a further leg in the step of some event, for a driver."""

    core: GatewayCore
    after: dict[type[Event], list[tuple[LegRole, str]]]
    """After the first event of a kind: which legs, in which role and where."""
    first_role: LegRole = LegRole.WHOLE
    """Of the leg that the core starts by itself, once."""

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        effects = self.core.handle(event, now_ns)
        for index, effect in enumerate(effects):
            if isinstance(effect, StartLeg) and self.first_role is not LegRole.WHOLE:
                effects[index] = replace(effect, role=self.first_role)
                role_of(self.core, effect, self.first_role)
                self.first_role = LegRole.WHOLE
        for role, replica in self.after.pop(type(event), []):
            (request_id,) = self.core.requests
            open_leg(self.core, request_id, role, replica, now_ns)
        return effects

    def next_wakeup_ns(self) -> int | None:
        return self.core.next_wakeup_ns()
