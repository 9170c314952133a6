"""Command `nightside batch plan`: says when a file of requests would be done and what it would cost, and hands nothing
in. The file is read line by line, and stays on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click
import msgspec
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from gateway.core.vocabulary import RegionName
from gateway.door.errors import BODY_TOO_LARGE
from gateway.features.batches.checking import check_file
from gateway.features.batches.cli_options import Asks, as_json_option, asking, endpoint_in, first_line, model_in
from gateway.features.batches.client import BatchClient, BatchFault
from gateway.features.batches.counting import FileCounter, FileCounts, RefusedLine
from gateway.features.batches.lines import LineChecker
from gateway.features.batches.outlook import OUTLOOK_PATH, BatchOutlook
from gateway.features.batches.planning import BatchPlan, FileWork, PlannedRegion, WindowAnswer, plan_of
from gateway.features.batches.state import ENDPOINTS, WINDOW_S, LineFault
from gateway.features.prices.file import read_prices
from gateway.features.prices.work_costs import CostSpan, PricedJob, cost_spans
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.values import parse_duration_ns

_SECOND_NS = 1_000_000_000
_SHOWN_MAX = 10
"""Faults that are shown; JSON has all that the gateway would tell."""
_STEP_BYTES = 64 << 20
"""Bytes between two lines of progress where there is no terminal."""
_PLAIN_WIDTH = 120
_EXITS = {WindowAnswer.KEPT: 0, WindowAnswer.MISSED: 3, WindowAnswer.UNKNOWN: 4}
_FAULTY = 5


class _Document(Struct, kw_only=True):
    """Document of the command, as JSON."""

    now: int
    counts: FileCounts
    faults: list[LineFault]
    refusals: int
    """Lines that the gateway would refuse when they run; the first ones are in `refused_lines`."""
    refused_lines: list[RefusedLine]
    plan: BatchPlan | None = None
    """Plan of the lines that would run; None: the file has faults, or no such line."""
    currency: str | None = None
    price_list: str | None = None
    unshared: list[str] = []
    """Regions for which the list has no `requests_per_replica`: each line counts as having a replica to itself."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@asking
@click.option(
    "--endpoint", type=click.Choice(ENDPOINTS), help="Set the API of all lines, instead of that of the first line."
)
@click.option("--window", default="24h", show_default=True, help="Set the time within which the file should be done.")
@click.option(
    "--prices",
    "prices_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take prices from this file, and show costs.",
)
@as_json_option
def plan(asks: Asks, file: Path, *, endpoint: str | None, window: str, prices_file: Path | None, as_json: bool) -> None:
    """Predict when FILE would be done and what it would cost, if it were handed in now; nothing is handed in.

    The gateway is asked for its limits, backlog, idle room and pace; the file itself is not sent.

    Exit codes: 0 the window would be kept, 1 the gateway refused, or cannot be asked, 2 the command is wrong, 3 the
    window would be missed, 4 it cannot be told, 5 the file has faults, or lines that would be refused.
    """
    window_s = _window_s(window)
    try:
        prices = None if prices_file is None else read_prices(prices_file)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    with file.open("rb") as opened:
        line = first_line(opened)
    endpoint, model = endpoint or endpoint_in(line), model_in(line)
    outlook = asks(lambda client: _outlook(client, model))
    counter = FileCounter(endpoint, model, outlook)
    faults = _read(file, counter, outlook)
    counts = counter.counts
    told = _Document(
        now=Clock.wall_ns() // _SECOND_NS,
        counts=counts,
        faults=faults,
        refusals=counter.refusals,
        refused_lines=counter.refused,
    )
    costs: list[CostSpan] = []
    if counts.lines and not faults:
        work = FileWork(counts.lines, counts.prompt_tokens, counts.output_tokens)
        longest = FileWork(counts.lines, counts.prompt_tokens, counts.output_tokens_max)
        if prices is not None:
            told.currency, told.price_list = prices.currency, prices.digest
            costs = cost_spans(prices, _job(outlook, counts, work), told.now, told.now + window_s)
            told.unshared = [region for region, cost in costs[0].costs.items() if cost.is_unshared]
        told.plan = plan_of(outlook, work, longest, costs, now_s=told.now, window_s=window_s)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(told)))
    else:
        _show(told)
    raise SystemExit(_FAULTY if told.plan is None or told.refusals else _EXITS[told.plan.answer])


def _window_s(text: str) -> int:
    try:
        window_s = parse_duration_ns(text) // _SECOND_NS
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--window") from error
    if not 0 < window_s <= WINDOW_S:
        raise click.BadParameter("it is 1s to 24h, the window of every batch", param_hint="--window")
    return window_s


async def _outlook(client: BatchClient, model: str) -> BatchOutlook:
    told: dict[str, Any] = await client.ask("GET", f"{OUTLOOK_PATH}?{urlencode({'model': model})}")
    try:
        return msgspec.convert(told, BatchOutlook)
    except msgspec.ValidationError as error:
        raise BatchFault(f"the gateway tells its outlook in another form: {error}") from error


