"""Finds the smallest fleet for one day in three regions: one pool or two, each region by itself or all of them as a
mesh.

Modelled engines in virtual time. A day is squeezed into an hour; all regions have one recorded curve of a day, shifted
by their clocks, so it is not the real curve of any of them. A request stays while its region has a free slot, and
otherwise goes to the nearest region that has one, at the cost of the round trip. It plays and counts.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from loadgen.engine.model import EngineConfig, EngineModel
from loadgen.engine.sequences import EngineRequest
from loadgen.figures import Figures
from loadgen.planner.cited import LLAMA_3_70B_A100
from loadgen.planner.fleet import SeatCounting, Sizing
from loadgen.planner.lengths import RequestShape, WeightedShapes
from loadgen.planner.regions import region_load
from loadgen.planner.verified import Slo
from loadgen.studies.token_budget.engines import Engines, Running
from loadgen.studies.token_budget.paper import AZURE, THRESHOLD
from loadgen.traces.files import opened
from loadgen.traces.rates import Points
from loadgen.workload import RateCurve, arrivals

DESIGNS = ("homogeneous", "split")
ROUTINGS = ("region-local", "mesh")
REGIONS = ("us-east-1", "eu-west-1", "ap-northeast-1")
AHEAD_HOURS = (0.0, 6.0, 14.0)
ROUND_TRIP_S = {(0, 1): 0.070, (0, 2): 0.149, (1, 2): 0.201}
"""Median round trips in seconds, as recorded between these regions."""
CURVE = "azure2024_digitised/code_hourly.csv"
_DAY = 4
"""Day of the recorded week: a Tuesday."""
_DAY_S, _QUICK_S = 3_600.0, 60.0
PEAK_PER_S, _QUICK_PEAK = 6.0, 2.0
"""Peak requests per second of each region."""
_SEED = 42
_QUARTER = 4
"""Divisor: engines have a quarter of the profile's cache and slots, so that few requests fill them."""
_SECOND_NS, _MS_NS = 1_000_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class _Ask:
    at_ns: int
    region: int
    shape: RequestShape


@dataclass(frozen=True, slots=True)
class _Pool:
    name: str
    engine: EngineConfig
    lengths: WeightedShapes
    share: float
    slo: Slo
    carried_per_s: float
    """Rate per instance by formula, the start of the search."""


@dataclass(slots=True)
class _Asked(Running):
    at_ns: int
    travelled_ns: int
    output_tokens: int


class _Fleet(Engines[_Asked]):
    """Engines by region, and the latencies of their requests."""

    def __init__(self, engine: EngineConfig, counts: Sequence[int], slo: Slo) -> None:
        super().__init__([[EngineModel(engine) for _ in range(count)] for count in counts])
        self._slots = engine.sequences_max
        self._slo = slo
        self.requests = self.missed = self.preempted = self.forwarded = 0

    def ask(self, number: int, ask: _Ask) -> None:
        self.run_until(ask.at_ns)
        region = self._region_for(ask.region)
        travelled_ns = 0 if region == ask.region else round(round_trip_s(ask.region, region) * _SECOND_NS)
        self.forwarded += region != ask.region
        request = EngineRequest(f"{number}", ask.shape.prompt_tokens, ask.shape.output_tokens)
        self.submit(region, _Asked(ask.at_ns, travelled_ns, ask.shape.output_tokens), request, ask.at_ns)

    def _region_for(self, home: int) -> int:
        if self._has_slot(home):
            return home
        others = sorted(
            (each for each in range(len(self.groups)) if each != home), key=lambda each: round_trip_s(home, each)
        )
        found = next((each for each in others if self._has_slot(each)), home)
        return found if self.groups[found] else next(each for each in others if self.groups[each])

    def _has_slot(self, region: int) -> bool:
        return any(len(running) < self._slots for _, running in self.groups[region])

    def ended(self, request: _Asked, ended_ns: int) -> None:
        self.requests += 1
        self.preempted += request.preempted
        ttft_ns = request.first_ns - request.at_ns + request.travelled_ns
        tpot_ns = (ended_ns - request.first_ns) / max(1, request.output_tokens - 1)
        self.missed += ttft_ns > self._slo.ttft_s * _SECOND_NS or tpot_ns > self._slo.tpot_ms * _MS_NS

    def meets(self) -> bool:
        return not self.preempted and self.missed <= self._slo.late_share * self.requests


def round_trip_s(one: int, other: int) -> float:
    return ROUND_TRIP_S[min(one, other), max(one, other)]


def play(seats: str, design: str, routing: str, traces: Path | None, *, quick: bool = False) -> Figures:
    """Fewest instances that meet the objectives, over all regions."""
    curves = _curves(traces, quick=quick)
    found = {}
    for pool in _pools(SeatCounting(seats), design):
        found[pool.name] = _fewest(pool, curves, routing)
    return {"pools": found, "instances": sum(each["instances"] for each in found.values())}


