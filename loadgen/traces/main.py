"""`nightside trace`: says what a trace holds and how much of it can be read, or writes it in Nightside's own format.

It changes no file that it reads, and judges nothing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadgen.shipped import TRACE
from loadgen.traces.figures import trace_figures
from loadgen.traces.files import Draw, TraceError, read_trace
from loadgen.traces.native import native_lines
from loadgen.traces.rows import Trace, TraceFormat
from mesh.faults import ConfigError
from mesh.values import parse_duration_ns

EXIT_UNREADABLE = 1
_SECOND_NS = 1_000_000_000
_Command = Callable[..., object]


@click.group()
def trace() -> None:
    """Inspect and convert recorded load, before a scenario replays it (`workloads.NAME.trace`)."""


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None or value in ("0", "0s"):
        return None if value is None else 0.0
    try:
        return parse_duration_ns(value) / _SECOND_NS
    except (ValueError, ConfigError) as error:
        raise click.BadParameter(str(error)) from error


def _reads_a_trace(command: _Command) -> _Command:
    """Add the arguments that both commands have."""
    for decorate in (
        click.argument("file", type=TRACE),
        click.option(
            "--format",
            "format_name",
            type=click.Choice([str(each) for each in TraceFormat]),
            help="Set the format, if the file does not tell.",
        ),
        click.option(
            "--rates",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Read ServeGen's rates from this file.",
        ),
        click.option("--from", "from_s", callback=_seconds, default="0s", help="Start at this time of ServeGen's day."),
        click.option("--until", "until_s", callback=_seconds, help="Stop at this time of ServeGen's day."),
        click.option("--rate-scale", type=float, default=1.0, help="Scale ServeGen's number of requests."),
        click.option(
            "--seed",
            type=int,
            default=1,
            show_default=True,
            help="Set the seed by which ServeGen's requests are drawn.",
        ),
    ):
        command = decorate(command)
    return command


@trace.command()
@_reads_a_trace
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON; progress goes to stderr.")
@click.pass_context
def describe(context: click.Context, /, *, as_json: bool, **given: Any) -> None:
    """Describe FILE: requests, sessions and lengths. `sample` is a small trace that comes with this program.

    Exit codes: 0 all lines were read, 1 some cannot be read, 2 the command was used wrongly.
    """
    read = _read(**given)
    figures = trace_figures(read)
    if as_json:
        click.echo(json.dumps(figures, indent=2))
    else:
        _print(figures, given["file"])
    context.exit(EXIT_UNREADABLE if read.unreadable.count else 0)


@trace.command()
@_reads_a_trace
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the trace to this file, compressed if its name ends in .gz.",
)
@click.pass_context
def convert(context: click.Context, /, *, out: Path, **given: Any) -> None:
    """Convert FILE to Nightside's own format.

    Exit codes: 0 all lines were converted, 1 some cannot be read and the others are written, 2 the command was used
    wrongly.
    """
    read = _read(**given)
    _write(out, native_lines(read))
    click.echo(f"{out}: {len(read.rows)} requests; {_unreadable(read)}", err=True)
    context.exit(EXIT_UNREADABLE if read.unreadable.count else 0)


def _read(
    *,
    file: Path,
    format_name: str | None,
    rates: Path | None,
    from_s: float,
    until_s: float | None,
    rate_scale: float,
    seed: int,
) -> Trace:
    if rate_scale <= 0:
        raise click.UsageError("--rate-scale should be positive")
    trace_format = TraceFormat(format_name) if format_name is not None else None
    draw = Draw(rates, seed, from_s, until_s, rate_scale)
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.completed:,} lines"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("lines", total=None)
        try:
            return read_trace(
                file, trace_format, draw=draw, on_progress=lambda lines: progress.update(task, completed=lines)
            )
        except TraceError as error:
            raise click.ClickException(str(error)) from error


def _write(out: Path, lines: Iterable[bytes]) -> None:
    try:
        with gzip.open(out, "wb") if out.suffix == ".gz" else out.open("wb") as file:
            file.writelines(lines)
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror}") from error


def _unreadable(read: Trace) -> str:
    if not read.unreadable.count:
        return "every line could be read"
    return f"{read.unreadable.count} lines could not be read, the first: {'; '.join(read.unreadable.first)}"


_COUNTS = (
    ("requests", "requests"),
    ("sessions", "sessions"),
    ("waiting_for_an_answer", "that wait for an answer"),
    ("unreadable", "unreadable lines"),
)
_SHARES = (
    ("repeated_input_share", "input that repeats"),
    ("repeated_input_share_without_common_beginning", "without what half of them begin with"),
)
_SPREADS = (("input_tokens", "input tokens"), ("output_tokens", "output tokens"), ("think_s", "pauses, s"))


def _print(figures: dict[str, Any], file: Path) -> None:
    console = Console()
    facts = Table(title=f"{file.name} ({figures['format']})", box=SIMPLE_HEAD, show_header=False)
    for key, words in _COUNTS:
        facts.add_row(words, f"{figures[key]:,}")
    facts.add_row("span", f"{figures['span_s']:,.0f} s")
    for key, words in _SHARES:
        facts.add_row(words, f"{figures[key]:.1%}")
    console.print(facts)
    spreads = Table(box=SIMPLE_HEAD)
    names = ("mean", "p10", "p50", "p90", "p99", "max")
    for title in ("", *names):
        spreads.add_column(title, justify="right" if title else "left")
    for key, words in _SPREADS:
        if figures[key] is not None:
            spreads.add_row(words, *(f"{figures[key][name]:,.0f}" for name in names))
    console.print(spreads)
    for line in [*figures["notes"], *(f"unreadable: {reason}" for reason in figures["first_unreadable"])]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
