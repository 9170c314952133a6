"""From finished requests to figures: statistics per region, as a table and as JSON.

It only counts what it is given: it must know no clock, no socket and no file, and must never leave a failure out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gateway.core.vocabulary import RegionName

_SECOND_NS = 1_000_000_000
_MILLISECOND_NS = 1_000_000
_NOTHING = "–"
_SHARES = (0.10, 0.25, 0.50, 0.75, 0.90, 0.99)


class RequestEnd(StrEnum):
    """How a request ended, as its client saw it."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Refused, broken off or garbled; the record's `detail` says how."""
    UNFINISHED = "unfinished"
    """Still waiting or streaming when the run was over."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, as its client measured it. Times count from the start of the run."""

    client_region: RegionName
    end: RequestEnd
    sent_ns: int
    """When it was due; whoever waits for it has waited since then, however late it left."""
    ended_ns: int
    first_token_ns: int | None = None
    served_by: RegionName | None = None
    """The region whose engine answered."""
    output_tokens: int = 0
    tokens_in_time: int = 0
    """Those that arrived while load was still being sent."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    detail: str = ""
    lag_ns: int = 0
    """How much later than due it left, since whoever sends was busy."""


@dataclass(frozen=True, slots=True)
class PrefixTokens:
    """What one region's engines counted during the run: prompt tokens looked up, and found, in their prefix caches."""

    queried: int
    hit: int


@dataclass(frozen=True, slots=True)
class MachineUse:
    """How busy the whole machine was, 0 to 1 of all its CPUs."""

    mean_share: float
    peak_share: float
    """Of the busiest sample."""
    own_share: float | None = None
    """What the run's own processes took of it on average, if that could be told."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Everything one run gave."""

    name: str
    regions: tuple[RegionName, ...]
    load_s: float
    """How long load was sent, or until the run was stopped."""
    records: tuple[RequestRecord, ...]
    prefix_tokens: dict[RegionName, PrefixTokens]
    machine: MachineUse | None = None
    is_partial: bool = False
    """It was stopped before its time."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles: each is a value that was measured."""

    p10_ns: int
    p25_ns: int
    p50_ns: int
    p75_ns: int
    p90_ns: int
    p99_ns: int
    mean_ns: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the clients of one region, or of all, lived through."""

    requests: int
    completed: int
    failed: int
    unfinished: int
    requests_per_s: float
    """Those completed while load was being sent."""
    tokens_per_s: float
    ttft: Percentiles | None
    duration: Percentiles | None
    """Of completed requests, to the last byte."""
    tpot: Percentiles | None
    """Of completed requests, between the first token and the last, for each token after the first."""
    local_share: float | None
    """Of the requests that an engine answered: those whose engine was in the client's region."""
    forwarded_share: float | None
    prefix_hit_rate: float | None
    """Of this region's engines, whoever asked them."""


@dataclass(frozen=True, slots=True)
class RunReport:
    name: str
    load_s: float
    is_partial: bool
    regions: dict[RegionName, Statistics]
    total: Statistics
    answered: dict[tuple[RegionName, RegionName], int]
    """Requests per (client's region, engine's region)."""
    failures: dict[str, int]
    """How often each kind of failure happened."""
    machine: MachineUse | None


def report_on(run: RunResult) -> RunReport:
    return RunReport(
        name=run.name,
        load_s=run.load_s,
        is_partial=run.is_partial,
        regions={region: _region_statistics(run, region) for region in run.regions},
        total=_statistics(run.records, run.load_s, run.prefix_tokens.values()),
        answered=dict(Counter((each.client_region, each.served_by) for each in run.records if each.served_by)),
        failures=dict(Counter(each.detail for each in run.records if each.end is RequestEnd.FAILED).most_common()),
        machine=run.machine,
    )


