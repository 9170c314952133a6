"""Opens further legs for requests of a real core, which by itself orders one leg per attempt."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect, StartLeg
from gateway.core.kernel.requests import RequestRecord
from gateway.core.placement.placer import Placement
from gateway.core.vocabulary import LegRole, PlacementReason, ReplicaId, RequestId


def open_leg(core: GatewayCore, request_id: str, role: LegRole, replica: str, now_ns: int) -> StartLeg:
    """Order one more leg of the request's current attempt, as the core itself would."""
    request = core.requests[RequestId(request_id)]
    state = core.replicas.get(ReplicaId(replica))
    assert request.attempt is not None
    assert state is not None
    core.open_leg(request, request.attempt, role, Placement(state, PlacementReason.LOCAL_POLICY, 0, 1), now_ns)
    order = core.effects[-1]
    assert isinstance(order, StartLeg)
    return order


def role_of(core: GatewayCore, order: StartLeg, role: LegRole) -> None:
    """Change the role that the core has recorded for a leg."""
    attempt = core.requests[order.request_id].attempt
    assert attempt is not None
    attempt.legs[order.leg].role = role


@dataclass
class OpensLegs:
    """Core for a driver that opens a further leg in the step of some event."""

    core: GatewayCore
    after: dict[type[Event], list[tuple[LegRole, str]]]
    """Legs to open after the first event of a kind, by role and replica."""
    first_role: LegRole = LegRole.WHOLE
    """Role of the first leg that the core starts by itself."""

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

    @property
    def arrived(self) -> RequestRecord | None:
        return self.core.arrived
