"""Extrapolates measured costs to large meshes, under the load of the simulator's run of 100 regions of 1,000 replicas.

Pure. What the simulator played is taken from its figures; what one process takes is the sizing rule's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.bench.scale.points import LARGE, SLOTS
from loadgen.studies.capacity.rule import CapacityCosts, CapacityNeeded, CarriedLoad, gateways_for, needed, share_of

ANSWER_TOKENS = 600
"""Tokens of an answer in the mean, in the simulator's runs of 100 regions; engines send one in each chunk."""
PROMPT_KB = 2.0
"""Length of a prompt that is assumed: the simulator's figures have none."""
SIZES = ((3, 10), (3, 100), (10, 100), (10, 1_000), (30, 1_000), (100, 100), (100, 1_000))
"""Regions and replicas of each."""


@dataclass(frozen=True, slots=True)
class LargeRun:
    """The simulator's largest run."""

    regions: int
    replicas: int
    """Replicas of each region."""
    requests_per_s: float
    """Requests a second for each replica."""
    forwarded_share: float
    busy_share: float
    memory_gib: float
    """Memory of the whole simulation."""
    cpu_us: float
    """CPU of the simulator for each request, with all decisions, in microseconds."""

    @property
    def full(self) -> LargeRun:
        """The same fleet with all slots busy, by as many times the requests."""
        times = 1 / self.busy_share
        return LargeRun(
            self.regions, self.replicas, times * self.requests_per_s, self.forwarded_share, 1.0, self.memory_gib,
            self.cpu_us,
        )  # fmt: skip


def largest_run(document: Mapping[str, Any]) -> LargeRun:
    """The run in the figures that `nightside bench scale` writes. Raises ValueError without one."""
    for each in document["measurements"]:
        point = each["point"]
        if point["kind"] == LARGE:
            regions, replicas = point["regions"], point["replicas_a_region"]
            return LargeRun(
                regions, replicas, each["requests"] / each["simulated_s"] / regions / replicas,
                each["forwards"] / each["requests"], each["busy_share"], each["rss_bytes_max"] / 2**30,
                1e6 * each["cpu_s"] / each["requests"],
            )  # fmt: skip
    raise ValueError("the figures have no run of the largest fleet")


def region_load(run: LargeRun, replicas: int) -> CarriedLoad:
    """Load of a region with so many replicas, which serves as many forwards as it sends: of both it has half of the
    CPU, and all bytes."""
    requests, away = run.requests_per_s * replicas, run.forwarded_share
    return CarriedLoad(
        requests_per_s=requests * (1 - away),
        prompt_kb=PROMPT_KB,
        chunks_per_s=requests * (1 - away) * ANSWER_TOKENS,
        streams=run.busy_share * replicas * SLOTS * (1 + away),
        replicas=replicas,
        forwards_per_s=requests * away,
        forwarded_chunks_per_s=requests * away * ANSWER_TOKENS,
        served_share=1.0,
    )


@dataclass(frozen=True, slots=True)
class SizedMesh:
    """Gateways that a mesh needs."""

    regions: int
    replicas: int
    gateways: int | None
    """Gateways of each region; None: no number is enough."""
    alone: CapacityNeeded
    """Capacity that a single gateway in each region would need."""
    each: CapacityNeeded | None
    """Capacity of each gateway where there are as many as needed."""

    @property
    def first(self) -> str:
        """Part of the load that takes most of a single gateway."""
        return max(self.alone.cores, key=lambda what: self.alone.cores[what])


def sized(costs: CapacityCosts, run: LargeRun, sizes: Sequence[tuple[int, int]] = SIZES) -> list[SizedMesh]:
    found = []
    for regions, replicas in sizes:
        load = region_load(run, replicas)
        gateways = gateways_for(costs, load, regions)
        each = None if gateways is None else needed(costs, share_of(load, gateways, regions))
        found.append(
            SizedMesh(regions, replicas, gateways, needed(costs, share_of(load, 1, regions)), each),
        )
    return found


def replicas_of_one(costs: CapacityCosts, run: LargeRun, regions: int) -> int:
    """Most replicas of a region that one gateway in each region carries."""
    return _most(lambda replicas: gateways_for(costs, region_load(run, replicas), regions) == 1, 100_000)


def regions_of(costs: CapacityCosts, run: LargeRun, replicas: int) -> int:
    """Most regions of so many replicas for which a number of gateways is enough."""
    return _most(lambda regions: gateways_for(costs, region_load(run, replicas), regions) is not None, 1_000)


def _most(holds: Callable[[int], bool], above: int) -> int:
    """Largest number for which a condition holds, which holds for none beyond it."""
    low, high = 0, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
