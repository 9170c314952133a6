"""Interface of the rows that a feature adds to `nightside gateway status`, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mesh.problems import Problem


class StatusView(msgspec.Struct, frozen=True):
    """Part of a gateway's state that belongs to one feature, as far as it is shown. Every hook adds nothing unless a
    feature overrides it."""

    def grave_problems(self) -> Iterator[Problem]:
        """Problems that keep requests from being forwarded."""
        yield from ()

    def problems(self) -> Iterator[Problem]:
        """Problems that an operator should solve, worst first."""
        yield from ()

    def headlines(self) -> Iterator[str]:
        """Lines on what is in force."""
        yield from ()

    def tables(self) -> Iterator[Table]:
        """Tables after those of replicas and peers."""
        yield from ()


def table_of(words: Sequence[str], figures: Sequence[str]) -> Table:
    """Make a table with columns of words, then columns of figures."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in words:
        table.add_column(header, overflow="fold")
    for header in figures:
        table.add_column(header, justify="right", overflow="fold")
    return table


def plain(cell: object) -> Text:
    """Plain text of a cell: an id may look like markup."""
    return Text(str(cell))


def because(detail: str) -> str:
    """Detail as it is added to the text of a problem."""
    return f": {detail}" if detail else ""
