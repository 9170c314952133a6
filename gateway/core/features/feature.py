"""Interface between the core and its optional features: hooks that the core calls, and steps that a feature may ask
the core to take.

A feature that is off is told its events and changes of the config and the fleet, which alone can turn it on, and is
asked about the attempts that it still plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.core.config import CoreConfig
from gateway.core.effects import Effect
from gateway.core.events import Event
from gateway.core.placement.placer import Placement
from gateway.core.replicas import ReplicaState
from gateway.core.requests import AttemptState, LegPlanner, LegState, RequestState
from gateway.core.state import GatewayState
from gateway.core.vocabulary import LegRole, Outcome, PoolSpec, ReplicaObservation, RequestId


class Kernel(GatewayState):
    """State of the core, and the steps that features may ask it to take."""

    def emit(self, effect: Effect) -> None:
        """Add an effect to those of the event that is handled."""
        raise NotImplementedError

    def attempt_of(self, request_id: RequestId, number: int) -> AttemptState | None:
        """Living attempt of that number, if there is one: events of superseded attempts are ignored."""
        raise NotImplementedError

    def open_leg(
        self, request: RequestState, attempt: AttemptState, role: LegRole, placement: Placement, now_ns: int
    ) -> None:
        """Open one more leg of a living attempt."""
        raise NotImplementedError

    def stop_leg(self, request: RequestState, attempt: AttemptState, leg: LegState, detail: str) -> None:
        """Order one leg to stop, unless that was ordered before."""
        raise NotImplementedError

    def lapse(self, request: RequestState, attempt: AttemptState, why: str, now_ns: int) -> None:
        """End an attempt that waits between its legs and cannot go on, through no target's fault. Its request is queued
        again, as often as after full engines."""
        raise NotImplementedError

    def end(self, request: RequestState, outcome: Outcome, detail: str, *, retry_after_ns: int = 0) -> None:
        """End the request for its client."""
        raise NotImplementedError

    def judge_waiting_again(self) -> None:
        """Judge all waiting requests by the rules in force."""
        raise NotImplementedError


class Feature(LegPlanner):
    """Optional part of the core. Every hook does nothing unless a feature overrides it; one that plans legs defines the
    methods of `LegPlanner` that have no default, too."""

    def is_on(self) -> bool:
        """Return true if the config or the fleet asks for the feature at present."""
        return False

    # Inputs, whether or not it is on

    def take_in(self, event: Event, now_ns: int, /) -> bool:  # noqa: ARG002
        """Take in an event that is this feature's own. Return false for all others."""
        return False

    def configure(self, config: CoreConfig, now_ns: int, /) -> None:
        """Take in new settings."""

    def assign(
        self, pools: Iterable[PoolSpec], joined: list[ReplicaState], left: list[ReplicaState], now_ns: int, /
    ) -> None:
        """Take in an assignment of own replicas, before that of peers."""

    def assigned(self, now_ns: int, /) -> None:
        """Take care of requests that an assignment has left without what they waited for; all targets are known."""

    # Steps, while it is on

    def observe(self, observations: Sequence[ReplicaObservation], now_ns: int, /) -> None:
        """Take in probes of own replicas."""

    def before_placing(self, now_ns: int, /) -> None:
        """Act after an event, before waiting requests are placed."""

    def plan_legs(
        self,
        request: RequestState,  # noqa: ARG002
        attempt: AttemptState,  # noqa: ARG002
        placement: Placement,  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
        /,
    ) -> bool:
        """Open the first legs of an attempt at the placed target and become its planner, or return false."""
        return False


Features = Callable[[Kernel], list[Feature]]
"""Makes the optional features of a core."""
