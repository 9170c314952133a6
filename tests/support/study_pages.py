"""Every study's page from fabricated results, for a record of its bytes: figures follow from a hash of their names.

Real cells take minutes to hours, and the bytes of a page depend on figures alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import to_builtins

from gateway.core.vocabulary import Category
from gateway.features.expert_locality.fit.eldr import EldrScores
from loadgen.bench.controller import SIZES, figure_at
from loadgen.demo.watch import Cause
from loadgen.figures import Figures
from loadgen.planner.cited import LLAMA_3_70B_A100
from loadgen.planner.planning import PlanInputs, plan
from loadgen.planner.sources import Source
from loadgen.simulator.scaling_sections import ScalingMode
from loadgen.studies.balanceroute import page as balanceroute_page
from loadgen.studies.balanceroute import plan as balanceroute_plan
from loadgen.studies.balanceroute.loads import LOADS
from loadgen.studies.balanceroute.tables import ResultReader as BalanceRouteReader
from loadgen.studies.cells import Results as Played
from loadgen.studies.eldr import command as eldr_command
from loadgen.studies.eldr import page as eldr_page
from loadgen.studies.eldr.plan import BALANCERS, BANDS, FORMS, POLICIES, EldrResults, jobs_of
from loadgen.studies.eldr.workloads import FULL, QUICK, made_up
from loadgen.studies.experiments import ScenarioCell, all_cells
from loadgen.studies.failover import page as failover_page
from loadgen.studies.failover.cases import CaseOutcome as Failover
from loadgen.studies.failover.cases import EarlyCall as Early
from loadgen.studies.numbers import Middle
from loadgen.studies.outside.counts import RunCounts
from loadgen.studies.outside.outcomes import KeptRun, OutsideOutcome, OutsideSetup, RunOutcome
from loadgen.studies.outside.page import page_of as outside_page
from loadgen.studies.outside.readings import Reading
from loadgen.studies.outside.tools import RUNS as OUTSIDE_RUNS
from loadgen.studies.outside.tools import TOOLS as OUTSIDE_TOOLS
from loadgen.studies.placement import page as placement_page
from loadgen.studies.placement import trial
from loadgen.studies.placement.live import page as live_page
from loadgen.studies.placement.plan import evaluation as placement_evaluation
from loadgen.studies.predictors.refresh import sweep_markdown
from loadgen.studies.predictors.table import REALIZATIONS, as_markdown
from loadgen.studies.prompts import page as prompts_page
from loadgen.studies.prompts.accuracy import ClassifiedDocuments as Classified
from loadgen.studies.prompts.convergence import Found
from loadgen.studies.prompts.texts import Document
from loadgen.studies.resume import page as resume_page
from loadgen.studies.resume.costs import ResumeCost
from loadgen.studies.resume.playing import ObservedStream
from loadgen.studies.resume.playing import ResumeOutcome as Resumed
from loadgen.studies.resume.real_engines import EngineFigures, Exactness, Killed
from loadgen.studies.sharing import class_goodput, day_price, fairness, limits, noisy_neighbour, scaling
from loadgen.studies.sharing.page import page_of as sharing_page
from loadgen.studies.skywalker import page as skywalker_page
from loadgen.studies.skywalker.plan import evaluation as skywalker_evaluation
from loadgen.studies.skywalker.plan import find_traces
from loadgen.studies.succession.page import page_of as succession_page
from loadgen.studies.succession.playing import LeaderChange, Succession
from loadgen.studies.token_budget import page as token_budget_page
from loadgen.studies.token_budget import paper
from loadgen.studies.token_budget.live import DESIGNS
from loadgen.studies.token_budget.live import FirstTokens as Waited
from loadgen.studies.token_budget.live_command import section as live_section
from loadgen.studies.token_budget.plan import BudgetCell as TokenBudgetSetting
from loadgen.studies.token_budget.plan import cells as token_budget_cells
from loadgen.studies.token_budget.workloads import WORKLOADS
from loadgen.studies.wan.faults import FAULTS
from loadgen.studies.wan.outcomes import FaultOutcome, PhaseSeen, PlayedFaults
from loadgen.studies.wan.page import page_of as wan_page
from tests.support.traces import published

Pages = dict[str, str]
"""Contents by file name."""
MACHINE = {"cpu": "A CPU", "cores": 2, "memory_gib": 8, "kernel": "6", "python": "CPython 3.11", "core": "plain Python"}
_QUANTILES = ("p10", "p25", "p50", "p75", "p90", "p99", "mean")


def made(*names: object, low: float = 0.0, high: float = 1.0) -> float:
    """Number between the bounds that follows from the names alone."""
    digest = blake2b(repr(names).encode(), digest_size=6).digest()
    return low + (high - low) * int.from_bytes(digest) / 2**48


class Made(dict[str, Any]):
    """Figures that have a fabricated number under any key, beside those that are given."""

    def __init__(self, *names: object, **given: object) -> None:
        super().__init__(given)
        self._names = names

    def __missing__(self, key: str) -> float:
        return made(*self._names, key, low=0.05, high=0.95)


def simulated(cell: ScenarioCell) -> Figures:
    """Figures of a simulated run; the later points of a cell's experiment have more throughput."""
    names = cell.experiment, cell.point.name, cell.run_name, cell.seed

    def total(*more: object) -> Figures:
        waits = {
            kind: {each: made(*names, *more, kind, each, low=50, high=6000) for each in _QUANTILES}
            for kind in ("ttft_ms", "duration_ms")
        }
        rate = made(*names, *more, low=5, high=30)
        whole = Made(*names, *more, requests_per_s=rate, tokens_per_s=200 * rate, failed=int(rate) % 3, **waits)
        return whole | {
            "prefix_hit_rate": made(*names, "hits"),
            "forwarded_share": made(*names, "forwarded"),
            "prefilled_tokens_per_request": made(*names, "prefilled", low=100, high=900),
            "outstanding_max_to_mean": made(*names, "busiest", low=1, high=3),
            "outstanding_mean": made(*names, "outstanding", low=5, high=50),
            "requests": 1000,
            "completed": 990,
        }

    regions = {each: total(each) | {"failed": 0} for each in ("us-east-1", "eu-west-1", "ap-northeast-1")}
    return {"total": total(), "regions": regions}


