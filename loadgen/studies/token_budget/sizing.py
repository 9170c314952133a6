"""Sizes fleets for the page: the paper's two loads and recorded ones, by formula over its whole grid and as simulated
at a few thresholds; and the latencies of the paper's fleets, in its ten seconds and in the steady state.

It plays and counts; the page shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadgen.figures import Figures
from loadgen.planner.cited import LLAMA_3_70B_A100
from loadgen.planner.fleet import SeatCounting
from loadgen.planner.planning import PlanInputs, plan
from loadgen.planner.profiles import Profile
from loadgen.planner.sources import Source
from loadgen.planner.verified import WARM_UP_SHARE, Slo, Times, Trial, poisson, times
from loadgen.studies.token_budget.paper import (
    GRID,
    LOADS,
    RATE_PER_S,
    THRESHOLD,
    TRANSIENT_REQUESTS,
    TRANSIENT_WARM_UP,
    PaperLoad,
)
from loadgen.studies.token_budget.workloads import WORKLOADS

SEED = 42
TRIAL = Trial(SEED, instances=2, requests_min=1_200, requests_max=1_800, rounds=5)
QUICK = Trial(SEED, instances=1, requests_min=60, requests_max=60, rounds=1)
_SECOND_NS, _MS_NS = 1e9, 1e6


def source_of(load: str, traces: Path | None) -> tuple[Source, Profile]:
    """One of the paper's loads or a recorded one, and the profile that serves it. Raises TraceError."""
    for each in LOADS:
        if each.name == load:
            return Source(each.name, each.lengths(), 0), LLAMA_3_70B_A100
    assert traces is not None, "recorded loads lie somewhere"
    workload = WORKLOADS[load]
    return workload.source(traces), replace(LLAMA_3_70B_A100, context_tokens_max=workload.context_tokens)


def sized(load: str, traces: Path | None, *, quick: bool = False) -> Figures:
    """Fleets by formula at every threshold, and as simulated at the paper's threshold and at the best by formula, for
    each method of counting slots."""
    source, profile = source_of(load, traces)
    grid = tuple(each for each in GRID if each < profile.context_tokens_max)
    by_formula = plan(profile, source, PlanInputs(RATE_PER_S, grid, trial=None))
    fleets = []
    for fleet in by_formula["fleets"]:
        chosen = {min(THRESHOLD, grid[-1]), fleet["best_threshold_tokens"] or grid[0]}
        slo = Slo(ttft_s=WORKLOADS[load].ttft_s) if load in WORKLOADS else Slo()
        trial, seats = QUICK if quick else TRIAL, SeatCounting(fleet["seats"])
        ask = PlanInputs(RATE_PER_S, tuple(sorted(chosen)), (seats,), slo, trial)
        fleets.append({"formula": fleet, "played": plan(profile, source, ask)["fleets"][0]})
    return {"load": by_formula["load"], "context_tokens": profile.context_tokens_max, "fleets": fleets}


# Table 3


def latency(load: str, design: str, *, is_steady: bool, quick: bool = False) -> Figures:
    """Latencies at the paper's own fleet sizes, of a slice of each pool. In its ten seconds requests arrive at an empty
    fleet."""
    paper = next(each for each in LOADS if each.name == load)
    parts = _parts(paper, design)
    found = [_times(*part, is_steady=is_steady, quick=quick) for part in parts]
    shares = [part[3] for part in parts]
    ttft = [
        (value, share / len(each.ttft_ns)) for each, share in zip(found, shares, strict=True) for value in each.ttft_ns
    ]
    tpot = [
        (value, share / len(each.tpot_ns)) for each, share in zip(found, shares, strict=True) for value in each.tpot_ns
    ]
    return {
        "requests": sum(len(each.ttft_ns) for each in found),
        "ttft_p50_s": _weighted(ttft, 0.5) / _SECOND_NS,
        "ttft_p99_s": _weighted(ttft, 0.99) / _SECOND_NS,
        "tpot_p50_ms": _weighted(tpot, 0.5) / _MS_NS,
        "tpot_p99_ms": _weighted(tpot, 0.99) / _MS_NS,
        "preemptions": sum(each.preemptions for each in found),
    }


_Part = tuple[PaperLoad, int, int, float]
"""Load, window, the paper's number of instances, and share of requests."""


def _parts(paper: PaperLoad, design: str) -> list[_Part]:
    window = LLAMA_3_70B_A100.context_tokens_max
    if design == "homogeneous":
        return [(paper, window, paper.homogeneous, 1.0)]
    share = paper.lengths().share_up_to(THRESHOLD)
    return [(paper, THRESHOLD, paper.short, share), (paper, window, paper.long, 1 - share)]


def _times(paper: PaperLoad, window: int, instances: int, share: float, *, is_steady: bool, quick: bool) -> Times:
    all_lengths = paper.lengths()
    short, long = all_lengths.cut(THRESHOLD)
    lengths = all_lengths if share == 1.0 else short if window == THRESHOLD else long
    assert lengths is not None, "the paper's loads have short and long requests"
    profile = LLAMA_3_70B_A100
    slice_ = min(instances, 1 if quick else 6 if is_steady else 40)
    rate = RATE_PER_S * share * slice_ / instances
    slots = profile.slots_at(window)
    came = round(TRANSIENT_REQUESTS * share * slice_ / instances)
    count = max(1_500, 8 * slice_ * slots) if is_steady else came
    count = max(10, min(count, 60)) if quick else max(10, count)
    warm_up = WARM_UP_SHARE if is_steady else TRANSIENT_WARM_UP
    arrivals = poisson(lengths, rate, count, SEED)
    return times(profile.engine(window, slots), arrivals, count, slice_, slo=Slo(), warm_up_share=warm_up)


def _weighted(values: Sequence[tuple[float, float]], share: float) -> float:
    ordered, total, below = sorted(values), sum(weight for _, weight in values), 0.0
    for value, weight in ordered:
        below += weight
        if below >= share * total - 1e-12:
            return value
    return ordered[-1][0] if ordered else 0.0
