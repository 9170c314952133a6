"""Interruptions: running requests of classes that yield give their slots to interactive requests that find none free.

A request is interrupted only while its client has nothing of its answer. It waits again at its old place and begins
anew, so the tokens of the interrupted attempt are lost; the request that started last has lost the fewest and goes
first. Each request is interrupted a limited number of times, and only while it has as much time left as it has used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from gateway.core.config import all_of
from gateway.core.features.classes.config import ClassesConfig
from gateway.core.kernel.config import KernelConfig
from gateway.core.kernel.effects import StartLeg, TakeBackLeg
from gateway.core.kernel.events import LegEnded
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.queues import Queue
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import LegState, Phase, RequestState
from gateway.core.kernel.targets import LegKey
from gateway.core.vocabulary import LegResult, LegRole, ReplicaObservation, ServiceClass, Standing

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
_GIVEN_NS: Final = 200_000_000
"""Time after which an interrupted leg that has not ended was kept by its request's side, and frees no slot."""
_DETAIL: Final = "it gave its slot to an interactive request"
_FULL: Final = frozenset({Standing.PENDING, Standing.OUTSTANDING})

Interruptible = dict[LegKey, tuple[RequestState, LegState]]
"""Legs at one replica of requests that yield and whose clients have nothing yet, in the order of their starts."""


