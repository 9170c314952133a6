"""Interruptions: running requests of classes that yield give their slots to interactive requests that find none free.

A request is interrupted only while its client has nothing of its answer. It waits again at its old place and begins
anew, so the tokens of the interrupted attempt are lost; the request that started last has lost the fewest and goes
first. Each request is interrupted a limited number of times, and only while it has as much time left as it has used.

A request that yields starts at an engine that reads no prompt. The end of reading shows in the first token; of an
answer in one piece it is estimated, and looked for then rather than at the next probe while further requests wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
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
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.requests import LegState, Phase, RequestState
from gateway.core.kernel.slots import KV_FULL
from gateway.core.kernel.targets import LegKey
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.vocabulary import LegResult, LegRole, ReplicaObservation, ServiceClass, Standing

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
_GIVEN_NS: Final = 200_000_000
"""Time after which an interrupted leg that has not ended was kept by its request's side, and frees no slot."""
_TIMER: Final = "interruptions"
_DETAIL: Final = "it gave its slot to an interactive request"
_FULL: Final = frozenset({Standing.PENDING, Standing.OUTSTANDING})

Interruptible = dict[LegKey, tuple[RequestState, LegState]]
"""Legs at one replica of requests that yield and whose clients have nothing yet, in the order of their starts; also
those that were ordered to end, until they have."""