def percentiles(values: Iterable[int]) -> Percentiles | None:
    """None when there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p10, p25, p50, p75, p90, p99 = (ordered[_rank(share, len(ordered))] for share in _SHARES)
    return Percentiles(p10, p25, p50, p75, p90, p99, sum(ordered) / len(ordered))


def times_per_token_ns(completed: Iterable[RequestRecord]) -> Iterator[int]:
    """From the first token to the end, for each token after the first; of answers that had several."""
    for each in completed:
        if each.first_token_ns is not None and each.output_tokens > 1:
            yield (each.ended_ns - each.first_token_ns) // (each.output_tokens - 1)


def quantile(values: Sequence[int], share: float) -> int:
    """The nearest rank of some values."""
    return sorted(values)[_rank(share, len(values))]


def _rank(share: float, count: int) -> int:
    return max(0, math.ceil(share * count) - 1)


def _region_statistics(run: RunResult, region: RegionName) -> Statistics:
    records = [each for each in run.records if each.client_region == region]
    own_engines = [run.prefix_tokens[region]] if region in run.prefix_tokens else []
    return _statistics(records, run.load_s, own_engines)


def _statistics(records: Sequence[RequestRecord], load_s: float, engines: Iterable[PrefixTokens]) -> Statistics:
    ends = Counter(each.end for each in records)
    answered = [each for each in records if each.served_by is not None]
    forwarded = sum(each.served_by != each.client_region for each in answered)
    completed = [each for each in records if each.end is RequestEnd.COMPLETED]
    in_time = sum(each.ended_ns <= load_s * _SECOND_NS for each in completed)
    return Statistics(
        requests=len(records),
        completed=len(completed),
        failed=ends[RequestEnd.FAILED],
        unfinished=ends[RequestEnd.UNFINISHED],
        requests_per_s=in_time / load_s if load_s > 0 else 0.0,
        tokens_per_s=sum(each.tokens_in_time for each in records) / load_s if load_s > 0 else 0.0,
        ttft=percentiles(each.first_token_ns - each.sent_ns for each in records if each.first_token_ns is not None),
        duration=percentiles(each.ended_ns - each.sent_ns for each in completed),
        tpot=percentiles(times_per_token_ns(completed)),
        local_share=_share(len(answered) - forwarded, len(answered)),
        forwarded_share=_share(forwarded, len(answered)),
        prefix_hit_rate=_hit_rate(engines),
    )


def _hit_rate(engines: Iterable[PrefixTokens]) -> float | None:
    counted = tuple(engines)
    return _share(sum(each.hit for each in counted), sum(each.queried for each in counted))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# As JSON.


def as_document(report: RunReport) -> dict[str, object]:
    """JSON-able, with the unit last in each name."""
    return {
        "name": report.name,
        "load_s": round(report.load_s, 3),
        "partial": report.is_partial,
        "regions": {region: _statistics_document(each) for region, each in report.regions.items()},
        "total": _statistics_document(report.total),
        "answered": [
            {"client_region": client, "engine_region": engine, "requests": count}
            for (client, engine), count in sorted(report.answered.items())
        ],
        "failures": report.failures,
        "machine_cpu": _machine_document(report.machine),
    }


def _statistics_document(statistics: Statistics) -> dict[str, object]:
    return {
        "requests": statistics.requests,
        "completed": statistics.completed,
        "failed": statistics.failed,
        "unfinished": statistics.unfinished,
        "requests_per_s": round(statistics.requests_per_s, 3),
        "tokens_per_s": round(statistics.tokens_per_s, 2),
        "ttft_ms": _percentiles_document(statistics.ttft),
        "duration_ms": _percentiles_document(statistics.duration),
        "tpot_ms": _percentiles_document(statistics.tpot),
        "local_share": _rounded(statistics.local_share),
        "forwarded_share": _rounded(statistics.forwarded_share),
        "prefix_hit_rate": _rounded(statistics.prefix_hit_rate),
    }


def _percentiles_document(values: Percentiles | None) -> dict[str, float] | None:
    return None if values is None else in_milliseconds(values, digits=1)


def in_milliseconds(values: Percentiles, digits: int) -> dict[str, float]:
    """`p10` to `p99`, and `mean`."""
    named = {field.name.removesuffix("_ns"): getattr(values, field.name) for field in fields(values)}
    return {name: round(value_ns / _MILLISECOND_NS, digits) for name, value_ns in named.items()}


def _machine_document(machine: MachineUse | None) -> dict[str, float | None] | None:
    if machine is None:
        return None
    return {
        "mean_share": round(machine.mean_share, 3),
        "peak_share": round(machine.peak_share, 3),
        "own_share": _rounded(machine.own_share),
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


# As a table: one block per region, the runs side by side within it.


def table_of(reports: Sequence[RunReport]) -> RenderableType:
    """Region by region, the same figure of every run next to each other."""
    assert reports, "a table needs a run"
    grid = Table.grid(padding=(0, 2))
    blocks = [_label_block(), *(_block(region, _of_region(reports, region)) for region in reports[0].regions)]
    blocks.append(_block("all", [(report.name, report.total) for report in reports]))
    grid.add_row(*blocks)
    return grid


def _of_region(reports: Sequence[RunReport], region: RegionName) -> list[tuple[str, Statistics]]:
    return [(report.name, report.regions[region]) for report in reports]


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


def _cells(statistics: Statistics) -> list[str]:
    return [
        str(statistics.requests),
        f"{statistics.requests_per_s:.1f}",
        f"{statistics.tokens_per_s:.0f}",
        *_seconds(statistics.ttft, "p50_ns", "p90_ns", "p99_ns", "mean_ns"),
        *_seconds(statistics.duration, "p50_ns", "p90_ns"),
        _NOTHING if statistics.tpot is None else f"{statistics.tpot.p50_ns / _MILLISECOND_NS:.1f}",
        _percent(statistics.prefix_hit_rate),
        _percent(statistics.local_share),
        _percent(statistics.forwarded_share),
        str(statistics.failed),
        str(statistics.unfinished),
    ]


def _label_block() -> Table:
    block = Table(title=" ", box=SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    block.add_column("", no_wrap=True)
    for label in _LABELS:
        block.add_row(label)
    return block


def _block(title: str, runs: Sequence[tuple[str, Statistics]]) -> Table:
    block = Table(title=title, title_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1), pad_edge=False)
    title_share = math.ceil((len(title) - 2 * (len(runs) - 1)) / len(runs))
    for name, _ in runs:
        block.add_column(name, justify="right", no_wrap=True, min_width=title_share)
    for row in zip(*(_cells(statistics) for _, statistics in runs), strict=True):
        block.add_row(*row)
    return block


def _seconds(values: Percentiles | None, *names: str) -> list[str]:
    if values is None:
        return [_NOTHING] * len(names)
    return [f"{getattr(values, name) / _SECOND_NS:.2f}" for name in names]


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.0%}"


def failures_of(report: RunReport) -> Text | None:
    """What went wrong and how often; None when nothing did."""
    if not report.failures:
        return None
    lines = [f"{report.name}: {count} × {detail}" for detail, count in report.failures.items()]
    return Text("\n".join(lines), style="red")
