"""What a core orders for one request, by hand."""

from __future__ import annotations

from gateway.core.effects import EndRequest, StartLeg
from gateway.core.vocabulary import (
    Decision,
    LegRole,
    Outcome,
    PlacementReason,
    ReplicaId,
    RequestId,
    replica_target,
)

R1 = RequestId("r1")
DECISION = Decision(PlacementReason.LOCAL_POLICY, 0, 0, 1, 0)


def start(attempt: int = 1, leg: int = 1) -> StartLeg:
    return StartLeg(R1, attempt, leg, LegRole.WHOLE, replica_target(ReplicaId("a")), DECISION, deadline_ns=10**18)


def end(outcome: Outcome = Outcome.COMPLETED) -> EndRequest:
    return EndRequest(R1, outcome, "", 1)
