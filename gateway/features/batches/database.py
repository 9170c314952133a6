"""Statements on a database, SQLite or PostgreSQL alike, which run together or not at all. It knows no table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

Row = Sequence[Any]


class Refused(Exception):
    """A required statement found no row: nothing was changed."""


class LeaseLost(Refused):
    """Another gateway has taken the batch over, or the batch was deleted: nothing of it may be written here."""


class RowOutdated(Refused):
    """The row has changed since it was read."""


class Statement(Struct, frozen=True):
    """One statement with its values for `$1` and so on. `{now}` stands for the time of the database in milliseconds,
    and `{blob}` for the type of bytes."""

    text: str
    values: tuple[object, ...] = ()
    refusal: type[Refused] | None = None
    """Exception where the statement gives no row; None: it need not give any."""


class Database(Protocol):
    """One open database. Every call blocks and raises OSError; none waits longer than its time limit."""

    name: str
    """Name for log lines and error messages."""
    is_shared: bool
    """True if other gateways may have the database open, too."""

    def open(self, schema: Sequence[str], added: Sequence[str] = ()) -> None:
        """Open the database, and make the tables if there are none. `added` makes those that a database of an earlier
        version lacks, and changes nothing where they are."""
        ...

    def close(self) -> None: ...

    def run(self, *statements: Statement) -> list[list[Row]]:
        """Run statements in one transaction: it is on the disk when this returns. Returns the rows of each. Raises the
        refusal of a statement that gives no row; after any other error it is not known whether they ran."""
        ...
