"""Short forms of a core's orders to an edge, and of an edge's events about forwards."""

from __future__ import annotations

from gateway.core.kernel import events
from gateway.core.kernel.effects import EndRequest, StartLeg
from gateway.core.vocabulary import (
    Decision,
    GatewayId,
    Hops,
    LegRole,
    Outcome,
    PlacementReason,
    PlaceRule,
    ReplicaId,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    Target,
    peer_target,
    replica_target,
)
from mesh.clock import Clock
from tests.support.core import EU, SECOND, TENANT, US, rule

R1 = RequestId("r1")


def leg_order(
    request_id: str, leg: int, target: Target, attempt: int = 1, *, deadline_ns: int = 60 * SECOND
) -> StartLeg:
    decision = Decision(PlacementReason.LOCAL_EXPLORE, 0, 0, 2, 0)
    return StartLeg(RequestId(request_id), attempt, leg, LegRole.WHOLE, target, decision, deadline_ns)


def forward_order(request_id: str = "r-1", to: str = "eu-1", *, stamp: ResidencyStamp | None = None) -> StartLeg:
    """Order of a forward from the US, with half a minute left on the real clock."""
    return StartLeg(
        RequestId(request_id),
        1,
        1,
        LegRole.WHOLE,
        peer_target(GatewayId(to)),
        Decision(PlacementReason.REMOTE_NEAREST, 0, 0, 1, 0),
        deadline_ns=Clock().now_ns() + 30 * SECOND,
        hops=Hops(0, 1),
        stamp=stamp or ResidencyStamp(US, TENANT, rule(US, EU), "digest"),
    )


def forward_from_eu(
    asked: RequestProfile, deadline_ns: int, *, origin: str = "eu-1", may_run: PlaceRule | None = None
) -> events.ForwardArrived:
    stamp = ResidencyStamp(EU, TENANT, may_run or rule(US, EU), "digest-of-eu")
    return events.ForwardArrived(asked, deadline_ns, GatewayId(origin), Hops(0, 1), stamp)


def start(attempt: int = 1, leg: int = 1) -> StartLeg:
    """Order of a leg of `R1` at the replica `a`."""
    return leg_order(R1, leg, replica_target(ReplicaId("a")), attempt, deadline_ns=10**18)


def end(outcome: Outcome = Outcome.COMPLETED) -> EndRequest:
    return EndRequest(R1, outcome, "", 1)
