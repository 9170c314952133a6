"""Defines the form that all traces are parsed into: rows with inputs and times, and a count of unreadable rows.

Pure: lines come in, rows go out. No row is dropped without being counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import msgspec

from loadgen.passages import BlockText

_Row = TypeVar("_Row")
_REASONS_MAX = 5
_REASON_LENGTH_MAX = 200


class TraceFormat(StrEnum):
    """File format of a trace."""

    MOONCAKE = "mooncake"
    AGENTIC = "agentic"
    AZURE = "azure"
    SERVEGEN = "servegen"
    NIGHTSIDE = "nightside"


class RowFault(ValueError):
    """Reason why a row cannot be used."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request as it was recorded."""

    at_s: float
    """Seconds from the beginning of the trace, or of its session where a trace does not record more."""
    session: str
    """Session to which requests belong: a user, a conversation or a client."""
    passage: BlockText
    """Whole input of the request."""
    output_tokens: int
    after: int | None = None
    """Row of its session, counted from 0, whose answer the request waited for; None for one that arrived at its own
    time."""
    think_s: float = 0.0
    """Time between that answer and this request."""
    api_s: float = 0.0
    """Recorded duration of the answer."""
    region: str = ""
    tenant: str = ""


@dataclass(slots=True)
class Unreadable:
    """Number of unreadable rows, and the reasons for the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str, why: object) -> None:
        self.count += 1
        if len(self.first) < _REASONS_MAX:
            self.first.append(f"{where}: {why}"[:_REASON_LENGTH_MAX])


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows that were read, and a count of those that were not."""

    format: TraceFormat
    rows: list[TraceRow]
    unreadable: Unreadable
    notes: tuple[str, ...] = ()
    """Assumptions made while reading."""


def parsed(lines: Iterable[str], parse: Callable[[str, int], _Row | None]) -> tuple[list[_Row], Unreadable]:
    """Rows of all readable lines, parsed with their line numbers; None stands for a line that is no row, such as a
    header."""
    rows: list[_Row] = []
    unreadable = Unreadable()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse(line, number)
        except (RowFault, msgspec.MsgspecError) as fault:
            unreadable.add(f"line {number}", fault)
        else:
            if row is not None:
                rows.append(row)
    return rows, unreadable


def check_blocks(runs: Iterable[tuple[int, int]], block_tokens: int, tokens: int) -> None:
    """Check ranges of blocks, first and last. Raises RowFault for ranges that no input of `tokens` tokens can have."""
    blocks = 0
    for first, last in runs:
        if last < first:
            raise RowFault("a range of blocks ends before it begins")
        blocks += last - first + 1
    if (blocks - 1) * block_tokens >= tokens:
        raise RowFault(f"{blocks} blocks of {block_tokens} are more than {tokens} tokens")
