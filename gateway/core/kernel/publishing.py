"""Heartbeats to peers: when one is due, and its content. The module sends nothing."""

from __future__ import annotations

from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.vocabulary import LoadReport, ModelQueue


class Publisher:
    """Decides when a heartbeat is due: on change, at most once per interval, and as a keep-alive.

    A report costs time in proportion to the replicas, so that a change is judged at most once per interval too.
    """

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._timer = Timer(TimerKind.PUBLISH, "")
        self._last: LoadReport | None = None
        self._last_ns = 0
        self._judged_ns = 0
        self._judged_state: tuple[object, ...] = ()
        """State of the last heartbeat, or of a later report that was not worth sending."""

    def due(self, now_ns: int) -> LoadReport | None:
        """Heartbeat to send at this moment, or None; then a timer is set for when one may be due."""
        observation = self._core.config.observation
        due_ns = self._judged_ns + observation.publish_interval_ns
        keep_alive_ns = self._last_ns + observation.keep_alive_ns
        if self._last is None or now_ns >= keep_alive_ns:
            return self._next(now_ns)
        if now_ns < due_ns:
            if self._timer.at_ns > due_ns and self._state() != self._judged_state:
                self._core.timers.set(self._timer, due_ns)
            return None
        if (state := self._state()) != self._judged_state:
            if self._is_news(self._last):
                return self._next(now_ns)
            self._judged_ns, self._judged_state = now_ns, state
        self._core.timers.set_earlier(self._timer, keep_alive_ns)
        return None

    def _is_news(self, last: LoadReport) -> bool:
        """True if a heartbeat sent at this moment would differ enough from the last one to matter to a peer that places
        requests."""
        share = self._core.config.observation.publish_change_share
        return not share or self._report(last.sequence).is_news_after(last, share)

    def _state(self) -> tuple[object, ...]:
        """Cheap summary of the state that a report is made of: the report has changed only if one of these has."""
        core = self._core
        return (
            core.replicas.available,
            core.replicas.version,
            core.replicas.loads_version,
            tuple(core.waiting.lengths_told().items()),
            tuple(core.waiting.pool_lengths().items()) if core.waiting.tells_pools_apart else (),
            core.draining,
            core.forwarding_stop is None,
            core.assignment_version,
            core.policy.digest,
            [feature.told_version() for feature in core.hooks.uses],
        )

    def _next(self, now_ns: int) -> LoadReport:
        self._last = self._report(self._last.sequence + 1 if self._last else 1)
        self._last_ns = self._judged_ns = now_ns
        self._judged_state = self._state()
        self._core.timers.set(self._timer, now_ns + self._core.config.observation.keep_alive_ns)
        return self._last

    def _queues(self) -> list[ModelQueue]:
        """Queue lengths by pool, then by model: a peer that does not tell pools apart uses the last length that it
        reads."""
        waiting = self._core.waiting
        by_pool = [ModelQueue(model, length, pool) for (model, pool), length in waiting.pool_lengths().items()]
        told = waiting.lengths_told().items()
        return [*by_pool, *[ModelQueue(model, length, None, waiting.appending(model)) for model, length in told]]

    def _report(self, sequence: int) -> LoadReport:
        core = self._core
        return LoadReport(
            core.gateway_id,
            core.place,
            sequence,
            accepting=not (core.draining or core.forwarding_stop is not None or core.policy.closed_reason),
            assignment_version=core.assignment_version,
            policy_digest=core.policy.digest,
            capacities=core.replicas.loads(core.placer.taking),
            queues=tuple(self._queues()),
            control=core.control,
            uses=tuple([use for feature in core.hooks.uses for use in feature.uses()]),
        )
