"""Parses Azure's inference traces: CSV with the time, the input tokens and the output tokens of each request.

The traces have no information on prefixes: every input is its own text. Pure: lines in, rows out.
"""

from __future__ import annotations

import csv
import re
from calendar import monthrange, timegm
from collections.abc import Iterable
from dataclasses import replace

from loadgen.passages import BlockText
from loadgen.traces.rows import RowFault, Trace, TraceFormat, TraceRow, parsed

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
_OWN_BLOCK_TOKENS = 16
_TIME = re.compile(r"([12]\d{3})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(\.\d+)?(?:Z|\+00:00)?")


def parse_azure(lines: Iterable[str]) -> Trace:
    read, unreadable = parsed(lines, _row)
    rows = sorted(read, key=lambda row: row.at_s)
    start_s = rows[0].at_s if rows else 0.0
    rows = [
        replace(row, at_s=row.at_s - start_s, session=f"{number}", passage=replace(row.passage, own=f"{number}"))
        for number, row in enumerate(rows)
    ]
    return Trace(TraceFormat.AZURE, rows, unreadable, notes=("inputs share nothing: the trace does not say",))


def _row(line: str, _number: int) -> TraceRow | None:
    if line.strip().lstrip("\ufeff") == HEADER:
        return None
    cells = next(csv.reader([line]))
    if len(cells) != 3:
        raise RowFault(f"{len(cells)} columns where there should be 3")
    tokens, output_tokens = _count(cells[1], 1), _count(cells[2], 0)
    return TraceRow(_seconds(cells[0]), "", BlockText("", (), _OWN_BLOCK_TOKENS, tokens), output_tokens)


def _seconds(text: str) -> float:
    """Seconds since 1970. Azure writes seven digits of a second."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise RowFault(f"{text!r} is no time")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1] and hour < 24 and minute < 60 and second < 61):
        raise RowFault(f"{text!r} is no time")
    return timegm((year, month, day, hour, minute, second)) + float(match[7] or 0)


def _count(text: str, least: int) -> int:
    try:
        count = int(text)
    except ValueError:
        raise RowFault(f"{text.strip()!r} is no number of tokens") from None
    if count < least:
        raise RowFault(f"{count} tokens are fewer than {least}")
    return count
