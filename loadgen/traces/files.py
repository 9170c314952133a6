"""Opens trace files, plain or compressed, and detects their format. It decides nothing about their contents."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from loadgen.traces.agentic import parse_agentic
from loadgen.traces.azure import HEADER, parse_azure
from loadgen.traces.mooncake import parse_mooncake
from loadgen.traces.native import parse_native
from loadgen.traces.rows import RowFault, Trace, TraceFormat, Unreadable
from loadgen.traces.servegen import (
    RateWindow,
    ServiceClient,
    drawn,
    parse_datasets,
    parse_hours_of_day,
    parse_windows,
)

_LINE_BYTES_MAX = 2**24
_LINES_TOLD = 1_000
_MEMBER_BYTES_MAX = 2**26
_MEMBERS_MAX = 10_000
_DRAWN_MAX = 2_000_000
_DAY_S = 86_400.0
_CHUNK = re.compile(r"chunk-(\d+)-(dataset\.json|trace\.csv)")
_PARSERS: dict[TraceFormat, Callable[[Iterable[str]], Trace]] = {
    TraceFormat.MOONCAKE: parse_mooncake,
    TraceFormat.AGENTIC: parse_agentic,
    TraceFormat.AZURE: parse_azure,
    TraceFormat.NIGHTSIDE: parse_native,
}
_TELLTALES = {
    "hash_ids": TraceFormat.MOONCAKE,
    "blk": TraceFormat.AGENTIC,
    "input_tokens": TraceFormat.NIGHTSIDE,
}
"""Key that occurs only in lines of the format."""


class TraceError(Exception):
    """The file cannot be read as a trace; the message is text for the user who named it."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Requests to draw from a service description that lists none: the part of its day, and a factor on its rates."""

    rates: Path | None = None
    """CSV of rates by client and hour of the day, for clients whose own files hold none."""
    seed: int = 1
    from_s: float = 0.0
    until_s: float | None = None
    rate_scale: float = 1.0


OnProgress = Callable[[int], object]
"""Callback that is given the number of lines read, at intervals."""


def read_trace(
    path: Path,
    trace_format: TraceFormat | None = None,
    *,
    draw: Draw | None = None,
    on_progress: OnProgress | None = None,
) -> Trace:
    """Read a trace. Raises TraceError where it has no row to replay."""
    trace_format = trace_format or guessed_format(path)
    if trace_format is TraceFormat.SERVEGEN:
        trace = _drawn_from(path, draw or Draw())
    else:
        with opened(path) as lines:
            trace = _PARSERS[trace_format](_watched(lines, on_progress))
    if not trace.rows:
        reasons = "; ".join(trace.unreadable.first) or "it is empty"
        raise TraceError(f"{path.name}: no row can be read as {trace_format}: {reasons}")
    return trace


def guessed_format(path: Path) -> TraceFormat:
    """Format of a trace, from its first line that is not empty. Raises TraceError for an empty file."""
    if path.is_dir() or path.name.endswith((".tar", ".tar.gz", ".tgz")):
        return TraceFormat.SERVEGEN
    with opened(path) as lines:
        for line in lines:
            if line.strip():
                return _format_of(line, path)
    raise TraceError(f"{path.name}: it is empty")


@contextmanager
def opened(path: Path) -> Iterator[Iterable[str]]:
    """Open a file as lines; bytes that are not UTF-8 are replaced. Raises TraceError, also while it is read."""
    try:
        with _text_of(path) as text:
            yield iter(lambda: text.readline(_LINE_BYTES_MAX), "")
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path.name} cannot be read: {reason}") from error


def _text_of(path: Path) -> TextIO:
    with path.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    if is_compressed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _watched(lines: Iterable[str], on_progress: OnProgress | None) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        yield line
        if on_progress is not None and number % _LINES_TOLD == 0:
            on_progress(number)


def _format_of(line: str, path: Path) -> TraceFormat:
    if line.strip().lstrip("\ufeff") == HEADER:
        return TraceFormat.AZURE
    try:
        keys = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        keys = None
    if isinstance(keys, dict):
        for key, trace_format in _TELLTALES.items():
            if key in keys:
                return trace_format
    known = ", ".join(sorted(_PARSERS))
    raise TraceError(
        f"{path.name}: its first line belongs to no known format ({known}); if it is one of them, "
        "`nightside trace convert --format NAME` reads it"
    )


# ServeGen: a folder, or an archive of one


def _drawn_from(path: Path, draw: Draw) -> Trace:
    unreadable = Unreadable()
    clients = _clients_in(path, draw.rates, unreadable)
    until_s = _DAY_S if draw.until_s is None else draw.until_s
    expected = sum(_expected(client, draw.from_s, until_s) for client in clients) * draw.rate_scale
    if expected > _DRAWN_MAX:
        raise TraceError(
            f"{path.name}: that would be {expected:,.0f} requests, more than {_DRAWN_MAX:,}; ask for less of the day, "
            "or for a smaller rate_scale"
        )
    return drawn(
        clients,
        seed=draw.seed,
        from_s=draw.from_s,
        until_s=until_s,
        scale=draw.rate_scale,
        unreadable=unreadable,
    )


def _clients_in(path: Path, rates_path: Path | None, unreadable: Unreadable) -> list[ServiceClient]:
    """Clients with both rates and token counts; the others are counted as unreadable."""
    datasets: dict[str, str] = {}
    rates: dict[str, tuple[RateWindow, ...]] = {}
    for number, kind, text in _chunks(path):
        if kind == "dataset.json":
            datasets[number] = text
        else:
            rates[number] = parse_windows(text.splitlines(), number, unreadable)
    if rates_path is not None:
        with opened(rates_path) as lines:
            try:
                rates = parse_hours_of_day(lines, unreadable) | rates
            except RowFault as fault:
                raise TraceError(f"{rates_path.name}: {fault}") from fault
    tokens = parse_datasets(datasets, unreadable)
    for number in sorted(set(rates) ^ set(tokens)):
        unreadable.add(f"client {number}", "no rates" if number in tokens else "no token counts")
    both = sorted(set(rates) & set(tokens), key=lambda number: (len(number), number))
    return [ServiceClient(number, rates[number], tokens[number]) for number in both if rates[number]]


def _chunks(path: Path) -> Iterator[tuple[str, str, str]]:
    """Client, kind and text of each of ServeGen's files."""
    try:
        for name, data in _members(path):
            match = _CHUNK.fullmatch(name)
            if match is not None:
                yield match[1], match[2], data.decode("utf-8", "replace")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise TraceError(f"{path.name} cannot be read: {error}") from error


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.iterdir())[:_MEMBERS_MAX]:
            if _CHUNK.fullmatch(file.name):
                with file.open("rb") as plain:
                    yield file.name, plain.read(_MEMBER_BYTES_MAX)
        return
    with tarfile.open(path) as archive:
        for member, _ in zip(archive, range(_MEMBERS_MAX), strict=False):
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                yield Path(member.name).name, content.read(_MEMBER_BYTES_MAX)


def _expected(client: ServiceClient, from_s: float, until_s: float) -> float:
    ends = [*(window.from_s for window in client.rates[1:]), until_s]
    return sum(
        window.rate * max(0.0, min(end_s, until_s) - max(window.from_s, from_s))
        for window, end_s in zip(client.rates, ends, strict=True)
    )
