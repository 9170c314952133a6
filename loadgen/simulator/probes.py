"""Probe results of one region's engines for one gateway: which of them have news for it. Transport and use of the
results are outside this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from gateway.core.vocabulary import ReplicaObservation
from loadgen.simulator.engines import SimReplica


class Probes:
    """Set of engines with news. An engine has news if it changed since its last report, or if that report is older than
    `again_after_ns`. A probe visits only those."""

    def __init__(self, engines: Sequence[SimReplica], again_after_ns: int) -> None:
        self._engines = engines
        self._again_after_ns = again_after_ns
        self._numbers = {engine.replica_id: number for number, engine in enumerate(engines)}
        self._changed: dict[int, None] = {}
        self._told_ns: dict[int, int] = {}
        """Sample time of each engine's last report, by engine number; the earliest first."""
        self._watches = [partial(self._changed.setdefault, number) for number in range(len(engines))]
        for engine, watch in zip(engines, self._watches, strict=True):
            engine.watch(watch)
        self.forget()

    def close(self) -> None:
        """Stop watching the engines."""
        for engine, watch in zip(self._engines, self._watches, strict=True):
            engine.unwatch(watch)

    def forget(self) -> None:
        """Mark every engine as unreported, because the gateway's process is a new one."""
        self._told_ns.clear()
        self._changed.update(dict.fromkeys(range(len(self._engines))))

    def news(self, sent_ns: int) -> tuple[ReplicaObservation, ...]:
        """Observations of a probe that was sent at `sent_ns` and arrives now."""
        numbers = {*self._changed, *self._told_long_before(sent_ns)}
        return tuple(self._engines[number].observe(sent_ns) for number in sorted(numbers))

    def tell(self, observations: Iterable[ReplicaObservation]) -> None:
        """Record reports that have arrived; they are not older than any before them."""
        for observation in observations:
            number = self._numbers[observation.replica_id]
            self._told_ns.pop(number, None)
            self._told_ns[number] = observation.sampled_ns
            if self._engines[number].changed_ns < observation.sampled_ns:
                self._changed.pop(number, None)

    def _told_long_before(self, sent_ns: int) -> Iterable[int]:
        for number, told_ns in self._told_ns.items():
            if sent_ns - told_ns < self._again_after_ns:
                return
            yield number