def played(cells: list[ScenarioCell], *, failing: int = 0) -> Played:
    """Results of the cells; the first `failing` ones have no figures."""
    found = {(each.experiment, each.point.name, each.run_name, each.seed): simulated(each) for each in cells[failing:]}
    return Played(found, {each.title: "ConfigError: it\nbroke" for each in cells[:failing]})


def skywalker(folder: Path) -> Pages:
    plan = skywalker_evaluation(find_traces(published(folder)), seeds=(1, 2, 3))
    metric = {"metric": "tokens/s", "simulated_median": 100.0, "live_median": 98.0, "gap": 0.0204, "agrees": True}
    others: dict[str, Figures] = {
        "agreement": {"about": "One.", "quiet_runs": 3, "live_runs": 3, "gap_max": 0.05, "metrics": [metric]},
        "scale": {"text": ["A hundred regions."], "head": ["regions", "requests/s"], "rows": [["100", "2000"]]},
    }
    return skywalker_page.page_of(plan, played(all_cells(plan.experiments)), others)


def skywalker_part(folder: Path) -> Pages:
    plan = skywalker_evaluation(find_traces(None), full=True, seeds=(1, 2))
    chosen = [each for each in plan.experiments if each.name.startswith(("fig9", "fig10"))]
    return skywalker_page.page_of(plan, played(all_cells(chosen), failing=3), {}, [each.name for each in chosen])


def placement(folder: Path) -> Pages:
    plan = placement_evaluation(published(folder), look=True)
    return placement_page.page_of(plan, played(all_cells(plan.experiments)))


def placement_part(folder: Path) -> Pages:
    plan = placement_evaluation(None)
    names = {plan.sweeps[0].experiment.name, plan.cases[0].experiment.name}
    chosen = [each for each in plan.experiments if each.name in names]
    return placement_page.page_of(plan, played(all_cells(chosen), failing=3), names)


