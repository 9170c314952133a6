"""Reads and writes Nightside's own trace format: one JSON object a line, as `docs/reference/workloads.md` describes it.

The format can express every other trace. Pure: lines in, rows and lines out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from loadgen.passages import BlockText
from loadgen.traces.fields import BlockNumber, InputTokens, OutputTokens, Seconds
from loadgen.traces.rows import RowFault, Trace, TraceFormat, TraceRow, check_blocks, parsed


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    input_tokens: InputTokens
    output_tokens: OutputTokens
    at: Seconds | None = None
    session: str = ""
    id: str = ""
    after: str | None = None
    think: Seconds = 0.0
    api: Seconds = 0.0
    blocks: list[tuple[BlockNumber, BlockNumber]] = []
    block_tokens: InputTokens = 16
    space: str = ""
    region: str = ""
    tenant: str = ""


class _Session:
    """Row number of each id in a session."""

    def __init__(self) -> None:
        self.rows = 0
        self.number_of: dict[str, int] = {}

    def add(self, row_id: str) -> None:
        if row_id:
            self.number_of[row_id] = self.rows
        self.rows += 1


def parse_native(lines: Iterable[str]) -> Trace:
    decoder = msgspec.json.Decoder(_Line)
    sessions: dict[str, _Session] = {}

    def parse(text: str, number: int) -> TraceRow:
        line = decoder.decode(text)
        name = line.session or f"line-{number}"
        session = sessions.setdefault(name, _Session())
        row = _row(line, name, f"{number}", session)
        session.add(line.id)
        return row

    return Trace(TraceFormat.NIGHTSIDE, *parsed(lines, parse))


def native_lines(trace: Trace) -> Iterator[bytes]:
    """Lines of the trace in this format, each with its line end."""
    counted: dict[str, int] = {}
    for row in trace.rows:
        passage = row.passage
        number = counted[row.session] = counted.get(row.session, -1) + 1
        line = _Line(
            input_tokens=passage.tokens,
            output_tokens=row.output_tokens,
            at=None if row.after is not None else round(row.at_s, 6),
            session=row.session,
            id=f"{number}",
            after=None if row.after is None else f"{row.after}",
            think=row.think_s,
            api=row.api_s,
            blocks=list(passage.runs),
            block_tokens=passage.block_tokens,
            space=passage.space,
            region=row.region,
            tenant=row.tenant,
        )
        yield msgspec.json.encode(line) + b"\n"


def _row(line: _Line, session: str, own: str, session_so_far: _Session) -> TraceRow:
    if (line.at is None) == (line.after is None):
        raise RowFault("should hold one of at, after")
    if line.id in session_so_far.number_of:
        raise RowFault(f"another row of its session has the id {line.id!r}")
    if line.after is not None and line.after not in session_so_far.number_of:
        raise RowFault(f"waits for {line.after!r} of its session, which is not there before it")
    check_blocks(line.blocks, line.block_tokens, line.input_tokens)
    passage = BlockText(line.space, tuple(line.blocks), line.block_tokens, line.input_tokens, own)
    return TraceRow(
        line.at or 0.0,
        session,
        passage,
        line.output_tokens,
        None if line.after is None else session_so_far.number_of[line.after],
        line.think,
        line.api,
        line.region,
        line.tenant,
    )
