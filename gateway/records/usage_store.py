"""Usage of clients in one SQLite file that outlives the process: one row per key, tenant and day.

All access happens in one thread of its own, so a disk that hangs delays no request. Without a file the rows are in
memory and end with the process.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar

from gateway.core.vocabulary import GatewayId, TenantName
from gateway.records.peer_usage import BudgetName, BudgetUse, Told
from gateway.records.usage_book import UsageAmounts, UsageKey
from gateway.request.callers import KeyId
from mesh.private_files import make_private_folder

_DAYS_FORGOTTEN_MAX = 7
ROWS_ASKED_MAX = 10_000
"""Maximum of rows in the answer to one query."""
APPLICATION_ID = 0x4E535553
"""Application id `NSUS` that marks the file as a usage store of Nightside."""
FORMAT = 1
_MODE = 0o640
_BUSY_S = 5.0
_SCHEMA = (
    "CREATE TABLE used (day TEXT NOT NULL, key TEXT NOT NULL, tenant TEXT NOT NULL, requests INTEGER NOT NULL,"
    " prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,"
    " PRIMARY KEY (day, key, tenant)) WITHOUT ROWID",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_TOLD_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS told (gateway TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, day TEXT NOT NULL,"
    " tokens_in_day INTEGER NOT NULL, tokens_in_month INTEGER NOT NULL, PRIMARY KEY (gateway, kind, name))"
    " WITHOUT ROWID"
)
"""Table of other gateways' last reports on budgets. A version of Nightside that does not know the table ignores it."""
_PUT_TOLD = "INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?, ?, ?)"
_ADD = (
    "INSERT INTO used VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, key, tenant) DO UPDATE SET"
    " requests = requests + excluded.requests, prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
    " cached_tokens = cached_tokens + excluded.cached_tokens, output_tokens = output_tokens + excluded.output_tokens"
)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_GROUPS = {"": "key, tenant", "key": "key, ''", "tenant": "'', tenant"}
_Result = TypeVar("_Result")


class UsageUnusable(Exception):
    """Reason why a file cannot be used, in words."""

    def __init__(self, problem: str, *, hides_usage: bool) -> None:
        super().__init__(problem)
        self.hides_usage = hides_usage
        """True if the file exists, so that earlier usage is in it but unknown."""