class Interruptions(Feature):
    """Interrupts one request that yields for each interactive request that is short of a slot. The feature is on
    whatever the config says: requests name their class themselves."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._most = self._was_most = ClassesConfig().interruptions_max
        self._at: dict[ReplicaState, Interruptible] = {}

    def is_on(self) -> bool:
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        self._most = all_of(config).classes.interruptions_max
        self._was_most = max(self._was_most, self._most)

    def violations(self) -> list[tuple[str, str]]:
        counts = {state: sum(leg.gave_way_ns is None for _, leg in legs.values()) for state, legs in self._at.items()}
        wrong = [
            ("replicas know how many legs give way", f"{state.target}: {state.yielding}")
            for state in self._core.replicas
            if state.yielding != counts.get(state, 0)
        ]
        often = [
            ("no request is interrupted too often", request.request_id)
            for request in self._core.requests.values()
            if sum(map(_was_interrupted, request.record.legs)) > self._was_most
        ]
        return wrong + often

    # Events

    def on_order(self, request: RequestState, leg: LegState, order: StartLeg, /) -> None:  # noqa: ARG002
        """Note a leg that may be interrupted, and look for a slot for an interactive request that would wait for one
        in the engine."""
        state = leg.state
        if not isinstance(state, ReplicaState):
            return
        if request.request_class.service_class is _INTERACTIVE:
            if self._at and state.room < 0 and state in self._at and _goes_first(request):
                self._core.after_placing(self._look)
        elif leg.role is LegRole.WHOLE and self._may_be_interrupted(request, leg.started_ns):
            self._at.setdefault(state, {})[_key_of(request, leg)] = (request, leg)
            state.yielding += 1

    def joined(self, request: RequestState, /) -> None:
        if self._at and _goes_first(request):
            self._core.after_placing(self._look)

    def observe(self, observations: Sequence[ReplicaObservation], now_ns: int, /) -> None:  # noqa: ARG002
        """Look again for requests that still wait: an interrupted leg may have been kept."""
        if self._at and self._core.waiting.count:
            self._core.after_placing(self._look)

    def leg_answered(self, request: RequestState, leg: LegState, now_ns: int, /) -> None:  # noqa: ARG002
        if self._at:
            self._forget(request, leg)

    def leg_over(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int, /) -> None:  # noqa: ARG002
        if self._at:
            self._forget(request, leg)
        if leg.gave_way_ns is not None and event.result is LegResult.TAKEN_BACK:
            self._core.goodput.gave_way(request.profile)

    def _forget(self, request: RequestState, leg: LegState) -> None:
        """Drop a leg that may not be interrupted any more."""
        state = leg.state
        if not isinstance(state, ReplicaState):
            return
        legs = self._at.get(state)
        if legs is None or legs.pop(_key_of(request, leg), None) is None:
            return
        state.yielding -= leg.gave_way_ns is None
        if not legs:
            del self._at[state]

    # Interruptions

    def _look(self, now_ns: int) -> None:
        """Interrupt requests at the replicas that interactive ones wait for, in the engine or held here, and for those
        that wait for any replica. O(interruptible legs + waiting interactive requests, at most as many)."""
        for state, legs in list(self._at.items()):
            if state.listed and self._core.replicas.open >> state.slot & 1:
                self._interrupt(state, legs, self._short_at(state, legs) - _freed(legs, now_ns), now_ns)
        for request_class, queue in self._core.waiting.unheld():
            if request_class.service_class is _INTERACTIVE:
                wanted = self._core.placer.replicas_to_wait_for(request_class)
                self._interrupt_for_any(wanted, queue, now_ns)

    def _short_at(self, state: ReplicaState, legs: Interruptible) -> int:
        """Interactive requests that wait for a slot of this replica beyond those that are free."""
        held = sum(map(_goes_first, self._core.waiting.all_held_for(state.slot)))
        room = state.room
        if room > 0:
            return held - room
        return held + min(-room, sum(key not in legs for key in state.prefilling))

    def _interrupt_for_any(self, wanted: int, queue: Queue, now_ns: int) -> None:
        """Interrupt requests at full replicas of the mask for those that wait for any of these."""
        full = [
            (state, legs)
            for state, legs in self._at.items()
            if state.listed and wanted >> state.slot & 1 and state.standing in _FULL
        ]
        legs_count = sum(len(legs) for _, legs in full)
        short = sum(map(_goes_first, islice(queue, legs_count))) - sum(_freed(legs, now_ns) for _, legs in full)
        for state, legs in full:
            short = self._interrupt(state, legs, short, now_ns)

    def _interrupt(self, state: ReplicaState, legs: Interruptible, count: int, now_ns: int) -> int:
        """Order so many legs to end, the one that started last first. Return how many are missing."""
        if count <= 0:
            return count
        for request, leg in reversed(list(legs.values())):
            if leg.gave_way_ns is not None:
                continue
            if not self._may_be_interrupted(request, now_ns):
                self._forget(request, leg)
                continue
            leg.gave_way_ns = now_ns
            state.yielding -= 1
            self._core.effects.append(
                TakeBackLeg(request.request_id, leg.attempt, leg.number, _DETAIL, may_append=False, identity="")
            )
            count -= 1
            if not count:
                break
        return count

    def _may_be_interrupted(self, request: RequestState, now_ns: int) -> bool:
        """Return true if the request may begin anew once more, and has as much time left for that as it has used."""
        if request.request_class.pinned is not None or request.phase is not Phase.RUNNING:
            return False
        if now_ns - request.arrived_ns > request.deadline_ns - now_ns:
            return False
        return sum(map(_was_interrupted, request.record.legs)) < self._most


def _key_of(request: RequestState, leg: LegState) -> LegKey:
    return request.request_id, leg.attempt, leg.number


def _freed(legs: Interruptible, now_ns: int) -> int:
    """Slots that will be free once the legs that were ordered to end have ended."""
    given = [leg.gave_way_ns for _, leg in legs.values()]
    return sum(at_ns is not None and now_ns < at_ns + _GIVEN_NS for at_ns in given)


def _was_interrupted(leg: LegState) -> bool:
    return leg.gave_way_ns is not None and leg.result is LegResult.TAKEN_BACK


def _goes_first(request: RequestState) -> bool:
    """Return true for an interactive request; not for one that has been waiting so long that it is served as one, or of
    a tenant that uses more than its share."""
    return request.profile.service_class is _INTERACTIVE and not request.leaves_room