def _read(file: Path, counter: FileCounter, outlook: BatchOutlook) -> list[LineFault]:
    """Count the lines of a file. Returns its faults, by the gateway's own checks."""
    endpoint = counter.counts.endpoint
    checker = LineChecker(endpoint, outlook.lines_max, outlook.line_bytes_max, take_request=counter.take)
    size = file.stat().st_size
    faults: list[LineFault] = []
    if size > outlook.file_bytes_max:
        faults.append(LineFault(BODY_TOO_LARGE.code, f"The file is larger than {outlook.file_bytes_max:,} bytes."))
    try:
        with _progress(size) as on_read:
            faults += check_file(file.open("rb"), checker, outlook.line_bytes_max, on_read)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error
    return faults or outlook.faults


def _job(outlook: BatchOutlook, counts: FileCounts, work: FileWork) -> PricedJob:
    return PricedJob(RegionName(outlook.region), counts.prompt_bytes, counts.output_tokens, work.times_ns(outlook))


@contextmanager
def _progress(size: int) -> Iterator[Callable[[int], None]]:
    """Shows on standard error how much of the file is read: as a bar on a terminal, else by a line now and then."""
    console = Console(stderr=True, highlight=False)
    done = shown = 0

    def by_lines(read: int) -> None:
        nonlocal done, shown
        done += read
        if done - shown >= _STEP_BYTES:
            shown = done
            console.print(f"read {done >> 20:,} of {size >> 20:,} MiB", soft_wrap=True)

    if not console.is_terminal:
        yield by_lines
        return
    with Progress(TextColumn("reading"), BarColumn(), DownloadColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("", total=size)
        yield lambda read: bars.advance(bar, read)


# Words


def _show(told: _Document) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=_PLAIN_WIDTH)
    console.print(_counts_table(told.counts))
    for sentence in _about_lines(told):
        console.print(sentence)
    if told.plan is None:
        return
    for sentence in _about_time(told.plan, told.now):
        console.print(sentence)
    console.print(_regions_table(told.plan.regions, told.currency))
    console.print(_about_money(told.plan, told.currency))
    for region in told.unshared:
        console.print(f"{region}: no requests_per_replica in the price list, so each line had a replica to itself")


def _table(texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in texts:
        table.add_column(header, overflow="fold")
    for header in numbers:
        table.add_column(header, justify="right")
    return table


def _counts_table(counts: FileCounts) -> Table:
    table = _table(("API", "Model"), ("Lines", "Prompt tokens", "Output tokens", "At most"))
    tokens = (counts.prompt_tokens, round(counts.output_tokens), counts.output_tokens_max)
    table.add_row(counts.endpoint, counts.model, *(f"{number:,}" for number in (counts.lines, *tokens)))
    return table


def _about_lines(told: _Document) -> Iterator[str]:
    for fault in told.faults[:_SHOWN_MAX]:
        yield f"line {fault.line or '-'}: {fault.message} ({fault.code})"
    if len(told.faults) > _SHOWN_MAX:
        yield f"and {len(told.faults) - _SHOWN_MAX} more faults"
    for each in told.refused_lines[:_SHOWN_MAX]:
        yield f"line {each.line} would be refused when it runs: {each.message}"
    if told.refusals > _SHOWN_MAX:
        yield f"and {told.refusals - _SHOWN_MAX:,} more lines would be refused"
    if unstated := told.counts.unstated:
        yield f"{unstated:,} lines state no maximum of output tokens: their answers may be longer than reckoned"


def _about_time(found: BatchPlan, now_s: int) -> Iterator[str]:
    window = _span(found.window_s)
    end = "at a time that cannot be told" if found.finish_s is None else f"in {_span(found.finish_s)}"
    if found.finish_s is not None:
        end += f" ({time.strftime('%Y-%m-%d %H:%M', time.gmtime(now_s + found.finish_s))} UTC)"
    begin = "" if not found.begins_s else f"would begin in {_span(found.begins_s)} and "
    told = {
        WindowAnswer.KEPT: f"within the window of {window}",
        WindowAnswer.MISSED: f"which misses the window of {window}",
        WindowAnswer.UNKNOWN: f"and whether within {window} is not known",
    }
    yield f"it {begin}would end {end}, {told[found.answer]}"
    if found.latest_finish_s is not None and found.latest_finish_s != found.finish_s:
        yield f"it would end in {_span(found.latest_finish_s)} if every answer were as long as its line allows"
    for each in found.not_known:
        yield f"not known: {each}"


def _regions_table(regions: list[PlannedRegion], currency: str | None) -> Table:
    money = () if currency is None else (f"Cost ({currency})", f"Adds to the bill ({currency})")
    table = _table(("Region",), ("Lines at once", "Alone in", *money))
    for each in regions:
        alone = "unknown" if each.finish_s is None else _span(each.finish_s)
        sums = () if currency is None else (_money(each.money), _money(each.adds))
        table.add_row(each.region, f"{each.lines_at_once:,}", alone, *sums)
    return table


def _about_money(found: BatchPlan, currency: str | None) -> str:
    if currency is None:
        return "costs are told with --prices FILE"
    return f"cheapest region that alone keeps the window: {found.cheapest or 'none is known'}"


def _money(amount: float | None) -> str:
    return "unknown" if amount is None else f"{amount:,.4f}"


def _span(seconds: float) -> str:
    for unit_s, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"
