"""Computes the demo's figures from its requests: per region and in total, as a table and as JSON.

It only counts what it is given, and must never leave a failure out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from gateway.core.vocabulary import RegionName
from loadgen.figures import Figures, figures_on, flows, hit_rate, share
from loadgen.pages.markdown import NOTHING
from loadgen.report import MachineUse, PrefixTokens, RequestReport
from loadgen.vocabulary import RequestEnd

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results of one run."""

    name: str
    regions: tuple[RegionName, ...]
    load_s: float
    """Time for which load was sent, up to the end of the load or the interruption."""
    records: tuple[RequestReport, ...]
    prefix_tokens: dict[RegionName, PrefixTokens]
    machine: MachineUse | None = None
    is_partial: bool = False
    """True if the run was stopped before its time."""


@dataclass(frozen=True, slots=True)
class RunReport:
    run: RunResult
    regions: dict[RegionName, Figures]
    """Figures of each region's clients; prefix hits are those of the region's engines, for requests of all regions."""
    total: Figures
    answered: dict[tuple[RegionName, RegionName], int]
    """Requests per (client's region, engine's region)."""
    failures: dict[str, int]
    """Number of failures per kind."""


def report_on(run: RunResult) -> RunReport:
    return RunReport(
        run=run,
        regions={region: _region_figures(run, region) for region in run.regions},
        total=_figures(run.records, run.load_s, run.prefix_tokens.values()),
        answered={(each["client_region"], each["engine_region"]): each["requests"] for each in flows(run.records)},
        failures=dict(Counter(each.detail for each in run.records if each.end is RequestEnd.FAILED).most_common()),
    )


def _region_figures(run: RunResult, region: RegionName) -> Figures:
    records = [each for each in run.records if each.client_region == region]
    own_engines = [run.prefix_tokens[region]] if region in run.prefix_tokens else []
    return _figures(records, run.load_s, own_engines)


def _figures(records: Sequence[RequestReport], load_s: float, engines: Iterable[PrefixTokens]) -> Figures:
    """Figures of the records, with tokens counted at their arrival."""
    answered = [each for each in records if each.served_by is not None]
    local = sum(each.served_by == each.client_region for each in answered)
    tokens = sum(each.tokens_in_time for each in records)
    return figures_on(records, (0, max(1, round(load_s * _SECOND_NS)))) | {
        "tokens_per_s": round(tokens / load_s, 2) if load_s > 0 else 0.0,
        "local_share": share(local, len(answered)),
        "prefix_hit_rate": hit_rate(engines),
    }


def as_document(report: RunReport) -> dict[str, object]:
    """Report as a document, JSON-able, with the unit last in each name."""
    return {
        "name": report.run.name,
        "load_s": round(report.run.load_s, 3),
        "partial": report.run.is_partial,
        "regions": report.regions,
        "total": report.total,
        "answered": [
            {"client_region": client, "engine_region": engine, "requests": count}
            for (client, engine), count in report.answered.items()
        ],
        "failures": report.failures,
        "machine_cpu": None if report.run.machine is None else report.run.machine.as_document(),
    }


# The table has one block per region, with the runs side by side in it.


def table_of(reports: Sequence[RunReport]) -> RenderableType:
    """Table of regions, with the same figure of every run side by side."""
    assert reports, "a table needs a run"
    grid = Table.grid(padding=(0, 2))
    blocks = [_label_block()]
    blocks += [
        _block(region, [(each.run.name, each.regions[region]) for each in reports]) for region in reports[0].regions
    ]
    grid.add_row(*blocks, _block("all", [(each.run.name, each.total) for each in reports]))
    return grid


_LABELS = (
    "requests",
    "requests/s",
    "tokens/s",
    "TTFT p50, s",
    "TTFT p90, s",
    "TTFT p99, s",
    "TTFT mean, s",
    "answer p50, s",
    "answer p90, s",
    "TPOT p50, ms",
    "prefix hits",
    "ran locally",
    "forwarded",
    "errors",
    "unfinished",
)


def _cells(figures: Figures) -> list[str]:
    return [
        str(figures["requests"]),
        f"{figures['requests_per_s']:.1f}",
        f"{figures['tokens_per_s']:.0f}",
        *_seconds(figures["ttft_ms"], "p50", "p90", "p99", "mean"),
        *_seconds(figures["duration_ms"], "p50", "p90"),
        NOTHING if figures["tpot_ms"] is None else f"{figures['tpot_ms']['p50']:.1f}",
        *(_percent(figures[name]) for name in ("prefix_hit_rate", "local_share", "forwarded_share")),
        str(figures["failed"]),
        str(figures["unfinished"]),
    ]


def _label_block() -> Table:
    block = Table(title=" ", box=SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    block.add_column("", no_wrap=True)
    for label in _LABELS:
        block.add_row(label)
    return block


def _block(title: str, runs: Sequence[tuple[str, Figures]]) -> Table:
    block = Table(title=title, title_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1), pad_edge=False)
    title_share = math.ceil((len(title) - 2 * (len(runs) - 1)) / len(runs))
    for name, _ in runs:
        block.add_column(name, justify="right", no_wrap=True, min_width=title_share)
    for row in zip(*(_cells(figures) for _, figures in runs), strict=True):
        block.add_row(*row)
    return block


def _seconds(values_ms: dict[str, float] | None, *names: str) -> list[str]:
    return [NOTHING if values_ms is None else f"{values_ms[name] / 1000:.2f}" for name in names]


def _percent(part: float | None) -> str:
    return NOTHING if part is None else f"{part:.0%}"
