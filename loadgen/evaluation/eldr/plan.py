"""What is played for ELDR's page, section by section: cells by name, and their figures. It writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gateway.core.decode.config import BalanceConfig
from gateway.fit.eldr import EldrRules, fit_eldr
from gateway.ground.clock import Clock
from loadgen.evaluation.eldr.decision_costs import decision_costs, journal_bytes
from loadgen.evaluation.eldr.workloads import Sizes, Workload, costs_of, drifting
from loadgen.evaluation.eldr.world import Drawn, Fleet, Play, play
from loadgen.figures import Figures

BALANCERS = ("random", "round_robin", "power_of_two", "join_shortest_queue")
POLICIES = (*BALANCERS, "domain", "eldr")
BANDS = (0.0, 0.1, 0.2, 0.3, 1.0)
BASES_MS = (0.5, 4.0, 12.0)
WEIGHTS = (0.3, 1.0, 3.0)
EXPERT_RANKS = 4
GROUP = 4

OnProgress = Callable[[str], object]


@dataclass(slots=True)
class Results:
    """By section; within one by workload and row."""

    sizes: Sizes
    workloads: list[Workload]
    main: dict[str, dict[tuple[str, float], Figures]] = field(default_factory=dict)
    sections: dict[str, dict[tuple[str, str], Figures]] = field(default_factory=dict)
    costs: dict[int, Figures] = field(default_factory=dict)
    journal: dict[int, Figures] = field(default_factory=dict)
    fit_s: float = 0.0


def play_all(workloads: Sequence[Workload], sizes: Sizes, on_progress: OnProgress) -> Results:
    results = Results(sizes, list(workloads))
    for workload in workloads:
        rates = sizes.rates if workload.name == "published" else sizes.few_rates
        results.main[workload.name] = _main(workload, sizes, rates, on_progress)
    wanted = ("published",) if sizes.is_small else ("published", "languages")
    choice = [each for each in workloads if each.name in wanted]
    for name, section in (
        ("clusters", _clusters),
        ("bands", _bands),
        ("pools", _pools),
        ("cache", _cache),
        ("sharded", _sharded),
        ("bases", _bases),
    ):
        found: dict[tuple[str, str], Figures] = {}
        for workload in choice:
            on_progress(f"{name}: {workload.title}")
            found |= {(workload.name, row): figures for row, figures in section(workload, sizes).items()}
        results.sections[name] = found
    published = next(each for each in workloads if each.name == "published")
    on_progress("together with BR-H")
    results.sections["together"] = {("published", row): each for row, each in _together(published, sizes).items()}
    on_progress("drift")
    results.sections["drift"] = {("published", row): each for row, each in _drift(published, sizes).items()}
    for workers in (16, 144):
        on_progress(f"what a decision costs with {workers} workers")
        results.costs[workers] = decision_costs(workers, sizes.decisions)
        results.journal[workers] = journal_bytes(workers)
    on_progress("what a fit costs")
    results.fit_s = _fit_s(published, sizes)
    return results


def _setting(workload: Workload, sizes: Sizes, policy: str, rate: float | None = None) -> Play:
    return Play(
        policy,
        sizes.rate if rate is None else rate,
        seconds=sizes.seconds,
        warm_up_s=sizes.warm_up_s,
        output_tokens=sizes.output_tokens,
        fleet=Fleet(sizes.prefill, sizes.decode),
        costs=workload.costs,
    )


def _main(
    workload: Workload, sizes: Sizes, rates: Sequence[float], on_progress: OnProgress
) -> dict[tuple[str, float], Figures]:
    drawn = workload.drawn(sizes.decode)
    found = {}
    for rate in rates:
        on_progress(f"{workload.title}: {rate:g} requests a second")
        for policy in POLICIES:
            found[policy, rate] = play(_setting(workload, sizes, policy, rate), drawn)
    return found


def _clusters(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
    vanilla = workload.drawn(sizes.decode, is_balanced=False)
    eldr = _setting(workload, sizes, "eldr")
    return {
        "round robin": play(replace(eldr, policy="round_robin"), vanilla),
        "vanilla K-means": play(eldr, vanilla),
        "balanced K-means": play(eldr, workload.drawn(sizes.decode)),
    }


def _bands(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode)
    eldr = _setting(workload, sizes, "eldr")
    found = {"round robin": play(replace(eldr, policy="round_robin"), drawn)}
    found["join shortest queue"] = play(replace(eldr, policy="join_shortest_queue"), drawn)
    return found | {f"τ = {band:g}": play(replace(eldr, band=band), drawn) for band in BANDS}


def _pools(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
    """The rate grows with the workers, so that batches are about as large."""
    found = {}
    for workers in sorted({*sizes.other_decode, sizes.decode}):
        drawn = workload.drawn(workers)
        rate = sizes.rate * workers / sizes.decode
        eldr = _setting(workload, sizes, "eldr", rate)
        eldr = replace(eldr, fleet=replace(eldr.fleet, decode=workers))
        found[f"{workers}, round robin"] = play(replace(eldr, policy="round_robin"), drawn)
        found[f"{workers}, ELDR"] = play(eldr, drawn)
    return found


def _cache(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
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


def _sharded(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode, expert_ranks=EXPERT_RANKS)
    eldr = _setting(workload, sizes, "eldr")
    eldr = replace(eldr, fleet=replace(eldr.fleet, expert_ranks=EXPERT_RANKS))
    return {
        "round robin": play(replace(eldr, policy="round_robin"), drawn),
        "ELDR, experts in a row": play(eldr, drawn),
        "ELDR, experts placed by cluster": play(replace(eldr, placed_experts=True), drawn),
    }


def _bases(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
    drawn = workload.drawn(sizes.decode)
    found = {}
    for base_ms in BASES_MS:
        costs = costs_of("qwen", round(base_ms * 1e6))
        for policy, title in (("join_shortest_queue", "join shortest queue"), ("eldr", "ELDR")):
            setting = replace(_setting(workload, sizes, policy), costs=costs)
            found[f"{base_ms:g} ms, {title}"] = play(setting, drawn)
    return found


FORMS = {
    "a barrier, experts of each rank its own": Fleet(group=GROUP),
    "a barrier, experts shared by the group": Fleet(group=GROUP, shares_experts=True),
    "no barrier": Fleet(),
}


def _together(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
    """Answers are of unequal lengths, and known: what a group gains by looking ahead is all there. KV tokens cost what
    they cost, and prompts are ten times as long, or there would be nothing to balance."""
    found = {}
    for form, shape in FORMS.items():
        group = min(shape.group, sizes.decode // 2)
        fleet = replace(shape, prefill=sizes.prefill, decode=sizes.decode, group=group)
        groups = sizes.decode // group
        drawn = _with_long_prompts(workload.drawn(groups))
        setting = replace(
            _setting(workload, sizes, "br_h"),
            fleet=fleet,
            output_sigma=0.8,
            ages_known=True,
            balance=BalanceConfig(),
            costs=replace(workload.costs, prefill_token_ns=workload.costs.prefill_token_ns // 10),
        )
        found[f"{form}: join shortest queue"] = play(replace(setting, policy="join_shortest_queue"), drawn)
        found[f"{form}: BR-H"] = play(setting, drawn)
        found[f"{form}: ELDR"] = play(replace(setting, policy="eldr"), drawn)
        found[f"{form}: BR-H in bands"] = play(replace(setting, policy="br_h_local"), drawn)
        for weight in WEIGHTS:
            scored = replace(setting, policy="scored", score_weight=weight)
            found[f"{form}: BR-H, λ = {weight:g}"] = play(scored, drawn)
    return found


def _with_long_prompts(drawn: Drawn) -> Drawn:
    tokens = tuple(10 * each for each in drawn.requests.prompt_tokens)
    return replace(drawn, requests=replace(drawn.requests, prompt_tokens=tokens))


def _drift(workload: Workload, sizes: Sizes) -> dict[str, Figures]:
    eldr = _setting(workload, sizes, "eldr")
    stale, refit = drifting(workload, sizes, refit_s=None), drifting(workload, sizes, refit_s=sizes.seconds * 0.75)
    return {
        "round robin": play(replace(eldr, policy="round_robin"), refit),
        "ELDR, never fitted again": play(eldr, replace(stale, refit=None)),
        "ELDR, fitted again": play(eldr, refit),
    }


def _fit_s(workload: Workload, sizes: Sizes) -> float:
    clock = Clock()
    begun_ns = clock.now_ns()
    fit_eldr(workload.calibration.calibration(), EldrRules(sizes.decode, held_out=0.0))
    return (clock.now_ns() - begun_ns) / 1e9
