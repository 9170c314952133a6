"""Simulates a slice of a pool with the engine model to find the highest rate that one instance carries within the
objectives in the steady state. Requests arrive as a Poisson process and go to the instance with the fewest; the first
third is not counted.

Virtual time, seeded, and bounded in requests and in rounds: the same call gives the same answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from loadgen.engine.model import EngineConfig, Finished, FirstTokenMade, Preempted
from loadgen.engine.sequences import EngineRequest
from loadgen.engine.sglang_model import engine_model
from loadgen.planner.lengths import RequestShape, WeightedShapes

_SECOND_NS = 1_000_000_000
_MS_NS = 1_000_000
_LATE_SHARE_MAX = 0.10


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives, each missed by at most `late_share` of the requests; no request may be preempted or
    rejected."""

    ttft_s: float = 2.0
    tpot_ms: float = 80.0
    late_share: float = 0.01
    """Share of all requests that may miss an objective, as for a 99th percentile."""

    def for_part(self, share: float) -> Slo:
        """Objectives of one of two pools with this share of all requests: half of the requests that may be late may be
        late in this pool, but at most a tenth of its own."""
        return replace(self, late_share=min(_LATE_SHARE_MAX, self.late_share / 2 / share))


@dataclass(frozen=True, slots=True)
class Trial:
    """Extent of the simulation."""

    seed: int = 1
    instances: int = 4
    """Size of the slice: a larger pool queues no more than that."""
    requests_min: int = 1_500
    requests_max: int = 6_000
    rounds: int = 6
    """Rounds of bisection between a rate that meets the objectives and one that does not."""

    def requests(self, slots: int) -> int:
        """Number of requests that fills all slots six times (Little's law), within the bounds."""
        return min(self.requests_max, max(self.requests_min, 6 * self.instances * slots))


@dataclass(frozen=True, slots=True)
class Played:
    """Latencies of the slice's requests, and their failures."""

    requests: int
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    late_share: float
    """Share of requests whose first token came after the objective."""
    slow_share: float
    """Share of requests whose further tokens took longer than the objective."""
    preemptions: int
    rejections: int
    is_cut_short: bool = False
    """True if the simulation ended early because the objectives were missed: times are those of the requests served by
    then."""

    def meets(self, slo: Slo) -> bool:
        return not self.why_not(slo)

    def why_not(self, slo: Slo) -> str:
        """The first objective that is missed, in words; empty where all are met."""
        if self.preemptions:
            return f"{self.preemptions} preempted"
        if self.rejections:
            return f"{self.rejections} rejected"
        if self.late_share > slo.late_share or self.is_cut_short:
            return f"TTFT: over {slo.ttft_s:g} s for more than {slo.late_share:.2%}"
        if self.slow_share > slo.late_share:
            return f"TPOT: over {slo.tpot_ms:g} ms for {self.slow_share:.2%}"
        return ""


