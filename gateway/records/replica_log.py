"""Says in the log, once each time, that one of our replicas went down or came up, and why. It watches the driver, asks
the core what it makes of its replicas, and decides nothing.
"""

from __future__ import annotations

from typing import Final

from structlog.typing import FilteringBoundLogger

from gateway.core.effects import Effect
from gateway.core.events import AssignmentApplied, Event, ReplicasObserved, TimePassed
from gateway.core.replicas import Replicas, ReplicaState
from gateway.core.vocabulary import ReplicaId, Standing

LINE_EVERY_NS = 1_000_000_000
"""Of one replica and one kind: one that goes down and up all the time is told of at this pace."""
_SECOND_NS = 1_000_000_000


class ReplicaLog:
    """An observer of the driver."""

    def __init__(self, replicas: Replicas, log: FilteringBoundLogger) -> None:
        self._replicas = replicas
        self._log = log
        self._is_up: dict[ReplicaId, bool] = {}
        """As last told. Not of those that have not been asked yet."""
        self._told_ns: dict[ReplicaId, dict[bool, int]] = {}
        """When it was last told that it was up, and that it was down."""
        self._reachable = 0
        """As last looked at, once everything about it has been told."""

    watches: Final = frozenset[type]([ReplicasObserved, TimePassed, AssignmentApplied])

    def on_step(self, now_ns: int, event: Event, _effects: list[Effect]) -> None:
        """Of most steps it sees at a glance that they change nothing."""
        if isinstance(event, ReplicasObserved):
            is_up = self._is_up
            if any(is_up.get(each.replica_id) is not each.healthy for each in event.observations):
                self._look(now_ns)
        elif isinstance(event, TimePassed):
            if self._replicas.reachable != self._reachable:
                self._look(now_ns)
        elif isinstance(event, AssignmentApplied):
            ours = {each.replica_id for each in event.replicas}
            for gone in self._is_up.keys() - ours:
                del self._is_up[gone], self._told_ns[gone]

    def _look(self, now_ns: int) -> None:
        is_all_told = True
        for state in self._replicas:
            if state.sampled_ns is not None:
                is_all_told &= self._tell_of(state, now_ns)
        if is_all_told:
            self._reachable = self._replicas.reachable

    def _tell_of(self, state: ReplicaState, now_ns: int) -> bool:
        """False where it is too early for another line about it."""
        replica_id = state.spec.replica_id
        is_up = bool(self._replicas.reachable >> state.slot & 1)
        before = self._is_up.get(replica_id)
        if is_up is before:
            return True
        told_ns = self._told_ns.setdefault(replica_id, {})
        if is_up in told_ns and now_ns - told_ns[is_up] < LINE_EVERY_NS:
            return False
        self._is_up[replica_id], told_ns[is_up] = is_up, now_ns
        since_ns = told_ns.get(not is_up)
        lasted = {} if since_ns is None else {"after_s": round((now_ns - since_ns) / _SECOND_NS, 1)}
        if is_up:
            self._log.info("replica_up", replica=replica_id, **lasted)
        else:
            self._log.warning("replica_down", replica=replica_id, reason=_why_down(state, now_ns), **lasted)
        return True


def _why_down(state: ReplicaState, now_ns: int) -> str:
    if state.standing is Standing.STALE and state.sampled_ns is not None:
        return f"no probe came back for {(now_ns - state.sampled_ns) / _SECOND_NS:.1f} s"
    return state.detail or "unhealthy"
