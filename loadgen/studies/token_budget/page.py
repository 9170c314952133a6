"""Page of the token-budget paper: at the paper's own settings first, and then where they do not hold. It shows results
of cells only, with the paper's figures beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, lines
from loadgen.pages.markdown import NOTHING, listed, table
from loadgen.pages.plan import in_k
from loadgen.pages.templates import picture_file
from loadgen.planner.cited import LLAMA_3_70B_A100, QWEN3_235B_MI300X
from loadgen.planner.fleet import SeatCounting, Sizing, savings
from loadgen.studies.rendering import percent, render
from loadgen.studies.token_budget import days, paper, plan, tuning
from loadgen.studies.token_budget.plan import BudgetCell
from loadgen.studies.token_budget.workloads import EARLIER_SHARE, WORKLOADS, BudgetWorkload

NAME = "token-budget.md"
_PLOT = "token-budget-fig6.svg"


class FigureReader:
    """Looks up the figures of settings."""

    def __init__(self, results: Mapping[BudgetCell, Figures], present: Sequence[str], *, quick: bool) -> None:
        self.results = results
        self.present = present
        self.quick = quick
        self.seeds = tuning.SEEDS[:1] if quick else tuning.SEEDS

    def of(self, kind: str, load: str, design: str = "", condition: str = "", **tuned: int) -> Figures:
        return self.results[BudgetCell(kind, load, design, condition, **tuned, quick=self.quick)]

    def workloads(self) -> list[BudgetWorkload]:
        return [each for name, each in WORKLOADS.items() if name in self.present]


def page_of(reader: FigureReader, elsewhere: Mapping[str, str]) -> dict[str, str]:
    """Contents by file name: the page and its plot. `elsewhere` holds sections that other commands wrote, by their
    headings."""
    missing = [each.title for name, each in WORKLOADS.items() if name not in reader.present]
    text = render(
        "token_budget/page.j2", reader=reader, elsewhere=elsewhere, paper=paper, days=days, tuning=tuning,
        lacking=f" Not found, and left out: {listed(missing)}." if missing else "", workloads=WORKLOADS,
        plot=_PLOT, grid=[in_k(math.log2(each)) for each in paper.GRID], table_5=_table_5(),
        split_of=_split_of, parts=_parts, limits=_limits, throughputs=_throughputs, musd=_musd,
        earlier_share=EARLIER_SHARE, tuned=_tuned(reader), forwarded=_forwarded,
        seat_countings=[str(each) for each in SeatCounting],
    )  # fmt: skip
    return {NAME: text, _PLOT: _figure_6(reader)}


def _split_of(fleet: Figures, threshold: int) -> Figures:
    found: Figures = next(each for each in fleet["splits"] if each["threshold_tokens"] == threshold)
    return found


def _parts(split: Figures, key: str) -> str:
    return " + ".join(NOTHING if split[pool][key] is None else f"{split[pool][key]:,}" for pool in ("short", "long"))


def _throughputs(load: paper.PaperLoad) -> str:
    sizing = Sizing(LLAMA_3_70B_A100, load.lengths(), paper.RATE_PER_S, SeatCounting.RESERVED)
    split = sizing.split(paper.THRESHOLD)
    ours = (sizing.homogeneous().throughput_per_s, split.short.throughput_per_s, split.long.throughput_per_s)
    told = " / ".join(NOTHING if each is None else f"{each:g}" for each in load.throughputs)
    return (
        f"{load.name}: μ of one pool / short / long {' / '.join(f'{each:.2f}' for each in ours)}, the paper {told};"
        f" α = {split.short.share:.3f}; Eq. 7 promises {percent(split.closed_form)}."
    )


def _figure_6(reader: FigureReader) -> str:
    curves = []
    for load in paper.LOADS:
        for fleet in (each["formula"] for each in reader.of("sized", load.name)["fleets"]):
            points = [
                (math.log2(each["threshold_tokens"]), max(0.0, 100 * each["savings_share"])) for each in fleet["splits"]
            ]
            curves.append(Line(f"{load.name}, {fleet['seats']}", points))
    return picture_file(
        lines("Instances saved by formula, against the threshold", curves, "threshold, tokens", "saved, %", in_k)
    )


def _limits(split: Figures) -> str:
    limits = [split[pool]["limited_by"] for pool in ("short", "long") if split[pool]["limited_by"]]
    return " / ".join(dict.fromkeys(map(_short, limits))) or NOTHING


def _short(limit: str) -> str:
    return limit.partition(":")[0] if ":" in limit else "preemption" if "preempted" in limit else limit


def _table_5() -> SimpleNamespace:
    profile = QWEN3_235B_MI300X
    lengths = paper.AZURE.lengths().cut(profile.context_tokens_max)[0] or paper.AZURE.lengths()
    sizing = Sizing(profile, lengths, paper.TABLE_5_RATE_PER_S, SeatCounting.RESERVED)
    whole, split = sizing.homogeneous().instances, sizing.split(paper.THRESHOLD).instances
    return SimpleNamespace(profile=profile, whole=whole, split=split, saved=savings(split, whole))


def _musd(nodes: int | None) -> str:
    """Millions of dollars a year."""
    cost = None if nodes is None else QWEN3_235B_MI300X.yearly_usd(nodes)
    return NOTHING if cost is None else f"{cost / 1e6:.1f} M$"


def _tuned(reader: FigureReader) -> str:
    rows, gaps = [], []
    for load in (plan.CHOSEN_ON, *(each for each in plan.LOADS_TUNED if each in reader.present)):
        title = WORKLOADS[load].title if load in WORKLOADS else f"{load} (chosen on)"
        for condition in tuning.CONDITIONS:
            shares = {each: median(_good(reader, load, condition, each)) for each in (*tuning.GRID, 0)}
            best = max(tuning.GRID, key=shares.__getitem__)
            gap = shares[0] - shares[best]
            gaps += [gap] if load != plan.CHOSEN_ON else []
            tuned = [reader.of("tuned", load, condition=condition, seed=seed) for seed in reader.seeds]
            moves = median(sum(each["moves"].values()) for each in tuned)
            cells = [*map(percent, shares.values()), in_k(math.log2(best)), f"{100 * gap:+.1f}", f"{moves:g}"]
            rows.append((f"{title}, {condition}", *cells))
    grid = (in_k(math.log2(each)) for each in tuning.GRID)
    head = ("served in time", *grid, "tuned", "best", "tuned − best, points", "moves")
    said = (
        f"Of {len(gaps)} rows of recorded loads, {sum(each >= -0.02 for each in gaps)} are within 2 points of the best"
        f" threshold that stands still, without knowing it, and {sum(each > 0 for each in gaps)} above it."
        if gaps
        else "No recorded load was found."
    )
    return f"{table(head, rows)}\n{said}\n"


def _good(reader: FigureReader, load: str, condition: str, threshold: int) -> list[float]:
    return [
        reader.of("tuned", load, condition=condition, threshold=threshold, seed=seed)["good_share"]
        for seed in reader.seeds
    ]


def _forwarded(found: Figures) -> float:
    """Share of the requests of a day, of all pools together."""
    pools: dict[str, Any] = found["pools"]
    requests = sum(each["requests"] for each in pools.values())
    return float(sum(each["forwarded_share"] * each["requests"] for each in pools.values()) / requests)
