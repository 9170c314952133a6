"""Page of BalanceRoute: the aims, where they are missed and by how much, then every figure. Explanations stand beside a
figure that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, Scene, lines, over_time
from loadgen.pages.markdown import listed, table
from loadgen.pages.templates import picture_file
from loadgen.studies.balanceroute import plan, tables
from loadgen.studies.balanceroute.loads import CHOOSING, LOADS, TABLES
from loadgen.studies.balanceroute.paper import PAPER, published, running_at_most
from loadgen.studies.balanceroute.plan import BR_0, FEW, JSQ, ORACLE, Comparison, Run
from loadgen.studies.balanceroute.tables import ResultReader
from loadgen.studies.data import Look, read_data
from loadgen.studies.numbers import measured
from loadgen.studies.rendering import render

NAME = "balanceroute.md"
ASIDE = read_data("balanceroute/aside.yaml", Look)
"""Texts on the two loads that are held out."""
_STAGES = (("p50_ms", "p50"), ("p99_ms", "p99"), ("prepare_p50_ms", "prepare"), ("aged_p50_ms", "aged"),
           ("greedy_p50_ms", "stage 1"), ("refined_p50_ms", "stage 2"))  # fmt: skip


def page_of(
    reader: ResultReader, present: Sequence[str], *, look: bool, table_3: str | None, ticks: Mapping[str, Any] | None
) -> dict[str, str]:
    """Contents by file name: the page and its plots."""
    several = [each for each in plan.comparisons(reader.quick) if each.load in present]
    missing = [LOADS[load].title for load in TABLES if load not in present]
    rows, met = tables.aims(reader, several)
    plots: dict[str, str] = {}
    text = render(
        "balanceroute/page.j2", reader=reader, look=look, table_3=table_3, ticks=ticks, several=several,
        aims=rows, met=met, scaled=list(_scaled(reader, several, plots)),
        pictured=list(_pictured(reader, several, plots)), t=tables,
        lacking=f" Not found, and left out: {listed(missing)}." if missing else "", plan=plan, aside=ASIDE,
        most=[f"{running_at_most(PAPER.heavy[g], JSQ.title, g):.1f} at {g}" for g in (4, 8, 16)], loads=LOADS,
        little=[running_at_most(PAPER.heavy[8], run.title, 8) for run in (JSQ, ORACLE)], stages=_STAGES,
        choosing=[LOADS[load].title for load in CHOOSING], growth=_growth, choosing_loads=CHOOSING,
        sent_loads=[load for load in plan.SENT if load in present],
        held_out=[each for each in plan.aside(reader.quick) if look and each.load in present],
        shown=_shown, perfect=_perfect,
    )  # fmt: skip
    return {NAME: text, **plots}


def _shown(name: str, runs: Sequence[Figures], form: str = ",.0f") -> str:
    return tables.shown(measured(runs, tables.figure(name)), form)


def _perfect(runs: Sequence[Figures]) -> str:
    return tables.shown(measured(runs, tables.perfect), ".3f", "× ")


def _growth(found: Mapping[str, float]) -> str:
    return listed([f"{name.replace('_', ' ')} {value:.2f}" for name, value in found.items()])


def _scaled(
    reader: ResultReader, several: Sequence[Comparison], plots: dict[str, str]
) -> Iterator[tuple[str, str, list[Comparison]]]:
    """Title, plot and comparisons of each load and regime of Table 2; plots are added."""
    for load in dict.fromkeys(each.load for each in several):
        for regime in (plan.NEAR, plan.STANDING):
            found = sorted((e for e in several if e.load == load and e.regime == regime), key=lambda e: e.workers)
            name = f"balanceroute-scaling-{load}-{plan.REGIMES.index(regime)}.svg"
            title = f"{LOADS[load].title}; {regime.brief}"
            curves = [Line(run.title, _points(reader, found, run)) for run in FEW[1:]]
            curves += [Line("paper, BR-0", _published(load, BR_0)), Line("paper, oracle", _published(load, ORACLE))]
            drawn = [curve for curve in curves if curve.points]
            plots[name] = picture_file(lines(title, drawn, "workers", "JSQ's max − min over it"))
            yield title, name, found


def _points(reader: ResultReader, found: Sequence[Comparison], run: Run) -> list[tuple[float, float]]:
    return [
        (each.workers, middle.median)
        for each in found
        if run in each.runs and (middle := reader.divided(each, run)) is not None
    ]


def _published(load: str, run: Run) -> list[tuple[float, float]]:
    if load == "capped":
        return []
    return [(g, theirs[JSQ.title].gap / theirs[run.title].gap) for g in (4, 8, 16) if (theirs := published(load, g))]


def _pictured(reader: ResultReader, several: Sequence[Comparison], plots: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Title and pictures of each load of Fig. 3; plots are added."""
    for each in several:
        if each.workers != 8 or each.regime != plan.STANDING:
            continue
        runs = {run: reader.of(each, run)[0] for run in plan.SHOWN}
        top = max((max(worker) for run in runs.values() for worker in run["loads"]), default=1)
        cells = []
        for run, figures in runs.items():
            name = f"balanceroute-loads-{each.load}-{plan.SHOWN.index(run)}.svg"
            end_s = max(1.0, round(plan.KEPT * figures["running"] / figures["tokens_per_s"]))
            curves = [Line(f"worker {g}", _over_time(worker, end_s)) for g, worker in enumerate(figures["loads"])]
            about = f"{run.title}: thousands of KV tokens of each worker"
            plots[name] = picture_file(over_time(about, curves, top / 1000, Scene(end_s, 0.0, ())))
            cells.append(f"![{about}]({name})")
        heads = [f"{run.title}: max − min {figures['gap']:,.0f}" for run, figures in runs.items()]
        yield LOADS[each.load].title, table(heads, [cells])


def _over_time(loads: Sequence[int], end_s: float) -> list[tuple[float, float]]:
    """Points in seconds and thousands of tokens, over the duration of the kept steps."""
    last = max(1, len(loads) - 1)
    return [(end_s * number / last, load / 1000) for number, load in enumerate(loads)]


def rows_of(reader: ResultReader) -> list[Figures]:
    """Every cell as a flat JSON row."""
    return [
        {"load": s.load, "policy": str(s.policy), "predictor": s.predictor, "workers": s.workers, "batch": s.batch,
         "offered": s.offered, "room_margin": s.room_margin, "seed": s.seed}
        | {key: value for key, value in figures.items() if key != "loads"}
        for s, figures in reader.results.items()
    ]  # fmt: skip
