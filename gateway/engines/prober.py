"""Probes the load of every engine at intervals, and reports it to the core in batches. It makes no placement.

An engine is probed once for all of its data-parallel ranks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count

from gateway.config.sections import ProbeConfig
from gateway.core.kernel.events import ReplicasObserved
from gateway.core.vocabulary import ReplicaObservation
from gateway.engines.dialects import LoadReading
from gateway.engines.endpoints import Engine, ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.loops import EngineLoops, ProbeRateLimit
from gateway.engines.probe import EngineProbe, probe_connections
from gateway.http1.client import ConnectionPool
from mesh.clock import Clock
from mesh.supervisor import Backoff, OnFailure

OnAdopted = Callable[[str, bool], None]
"""Called with an engine's URL, and whether it has answered."""

_SECOND_NS = 1_000_000_000
_IDLE_CONNECTION_MIN_S = 2.0
_BATCH_S = 0.002
"""Seconds within which observations are gathered, to reach the core together."""
_GROUP_ENGINES = 8
_GROUP_GAP_NS = 4_000_000
_TIMER_GRAIN_NS = 1_000_000
"""Resolution of event loops whose timers count whole milliseconds."""


def next_beat_ns(sent_ns: int, interval_ns: int, phase_ns: int) -> int:
    """Time of the first beat after a probe: at most an interval later, and sooner only if that probe was off the
    beat."""
    return sent_ns + interval_ns - (sent_ns - phase_ns) % interval_ns


def wait_s(until_beat_ns: int) -> float:
    """Seconds to sleep until the beat, plus a timer's resolution: a timer that rounds down could end just before the
    beat."""
    return (until_beat_ns + _TIMER_GRAIN_NS) / _SECOND_NS if until_beat_ns > 0 else 0


class EngineProber:
    """Probes the engines of the current endpoints.

    Engines are probed in groups, each on one beat: answers that arrive together find caches warm and reach the core as
    one event, at two thirds of the cost. Groups are small, so that streams never wait for long. Each group has a beat
    of its own as long as there are no more groups than gaps in an interval (25 in an interval of 100 ms); further
    groups share a beat, or come closer to one than a gap.
    """

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        config: ProbeConfig,
        submit: Callable[[ReplicasObserved], None],
        on_restart: OnFailure | None = None,
        *,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        batch_s: float = _BATCH_S,
        on_adopted: OnAdopted = lambda *_: None,
    ) -> None:
        """`on_adopted` is called after each probe of an adopted engine."""
        self._endpoints = endpoints
        self._clock = clock
        self._config = config
        self._submit = submit
        self._loops = EngineLoops(endpoints, clock, backoff, on_restart)
        self._batch_s = batch_s
        self._on_adopted = on_adopted
        self._budget = ProbeRateLimit(clock)
        self._started_ns = clock.now_ns()
        """Origin of the beats. Gateways beside each other start at different times, so that their probes of an engine
        coincide only by chance."""
        self._numbers = count()
        self._gathered: list[ReplicaObservation] = []
        self._telling: asyncio.TimerHandle | None = None

    @property
    def restarts(self) -> Counter[str]:
        """Restarts of engines' loops after internal errors, by the engine's URL."""
        return self._loops.restarts

    def configure(self, config: ProbeConfig) -> None:
        """Apply new settings from each engine's next probe on."""
        self._config = config

    async def run(self) -> None:
        """Run until cancelled."""
        idle_s = max(_IDLE_CONNECTION_MIN_S, 2 * self._config.interval_ns / _SECOND_NS)
        try:
            with closing(probe_connections(idle_s)) as connections:
                await self._loops.run(partial(self._watch, connections))
        finally:
            if self._telling is not None:
                self._telling.cancel()

    async def _watch(self, connections: ConnectionPool, engine: Engine) -> None:
        """Probe one engine until it is gone, one probe at a time; a probe that takes longer than the interval delays
        the next."""
        probe = EngineProbe(connections, engine, self._config)
        phase_ns = self._started_ns + next(self._numbers) // _GROUP_ENGINES * _GROUP_GAP_NS
        while self._endpoints.of(engine):
            if self._endpoints.is_adopted(engine):
                await asyncio.sleep(self._budget.wait_s(self._config.adopted_per_s))
            probe.config = self._config
            sent_ns = self._clock.now_ns()
            self._take_in(engine, await probe.look(sent_ns), sent_ns)
            beat_ns = next_beat_ns(sent_ns, probe.interval_ns, phase_ns)
            await asyncio.sleep(wait_s(beat_ns - self._clock.now_ns()))

    def _take_in(self, engine: Engine, readings: list[LoadReading] | None, sent_ns: int) -> None:
        endpoints = self._endpoints.of(engine)
        if readings is None or not endpoints:
            return
        for endpoint in endpoints:
            self._gather(self._observation(endpoint, readings[endpoint.rank or 0], sent_ns))
        if self._endpoints.is_adopted(engine):
            self._on_adopted(engine.url, any(not each.unfit for each in readings))

    def _observation(self, endpoint: ReplicaEndpoint, reading: LoadReading, sent_ns: int) -> ReplicaObservation:
        unfit = reading.unfit
        if unfit:
            self._endpoints.has_closed(endpoint.url)
        elif self._endpoints.is_closing(endpoint.url, sent_ns):
            unfit = "the engine is shutting down"
        elif endpoint.is_met and self._endpoints.bootstrap_of(endpoint) is None:
            unfit = "the prefill worker has not said yet where decode workers meet it"
        return ReplicaObservation(
            endpoint.replica_id,
            sent_ns,
            healthy=not unfit,
            running=reading.running,
            waiting=reading.waiting,
            deferred=min(reading.deferred, reading.waiting),
            kv_usage=reading.kv_usage,
            kv_tokens=reading.kv_tokens,
            preemptions=reading.preemptions,
            slots=reading.slots,
            detail=unfit,
        )

    def _gather(self, observation: ReplicaObservation) -> None:
        if not self._gathered:
            self._telling = asyncio.get_running_loop().call_later(self._batch_s, self._tell)
        self._gathered.append(observation)

    def _tell(self) -> None:
        observations, self._gathered = tuple(self._gathered), []
        self._submit(ReplicasObserved(observations))
