"""Log lines for each change of a replica between up and down, with the reason. It observes the driver, reads the
replicas' state from the core, and decides nothing."""

from __future__ import annotations

from structlog.typing import FilteringBoundLogger

from gateway.core.kernel.events import AssignmentApplied, ReplicasObserved, TimePassed
from gateway.core.kernel.replicas import Replicas, ReplicaState
from gateway.core.vocabulary import ReplicaId, Standing
from gateway.request.driver import GatewayStep, GatewaySubscriptions

LINE_EVERY_NS = 1_000_000_000
"""Minimum distance of two lines on one replica and one direction, so that a flapping replica does not flood the log."""
_SECOND_NS = 1_000_000_000
_SILENT = frozenset({Standing.UNHEALTHY, Standing.STALE})


class ReplicaLog:
    """Observer of the driver that logs when replicas go down or come up."""

    def __init__(self, replicas: Replicas, log: FilteringBoundLogger) -> None:
        self._replicas = replicas
        self._log = log
        self._is_up: dict[ReplicaId, bool] = {}
        """State of each replica as last logged; a replica that was not probed yet has none."""
        self._told_ns: dict[ReplicaId, dict[bool, int]] = {}
        """Times of the last `up` and the last `down` line of each replica."""
        self._reachable = 0
        """Bits of reachable replicas at the last look after which no line was still due."""
        self.subscriptions: GatewaySubscriptions = {
            ReplicasObserved: self._observed,
            TimePassed: self._time_passed,
            AssignmentApplied: self._assigned,
        }

    def _observed(self, step: GatewayStep, event: ReplicasObserved) -> None:
        is_up = self._is_up
        if any(is_up.get(each.replica_id) is not each.healthy for each in event.observations):
            self._look(step.now_ns)

    def _time_passed(self, step: GatewayStep, _event: TimePassed) -> None:
        if self._replicas.reachable != self._reachable:
            self._look(step.now_ns)

    def _assigned(self, _step: GatewayStep, event: AssignmentApplied) -> None:
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
        """Log a change of one replica. False if it is too early for another line."""
        replica_id = state.spec.replica_id
        is_up = state.standing not in _SILENT
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
