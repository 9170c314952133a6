"""Batches' database in a SQLite file, which is locked by the process that has it open."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.features.batches.database import Row, Statement
from mesh.private_files import make_private_folder, private_opener

APPLICATION_ID = 0x4E534241
"""Application id `NSBA` that marks the database as batches of Nightside."""
FORMAT = 2
_BUSY_S = 1.0


class SqliteDatabase:
    """Database in one file. Calls come from one thread at a time."""

    is_shared = False

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        self.name = str(path)
        self._path = path
        self._now_ms = now_ms
        self._db: sqlite3.Connection | None = None

    def open(self, schema: Sequence[str], added: Sequence[str] = ()) -> None:
        make_private_folder(self._path.parent)
        os.close(private_opener(self.name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC))
        try:
            self._db = _connected(self._path, self._now_ms, schema, added)
        except (sqlite3.Error, ValueError) as error:
            raise OSError(f"{self.name}: {error}") from error

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def run(self, *statements: Statement) -> list[list[Row]]:
        if self._db is None:
            raise OSError(f"{self.name}: is not open here")
        try:
            with self._db as db:
                db.execute("BEGIN IMMEDIATE")
                return [_rows(db, each) for each in statements]
        except sqlite3.Error as error:
            raise OSError(f"{self.name}: {error}") from error


def _in_sqlite(text: str) -> str:
    return text.replace("{now}", "now_ms()").replace("{blob}", "BLOB")


def _rows(db: sqlite3.Connection, each: Statement) -> list[Row]:
    values = {str(number): value for number, value in enumerate(each.values, 1)}
    rows: list[Row] = db.execute(_in_sqlite(each.text), values).fetchall()
    if each.refusal is not None and not rows:
        raise each.refusal
    return rows


def _connected(
    path: Path, now_ms: Callable[[], int], schema: Sequence[str], added: Sequence[str]
) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.create_function("now_ms", 0, now_ms)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # takes the lock
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if (application, version) == (0, 0):
                for statement in schema:
                    connection.execute(_in_sqlite(statement))
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            elif (application, version) != (APPLICATION_ID, FORMAT):
                raise ValueError(f"is not batches of format {FORMAT}")
            for statement in added:
                connection.execute(_in_sqlite(statement))
    except BaseException:
        connection.close()
        raise
    return connection