def placement_live(folder: Path) -> Pages:
    names, routers = ("alone", "agentic"), ("nightside", "vllm-router", "sglang-router")
    runs = []
    for case in names:
        for router in routers:
            for number in (1, 2):
                where = case, router, number
                times = {kind: {q: made(*where, kind, q, low=50, high=6000) for q in _QUANTILES} for kind in
                         ("ttft_ms", "duration_ms")}  # fmt: skip
                failures = {} if router == "nightside" else {"HTTP 503: `busy`": number}
                total = {
                    "requests": 1000,
                    "failed": sum(failures.values()),
                    "unfinished": 2,
                    "requests_per_s": made(*where, low=5, high=30),
                    "tokens_per_s": 200.0,
                    "cached_share": made(*where, "cached"),
                    "forwarded_share": made(*where, "away") if router == "nightside" else None,
                    "failures": failures,
                    **times,
                }
                cpu = {"own_share": 0.2, "mean_share": made(*where, "cpu"), "peak_share": 1.0}
                runs.append({"case": case, "system": router, "round": number, "total": total, "machine_cpu": cpu,
                             "lag_ms": {"p99": made(*where, "lag")}})  # fmt: skip
    document = {
        "date": "2026-11-22",
        "command": "nightside results live --rounds 2 --seed 1",
        "machine": MACHINE,
        "rounds": 2,
        "seed": 1,
        "cases": [
            {"name": name, "what": "sessions", "about": "Some agents.", "beside": beside}
            for name, beside in (("alone", ""), ("agentic", "alone"), ("never played", ""))
        ],
        "systems": [{"name": name, "what": f"what {name} is"} for name in routers],
        "not_measured": {"another": "not available"},
        "faults": ["5 of 8: agentic: it `ended`"],
        "runs": runs,
    }
    return {"placement_live.md": live_page.page_of(document)}


def placement_trial(folder: Path) -> Pages:
    rows = [
        {"workload": workload, "policy": policy, "seeds": 1, **{key: made(workload, policy, key) for key in
         trial._MEASURES}}
        for workload in ("one", "other")
        for policy in ("ours", "theirs")
    ]  # fmt: skip
    return {"trial.txt": trial.table_of(rows)}


def failover(folder: Path) -> Pages:
    faults = ((Cause.IN_FLIGHT, True, "cut"), (Cause.CACHED, False, "nobody\nlistens at `a`"), (Cause.OTHER, True, "?"))

    def steps(case: str, number: int) -> tuple[float, float, float]:
        return made(case, number, 0, high=4), made(case, number, 1, high=4), made(case, number, 2, high=4)

    outcomes = [
        Failover(
            case,
            sibling,
            silent,
            *steps(case, number),
            served,
            100 + number,
            faults[: number + 1],
            int(silent),
            early=tuple(Early(call % 3 == 0, call % 9 == 0, int(made(case, number, call) * 1e9)) for call in range(20)),
        )
        for case, sibling, silent, served in (
            ("1 of 4 killed", False, False, 2.5),
            ("1 killed beside a sibling", True, False, None),
            ("1 of 4 falls silent", False, True, 9.0),
        )
        for number in range(3)
    ]
    costs = ("report_us", "probe_us", "death_ms", "recovery_ms", "snapshot_bytes", "push_ms")
    bench = {figure_at(name, *size): made(name, *size, high=3000) for name in costs for size in SIZES[1:]}
    return {"failover.md": failover_page.page_of(outcomes, bench, {**MACHINE, "busy": 0.5})}


def resume(folder: Path) -> Pages:
    def seen(*names: object) -> ObservedStream:
        is_broken, went_on = made(*names, 1) < 0.2, made(*names, 2) < 0.5
        return ObservedStream(
            not is_broken, is_broken, went_on, made(*names, 3), None if is_broken else made(*names, 4)
        )

    outcomes = [
        Resumed(case, is_resumed, 3, [seen(case, is_resumed, number) for number in range(20)], 17.0, 5)
        for is_resumed in (False, True)
        for case in ("an engine", "a region")
    ]
    middle = Middle(1.01, 1.004, 1.02)
    measured = EngineFigures(
        {"one": Exactness("llama.cpp", "/v1/completions", "text", breaks=12, equal=9, reread=2)},
        {"two": Killed("vLLM", 8, 3, 7, 1, 3, [0.1, 0.3], [0.2, 0.2])},
    )
    costs = (
        {"text": middle, "token ids": middle},
        [ResumeCost("off", middle, middle), ResumeCost("text", middle, middle)],
    )
    return {"resume.md": resume_page.page_of(outcomes, costs, measured, {**MACHINE, "busy": "half of it"})}


