"""Cells played for ELDR's page, section by section, and their figures. It writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from msgspec import to_builtins

from gateway.features.expert_locality.fit.eldr import EldrRules, EldrScores, fit_eldr
from loadgen.figures import Figures
from loadgen.studies.cells import Cell
from loadgen.studies.eldr.decision_costs import costs_by_core, journal_bytes
from loadgen.studies.eldr.recorded import PATTERN
from loadgen.studies.eldr.workloads import (
    EldrWorkload,
    Sizes,
    costs_of,
    drawn_workloads,
    drifting,
    has_recording,
)
from loadgen.studies.eldr.world import Drawn, EldrFleet, Play, play
from loadgen.studies.recordings import find_file
from mesh.clock import Clock

BALANCERS = ("random", "round_robin", "power_of_two", "join_shortest_queue")
POLICIES = (*BALANCERS, "domain", "eldr")
BANDS = (0.0, 0.1, 0.2, 0.3, 1.0)
BASES_MS = (0.5, 4.0, 12.0)
WEIGHTS = (0.3, 1.0, 3.0)
EXPERT_RANKS = 4
GROUP = 4
_COUNTS = (16, 144)
"""Numbers of workers among which a timed decision chooses."""


@dataclass(slots=True)
class EldrResults:
    """Results by section; within a section by workload and row."""

    sizes: Sizes
    workloads: list[EldrWorkload]
    main: dict[str, dict[tuple[str, float], list[Figures]]] = field(default_factory=dict)
    """Figures of each seed, by workload, policy and rate."""
    sections: dict[str, dict[tuple[str, str], Figures]] = field(default_factory=dict)
    scores: dict[str, EldrScores] = field(default_factory=dict)
    costs: dict[tuple[int, str], Figures] = field(default_factory=dict)
    """Costs of a decision, by number of workers and by core: plain, or compiled."""
    journal: dict[int, Figures] = field(default_factory=dict)
    fit: Figures = field(default_factory=dict)
    """Wall time and CPU time of a fit, in seconds."""


@dataclass(frozen=True, slots=True)
class Job:
    """Unit of work of one process."""

    section: str
    workload: str = "published"
    part: str = ""
    rate: float = 0.0
    seed: int = 1


def jobs_of(names: Sequence[str], sizes: Sizes) -> list[Job]:
    """Jobs, the longest first."""
    choice = ("published",) if sizes.is_small else ("published", "languages")
    jobs = [Job("together", part=form) for form in FORMS]
    jobs += [Job("drift")]
    jobs += [Job(section, workload) for section in _SECTIONS for workload in choice]
    for name in names:
        rates = sizes.rates if name == "published" else sizes.few_rates
        jobs += [
            Job("main", name, rate=rate, seed=seed) for rate in sorted(rates, reverse=True) for seed in sizes.seeds
        ]
    return [*jobs, *(Job("scores", name) for name in names)]


def cells_of(workloads: Sequence[EldrWorkload], traces: Path | None, sizes: Sizes) -> list[Cell]:
    """Cells of the page, whose processes find the workloads drawn and fitted."""
    for workload in workloads:
        workload.fit(sizes.decode)
    files = () if traces is None or not has_recording(traces) else (find_file(traces, PATTERN),)
    return [
        Cell(job, f"{job}", partial(play_job, traces, sizes, job), [to_builtins(job), to_builtins(sizes)], files)
        for job in jobs_of([each.name for each in workloads], sizes)
    ]


def results_of(found: Mapping[Job, Figures], workloads: Sequence[EldrWorkload], sizes: Sizes) -> EldrResults:
    """Results of the played cells. It times decisions and a fit, so that no other process of the run may be busy."""
    results = EldrResults(sizes, list(workloads))
    for job, figures in sorted(found.items(), key=_seed_of):
        _take(results, job, figures)
    published = next(each for each in workloads if each.name == "published")
    results.costs = costs_by_core(_COUNTS, sizes.decisions)
    results.journal = {workers: journal_bytes(workers) for workers in _COUNTS}
    results.fit = _fit_took(published, sizes)
    return results


def _seed_of(pair: tuple[Job, Figures]) -> int:
    return pair[0].seed


def play_job(traces: Path | None, sizes: Sizes, job: Job) -> Figures:
    """Figures by row; those of a main job by policy. Raises TraceError."""
    workload = next(each for each in drawn_workloads(traces, sizes) if each.name == job.workload)
    match job.section:
        case "main":
            return _main(workload, sizes, job.rate, job.seed)
        case "scores":
            scores: Figures = to_builtins(workload.scores)
            return scores
        case "together":
            return _together(workload, sizes, job.part)
        case "drift":
            return _drift(workload, sizes)
        case _:
            return _SECTIONS[job.section](workload, sizes)


def _take(results: EldrResults, job: Job, found: Figures) -> None:
    match job.section:
        case "main":
            main = results.main.setdefault(job.workload, {})
            for policy, figures in found.items():
                main.setdefault((policy, job.rate), []).append(figures)
        case "scores":
            results.scores[job.workload] = EldrScores(**found)
        case _:
            into = results.sections.setdefault(job.section, {})
            into |= {(job.workload, row): figures for row, figures in found.items()}


def _setting(workload: EldrWorkload, sizes: Sizes, policy: str, rate: float | None = None) -> Play:
    return Play(
        policy,
        sizes.rate if rate is None else rate,
        seconds=sizes.seconds,
        warm_up_s=sizes.warm_up_s,
        output_tokens=sizes.output_tokens,
        fleet=EldrFleet(sizes.prefill, sizes.decode),
        costs=workload.costs,
    )


def _main(workload: EldrWorkload, sizes: Sizes, rate: float, seed: int) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode)
    return {policy: play(replace(_setting(workload, sizes, policy, rate), seed=seed), drawn) for policy in POLICIES}


def _clusters(workload: EldrWorkload, sizes: Sizes) -> dict[str, Figures]:
    vanilla = workload.drawn(sizes.decode, is_balanced=False)
    eldr = _setting(workload, sizes, "eldr")
    return {
        "round robin": play(replace(eldr, policy="round_robin"), vanilla),
        "vanilla K-means": play(eldr, vanilla),
        "balanced K-means": play(eldr, workload.drawn(sizes.decode)),
    }


def _bands(workload: EldrWorkload, sizes: Sizes) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode)
    eldr = _setting(workload, sizes, "eldr")
    found = {"round robin": play(replace(eldr, policy="round_robin"), drawn)}
    found["join shortest queue"] = play(replace(eldr, policy="join_shortest_queue"), drawn)
    return found | {f"τ = {band:g}": play(replace(eldr, band=band), drawn) for band in BANDS}


def _pools(workload: EldrWorkload, sizes: Sizes) -> dict[str, Figures]:
    """Pools of several sizes; the rate grows with the workers, so that batches are about as large."""
    found = {}
    for workers in sorted({*sizes.other_decode, sizes.decode}):
        drawn = workload.drawn(workers)
        rate = sizes.rate * workers / sizes.decode
        eldr = _setting(workload, sizes, "eldr", rate)
        eldr = replace(eldr, fleet=replace(eldr.fleet, decode=workers))
        found[f"{workers}, round robin"] = play(replace(eldr, policy="round_robin"), drawn)
        found[f"{workers}, ELDR"] = play(eldr, drawn)
    return found


def _cache(workload: EldrWorkload, sizes: Sizes) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode)
    eldr = _setting(workload, sizes, "eldr")
    cached = replace(eldr, fleet=replace(eldr.fleet, prefix_blocks=10_000))
    return {
        "off, round robin": play(replace(eldr, policy="round_robin"), drawn),
        "off, ELDR": play(eldr, drawn),
        "on, round robin": play(replace(cached, policy="round_robin"), drawn),
        "on, ELDR": play(cached, drawn),
        "on, ELDR, cached prompts uncounted": play(replace(cached, whole_signatures=False), drawn),
    }


def _sharded(workload: EldrWorkload, sizes: Sizes) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode, expert_ranks=EXPERT_RANKS)
    eldr = _setting(workload, sizes, "eldr")
    eldr = replace(eldr, fleet=replace(eldr.fleet, expert_ranks=EXPERT_RANKS))
    return {
        "round robin": play(replace(eldr, policy="round_robin"), drawn),
        "ELDR, experts in a row": play(eldr, drawn),
        "ELDR, experts placed by cluster": play(replace(eldr, placed_experts=True), drawn),
    }


def _bases(workload: EldrWorkload, sizes: Sizes) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode)
    found = {}
    for base_ms in BASES_MS:
        costs = costs_of("qwen", round(base_ms * 1e6))
        for policy, title in (("join_shortest_queue", "join shortest queue"), ("eldr", "ELDR")):
            setting = replace(_setting(workload, sizes, policy), costs=costs)
            found[f"{base_ms:g} ms, {title}"] = play(setting, drawn)
    return found


FORMS = {
    "a barrier, experts of each rank its own": EldrFleet(group=GROUP),
    "a barrier, experts shared by the group": EldrFleet(group=GROUP, shares_experts=True),
    "no barrier": EldrFleet(),
}


def _together(workload: EldrWorkload, sizes: Sizes, form: str) -> dict[str, Figures]:
    """BR-H and ELDR together. Answers have unequal, known lengths, so that lookahead has its full effect. KV tokens
    have their real cost, and prompts are ten times as long, so that load balance matters."""
    shape = FORMS[form]
    group = min(shape.group, sizes.decode // 2)
    drawn = _with_long_prompts(workload.drawn(sizes.decode // group))
    setting = replace(
        _setting(workload, sizes, "br_h"),
        fleet=replace(shape, prefill=sizes.prefill, decode=sizes.decode, group=group),
        output_sigma=0.8,
        ages_known=True,
        costs=replace(workload.costs, prefill_token_ns=workload.costs.prefill_token_ns // 10),
    )
    found = {
        f"{form}: {title}": play(replace(setting, policy=policy), drawn)
        for policy, title in (
            ("join_shortest_queue", "join shortest queue"),
            ("br_h", "BR-H"),
            ("eldr", "ELDR"),
            ("br_h_local", "BR-H in bands"),
        )
    }
    for weight in WEIGHTS:
        found[f"{form}: BR-H, λ = {weight:g}"] = play(replace(setting, policy="scored", score_weight=weight), drawn)
    return found


def _with_long_prompts(drawn: Drawn) -> Drawn:
    tokens = tuple(10 * each for each in drawn.requests.prompt_tokens)
    return replace(drawn, requests=replace(drawn.requests, prompt_tokens=tokens))


def _drift(workload: EldrWorkload, sizes: Sizes) -> dict[str, Figures]:
    eldr = _setting(workload, sizes, "eldr")
    stale, refit = drifting(workload, sizes, refit_s=None), drifting(workload, sizes, refit_s=sizes.seconds * 0.75)
    return {
        "round robin": play(replace(eldr, policy="round_robin"), refit),
        "ELDR, never fitted again": play(eldr, replace(stale, refit=None)),
        "ELDR, fitted again": play(eldr, refit),
    }


def _fit_took(workload: EldrWorkload, sizes: Sizes) -> Figures:
    clock = Clock()
    begun_ns, computed_ns = clock.now_ns(), clock.thread_ns()
    fit_eldr(workload.calibration.calibration(), EldrRules(sizes.decode, held_out=0.0))
    return {"s": (clock.now_ns() - begun_ns) / 1e9, "computed_s": (clock.thread_ns() - computed_ns) / 1e9}


_SECTIONS: dict[str, Callable[[EldrWorkload, Sizes], dict[str, Figures]]] = {
    "clusters": _clusters,
    "bands": _bands,
    "pools": _pools,
    "cache": _cache,
    "sharded": _sharded,
    "bases": _bases,
}
