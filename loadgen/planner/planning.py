"""Computes a plan: fleets by formula for one pool and for two at each threshold, the same simulated with the engine
model, and their costs. Its document is all that is shown anywhere; no value in it is rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from gateway.core.features.prices.price_list import PriceList
from loadgen.figures import Figures
from loadgen.planner.fleet import PoolSize, SeatCounting, Sizing, fewest, savings
from loadgen.planner.lengths import WeightedShapes
from loadgen.planner.priced import priced_regions
from loadgen.planner.profiles import Profile
from loadgen.planner.regions import PoolNeed, RegionLoad, region_fleets
from loadgen.planner.sources import Source
from loadgen.planner.verified import Carried, Slo, Trial, carried
from loadgen.simulator.sweep import all_done

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of a plan."""

    rate_per_s: float
    thresholds: tuple[int, ...]
    seats: tuple[SeatCounting, ...] = (SeatCounting.RESERVED, SeatCounting.PAGED)
    slo: Slo = field(default_factory=Slo)
    trial: Trial | None = field(default_factory=Trial)
    """Extent of the simulation; None for formulas alone."""
    regions: tuple[RegionLoad, ...] = ()
    prices: PriceList | None = None
    """Prices; with regions, the plan also has the fleets' costs over a day."""


class PlannedPool(NamedTuple):
    """One pool to be simulated, of one threshold or of none."""

    seats: SeatCounting
    threshold: int | None
    name: str


Verified = Mapping[PlannedPool, Carried]


class NothingFits(ValueError):
    """No request of the load, or no window of the profile, fits into an instance."""