def succession(folder: Path) -> Pages:
    changes = tuple(LeaderChange(made(number, low=5, high=8), made(number, low=8, high=9.5)) for number in range(5))
    late = Succession("dynamodb", 10.0, 3.0, 1.0, (*changes, LeaderChange(11.0, 12.0)))
    machine = {**MACHINE, "busy": "half of it"}
    return {"succession.md": succession_page([Succession("postgres", 6.0, 2.0, 0.5, changes), late], machine)}


def wan(folder: Path) -> Pages:
    def seen(*names: object, fails: bool = False) -> PhaseSeen:
        waits = tuple(sorted(made(*names, number, high=3) for number in range(20)))
        return PhaseSeen(100, ("APIConnectionError: cut",) if fails else (), int(fails), waits)

    def played(number: int, name: str) -> FaultOutcome:
        losses = {f"{one} of {other}": made(name, one, other, high=2.5) for one, other in FAULTS[number].loses}
        phases = {phase: seen(name, phase, fails=number == 1) for phase in ("before", "during", "after")}
        return FaultOutcome(
            name, phases, seen(name), number % 5, 2.5 if number % 2 else None, 1.5,
            {**losses, "a of b": 3.0} if number == 3 else losses,
            {"eu-west-1": 1.5} if losses else {}, 6.5 if FAULTS[number].leads_elsewhere else None, 0.0, 0, 1, 0,
            number % 2, None if number == 2 else 4.2, 0.3, number % 2,
            ("one end per request: r1: it ended 2 times",) if number == 4 else (), 900, 300, 40_000, 1_234, 12, 8.5,
        )  # fmt: skip

    *outcomes, _ = [played(number, each.name) for number, each in enumerate(FAULTS)]
    whole = PlayedFaults(outcomes, [f"{FAULTS[-1].name} could not be played: the clients did not start within 60 s"])
    return {"wan.md": wan_page(FAULTS, whole, {**MACHINE, "busy": "half of it was in use"})}


def outside(folder: Path) -> Pages:
    def run(number: int) -> RunOutcome:
        counted = RunCounts(100, 20, number, 4000, 400, not_found=1)
        kept = KeptRun(number or None, 9.5 * number, 0.5 * number, counted, (40, 41))
        told = RunCounts(100, 20, 0, 4000, 400) if number % 2 else RunCounts(completed=101)
        reading = Reading(told, (("requests/s", f"{number}.5"),), ("2 × it `broke`",) * (number % 3))
        return RunOutcome(OUTSIDE_RUNS[number], kept, reading, "ValueError: no export" if number == 2 else "")

    runs = tuple(run(number) for number in range(1, len(OUTSIDE_RUNS)))
    setup = OutsideSetup({tool.name: "1.2.3" for tool in OUTSIDE_TOOLS[1:]}, MACHINE)
    outcome = OutsideOutcome(runs, OUTSIDE_RUNS[:1], setup, {OUTSIDE_TOOLS[0].name: "no such package"})
    return {"outside.md": outside_page(outcome, OUTSIDE_TOOLS)}


def sharing(folder: Path) -> Pages:
    seeds = (1, 2)
    ttft = {"p50": 400.0, "p90": 900.0, "p99": 1200.0}
    chat = Made("chat", late=3, failures={"refused": 2}, ttft_ms=ttft)
    classes = [Made(seed, case=case, seed=seed, chat=chat) for case in ("no classes", "classes") for seed in seeds]
    fair = [
        Made(weights, is_fair, seed, weights=list(weights), fair=is_fair, seed=seed, served=[1000.0, 3000.0])
        for weights in ((1.0, 1.0), (1.0, 3.0))
        for is_fair in (True, False)
        for seed in seeds
    ]
    noisy = [
        Made(of, seed, flood=of, seed=seed, tenant="acme", lost=seed) for of in ("long", "short") for seed in seeds
    ]
    places = [
        {"case": "all ask", "seed": seed, "sides": seed, "holds": seed == 1, "peak": 25, "usual": 24,
         "full_after_s": 1.5 if seed == 1 else None, "let_in": 1000, "refused": 99}
        for seed in seeds
    ]  # fmt: skip
    rates = [{"scope": scope, "seed": 1, "most_in_a_minute": 130, "let_in": 250, "span_s": 119.0}
             for scope in ("mesh", "gateway")]  # fmt: skip
    measured: dict[str, dict[str, Any]] = {
        "fairness": {"seconds": 240, "rows": fair},
        "noisy_neighbour": {"seconds": 240, "rows": noisy},
        "class_goodput": {"seconds": 240, "rows": classes},
        "limits": {"seconds": 120, "limit": 24, "per_minute": 120, "places": places, "rates": rates},
        "day_price": _day_price(seeds),
        "scaling": _scaling(),
    }
    parts = (fairness, noisy_neighbour, class_goodput, limits, day_price, scaling)
    sections = [part.section(found) for part, found in zip(parts, measured.values(), strict=True)]
    return {"sharing.md": sharing_page(sections, MACHINE, "nightside results sharing --seeds 2")}