class Interruptions(Feature):
    """Interrupts one request that yields for each interactive request that is short of a slot. The feature is on from
    the first request that yields on: requests name their class themselves."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._config = ClassesConfig()
        self._at: dict[ReplicaState, Interruptible] = {}
        self._timer = Timer(TimerKind.FEATURE, _TIMER)
        self._reading: list[tuple[int, int, ReplicaState]] = []
        """Heap of replicas that read prompts of requests that yield, by the time at which each is looked at; the number
        in between tells equal times apart."""
        self._readings = 0
        self._ended: dict[ReplicaState, int] = {}
        """Interrupted legs that have ended since the last probe of each replica."""
        self._joined: list[RequestState] = []
        """Interactive requests that have begun to wait in the event that is handled."""
        self._short: dict[ReplicaState, None] = {}
        """Replicas that may be short of slots, to be looked at after that event."""

    def is_on(self) -> bool:
        return self._core.has_yielding

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:  # noqa: ARG002
        self._config = all_of(config).classes
        if not self._config.interruptions_max:
            for legs in list(self._at.values()):
                for request, leg in list(legs.values()):
                    self._forget(request, leg)

    def violations(self) -> list[tuple[str, str]]:
        wrong = [
            ("replicas know how many legs give way", f"{state.target}: {state.yielding}")
            for state in self._core.replicas
            if state.yielding != len(self._at.get(state, ()))
            or bool(state.yielding) is not bool(self._core.replicas.giving >> state.slot & 1)
        ]
        wrong += [
            ("loads without what yields are known", str(state.target))
            for state in self._core.replicas
            if self._core.replicas.rooms.total_load(1 << state.slot) != state.load - state.yielding
        ]
        often = [
            ("no request is interrupted too often", request.request_id)
            for request in self._core.requests.values()
            if sum(map(_was_interrupted, request.record.legs)) > max(self._config.interruptions_max, _DEFAULT_MOST)
        ]
        return wrong + often

    # Events

    def on_order(self, request: RequestState, leg: LegState, order: StartLeg, /) -> None:  # noqa: ARG002
        """Note a leg that may be interrupted, and a replica whose engine has no slot for an interactive request."""
        state = leg.state
        if not isinstance(state, ReplicaState):
            return
        if request.request_class.service_class is _INTERACTIVE:
            if self._at and state in self._at and _room(state) < 0 and _goes_first(request):
                self._look_at(state)
        elif leg.role is LegRole.WHOLE and self._may_be_interrupted(request, leg.started_ns):
            self._at.setdefault(state, {})[_key_of(request, leg)] = (request, leg)
            state.yielding += 1
            if state.listed:
                self._core.replicas.giving |= 1 << state.slot
        if request.request_class.service_rank and self._core.waiting.count:
            self._look_when_read(state, _key_of(request, leg))

    def _look_when_read(self, state: ReplicaState, key: LegKey) -> None:
        """Look at the replica again once it is taken to have read the prompt of an answer in one piece."""
        read_ns = state.read_from_ns.get(key)
        if read_ns is not None:
            self._readings += 1
            heapq.heappush(self._reading, (read_ns, self._readings, state))
            self._core.timers.set(self._timer, self._reading[0][0])

    def wake(self, timer: str, now_ns: int, /) -> None:
        """Take the prompts that are due to be read; placing follows."""
        if timer != _TIMER:
            return
        while self._reading and self._reading[0][0] <= now_ns:
            state = heapq.heappop(self._reading)[2]
            if state.listed:
                self._core.replicas.take_as_read(state, now_ns)
        if self._reading:
            self._core.timers.set(self._timer, self._reading[0][0])

    def joined(self, request: RequestState, /) -> None:
        if self._at and _goes_first(request):
            self._joined.append(request)
            self._core.after_placing(self._look)

    def observe(self, observations: Sequence[ReplicaObservation], now_ns: int, /) -> None:
        """Look again at replicas that are short of slots: requests may wait in their engines that this gateway took to
        run there, or an interrupted leg was kept. The oldest leg of each is dropped once its time is half over."""
        if not self._at:
            return
        for each in observations:
            state = self._core.replicas.get(each.replica_id)
            legs = None if state is None else self._at.get(state)
            if state is None or legs is None:
                continue
            self._ended.pop(state, None)
            request, leg = next(iter(legs.values()))
            if not self._may_be_interrupted(request, now_ns):
                self._forget(request, leg)
            if _room(state) <= 0:
                self._look_at(state)

    def leg_answered(self, request: RequestState, leg: LegState, now_ns: int, /) -> None:  # noqa: ARG002
        if self._at:
            self._forget(request, leg)

    def leg_over(self, request: RequestState, leg: LegState, event: LegEnded, now_ns: int, /) -> None:
        if self._at:
            self._forget(request, leg)
        if leg.gave_way_ns is not None and event.result is LegResult.TAKEN_BACK:
            is_promoted = request.request_class.service_class is _INTERACTIVE
            request.look_ns = None if is_promoted else self._config.promotion_at(request.profile, now_ns)
            self._core.goodput.gave_way(request.profile)
            if leg.state in self._at and isinstance(leg.state, ReplicaState):
                self._ended[leg.state] = self._ended.get(leg.state, 0) + 1

    def _look_at(self, state: ReplicaState) -> None:
        self._short[state] = None
        self._core.after_placing(self._look)

    def _forget(self, request: RequestState, leg: LegState) -> None:
        """Drop a leg that may not be interrupted any more."""
        state = leg.state
        if not isinstance(state, ReplicaState):
            return
        legs = self._at.get(state)
        if legs is None or legs.pop(_key_of(request, leg), None) is None:
            return
        state.yielding -= 1
        if state.listed:
            self._core.replicas.rooms.changed |= 1 << state.slot
        if not legs:
            del self._at[state]
            self._ended.pop(state, None)
            if state.listed:
                self._core.replicas.giving &= ~(1 << state.slot)

    # Interruptions

    def _look(self, now_ns: int) -> None:
        """Interrupt requests at the replicas that interactive ones wait for, in the engine or held here, and for those
        that wait for any replica. O(waiting interactive requests + legs, of these replicas and classes)."""
        waits_for_any = False
        for request in self._joined:
            if request.is_queued and request.held is None:
                waits_for_any = True
            elif request.held is not None and self._core.replicas.giving >> request.held.slot & 1:
                self._short[self._core.replicas.at(request.held.slot)] = None
        self._joined.clear()
        short, self._short = self._short, {}
        for state in short:
            legs = self._at.get(state)
            if legs is not None and state.listed and self._core.replicas.open >> state.slot & 1:
                self._interrupt(legs, self._short_at(state), now_ns)
                waits_for_any = waits_for_any or state.standing in _FULL
        if waits_for_any and self._core.waiting.any_interactive():
            for request_class, queue in self._core.waiting.unheld():
                if request_class.service_class is _INTERACTIVE:
                    self._interrupt_for_next(request_class, queue, now_ns)

    def _short_at(self, state: ReplicaState) -> int:
        """Interactive requests that wait for a slot of this replica beyond those that are free."""
        waiting = self._core.waiting
        held = sum(map(_waits_for_slot, waiting.all_held_for(state.slot)))
        room = _room(state)
        if state.waiting and state.kv_usage >= KV_FULL:  # the last probe tells the room
            room += self._ended.get(state, 0)
        if room >= 0:
            return held - room
        last = [self._core.requests.get(request_id) for request_id, _, _ in list(state.prefilling)[room:]]
        return held + sum(each is not None and _goes_first(each) for each in last)

    def _interrupt_for_next(self, request_class: RequestClass, queue: Queue, now_ns: int) -> None:
        """Interrupt one request for the next of a queue, at a full replica of those that it waits for, unless a slot
        was given there that is not free yet."""
        if not _goes_first(queue.head()):
            return
        wanted = self._core.placer.eligibility.awaited_replicas(request_class) & self._core.replicas.giving
        full = [
            legs for state, legs in self._at.items() if state.listed and wanted >> state.slot & 1 and _is_full(state)
        ]
        given = [leg.gave_way_ns for legs in full for _, leg in legs.values()]
        if any(at_ns is not None and now_ns < at_ns + _GIVEN_NS for at_ns in given):
            return
        for legs in full:
            if not self._interrupt(legs, 1, now_ns):
                return

    def _interrupt(self, legs: Interruptible, count: int, now_ns: int) -> int:
        """Order as many legs to end as make, with those that were ordered before, this count: the one that started last
        first. Return how many are missing."""
        if count <= 0:
            return count
        for request, leg in reversed(list(legs.values())):
            if leg.gave_way_ns is not None:
                if now_ns < leg.gave_way_ns + _GIVEN_NS:
                    count -= 1
                else:
                    self._forget(request, leg)
        for request, leg in reversed(list(legs.values())):
            if count <= 0:
                break
            if leg.gave_way_ns is not None:
                continue
            if not self._may_be_interrupted(request, now_ns):
                self._forget(request, leg)
                continue
            leg.gave_way_ns = now_ns
            self._core.effects.append(
                TakeBackLeg(request.request_id, leg.attempt, leg.number, _DETAIL, may_append=False, identity="")
            )
            count -= 1
        return count

    def _may_be_interrupted(self, request: RequestState, now_ns: int) -> bool:
        """Return true if the request may begin anew once more, and has as much time left for that as it has used."""
        if request.request_class.pinned is not None or request.phase is not Phase.RUNNING:
            return False
        if now_ns - request.arrived_ns > request.deadline_ns - now_ns:
            return False
        return sum(map(_was_interrupted, request.record.legs)) < self._config.interruptions_max


_DEFAULT_MOST: Final = ClassesConfig().interruptions_max


def _key_of(request: RequestState, leg: LegState) -> LegKey:
    return request.request_id, leg.attempt, leg.number


def _waits_for_slot(request: RequestState) -> bool:
    """Return true for a request held for a replica because its slots are taken, rather than because of what its cache
    holds."""
    return _goes_first(request) and request.held is not None and not request.held.is_cold


def _room(state: ReplicaState) -> int:
    """Requests that the replica could begin at once, by its slots and by the limit on own legs there."""
    return min(state.room, state.legs_max - state.in_flight)


def _is_full(state: ReplicaState) -> bool:
    return state.standing in _FULL and _room(state) <= 0


def _was_interrupted(leg: LegState) -> bool:
    return leg.gave_way_ns is not None and leg.result is LegResult.TAKEN_BACK


def _goes_first(request: RequestState) -> bool:
    """Return true for a request that is given slots, unless its tenant uses more than its share."""
    return request.request_class.goes_first and not request.leaves_room
