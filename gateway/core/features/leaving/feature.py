"""Leaving: what runs at a replica that will be gone by a known time completes there, or is moved before that.

Requests of classes that yield are moved from the announcement on, interactive ones a margin before the end. Those for
which no target has room are looked at again until the end, and then break with the engine, as without a notice.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from gateway.core.config import all_of
from gateway.core.features.leaving.config import LeavingConfig
from gateway.core.features.leaving.events import ReplicaLeaves
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.events import AssignmentApplied, FeatureEvent
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import LegState, RequestState
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.vocabulary import ServiceClass, Target

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
_TIMER: Final = "leaving"
_SECOND_NS = 1_000_000_000
_LOOK_NS = _SECOND_NS // 4
"""Time between two looks at what still runs at replicas that leave. Each look finds room for one more request of a
class that yields at each target."""


class Leaving(Feature):
    """Notes announcements at the replicas, whose standing keeps further requests away, and orders legs there to be
    taken back. It has no steps of its own beside a timer, so it never counts as on."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._config = LeavingConfig()
        self._timer = Timer(TimerKind.FEATURE, _TIMER)

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        self._config = all_of(config).leaving
        self._core.after_placing(self._look)

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:
        if not isinstance(event, ReplicaLeaves):
            return False
        state = self._core.replicas.get(event.replica_id)
        if state is not None:
            self._announce(state, event.leave_by_ns, now_ns)
            self._core.after_placing(self._look)
        return True

    def assign(
        self,
        event: AssignmentApplied,  # noqa: ARG002
        joined: list[ReplicaState],
        left: list[ReplicaState],
        now_ns: int,
        /,
    ) -> None:
        """Keep the announcement of a replica of which only the description changed."""
        announced = {state.spec.replica_id: state.leave_by_ns for state in left}
        for state in joined:
            if (leave_by_ns := announced.get(state.spec.replica_id)) is not None:
                self._announce(state, leave_by_ns, now_ns)

    def wake(self, timer: str, now_ns: int, /) -> None:  # noqa: ARG002
        if timer == _TIMER:
            self._core.after_placing(self._look)

    def _announce(self, state: ReplicaState, leave_by_ns: int | None, now_ns: int) -> None:
        state.leave_by_ns = leave_by_ns
        self._core.replicas.refresh(state, now_ns)

    def _look(self, now_ns: int) -> None:
        """Order to be taken back what other targets have room for, and set the timer to the next look; none is due
        while nothing runs at a replica that leaves."""
        lefts_ns = {
            state.target: state.leave_by_ns - now_ns
            for state in self._core.replicas
            if state.leave_by_ns is not None and now_ns < state.leave_by_ns
        }
        due: list[tuple[RequestState, LegState]] = []
        waits_ns: set[int] = set()
        for request, leg in self._legs_at(lefts_ns) if lefts_ns else ():
            wait_ns = lefts_ns[leg.target] - self._config.margin_ns
            if wait_ns <= 0 or request.profile.service_class is not _INTERACTIVE:
                due.append((request, leg))
            else:
                waits_ns.add(wait_ns)
        if due:
            waits_ns.add(_LOOK_NS)
            details = {each: f"its engine leaves within {left / _SECOND_NS:.1f} s" for each, left in lefts_ns.items()}
            self._core.take_back_legs(due, details, now_ns)
        if waits_ns:
            self._core.timers.set(self._timer, now_ns + min(waits_ns))
        else:
            self._core.timers.cancel(self._timer)

    def _legs_at(self, targets: Container[Target]) -> Iterator[tuple[RequestState, LegState]]:
        """Legs at these targets. Each names its target itself: a change of the replica's description leaves it at the
        former state. O(open requests)."""
        for request in self._core.requests.values():
            if request.attempt is not None:
                for leg in request.attempt.legs.values():
                    if leg.target in targets:
                        yield request, leg
