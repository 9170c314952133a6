"""Parses traces of agentic sessions: one JSON object a line, with ranges of 64-token blocks numbered within a session.

An agent's next request waits for its last answer, and a sub-agent's first request for an answer of its session. Pure:
lines in, rows out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loadgen.passages import BlockText
from loadgen.traces.fields import BlockNumber, InputTokens, OutputTokens, Seconds
from loadgen.traces.rows import Trace, TraceFormat, TraceRow, check_blocks, parsed

BLOCK_TOKENS = 64


class _Line(msgspec.Struct):
    session: str = msgspec.field(name="s")
    index: int = msgspec.field(name="i")
    at_s: Seconds = msgspec.field(name="t")
    input_tokens: InputTokens = msgspec.field(name="in")
    output_tokens: OutputTokens = msgspec.field(name="out")
    blocks: list[tuple[BlockNumber, BlockNumber]] = msgspec.field(name="blk")
    agent: str = msgspec.field(name="a", default="main")
    api_s: Seconds | None = msgspec.field(name="api", default=None)
    think_s: Seconds | None = msgspec.field(name="think", default=None)


def parse_agentic(lines: Iterable[str]) -> Trace:
    """Parse the lines. A think time that a session does not record is the time between two requests."""
    sessions: dict[str, list[_Line]] = {}
    decoder = msgspec.json.Decoder(_Line)
    read, unreadable = parsed(lines, lambda text, _: _checked(decoder.decode(text)))
    for line in read:
        sessions.setdefault(line.session, []).append(line)
    rows = [row for said in sessions.values() for row in _rows(sorted(said, key=lambda line: line.index))]
    untimed = sum(line.api_s is None for said in sessions.values() for line in said)
    notes = [f"{untimed} requests without `api`: their answers are taken to have come at once"] if untimed else []
    if rows and not any(row.at_s for row in rows if row.after is None):
        notes.append("when its sessions began is not recorded")
    return Trace(TraceFormat.AGENTIC, rows, unreadable, notes=tuple(notes))


def _checked(line: _Line) -> _Line:
    check_blocks(line.blocks, BLOCK_TOKENS, line.input_tokens)
    return line


def _rows(said: Sequence[_Line]) -> Iterable[TraceRow]:
    last_of: dict[str, int] = {}
    for number, line in enumerate(said):
        after = last_of.get(line.agent)
        think_s = line.think_s
        if after is None and number:
            after, think_s = _caller(said, number), None
        if after is not None and think_s is None:
            think_s = max(0.0, line.at_s - said[after].at_s - (said[after].api_s or 0.0))
        passage = BlockText(line.session, tuple(line.blocks), BLOCK_TOKENS, line.input_tokens, f"{line.index}")
        last_of[line.agent] = number
        yield TraceRow(
            line.at_s,
            line.session,
            passage,
            line.output_tokens,
            after,
            0.0 if after is None else think_s or 0.0,
            line.api_s or 0.0,
        )


def _caller(said: Sequence[_Line], number: int) -> int:
    """Row whose answer a sub-agent's first request waits for: the last one answered by then."""
    ended = [
        earlier for earlier in range(number) if said[earlier].at_s + (said[earlier].api_s or 0.0) <= said[number].at_s
    ]
    return ended[-1] if ended else 0