def plan(
    profile: Profile,
    source: Source,
    ask: PlanInputs,
    *,
    processes: int = 1,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Figures:
    """Plan document. Raises NothingFits."""
    served, _too_long = source.lengths.cut(profile.context_tokens_max)
    if served is None:
        raise NothingFits(f"every request of {source.name} is longer than {profile.context_tokens_max:,} tokens")
    if not profile.slots_at(profile.context_tokens_max):
        raise NothingFits(
            f"{profile.name}: {profile.kv_tokens:,} tokens of KV cache hold no window of {profile.context_tokens_max:,}"
        )
    served_share = source.lengths.share_up_to(profile.context_tokens_max)
    served_ask = replace(ask, rate_per_s=ask.rate_per_s * served_share)
    verified = _verified(profile, served, served_ask, processes, on_progress)
    fleets = [_fleet(profile, served, served_ask, seats, verified) for seats in ask.seats]
    return {
        "format": FORMAT,
        "profile": _profile_figures(profile, ask),
        "load": _load_figures(source, ask, served_share),
        "slo": asdict(ask.slo),
        "trial": None if ask.trial is None else asdict(ask.trial),
        "fleets": fleets,
    }


# Simulation


def _verified(
    profile: Profile, lengths: WeightedShapes, ask: PlanInputs, processes: int, on_progress: Callable[[int, int], None]
) -> Verified:
    if ask.trial is None:
        return {}
    jobs = [job for job in _jobs(profile, lengths, ask) if job.size.throughput_per_s]
    found: dict[PlannedPool, Carried] = {}
    on_progress(0, len(jobs))
    for job, came in all_done(_play, jobs, processes=processes):
        found[job.pool] = came
        on_progress(len(found), len(jobs))
    return found


@dataclass(frozen=True)
class _Job:
    pool: PlannedPool
    profile: Profile
    size: PoolSize
    lengths: WeightedShapes
    slo: Slo
    trial: Trial


def _jobs(profile: Profile, lengths: WeightedShapes, ask: PlanInputs) -> Iterator[_Job]:
    assert ask.trial is not None, "formulas alone play nothing"
    for seats in ask.seats:
        sizing = Sizing(profile, lengths, ask.rate_per_s, seats)
        homogeneous = sizing.homogeneous()
        yield _Job(PlannedPool(seats, None, "all"), profile, homogeneous, lengths, ask.slo, ask.trial)
        for threshold in ask.thresholds:
            sized = sizing.split(threshold)
            for size, part in zip((sized.short, sized.long), lengths.cut(threshold), strict=True):
                if part is not None:
                    slo = ask.slo if size.share == 1.0 else ask.slo.for_part(size.share)
                    yield _Job(PlannedPool(seats, threshold, size.name), profile, size, part, slo, ask.trial)


def _play(job: _Job) -> Carried:
    engine = job.profile.engine(job.size.context_tokens, job.size.slots)
    return carried(engine, job.lengths, job.size.throughput_per_s, job.slo, job.trial)


# Document


def _fleet(
    profile: Profile, lengths: WeightedShapes, ask: PlanInputs, seats: SeatCounting, verified: Verified
) -> Figures:
    sizing = Sizing(profile, lengths, ask.rate_per_s, seats)
    homogeneous = _pool_figures(sizing.homogeneous(), verified.get(PlannedPool(seats, None, "all")))
    whole = _whole(profile, [homogeneous])
    splits = [_split_figures(sizing, threshold, verified, whole) for threshold in ask.thresholds]
    counted = "verified_instances" if ask.trial is not None else "instances"
    best = fewest((each["threshold_tokens"], each[counted]) for each in splits)
    chosen = next((each for each in splits if each["threshold_tokens"] == best), None)
    saved = None if chosen is None else savings(chosen[counted], whole[counted])
    return {
        "seats": str(seats),
        "homogeneous": {"pool": homogeneous, **whole},
        "splits": splits,
        "best_threshold_tokens": best,
        "best_savings_share": saved,
        "advice": _advice(saved, best),
        "regions": _region_figures(ask, homogeneous, chosen),
    }


_WORTH_IT = 0.02
"""Share of savings below which a second pool is not worth its operation."""


def _advice(saved: float | None, best: int | None) -> str:
    if best is None or saved is None:
        return "no threshold meets the objectives"
    if saved < _WORTH_IT:
        return f"stay with one pool: the best split saves {saved:.1%}"
    return f"split at {best:,} tokens: it saves {saved:.1%} of all instances"


def _split_figures(sizing: Sizing, threshold: int, verified: Verified, whole: Figures) -> Figures:
    sized = sizing.split(threshold)
    pools = [
        _pool_figures(size, verified.get(PlannedPool(sizing.seats, threshold, size.name)))
        for size in (sized.short, sized.long)
    ]
    together = _whole(sizing.profile, pools)
    return {
        "threshold_tokens": threshold,
        "short_share": sized.short.share,
        "gain": sized.gain,
        "closed_form_savings_share": sized.closed_form,
        "short": pools[0],
        "long": pools[1],
        **together,
        "savings_share": savings(together["instances"], whole["instances"]),
        "verified_savings_share": savings(together["verified_instances"], whole["verified_instances"]),
    }


def _pool_figures(size: PoolSize, found: Carried | None) -> Figures:
    """Figures of one pool; `verified_instances` is None without a simulation, or if no simulated rate met the
    objectives."""
    verified: int | None = None
    if size.share == 0:
        verified = 0
    elif found is not None and found.rate_per_s:
        verified = math.ceil(size.rate_per_s / found.rate_per_s - 1e-9)
    return {
        **asdict(size),
        "verified_instances": verified,
        "carried_per_s": found and found.rate_per_s,
        "played": found and found.played and asdict(found.played),
        "limited_by": found and found.limited_by,
    }


def _whole(profile: Profile, pools: Sequence[Figures]) -> Figures:
    instances, verified = (_sum(pools, key) for key in ("instances", "verified_instances"))
    return {
        "instances": instances,
        "verified_instances": verified,
        "gpus": None if instances is None else instances * profile.tensor_parallel,
        "verified_gpus": None if verified is None else verified * profile.tensor_parallel,
        "usd_per_year": None if instances is None else profile.yearly_usd(instances),
        "verified_usd_per_year": None if verified is None else profile.yearly_usd(verified),
    }


def _sum(pools: Sequence[Figures], key: str) -> int | None:
    counts = [pool[key] for pool in pools]
    return None if None in counts else sum(counts)


def _region_figures(ask: PlanInputs, homogeneous: Figures, chosen: Figures | None) -> Figures | None:
    """Fleets by region, from simulated rates where available, else by formula."""
    if not ask.regions:
        return None
    designs: dict[str, list[Figures]] = {"homogeneous": [homogeneous]}
    if chosen is not None:
        designs["split"] = [chosen["short"], chosen["long"]]
    told: dict[str, Any] = {}
    for name, pools in designs.items():
        needs = [need for pool in pools if (need := _need(pool)) is not None]
        if len(needs) < len(pools):
            told[name] = None
            continue
        fleets = region_fleets(ask.regions, needs)
        told[name] = {
            "by_region": {region: dict(counts) for region, counts in fleets.by_region.items()},
            "region_local_instances": fleets.local_instances,
            "pooled": dict(fleets.pooled),
            "pooled_instances": fleets.pooled_instances,
        }
        if ask.prices is not None:
            told[name]["day"] = priced_regions(ask.prices, ask.regions, needs, fleets.by_region)
    return told


def _need(pool: Figures) -> PoolNeed | None:
    carried_per_s = pool["carried_per_s"]
    if carried_per_s is None and pool["instances"]:
        carried_per_s = pool["rate_per_s"] / pool["instances"]
    if pool["share"] == 0:
        return PoolNeed(pool["name"], 0.0, 1.0)
    return PoolNeed(pool["name"], pool["share"], carried_per_s) if carried_per_s else None


def _profile_figures(profile: Profile, ask: PlanInputs) -> Figures:
    price = profile.gpu.price
    return {
        "name": profile.name,
        "source": profile.source,
        "gpu": profile.gpu.name,
        "model": profile.model.name,
        "tensor_parallel": profile.tensor_parallel,
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "kv_tokens": profile.kv_tokens,
        "kv_tokens_computed": profile.kv_tokens_computed,
        "context_tokens_max": profile.context_tokens_max,
        "overrides": profile.overrides((*ask.thresholds, profile.context_tokens_max)),
        "price": price and asdict(price),
    }


def _load_figures(source: Source, ask: PlanInputs, served_share: float) -> Figures:
    lengths = source.lengths
    return {
        "source": source.name,
        "requests": source.requests,
        "recorded_per_s": source.rate_per_s,
        "rate_per_s": ask.rate_per_s,
        "too_long_share": 1 - served_share,
        "prompt_tokens_mean": lengths.mean(lambda each: each.prompt_tokens),
        "output_tokens_mean": lengths.mean(lambda each: each.output_tokens),
        "total_tokens": {name: lengths.quantile(share) for name, share in _QUANTILES.items()},
        "notes": list(source.notes),
    }


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
