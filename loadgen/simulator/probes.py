"""One region's engines as one gateway has them told: which of them have news for it. It knows neither the way nor what
is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from gateway.core.vocabulary import ReplicaObservation
from loadgen.simulator.engines import SimReplica


class Probes:
    """An engine has news when it changed after it was last told, or when it was told so long ago that it has to be told
    again. A probe visits those, and not all."""

    def __init__(self, engines: Sequence[SimReplica], again_after_ns: int) -> None:
        self._engines = engines
        self._again_after_ns = again_after_ns
        self._numbers = {engine.replica_id: number for number, engine in enumerate(engines)}
        self._changed: dict[int, None] = {}
        self._told_ns: dict[int, int] = {}
        """By engine, when what was told of it was sampled; the earliest first."""
        self._watches = [partial(self._changed.setdefault, number) for number in range(len(engines))]
        for engine, watch in zip(engines, self._watches, strict=True):
            engine.watch(watch)
        self.forget()

    def close(self) -> None:
        """Nobody asks any more."""
        for engine, watch in zip(self._engines, self._watches, strict=True):
            engine.unwatch(watch)

    def forget(self) -> None:
        """Nothing was told to whoever is there now."""
        self._told_ns.clear()
        self._changed.update(dict.fromkeys(range(len(self._engines))))

    def news(self, sent_ns: int) -> tuple[ReplicaObservation, ...]:
        """What a probe that was sent then sees now."""
        numbers = {*self._changed, *self._told_long_before(sent_ns)}
        return tuple(self._engines[number].observe(sent_ns) for number in sorted(numbers))

    def tell(self, observations: Iterable[ReplicaObservation]) -> None:
        """These have come in, no earlier than any before them."""
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
