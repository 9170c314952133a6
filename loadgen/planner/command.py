"""`nightside plan`: computes the cost of a model's fleet as one pool and as two, without changing any.

It finds files, plans and shows; every figure is computed elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gateway.core.features.prices.price_list import PriceList
from gateway.features.prices.file import read_prices
from loadgen.figures import Figures
from loadgen.pages.plan import SEATS, facts, fleet_table, plan_page, price_table, region_table
from loadgen.pages.tables import Table as Shown
from loadgen.planner.cited import CITED
from loadgen.planner.fleet import SeatCounting, thresholds_below
from loadgen.planner.planning import NothingFits, PlanInputs, plan
from loadgen.planner.profile_file import read_profiles
from loadgen.planner.profiles import GpuPrice, Profile
from loadgen.planner.regions import RegionLoad, region_load, together_per_s
from loadgen.planner.sources import Source, SourceError, from_curves, from_gateways, from_trace
from loadgen.planner.verified import Slo, Trial
from loadgen.shipped import TRACE
from loadgen.traces.files import Draw, TraceError, opened
from loadgen.traces.rates import Points, parse_rates
from loadgen.traces.rows import RowFault
from loadgen.wide_console import wide_console
from mesh.faults import ConfigError
from mesh.values import parse_duration_ns

_SECOND_NS, _MS_NS = 1e9, 1e6
_THRESHOLDS_MAX = 32
_REGIONS_MAX = 100


def _duration(unit_ns: float) -> Callable[..., float]:
    def read(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
        try:
            return parse_duration_ns(value) / unit_ns
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return read


def _region(text: str) -> tuple[str, float, float]:
    """Parse `us-east-1=400` or `us-east-1=400@-5`: peak requests per second, and the hours that the region's clock is
    ahead."""
    name, _, rest = text.partition("=")
    peak, _, ahead = rest.partition("@")
    try:
        found = name, float(peak), float(ahead or 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not NAME=REQUESTS_PER_S[@HOURS]") from None
    if not name or not 0 < found[1] < 1e9 or not -24 <= found[2] <= 24:
        raise click.BadParameter(f"{text!r} is not NAME=REQUESTS_PER_S[@HOURS]")
    return found


_PATH = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("plan", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("trace", required=False, type=TRACE)
@click.option("--metrics", "pages", multiple=True, metavar="URL|FILE",
              help="Read lengths from a gateway's /metrics instead of a trace; repeatable.")  # fmt: skip
@click.option("--model", help="Select this model of --metrics.")
@click.option(
    "--prompts",
    type=_PATH,
    help="Read prompt lengths from this CSV of tokens and cumulative share, instead of a trace.",
)
@click.option("--answers", type=_PATH, help="Read answer lengths from such a CSV.")
@click.option("--rates", type=_PATH, help="Read ServeGen's rates from this file.")
@click.option(
    "--rate-scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Scale ServeGen's number of requests."
)
@click.option("--profile", "name", default="llama-3-70b-a100-tp2", show_default=True,
              help=f"Set the profile of engine and GPU. Cited ones: {', '.join(CITED)}.")  # fmt: skip
@click.option("--profiles", "file", type=_PATH, help="Read further profiles from this file.")
@click.option("--price", type=click.FloatRange(0, min_open=True), help="Set the price of a GPU hour, in US dollars.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Set the requests per second, instead of the recorded rate."
)
@click.option(
    "--ttft",
    default="2s",
    show_default=True,
    callback=_duration(_SECOND_NS),
    help="Set the objective of the TTFT at p99, as 2s.",
)
@click.option(
    "--tpot",
    default="80ms",
    show_default=True,
    callback=_duration(_MS_NS),
    help="Set the objective of the time per output token at p99, as 80ms.",
)
@click.option("--threshold", "thresholds", multiple=True, type=click.IntRange(16, 2**24),
              help="Try this threshold, in tokens, instead of powers of two; repeatable.")  # fmt: skip
@click.option("--seats", type=click.Choice([str(each) for each in SeatCounting]), multiple=True,
              help="Count slots this way only; repeatable.")  # fmt: skip
@click.option("--formula", is_flag=True, help="Use formulas only, without simulation.")
@click.option("--requests", type=click.IntRange(100, 1_000_000), default=1_500, show_default=True,
              help="Simulate at least this many requests of each pool.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Set the seed of the simulated requests.")
@click.option("--region", "regions", multiple=True, metavar="NAME=RATE[@HOURS]",
              help="Add a region with its peak rate and UTC offset; repeatable.")  # fmt: skip
@click.option("--day", type=_PATH, help="Read the rates of a day from this CSV, by each region's local time.")
@click.option("--prices", type=_PATH, help="Price each region's fleet over a day by this prices file; needs --region.")
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with a plot to this file."
)
@click.option("--jobs", type=click.IntRange(1), help="Run this many processes, instead of one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON; progress goes to stderr.")
def plan_command(
    *, trace: Path | None, name: str, file: Path | None, price: float | None, rate: float | None, out: Path | None,
    jobs: int | None, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Size a fleet for TRACE, as one pool and as a short and a long pool at every threshold. `sample` is a small trace
    that comes with this program.

    Formulas come first; then a slice of each pool is played with the engine model, and instances are counted from what
    it carries within the objectives, with no request preempted.

    Exit codes: 0 it was planned, 1 a file cannot be used or nothing fits, 2 the command was used wrongly.
    """
    profile = _profile(name, file, price)
    source = _source(trace, given)
    ask = _ask(profile, source, rate, given)
    try:
        document = _planned(profile, source, ask, jobs or os.cpu_count() or 1)
    except NothingFits as error:
        raise click.ClickException(str(error)) from error
    if out is not None:
        try:
            out.write_text(plan_page(document), encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{out} cannot be written: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        _show(document)
        if out is not None:
            click.echo(f"{out}")


def _profile(name: str, file: Path | None, price: float | None) -> Profile:
    try:
        known = CITED | (read_profiles(file) if file is not None else {})
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    if name not in known:
        raise click.UsageError(f"no such profile: {name}; there are: {', '.join(known)}")
    profile = known[name]
    if price is None:
        return profile
    return replace(profile, gpu=replace(profile.gpu, price=GpuPrice(price, "--price", "as given")))


def _source(trace: Path | None, given: dict[str, Any]) -> Source:
    pages, prompts, answers = given["pages"], given["prompts"], given["answers"]
    if (prompts is None) != (answers is None):
        raise click.UsageError("--prompts and --answers go together")
    if sum((trace is not None, bool(pages), prompts is not None)) != 1:
        raise click.UsageError("name one of: a trace (`sample` comes along), --metrics, --prompts and --answers")
    try:
        if pages:
            return from_gateways(pages, given["model"])
        if trace is None:
            return from_curves(prompts, answers)
        return from_trace(trace, Draw(given["rates"], given["seed"], rate_scale=given["rate_scale"]))
    except SourceError as error:
        raise click.ClickException(str(error)) from error


def _ask(profile: Profile, source: Source, rate: float | None, given: dict[str, Any]) -> PlanInputs:
    regions = _regions(given["regions"], given["day"])
    rate = rate or together_per_s(regions) or source.rate_per_s
    if not rate:
        raise click.UsageError("--rate: the source does not say how many requests come a second")
    thresholds = tuple(sorted(set(given["thresholds"]))) or tuple(thresholds_below(profile.context_tokens_max))
    if len(thresholds) > _THRESHOLDS_MAX:
        raise click.UsageError(f"--threshold: at most {_THRESHOLDS_MAX}")
    if beyond := [each for each in thresholds if each >= profile.context_tokens_max]:
        raise click.UsageError(f"--threshold {beyond[0]}: should be below the window of {profile.context_tokens_max:,}")
    requests = given["requests"]
    trial = None if given["formula"] else Trial(given["seed"], requests_min=requests, requests_max=max(6_000, requests))
    seats = tuple(SeatCounting(each) for each in given["seats"]) or tuple(SeatCounting)
    return PlanInputs(
        rate, thresholds, seats, Slo(given["ttft"], given["tpot"]), trial, regions, _prices(given["prices"], regions)
    )


def _prices(file: Path | None, regions: tuple[RegionLoad, ...]) -> PriceList | None:
    if file is None:
        return None
    if not regions:
        raise click.UsageError("--prices: say with --region where")
    try:
        return read_prices(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _regions(texts: tuple[str, ...], day: Path | None) -> tuple[RegionLoad, ...]:
    if len(texts) > _REGIONS_MAX:
        raise click.UsageError(f"--region: at most {_REGIONS_MAX}")
    if day is not None and not texts:
        raise click.UsageError("--day: say with --region whose")
    curve = _curve(day) if day is not None else None
    return tuple(region_load(name, peak, ahead, curve) for name, peak, ahead in map(_region, texts))


def _curve(day: Path) -> Points:
    try:
        with opened(day) as lines:
            return parse_rates(lines)
    except (TraceError, RowFault) as error:
        raise click.ClickException(f"{day.name}: {error}") from error


def _planned(profile: Profile, source: Source, ask: PlanInputs, processes: int) -> Figures:
    columns = (TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("pools", total=None)
        return plan(
            profile,
            source,
            ask,
            processes=processes,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )


def _show(document: Figures) -> None:
    console = wide_console()
    for fact in facts(document):
        console.print(fact, markup=False, highlight=False)
    for fleet in document["fleets"]:
        console.print()
        console.print(f"{fleet['seats']}: {SEATS[fleet['seats']]}", style="bold", highlight=False)
        console.print(_rich(fleet_table(fleet)))
        regions = region_table(fleet)
        if regions is not None:
            console.print(_rich(regions))
        priced = price_table(fleet)
        if priced is not None:
            console.print(_rich(priced))
        console.print(f"{fleet['advice']}.", highlight=False)


def _rich(shown: Shown) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, head in enumerate(shown.heads):
        table.add_column(head, justify="right" if number else "left")
    for part in shown.parts:
        for row in part.rows:
            table.add_row(row.name, *(cell.text for cell in row.cells))
    return table