def _pools(seats: SeatCounting, design: str) -> list[_Pool]:
    profile = replace(
        LLAMA_3_70B_A100, kv_blocks=65_536 // _QUARTER, sequences_max=LLAMA_3_70B_A100.sequences_max // _QUARTER
    )
    lengths, slo = AZURE.lengths(), Slo()
    sizing = Sizing(profile, lengths, 1.0, seats)
    if design == "homogeneous":
        size = sizing.homogeneous()
        engine = profile.engine(size.context_tokens, size.slots)
        return [_Pool("all", engine, lengths, 1.0, slo, size.throughput_per_s)]
    split = sizing.split(THRESHOLD)
    pools = []
    for size, part in zip((split.short, split.long), lengths.cut(THRESHOLD), strict=True):
        assert part is not None, "the paper's load has short and long requests"
        engine = profile.engine(size.context_tokens, size.slots)
        pools.append(_Pool(size.name, engine, part, size.share, slo.for_part(size.share), size.throughput_per_s))
    return pools


def _fewest(pool: _Pool, curves: Sequence[RateCurve], routing: str) -> Figures:
    """Fewest instances of a pool. The regions' curves differ in time alone, so each region on its own needs what the
    first does."""
    if routing == "region-local":
        found, fleet = _search(pool, curves[:1])
        return {"instances": found * len(curves), "by_region": [found] * len(curves), "forwarded_share": 0.0,
                "requests": fleet.requests}  # fmt: skip
    found, fleet = _search(pool, curves)
    return {"instances": found, "by_region": _spread(found, len(curves)),
            "forwarded_share": fleet.forwarded / fleet.requests, "requests": fleet.requests}  # fmt: skip


def _search(pool: _Pool, curves: Sequence[RateCurve]) -> tuple[int, _Fleet]:
    asks = list(_asks(pool, curves))
    peak = max(sum(curve.rate_at(at) for curve in curves) for at, _ in curves[0].points) * pool.share
    guess = max(1, math.ceil(peak / pool.carried_per_s))
    low, high = 0, guess
    while not (fleet := _played(pool, asks, high, len(curves))).meets():
        low, high = high, math.ceil(high * 1.35)
    best = fleet
    while high - low > max(1, high // 40):
        middle = (low + high) // 2
        fleet = _played(pool, asks, middle, len(curves))
        if fleet.meets():
            high, best = middle, fleet
        else:
            low = middle
    return high, best


def _played(pool: _Pool, asks: Sequence[_Ask], instances: int, regions: int) -> _Fleet:
    fleet = _Fleet(pool.engine, _spread(instances, regions), pool.slo)
    for number, ask in enumerate(asks):
        fleet.ask(number, ask)
    fleet.run_out()
    return fleet


def _spread(instances: int, regions: int) -> list[int]:
    return [instances // regions + (number < instances % regions) for number in range(regions)]


def _asks(pool: _Pool, curves: Sequence[RateCurve]) -> Iterator[_Ask]:
    """Requests in order of arrival."""
    found: list[_Ask] = []
    for region, curve in enumerate(curves):
        rng = random.Random(f"{_SEED}/{pool.name}/{region}")
        moments = arrivals(curve.scaled(pool.share), rng, until_s=curve.points[-1][0])
        found += [_Ask(round(at_s * _SECOND_NS), region, pool.lengths.draw(rng)) for at_s in moments]
    return iter(sorted(found, key=lambda each: each.at_ns))


def _curves(traces: Path | None, *, quick: bool) -> list[RateCurve]:
    day_s, peak = (_QUICK_S, _QUICK_PEAK) if quick else (_DAY_S, PEAK_PER_S)
    day = recorded_day(traces / CURVE) if traces is not None and (traces / CURVE).exists() else made_up_day()
    loads = [region_load(name, peak, ahead, day) for name, ahead in zip(REGIONS, AHEAD_HOURS, strict=True)]
    return [
        RateCurve(tuple((step / len(load.rates_per_s) * day_s, rate) for step, rate in enumerate(load.rates_per_s)))
        for load in loads
    ]


@cache
def recorded_day(path: Path) -> Points:
    """One day of a file with the columns day, hour and rate."""
    with opened(path) as lines:
        rows = list(csv.reader(line for line in lines if line.strip()))[1:]
    return tuple((float(hour), float(rate)) for day, hour, rate in rows if int(day) == _DAY)


def made_up_day() -> Points:
    """Synthetic day for runs without a recorded one, such as tests: a wave, whose trough is a ninth of its peak."""
    return tuple((float(hour), 5 + 4 * math.cos((hour - 14) / 12 * math.pi)) for hour in range(24))
