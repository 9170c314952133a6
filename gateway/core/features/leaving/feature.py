"""Leaving: what runs at a replica that will be gone by a known time completes there, or is moved before that.

Requests of classes that yield are moved from the announcement on, interactive ones a margin before the end. Those for
which no target has room are looked at again until the end, and then break with the engine, as without a notice.
"""

from __future__ import annotations

from typing import Final

from gateway.core.config import all_of
from gateway.core.features.leaving.config import LeavingConfig
from gateway.core.features.leaving.events import ReplicaLeaves
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.events import AssignmentApplied, FeatureEvent
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.timers import Timer, TimerKind

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

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:
        self._config = all_of(config).leaving
        self._arm(now_ns)

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:
        if not isinstance(event, ReplicaLeaves):
            return False
        state = self._core.replicas.get(event.replica_id)
        if state is not None:
            self._announce(state, event.leave_by_ns, now_ns)
            self._core.timers.set(self._timer, now_ns)  # a look after this event, when pools know of it too
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

    def wake(self, timer: str, now_ns: int, /) -> None:
        if timer == _TIMER:
            self._look(now_ns)

    def _announce(self, state: ReplicaState, leave_by_ns: int | None, now_ns: int) -> None:
        state.leave_by_ns = leave_by_ns
        self._core.replicas.refresh(state, now_ns)

    def _look(self, now_ns: int) -> None:
        """Order to be taken back what other targets have room for."""
        for state, leave_by_ns in self._occupied(now_ns):
            left_ns = leave_by_ns - now_ns
            detail = f"its engine leaves within {left_ns / _SECOND_NS:.1f} s"
            is_early = left_ns > self._config.margin_ns
            self._core.take_back_legs(state.target, detail, only_yielding=is_early)
        self._arm(now_ns)

    def _arm(self, now_ns: int) -> None:
        """Set the timer to the next look; none is due while nothing runs at a replica that leaves."""
        ends_ns = [leave_by_ns for _, leave_by_ns in self._occupied(now_ns)]
        last_ns = [each - self._config.margin_ns for each in ends_ns]
        next_ns = min([now_ns + _LOOK_NS, *(each for each in last_ns if each > now_ns)])
        if ends_ns:
            self._core.timers.set(self._timer, next_ns)
        else:
            self._core.timers.cancel(self._timer)

    def _occupied(self, now_ns: int) -> list[tuple[ReplicaState, int]]:
        """Replicas that leave later than now and still run something, with the time by which they leave."""
        return [
            (state, state.leave_by_ns)
            for state in self._core.replicas
            if state.leave_by_ns is not None and now_ns < state.leave_by_ns and state.in_flight
        ]