@dataclass(frozen=True, slots=True)
class Carried:
    """Highest rate of one instance at which all objectives were met, and the latencies at that rate."""

    rate_per_s: float
    """Zero if no rate was found."""
    played: Played | None
    limited_by: str
    """Objective that was missed just above the rate."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at_ns: int
    shape: RequestShape


@dataclass(slots=True)
class _Asked:
    arrived_ns: int
    output_tokens: int
    is_counted: bool
    first_ns: int = 0


@dataclass(slots=True)
class Times:
    """Latencies of each counted request of a slice."""

    slo: Slo
    to_the_end: bool
    """Continue even if the objectives are missed."""
    late_max: float
    ttft_ns: list[int] = field(default_factory=list)
    tpot_ns: list[float] = field(default_factory=list)
    late: int = 0
    preemptions: int = 0
    rejections: int = 0

    @property
    def is_hopeless(self) -> bool:
        if self.to_the_end:
            return False
        return self.late > self.late_max or self.preemptions > 0 or self.rejections > 0


class _Instance:
    """One engine and its requests in progress."""

    def __init__(self, config: EngineConfig, tally: Times) -> None:
        self._model = engine_model(config)
        self._tally = tally
        self._asked: dict[str, _Asked] = {}

    @property
    def outstanding(self) -> int:
        return len(self._asked)

    def submit(self, number: int, arrival: Arrival, *, is_counted: bool) -> None:
        name, shape = f"{number}", arrival.shape
        request = EngineRequest(name, shape.prompt_tokens, shape.output_tokens)
        if self._model.submit(request, arrival.at_ns) is not None:
            self._tally.rejections += 1
            return
        self._asked[name] = _Asked(arrival.at_ns, shape.output_tokens, is_counted)

    def run_until(self, now_ns: int) -> None:
        for output in self._model.advance(now_ns):
            match output:
                case FirstTokenMade():
                    self._first_token(self._asked[output.request_id], output.at_ns)
                case Finished():
                    self._finished(self._asked.pop(output.request_id), output.at_ns)
                case Preempted():
                    self._tally.preemptions += 1
                case _:
                    pass

    def run_out(self) -> None:
        while self._asked and not self._tally.is_hopeless:
            next_ns = self._model.next_change_ns()
            assert next_ns is not None, "each running request ends"
            self.run_until(next_ns)

    def _first_token(self, asked: _Asked, at_ns: int) -> None:
        if asked.first_ns:
            return
        asked.first_ns = at_ns
        if asked.is_counted:
            waited_ns = at_ns - asked.arrived_ns
            self._tally.ttft_ns.append(waited_ns)
            self._tally.late += waited_ns > self._tally.slo.ttft_s * _SECOND_NS

    def _finished(self, asked: _Asked, at_ns: int) -> None:
        if asked.is_counted and asked.output_tokens > 1:
            self._tally.tpot_ns.append((at_ns - asked.first_ns) / (asked.output_tokens - 1))


def poisson(lengths: WeightedShapes, rate_per_s: float, requests: int, seed: int) -> Iterator[Arrival]:
    """Poisson arrivals. A seed gives the same requests at every rate, only closer together."""
    rng = random.Random(f"{seed}/planner")
    at_s = 0.0
    for _ in range(requests):
        at_s += rng.expovariate(1.0) / rate_per_s
        yield Arrival(round(at_s * _SECOND_NS), lengths.draw(rng))


WARM_UP_SHARE = 1 / 3


def play(config: EngineConfig, arrivals: Iterator[Arrival], requests: int, instances: int, slo: Slo) -> Played:
    """Simulate the arrivals; stops as soon as the objectives cannot be met any more."""
    return summary(times(config, arrivals, requests, instances, slo=slo, to_the_end=False))


def times(
    config: EngineConfig,
    arrivals: Iterator[Arrival],
    requests: int,
    instances: int,
    *,
    slo: Slo,
    to_the_end: bool = True,
    warm_up_share: float = WARM_UP_SHARE,
) -> Times:
    warm_up = int(requests * warm_up_share)
    tally = Times(slo, to_the_end, slo.late_share * (requests - warm_up))
    slice_ = [_Instance(config, tally) for _ in range(instances)]
    for number, arrival in enumerate(arrivals):
        for each in slice_:
            each.run_until(arrival.at_ns)
        if tally.is_hopeless:
            break
        min(slice_, key=lambda each: each.outstanding).submit(number, arrival, is_counted=number >= warm_up)
    for each in slice_:
        each.run_out()
    return tally


def summary(found: Times) -> Played:
    return Played(
        len(found.ttft_ns),
        _ranked(found.ttft_ns, 0.5) / _SECOND_NS,
        _ranked(found.ttft_ns, 0.99) / _SECOND_NS,
        _ranked(found.tpot_ns, 0.5) / _MS_NS,
        _ranked(found.tpot_ns, 0.99) / _MS_NS,
        found.late / max(1, len(found.ttft_ns)),
        sum(each > found.slo.tpot_ms * _MS_NS for each in found.tpot_ns) / max(1, len(found.tpot_ns)),
        found.preemptions,
        found.rejections,
        found.is_hopeless,
    )


def _ranked(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def carried(config: EngineConfig, lengths: WeightedShapes, highest_per_s: float, slo: Slo, trial: Trial) -> Carried:
    """Highest rate that meets the objectives, between a hundredth of the formula's rate and all of it; found by
    bisection, so within some percent."""
    requests = trial.requests(config.sequences_max)

    def at(rate_per_s: float) -> Played:
        arrivals = poisson(lengths, rate_per_s * trial.instances, requests, trial.seed)
        return play(config, arrivals, requests, trial.instances, slo)

    low, high = 0.4 * highest_per_s, highest_per_s
    best = at(low)
    limited_by = best.why_not(slo)
    if limited_by:
        low, high, best = 0.01 * highest_per_s, low, at(0.01 * highest_per_s)
        if why := best.why_not(slo):
            return Carried(0.0, None, why)
    for _ in range(trial.rounds):
        middle = math.sqrt(low * high)
        found = at(middle)
        if found.meets(slo):
            low, best = middle, found
        else:
            high, limited_by = middle, found.why_not(slo)
    return Carried(low, best, limited_by or "nothing: it carries what the formula promises")