class UsageStore:
    """Store whose file is opened and used in one thread of its own."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage")
        self._connection: sqlite3.Connection | None = None
        self.is_apart = False
        """True if the rows are in memory although a file is configured."""

    def open(self) -> None:
        """Open the file before any request is served. Raises UsageUnusable; a damaged file is put aside, and the error
        says so."""
        self._thread.submit(self._open).result()

    async def open_again(self, since: str) -> tuple[dict[UsageKey, UsageAmounts], Told] | None:
        """Open a file that could not be used so far. Returns its rows from that day on and the other gateways' last
        reports; None if it still cannot be used, or is in use already. The next `add` writes what was counted
        meanwhile."""
        return await self._run(lambda: self._open_again(since)) if self.is_apart else None

    def close(self) -> None:
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    async def release(self) -> None:
        """Close the file for another process, until it is opened again."""
        await self._run(self._close)

    def since(self, day: str) -> dict[UsageKey, UsageAmounts]:
        """Rows from that day on. It blocks, so it is called before any request is served."""
        return self._thread.submit(self._since, day).result()

    def told(self) -> dict[tuple[GatewayId, BudgetName], BudgetUse]:
        """Last reports of other gateways. It blocks, so it is called before any request is served."""
        return self._thread.submit(self._told).result()

    def keep_told_at_once(self, told: Told) -> None:
        """Store reports at the end of the process; blocks. Raises OSError."""
        self._thread.submit(self._keep_told, told).result()

    async def keep_told(self, told: Told) -> None:
        """Store reports; they are on the disk when this returns. Raises OSError."""
        await self._run(lambda: self._keep_told(told))

    def add_at_once(self, rows: Mapping[UsageKey, UsageAmounts]) -> None:
        """Add rows at the end of the process; blocks. Raises OSError."""
        self._thread.submit(self._add, rows).result()

    async def add(self, rows: Mapping[UsageKey, UsageAmounts]) -> None:
        """Add rows; they are on the disk when this returns. Raises OSError."""
        await self._run(lambda: self._add(rows))

    async def asked(self, first: str, last: str, by: str = "") -> tuple[list[tuple[UsageKey, UsageAmounts]], bool]:
        """Rows of these days in order, and whether there are more than one answer holds. `by`: `key` or `tenant`, to
        add up all rows of one key or tenant per day."""
        return await self._run(lambda: self._asked(first, last, by))

    async def forget_before(self, day: str) -> None:
        """Delete rows before the day, at most a week of the oldest per call, so that a clock set years ahead for a
        while does not delete all. Raises OSError."""
        await self._run(lambda: self._forget_before(day))

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Work of the thread

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._connection is not None, "it is open"
        return self._connection

    def _open(self) -> None:
        """Open the file; where it cannot be used at all, keep the rows in memory. Raises UsageUnusable."""
        problem = self._open_file()
        if self._connection is None:
            hides_usage = _may_hold_rows(self._path)
            self._connection, self.is_apart = _connect(None), True
            raise UsageUnusable(f"{problem}; nothing is written down until it can be used", hides_usage=hides_usage)
        if problem:
            raise UsageUnusable(problem, hides_usage=False)

    def _open_again(self, since: str) -> tuple[dict[UsageKey, UsageAmounts], Told] | None:
        in_memory, self._connection = self._db, None
        self._open_file()
        if self._connection is None:
            self._connection = in_memory
            return None
        in_memory.close()
        self.is_apart = False
        return self._since(since), self._told()

    def _open_file(self) -> str:
        """Open the file, or a new one in place of a damaged one. Returns the reason why earlier rows are not used;
        empty if they are."""
        try:
            self._connection = _connect(self._path)
        except sqlite3.Error as error:
            if self._path is None or error.sqlite_errorcode not in _DAMAGED:
                return f"{self._path}: {error}"
        except (OSError, ValueError) as error:
            return f"{self._path}: {error}"
        else:
            return ""
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            self._path.replace(aside)
            self._connection = _connect(self._path)
        except (OSError, sqlite3.Error) as error:
            return f"{self._path}: it is damaged, and cannot be put aside: {error}"
        return f"{self._path}: it is damaged, and lies at {aside.name} now; budgets count from nothing"

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _add(self, rows: Mapping[UsageKey, UsageAmounts]) -> None:
        self._require_file()
        values = [
            (*line, used.requests, used.prompt_tokens, used.cached_tokens, used.output_tokens)
            for line, used in rows.items()
        ]
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(_ADD, values)
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def _keep_told(self, told: Told) -> None:
        self._require_file()
        values = [
            (gateway, *name, use.day, use.tokens_in_day, use.tokens_in_month) for (gateway, name), use in told.items()
        ]
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(_PUT_TOLD, values)
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def _require_file(self) -> None:
        """Raise OSError where the file is not in use, so that the caller keeps rows that a restart would lose."""
        if self._connection is None:
            raise OSError(f"{self._path}: is another process's now")
        if self.is_apart:
            raise OSError(f"{self._path}: cannot be used yet")

    def _told(self) -> dict[tuple[GatewayId, BudgetName], BudgetUse]:
        found = self._db.execute("SELECT * FROM told")
        return {
            (GatewayId(gateway), (kind, name)): BudgetUse((kind, name), day, in_day, in_month)
            for gateway, kind, name, day, in_day, in_month in found
        }

    def _since(self, day: str) -> dict[UsageKey, UsageAmounts]:
        found = self._db.execute("SELECT * FROM used WHERE day >= ?", (day,))
        return {_line(row): UsageAmounts(*row[3:]) for row in found}

    def _asked(self, first: str, last: str, by: str) -> tuple[list[tuple[UsageKey, UsageAmounts]], bool]:
        if self._connection is None:
            raise OSError(f"{self._path}: is another process's now")
        group = _GROUPS[by]
        sums = "sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(output_tokens)"
        found = self._db.execute(
            f"SELECT day, {group}, {sums} FROM used WHERE day BETWEEN ? AND ?"  # noqa: S608 - one of three constants
            " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT ?",
            (first, last, ROWS_ASKED_MAX + 1),
        ).fetchall()
        rows = [(_line(row), UsageAmounts(*row[3:])) for row in found[:ROWS_ASKED_MAX]]
        return rows, len(found) > ROWS_ASKED_MAX

    def _forget_before(self, day: str) -> None:
        try:
            (oldest,) = self._db.execute("SELECT min(day) FROM used").fetchone()
            if oldest is not None:
                day = min(day, days_before(oldest, -_DAYS_FORGOTTEN_MAX))
            self._db.execute("DELETE FROM used WHERE day < ?", (day,))
            self._db.execute("DELETE FROM told WHERE day < ?", (day,))
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error


def usage_file(folder: Path | None, gateway_id: GatewayId) -> Path | None:
    return None if folder is None else folder / f"{gateway_id}.usage.sqlite"


def days_before(day: str, count: int) -> str:
    return (date.fromisoformat(day) - timedelta(days=count)).isoformat()


def _line(row: tuple[str, ...]) -> UsageKey:
    return UsageKey(row[0], KeyId(row[1]), TenantName(row[2]))


def _may_hold_rows(path: Path | None) -> bool:
    try:
        return path is not None and path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _connect(path: Path | None) -> sqlite3.Connection:
    """Connect to the file, or to memory without a path. Raises sqlite3.Error, OSError, and ValueError for another
    program's file."""
    if path is None:
        return _prepared(":memory:", "NORMAL")
    make_private_folder(path.parent)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, _MODE))
    try:
        return _prepared(str(path), "NORMAL")
    except sqlite3.Error as error:
        if error.sqlite_errorcode in _DAMAGED:
            raise
    # Fallback for a full disk, which has no room for the index that processes share: alone, SQLite keeps that index in
    # memory, reads the rows and writes as soon as there is room.
    return _prepared(str(path), "EXCLUSIVE")


def _prepared(name: str, locking: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA locking_mode = {locking}")
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Create the schema in an empty file. Raises ValueError for a file of another program or of a later version."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) == (0, 0):
        with connection:  # atomic: a file with half a schema would look like another program's
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
    elif (application, version) != (APPLICATION_ID, FORMAT):
        raise ValueError(f"is not usage of format {FORMAT}")
    connection.execute(_TOLD_SCHEMA)
