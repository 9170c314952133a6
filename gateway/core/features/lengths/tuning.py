"""Tune the thresholds of a gateway's own pools, where configured: report to each threshold the requests that ended in
its pool and in longer ones, and pass its current value to the replicas.

This module places nothing. Peers tune their own pools; those thresholds arrive with their heartbeats.
"""

from __future__ import annotations

from gateway.core.features.lengths.config import ThresholdConfig
from gateway.core.features.lengths.threshold import Threshold, Trouble
from gateway.core.kernel.events import LegEnded
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import LegState, RequestState
from gateway.core.vocabulary import LegResult, PoolName


class ThresholdTuning:
    """Threshold tuning of one gateway. Only requests whose budget counts are reported; almost free where nothing is
    tuned."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self.config = ThresholdConfig()
        self.thresholds: dict[PoolName, Threshold] = {}
        """Threshold of each assigned pool that has one."""
        self._preempted: dict[PoolName, int] = {}

    def configured(self, now_ns: int) -> None:
        """Follow changed pools or config: a threshold with a new configured value starts there, others keep their
        value."""
        if not self.config.tuned:
            for pool, threshold in self.thresholds.items():
                self._core.replicas.retune(pool, threshold.home_tokens)
            self.thresholds = {}
            return
        before, self.thresholds = self.thresholds, {}
        for pool, (home, limit) in self._core.replicas.groups.told_thresholds.items():
            known = before.get(pool)
            if known is None or known.home_tokens != home:
                known = Threshold(self.config, home, max(home, limit), now_ns)
            else:
                known.configure(self.config, home, max(home, limit))
            self.thresholds[pool] = known
            self._core.replicas.retune(pool, known.tokens)
        self._preempted = {pool: self._preempted.get(pool, 0) for pool in self.thresholds}

    def first_token(self, request: RequestState, leg: LegState, now_ns: int) -> None:
        """Count a request's first token. The time to it is counted only for streams: without a stream it does not show
        a wait."""
        if self.thresholds and isinstance(leg.state, ReplicaState):
            after_ns = now_ns - request.arrived_ns if request.profile.stream else None
            self._ended(leg.state.spec.pool, after_ns)

    def leg_ended(self, leg: LegState, event: LegEnded, now_ns: int, *, was_cut: bool) -> bool:
        """Count the end of a leg and adjust the thresholds. True: a threshold has moved."""
        if not self.thresholds or not isinstance(leg.state, ReplicaState):
            return False
        pool = leg.state.spec.pool
        own = self.thresholds.get(pool)
        if own is not None:
            if event.result is LegResult.TOO_LONG:
                own.ended(in_short=True, trouble=Trouble.MISROUTED)
            elif event.result is LegResult.BUSY:
                own.ended(in_short=True, trouble=Trouble.REJECTED)
            elif was_cut:
                own.troubled(1)
            self._count_preempted(pool, own)
        has_moved = False
        for name, threshold in self.thresholds.items():
            if threshold.adjust(now_ns) is not None:
                self._core.replicas.retune(name, threshold.tokens)
                has_moved = True
        return has_moved

    # Internals

    def _ended(self, pool: PoolName, after_ns: int | None) -> None:
        for name, threshold in self.thresholds.items():
            if name == pool:
                threshold.ended(in_short=True, first_token_after_ns=after_ns)
            elif self._core.replicas.groups.is_longer(pool, threshold.limit_tokens):
                threshold.ended(in_short=False, first_token_after_ns=after_ns)

    def _count_preempted(self, pool: PoolName, own: Threshold) -> None:
        """Count the pool's new preemptions; engines report their number, not the requests."""
        total = self._core.replicas.preempted.get(pool, 0)
        before, self._preempted[pool] = self._preempted.get(pool, 0), total
        if total > before:
            own.troubled(total - before)
