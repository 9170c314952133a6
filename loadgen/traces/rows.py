"""What all traces come down to: rows of what was asked and when, and a count of those that could not be read.

Pure: lines come in, rows go out. No row is dropped without being counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import msgspec

from loadgen.passages import Passage

_Row = TypeVar("_Row")
_REASONS_MAX = 5
_REASON_LENGTH_MAX = 200


class TraceFormat(StrEnum):
    """How a trace is written down."""

    MOONCAKE = "mooncake"
    AGENTIC = "agentic"
    AZURE = "azure"
    SERVEGEN = "servegen"
    NIGHTSIDE = "nightside"


class RowFault(ValueError):
    """Why a row cannot be used."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request as it was recorded."""

    at_s: float
    """From the beginning of the trace, or of its session where a trace does not know more."""
    session: str
    """Whose requests belong together: a user, a conversation or a client."""
    passage: Passage
    """Its whole input."""
    output_tokens: int
    after: int | None = None
    """The row of its session, counted from 0, whose answer it waited for; None came at its own time."""
    think_s: float = 0.0
    """From that answer to this request."""
    api_s: float = 0.0
    """How long its answer took then."""
    region: str = ""
    tenant: str = ""


@dataclass(slots=True)
class Unreadable:
    """How many rows could not be read, and why the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str, why: object) -> None:
        self.count += 1
        if len(self.first) < _REASONS_MAX:
            self.first.append(f"{where}: {why}"[:_REASON_LENGTH_MAX])


@dataclass(frozen=True, slots=True)
class Trace:
    """All that was read."""

    format: TraceFormat
    rows: list[TraceRow]
    unreadable: Unreadable
    notes: tuple[str, ...] = ()
    """What had to be supposed."""


def parsed(lines: Iterable[str], parse: Callable[[str, int], _Row | None]) -> tuple[list[_Row], Unreadable]:
    """Every line that can be read, with its number; None stands for a line that is no row, such as a header."""
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
    """Raises RowFault for ranges of blocks, first and last, that no input of so many tokens can have."""
    blocks = 0
    for first, last in runs:
        if last < first:
            raise RowFault("a range of blocks ends before it begins")
        blocks += last - first + 1
    if (blocks - 1) * block_tokens >= tokens:
        raise RowFault(f"{blocks} blocks of {block_tokens} are more than {tokens} tokens")
