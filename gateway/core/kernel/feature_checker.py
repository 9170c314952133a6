"""Interface of a feature's own invariants, beside those that hold for every request. Tests and the simulator check
them; a checker follows the core's events and effects, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, ForwardArrived, LegEnded, RequestArrived
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import RequestState
from gateway.core.vocabulary import RequestId


class FeatureChecker:
    """Checker of one feature of one core. Every hook does nothing unless a feature overrides it."""

    def assigned(self, event: AssignmentApplied, /) -> None:
        """Take in a newer assignment."""

    def arrived(self, event: RequestArrived | ForwardArrived, /) -> None:
        """Take in a request that the core has taken."""

    def leg_ended(self, event: LegEnded, /) -> None:
        """Take in the end of a living leg of a request's last attempt."""

    def wrong_start(self, order: StartLeg, /, *, has_begun: bool) -> Sequence[str]:  # noqa: ARG002
        """Names of the invariants that this start of a leg breaks. `has_begun`: the client has a part of the answer."""
        return ()

    def may_serve(self, state: ReplicaState, request: RequestState, /) -> bool:  # noqa: ARG002
        """Return false if the feature keeps the request away from the replica."""
        return True

    def forget(self, request_id: RequestId, /) -> None:
        """Take in that a request has ended with all its legs."""
