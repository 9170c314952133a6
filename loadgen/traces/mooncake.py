"""Parses Mooncake traces: one JSON object a line, with a time in milliseconds and ids of blocks of 512 tokens.

Equal ids stand for equal blocks after equal blocks, so shared prefixes are kept. Pure: lines in, rows out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Annotated

import msgspec

from loadgen.passages import BlockText, runs_of
from loadgen.traces.fields import BlockNumber, InputTokens, OutputTokens
from loadgen.traces.rows import Trace, TraceFormat, TraceRow, check_blocks, parsed

BLOCK_TOKENS = 512
_STAMP_S = 3.0
_STAMP_SLACK_S = 0.05
_STAMPED_SHARE = 0.9


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    """Arrival time in milliseconds."""
    input_length: InputTokens
    output_length: OutputTokens
    hash_ids: list[BlockNumber]


def parse_mooncake(lines: Iterable[str]) -> Trace:
    """Parse the lines. Requests that share their second block form a session, since all requests share the first."""
    decoder = msgspec.json.Decoder(_Line)
    rows, unreadable = parsed(lines, lambda line, _: _row(decoder.decode(line)))
    rows = [
        replace(row, session=row.session or f"alone-{number}", passage=replace(row.passage, own=f"{number}"))
        for number, row in enumerate(rows)
    ]
    rows.sort(key=lambda row: row.at_s)
    notes = ["sessions are inferred from shared prefixes"]
    if _are_stamped(rows):
        rows = _spread(rows)
        notes.append(f"times were rounded to {_STAMP_S:g} s: spread evenly inside them")
    return Trace(TraceFormat.MOONCAKE, rows, unreadable, notes=tuple(notes))


def _row(line: _Line) -> TraceRow:
    runs = runs_of(line.hash_ids)
    check_blocks(runs, BLOCK_TOKENS, line.input_length)
    passage = BlockText("", runs, BLOCK_TOKENS, line.input_length)
    session = str(line.hash_ids[1]) if len(line.hash_ids) > 1 else ""
    return TraceRow(line.timestamp / 1000, session, passage, line.output_length)


def _are_stamped(rows: list[TraceRow]) -> bool:
    """True if nearly all times are whole multiples of the stamp."""
    near = sum(abs(row.at_s - _stamp(row) * _STAMP_S) <= _STAMP_SLACK_S for row in rows)
    return near > _STAMPED_SHARE * len(rows)


def _stamp(row: TraceRow) -> int:
    return round(row.at_s / _STAMP_S)


def _spread(rows: list[TraceRow]) -> list[TraceRow]:
    spread = []
    for stamp, together in groupby(rows, key=_stamp):
        same = list(together)
        spread += [replace(row, at_s=(stamp + number / len(same)) * _STAMP_S) for number, row in enumerate(same)]
    return spread
