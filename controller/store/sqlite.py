"""A store in one SQLite file, for a controller that runs on one machine: the default.

Writes are on the disk when they are answered (WAL, synchronous FULL). Beside the file lies a lock that the system
releases when the process ends, however it ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Self, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from controller.store.store import (
    Contents,
    StoreError,
    StoreHolding,
    StoreLost,
    StoreTaken,
    StoreUnavailable,
    StoreUnusable,
    check_changes,
)

APPLICATION_ID = 0x4E534354
"""Marks the file as a Nightside store: `NSCT`."""
FORMAT = 1
_BUSY_S = 5.0
"""Time for which another process that reads or backs up the file may keep it busy."""
_MODE = 0o640
_SCHEMA = (
    "CREATE TABLE documents (name TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE store (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, token INTEGER NOT NULL,"
    " holder TEXT NOT NULL)",
    "INSERT INTO store VALUES (1, 0, 0, '')",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_Result = TypeVar("_Result")


class SqliteStore:
    """Store whose file is opened and used in one thread of its own; all calls come from one event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None
        self._lock_fd: int | None = None
        self._newest: StoreHolding | None = None
        """Newest holding, with the token that the file has or nearly had. Its key is not in the file: the lock ends
        with this process."""
        self._is_closed = False
        self._opened_file: tuple[int, int] | None = None
        """Device and inode of the open file: another file may be put in its place, or none."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open the store, and make the file if there is none. Raises StoreError."""
        store = cls(path)
        try:
            await store._run(store._open)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def lease_ns(self) -> None:
        """Length of a holding: None, since the system releases the lock when the process ends, and not before."""

    async def acquire(self, holder: str) -> StoreHolding:
        return await self._run(lambda: self._acquire(holder))

    async def renew(self, holding: StoreHolding) -> None:
        await self._run(lambda: self._check(holding))

    async def release(self, holding: StoreHolding) -> None:
        await self._run(lambda: self._release(holding))

    async def rise(self, holding: StoreHolding, above: int) -> StoreHolding:
        return await self._run(lambda: self._rise(holding, above))

    async def read(self) -> Contents:
        return await self._run(self._read)

    async def write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        check_changes(changes)
        return await self._run(lambda: self._write(holding, changes))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    # The store's thread

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        """Run `work` in the thread. Work that has begun is finished even if its caller is cancelled: no change stays
        half done."""
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: it is closed")
        task = asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)
        return await asyncio.shield(task)

    def _guarded(self, work: Callable[[], _Result]) -> _Result:
        try:
            return work()
        except sqlite3.Error as error:
            raise self._in_words(error) from error
        except OSError as error:
            raise StoreUnavailable(f"{self.path}: {error.strerror or error}") from error

    def _in_words(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = StoreUnusable if code in _DAMAGED else StoreUnavailable
        return kind(f"{self.path}: {error}")

    def _open(self) -> None:
        self.path.parent.mkdir(0o750, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, _MODE))
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        self._connection = connection
        self._opened_file = _file_at(self.path)
        self._check_format(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        problems = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise StoreUnusable(f"{self.path}: damaged: {problems[0]}")

    def _check_format(self, connection: sqlite3.Connection) -> None:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not tables and not application_id:
            self._create(connection)
        elif application_id != APPLICATION_ID:
            raise StoreUnusable(f"{self.path}: a database, but not a store of a controller")
        elif found != FORMAT:
            raise StoreUnusable(f"{self.path}: format {found}, and this controller reads {FORMAT}")

    def _create(self, connection: sqlite3.Connection) -> None:
        """Make all tables or none, also where two processes begin at once."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            for statement in () if tables else _SCHEMA:
                connection.execute(statement)
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def _acquire(self, holder: str) -> StoreHolding:
        """Acquire the store. The lock shows that no other controller runs; the new token has an earlier holder's writes
        refused."""
        if self._lock_fd is None:
            self._lock_fd = self._take_lock()
        try:
            with closing(self._begin()) as cursor:
                cursor.execute("UPDATE store SET token = token + 1, holder = ? RETURNING token", (holder,))
                (token,) = cursor.fetchone()
                cursor.execute("COMMIT")
        except BaseException:
            self._roll_back()
            self._unlock()
            raise
        self._newest = StoreHolding(token, holder, uuid4().hex)
        return self._newest

    def _rise(self, holding: StoreHolding, above: int) -> StoreHolding:
        try:
            with closing(self._begin()) as cursor:
                (found,) = cursor.execute("SELECT token FROM store").fetchone()
                risen = replace(holding, token=found)
                self._check_holding(cursor, risen if risen == self._newest else holding)
                self._newest = replace(holding, token=max(found, above) + 1)
                cursor.execute("UPDATE store SET token = ?", (self._newest.token,))
                cursor.execute("COMMIT")
        finally:
            self._roll_back()
        return self._newest

    def _check(self, holding: StoreHolding) -> None:
        with closing(self._opened().cursor()) as cursor:
            self._check_holding(cursor, holding)

    def _check_holding(self, cursor: sqlite3.Cursor, holding: StoreHolding) -> None:
        if _file_at(self.path) != self._opened_file:
            raise StoreLost(f"{self.path}: it is not the file any more that was opened")
        token, holder = cursor.execute("SELECT token, holder FROM store").fetchone()
        if token != holding.token or self._lock_fd is None:
            raise StoreLost(f"{self.path}: it is now held by {holder or 'no controller'}")

    def _take_lock(self) -> int:
        fd = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, _MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            holder = self._opened().execute("SELECT holder FROM store").fetchone()[0]
            raise StoreTaken(f"{self.path}: another controller has it ({holder or 'it gives no name'})") from error
        return fd

    def _release(self, holding: StoreHolding) -> None:
        try:
            with closing(self._begin()) as cursor:
                cursor.execute("UPDATE store SET holder = '' WHERE token = ?", (holding.token,))
                cursor.execute("COMMIT")
        finally:
            self._roll_back()
            self._unlock()

    def _read(self) -> Contents:
        with closing(self._opened().cursor()) as cursor:
            cursor.execute("BEGIN")
            try:
                (revision,) = cursor.execute("SELECT revision FROM store").fetchone()
                return Contents(revision, dict(cursor.execute("SELECT name, document FROM documents")))
            finally:
                cursor.execute("COMMIT")

    def _write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        put = [(name, document) for name, document in changes.items() if document is not None]
        gone = [(name,) for name, document in changes.items() if document is None]
        try:
            with closing(self._begin()) as cursor:
                self._check_holding(cursor, holding)
                cursor.executemany("DELETE FROM documents WHERE name = ?", gone)
                cursor.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", put)
                (revision,) = cursor.execute("UPDATE store SET revision = revision + 1 RETURNING revision").fetchone()
                cursor.execute("COMMIT")
        finally:
            self._roll_back()
        assert isinstance(revision, int)
        return revision

    def _begin(self) -> sqlite3.Cursor:
        cursor = self._opened().cursor()
        cursor.execute("BEGIN IMMEDIATE")
        return cursor

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None, "it was opened before anything else"
        return self._connection

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _close(self) -> None:
        self._unlock()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file at `path`; None where there is none. Data written to a file that has lost
    its name is never read again."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