def _day_price(seeds: tuple[int, ...]) -> dict[str, Any]:
    def run(*names: object) -> dict[str, Any]:
        region = {"ap-northeast-1": Made(*names, "region")}
        ttft = {"p50": made(*names, "p50", high=900), "p90": made(*names, "p90", low=900, high=2000)}
        return Made(*names, money=Made(*names, "money", regions=region), in_time=Made(*names, "late"), ttft_ms=ttft)

    days = {
        name: {policy: [run(name, policy, seed) for seed in seeds] for policy in ("cost", "price")}
        for name in day_price.WORKLOADS
    }
    return {"expected": day_price.EXPECTED, "is_quick": True, "day_s": 240, "workloads": days}


def _scaling() -> dict[str, Any]:
    def runs(*names: object) -> list[dict[str, Any]]:
        wanted = {each: {"wanted": [(0, 1), (5, len(each) // 3)]} for each in scaling.REGIONS}
        return [Made(*names, regions=wanted, failed=1, requests=999, replica_hours=made(*names, low=50, high=90))]

    return {
        "expected": scaling.EXPECTED,
        "is_quick": False,
        "day_s": 3600,
        "curves": {curve: {str(mode): runs(curve, mode) for mode in ScalingMode} for curve in scaling.CURVES},
        "afterwards": [
            {"curve": curve, "what": what, "modes": {mode: runs(curve, what, mode) for mode in ("region", "mesh")}}
            for curve, what, _ in scaling.AFTERWARDS
        ],
    }


def balanceroute(folder: Path) -> Pages:
    return _balanceroute(list(LOADS), is_small=False)


def balanceroute_small(folder: Path) -> Pages:
    return _balanceroute(["prompts", "recurring", "limited", "agents"], is_small=True)


def _balanceroute(names: list[str], *, is_small: bool) -> Pages:
    def figures(setting: object, keeps: bool) -> Figures:
        where = repr(setting).replace("BalanceCell(", "Setting(")
        loads = [[round(made(where, worker, step, high=90_000)) for step in range(20)] for worker in range(8)]
        largest = made(where, "largest", low=20_000, high=90_000)
        return Made(
            where, gap=made(where, "gap", low=100, high=9000), deficit=made(where, "deficit", high=90_000),
            tokens_per_s=made(where, "tokens", low=500, high=2000), tpot_p95_ms=made(where, "tpot", low=10, high=90),
            largest=largest, mean=0.8 * largest, bound=made(where, "bound", low=1, high=90), running=12.0,
            loads=loads if keeps else [],
        )  # fmt: skip

    settings = balanceroute_plan.settings(names, quick=is_small, look=True)
    reader = BalanceRouteReader({each: figures(each, bool(each.keep_steps)) for each in settings}, is_small)
    tick = {"p50_ms": 0.5, "p99_ms": 1.0, "admitted": 3.0}
    ticks = None if is_small else {"plain": {"br_h, 8": tick, "growth": {"br_h": 0.7}}}
    table_3 = None if is_small else "A table.\n"
    pages = balanceroute_page.page_of(reader, names, look=not is_small, table_3=table_3, ticks=ticks)
    rows = balanceroute_page.rows_of(reader)
    return {**pages, "rows.json": json.dumps(rows[:200], indent=2)}


def predictors(folder: Path) -> Pages:
    scores = {each: made(each) for each in ("leaving_share", "auc", "brier", "mae_tokens", "expected_rms_steps",
              "anchor_rms_steps", "believed_share", "believed_right_share")}  # fmt: skip
    rows: list[Figures] = [
        {"workload": "one", "realization": each.name, "horizon": 48, "requests": 99,
         "scores": scores if number else None, "unscored": "" if number else "too little"}
        for number, each in enumerate(REALIZATIONS)
    ]  # fmt: skip
    swept: list[Figures] = [
        {"workload": "one", "refresh_tokens": r, "decrements_stayers": d, "error": made(r, d), "error_without": 0.5}
        for r in (4, 8)
        for d in (False, True)
    ]
    return {"table_3.md": as_markdown(rows), "refresh.md": sweep_markdown(swept)}


def token_budget(folder: Path) -> Pages:
    return _token_budget(list(WORKLOADS), is_small=False)


def token_budget_small(folder: Path) -> Pages:
    return _token_budget(["azure_conv"], is_small=True)


def _token_budget(names: list[str], *, is_small: bool) -> Pages:
    found = {each: _token_budget_figures(each) for each in token_budget_cells(names, quick=is_small)}
    reader = token_budget_page.FigureReader(found, names, quick=is_small)
    elsewhere = {} if is_small else {"Live: a burst of long prompts beside short chat": "Measured.\n"}
    return token_budget_page.page_of(reader, elsewhere)


def _token_budget_figures(cell: TokenBudgetSetting) -> Figures:
    names = repr(cell).replace("BudgetCell(", "Cell(")
    match cell.kind:
        case "sized":
            grid = paper.GRID if cell.load != "mooncake" else paper.GRID[:4]
            lengths = paper.AZURE.lengths(draws=200)
            formula = plan(LLAMA_3_70B_A100, Source(cell.load, lengths, 0), PlanInputs(1000.0, grid, trial=None))[
                "fleets"
            ]
            return {"fleets": [{"formula": each, "played": _fleet(f"{names} {each['seats']}")} for each in formula]}
        case "tuned":
            moves = {"up": int(made(names, high=9)), "down": 2}
            return {"good_share": made(names), "moves": moves}
        case "day":
            pools = {name: {"by_region": [1, 2, 3], "requests": 100, "forwarded_share": made(names, name)}
                     for name in ("short", "long")}  # fmt: skip
            return {"instances": int(made(names, low=5, high=20)), "pools": pools}
        case _:
            return Made(names, requests=12_345, tpot_p50_ms=made(names, low=10, high=90))


def _fleet(names: str) -> Figures:
    splits = [
        Made(names, tokens, threshold_tokens=tokens, verified_instances=99, verified_savings_share=None,
             short={"verified_instances": 40, "limited_by": "TTFT: 3 s"},
             long={"verified_instances": None, "limited_by": "a request was preempted"})
        for tokens in (1_024, 8_192)
    ]  # fmt: skip
    return {"homogeneous": {"verified_instances": int(made(names, low=100, high=2000))}, "splits": splits}


def token_budget_live(folder: Path) -> Pages:
    def times(*names: object) -> list[float]:
        return [made(*names, number) for number in range(9)]

    found = {
        design: [
            Waited(times(design, n, "calm"), times(design, n, "burst"), times(design, n, "long"), ["no"] * n)
            for n in range(3)
        ]
        for design in DESIGNS
    }
    return {"token-budget-live.md": live_section(found, MACHINE, 0.5)}


def token_budget_classifier(folder: Path) -> Pages:
    kinds = (("en", Category.PROSE), ("ja", Category.CJK), ("Python", Category.CODE))
    documents = [
        Document(
            language, category, f"{language}{number}", "text " * (number + 9), {"fours": 12, "threes": 16 + number}
        )
        for language, category in kinds
        for number in range(6)
    ]
    seen = [Classified(language, category, {category: 9, Category.MIXED: 1}) for language, category in kinds]
    seen.append(Classified("numbers", Category.MIXED, {Category.MIXED: 50}))

    def found(*names: object) -> Found:
        by_category = {each: made(*names, each, high=0.05) for each in Category}
        return Found(by_category, 100, by_category, made(*names, "careful"), made(*names, "off"))

    drawn = {name: found(name) for name in ("static", "as written", "ours")}
    texts = {each: {way: found(each, way) for way in ("static", "looks")} for each in ("fours", "threes")}
    return {
        "token-budget-classifier.md": prompts_page.page_of(
            prompts_page.PromptFigures(documents, seen, 2.5, drawn, texts)
        )
    }


def eldr(folder: Path) -> Pages:
    results = _eldr_results()
    return {
        "eldr.md": eldr_page.page_of(results, quick=True),
        "eldr.json": json.dumps(eldr_command._document(results), indent=2),
    }


def cells(folder: Path) -> Pages:
    """Every planned cell with all that its figures depend on, so that none is lost or changed."""
    traces = published(folder)
    plans = {
        "skywalker": all_cells(skywalker_evaluation(find_traces(traces), full=True).experiments),
        "placement": all_cells(placement_evaluation(traces, look=True).experiments),
    }
    settings = balanceroute_plan.settings(list(LOADS), look=True)
    told: dict[str, list[object]] = {
        **{name: [[each.title, each.document()] for each in planned] for name, planned in plans.items()},
        "balanceroute": [to_builtins(each) for each in settings],
        "token_budget": [to_builtins(each) for each in token_budget_cells(list(WORKLOADS))],
        "eldr": [to_builtins(each) for each in jobs_of(("published", "recorded"), FULL)],
    }
    return {f"{name}.json": json.dumps(each).replace(str(folder), "") for name, each in told.items()}


def _eldr_results() -> EldrResults:
    def figures(*names: object) -> Figures:
        return Made(*names, experts=made(*names, "experts", low=20, high=60),
                    tokens_per_s=made(*names, high=9999), experts_by_part=[30.5, 20.5, 25.5])  # fmt: skip

    def rows(section: str, *titles: str) -> dict[tuple[str, str], Figures]:
        return {("published", title): figures(section, title) for title in titles}

    workloads = made_up(QUICK)
    results = EldrResults(QUICK, list(workloads))
    for each in workloads:
        results.main[each.name] = {
            (policy, rate): [figures(each.name, policy, rate), figures(each.name, policy, rate, 2)]
            for policy in POLICIES
            for rate in (40.0, 60.0)
        }
        transformations = {name: made(each.name, name) for name in ("binary", "sqrt", "count", "count-idf")}
        results.scores[each.name] = EldrScores(9, transformations, made(each.name), [])
    results.sections = {
        "clusters": rows("clusters", "round robin", "vanilla K-means", "balanced K-means"),
        "bands": rows("bands", *(f"τ = {band:g}" for band in BANDS)),
        **{name: rows(name, "round robin", "ELDR") for name in ("pools", "cache", "sharded", "bases")},
        "together": rows("together", *(f"{form}: {policy}" for form in FORMS for policy in BALANCERS)),
        "drift": rows("drift", "round robin", "ELDR, never fitted again", "ELDR, fitted again"),
    }
    stages = ("unpacked", "compared", "chosen", "all")
    results.costs = {
        (workers, core): {stage: Made(workers, core, stage, p50_ms=0.01 * workers) for stage in stages}
        for workers in (10, 144)
        for core in ("plain", "compiled")
    }
    results.journal = {workers: Made(workers, plain=200, cosines=1000, counts_packed=12_000, counts_unpacked=48_000)
                       for workers in (16, 144)}  # fmt: skip
    results.fit = {"s": 4.2, "computed_s": 5.3}
    return results


MAKERS = (
    skywalker, skywalker_part, placement, placement_part, placement_live, placement_trial, failover, resume,
    succession, outside, wan, sharing, balanceroute, balanceroute_small, predictors, token_budget, token_budget_small,
    token_budget_live, token_budget_classifier, eldr, cells,
)  # fmt: skip
RECORD = Path(__file__).parent / "study_pages.json"


def digests(pages: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names of the files, in their order, with digests of their bytes."""
    for name in sorted(pages):
        yield name, blake2b(pages[name].encode(), digest_size=8).hexdigest()


def record() -> None:
    """Record the pages as they are."""
    with TemporaryDirectory() as folder:
        made_now = {maker.__name__: dict(digests(maker(Path(folder)))) for maker in MAKERS}
    RECORD.write_text(json.dumps(made_now, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
