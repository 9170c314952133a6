"""Sizes fleets by region: a fleet for each region's own peak, and one for the peak of all regions together.

Arithmetic only. A region's hours are a given curve, shifted by its clock where `ahead_hours` says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.traces.rates import Points, fitted

HOURS = 24
_STEPS_AN_HOUR = 4


@dataclass(frozen=True, slots=True)
class RegionLoad:
    """Load of one region over a day."""

    name: str
    rates_per_s: tuple[float, ...]
    """Rates per quarter of an hour."""

    @property
    def peak_per_s(self) -> float:
        return max(self.rates_per_s)


def region_load(name: str, peak_per_s: float, ahead_hours: float = 0.0, day: Points | None = None) -> RegionLoad:
    """Load of a region with this peak; constant without a daily curve."""
    steps = HOURS * _STEPS_AN_HOUR
    if day is None:
        return RegionLoad(name, (peak_per_s,) * steps)
    curve = fitted(day, day_s=float(HOURS), shift_hours=ahead_hours, peak=peak_per_s)
    return RegionLoad(name, tuple(curve.rate_at(step / _STEPS_AN_HOUR) for step in range(steps)))


@dataclass(frozen=True, slots=True)
class PoolNeed:
    """Rate that one instance of a pool carries, and the pool's share of all requests."""

    name: str
    share: float
    carried_per_s: float


@dataclass(frozen=True, slots=True)
class RegionFleets:
    """Instances by pool."""

    by_region: Mapping[str, Mapping[str, int]]
    """Instances for each region's own peak."""
    pooled: Mapping[str, int]
    """Instances for the highest sum of all regions."""

    @property
    def local_instances(self) -> int:
        return sum(count for pools in self.by_region.values() for count in pools.values())

    @property
    def pooled_instances(self) -> int:
        return sum(self.pooled.values())


def region_fleets(loads: Sequence[RegionLoad], pools: Sequence[PoolNeed]) -> RegionFleets:
    together = together_per_s(loads)
    return RegionFleets(
        {load.name: {pool.name: _instances(load.peak_per_s, pool) for pool in pools} for load in loads},
        {pool.name: _instances(together, pool) for pool in pools},
    )


def together_per_s(loads: Sequence[RegionLoad]) -> float:
    """Highest sum of all regions' rates; 0 without regions."""
    return max(map(sum, zip(*(load.rates_per_s for load in loads), strict=True)), default=0.0)


def _instances(rate_per_s: float, pool: PoolNeed) -> int:
    return math.ceil(rate_per_s * pool.share / pool.carried_per_s - 1e-9) if pool.share else 0
