"""Files and batches of one gateway: files in a folder, and what is known of them in a SQLite database beside it.

Every call blocks: the callers use threads. The database is locked by the process that has it open. Nothing here decides
what becomes of a batch.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from gateway.features.batches.lines import LineResult, digest_of, whole_results
from gateway.features.batches.state import ClientBatch, StoredFile
from mesh.private_files import make_private_folder, named, private_opener

APPLICATION_ID = 0x4E534241
"""Application id `NSBA` that marks the database as batches of Nightside."""
FORMAT = 1
_BUSY_S = 1.0
_SCHEMA = (
    "CREATE TABLE files (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER NOT NULL,"
    " size INTEGER NOT NULL, document BLOB NOT NULL)",
    "CREATE TABLE batches (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, created INTEGER NOT NULL, document BLOB NOT"
    " NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_PUT_FILE = "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)"
_PUT_BATCH = "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?)"
_file_in = msgspec.json.Decoder(StoredFile).decode
_batch_in = msgspec.json.Decoder(ClientBatch).decode


class BatchStore:
    """Store in one folder. Errors of the disk and of the database are OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._db: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the store, and delete files that no row and no running batch names: remains of a crash."""
        make_private_folder(self._folder / "files")
        path = self._folder / "batches.sqlite"
        os.close(private_opener(str(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC))
        try:
            self._db = _connected(path)
        except (sqlite3.Error, ValueError) as error:
            raise OSError(f"{path}: {error}") from error
        wanted = {each.id for each in self.files()}
        for batch in self.batches():
            if not batch.has_ended:
                wanted.update(batch.result_ids)
        for file in (self._folder / "files").iterdir():
            if file.name not in wanted:
                file.unlink()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    # Rows

    def files(self) -> list[StoredFile]:
        return [_file_in(document) for (document,) in self._rows("SELECT document FROM files ORDER BY created, id")]

    def batches(self) -> list[ClientBatch]:
        return [_batch_in(document) for (document,) in self._rows("SELECT document FROM batches ORDER BY created, id")]

    def put_batch(self, batch: ClientBatch, files: Iterable[StoredFile] = ()) -> None:
        """Store a batch, together with files that it has brought."""
        document = msgspec.json.encode(batch)
        self._write(
            [(_PUT_BATCH, (batch.id, batch.tenant, batch.created_s, document)), *(_put_file(each) for each in files)]
        )

    def delete_batch(self, batch_id: str) -> None:
        self._write([("DELETE FROM batches WHERE id = ?", (batch_id,))])

    def delete_file(self, file_id: str) -> None:
        """Delete a file, and then its row: room is freed even where the database cannot grow."""
        self.path(file_id).unlink(missing_ok=True)
        self._write([("DELETE FROM files WHERE id = ?", (file_id,))])

    # Files

    def path(self, file_id: str) -> Path:
        return self._folder / "files" / file_id

    def begin_upload(self, file_id: str) -> BinaryIO:
        path = self._part(file_id)
        return open(path, "xb", opener=private_opener)

    def finish_upload(self, upload: BinaryIO, file: StoredFile) -> None:
        """Keep an upload: once this returns, it outlives a crash. A failure leaves no file under the final name."""
        with named(self._part(file.id)):
            upload.flush()
            os.fsync(upload.fileno())
            upload.close()
        self._part(file.id).rename(self.path(file.id))
        try:
            _sync_folder(self.path(file.id).parent)
            self._write([_put_file(file)])
        except BaseException:
            self.path(file.id).unlink(missing_ok=True)
            raise

    def drop_upload(self, upload: BinaryIO | None, file_id: str) -> None:
        """Delete an upload that is not kept; None: its file was created, and never handed over."""
        try:
            if upload is not None:
                upload.close()
        finally:
            self._part(file_id).unlink(missing_ok=True)

    def drop_result(self, file_id: str) -> None:
        """Delete a result file that has no row."""
        self.path(file_id).unlink(missing_ok=True)

    def size(self, file_id: str) -> int:
        try:
            return self.path(file_id).stat().st_size
        except FileNotFoundError:
            return 0

    def _part(self, file_id: str) -> Path:
        return self._folder / "files" / f"{file_id}.part"

    # Database

    def _rows(self, query: str) -> list[tuple[bytes]]:
        try:
            return self._open_db.execute(query).fetchall()
        except sqlite3.Error as error:
            raise OSError(f"{self._folder}: {error}") from error

    def _write(self, statements: Iterable[tuple[str, tuple[object, ...]]]) -> None:
        try:
            with self._open_db as db:
                db.execute("BEGIN IMMEDIATE")
                for statement, values in statements:
                    db.execute(statement, values)
        except sqlite3.Error as error:
            raise OSError(f"{self._folder}: {error}") from error

    @property
    def _open_db(self) -> sqlite3.Connection:
        if self._db is None:
            raise OSError(f"{self._folder}: is not open here")
        return self._db


class ResultFile:
    """File of results, which grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes of the results that are on the disk."""

    def reconcile(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the digest of each `custom_id` with a result, and whether its line has run; cut off what a crash has
        left behind the last."""
        self.size = 0
        with open(self.path, "ab+", opener=private_opener) as file:
            file.seek(0)
            for found in whole_results(file):
                self.size += found.length
                yield digest_of(found.custom_id), found.has_run
            file.truncate(self.size)

    def append(self, results: Iterable[LineResult]) -> None:
        """Write results; they are on the disk when this returns. Raises OSError, and has written none then."""
        data = b"".join([each.encoded() for each in results])
        with named(self.path), open(self.path, "r+b") as file:  # noqa: PTH123 - as above
            file.seek(self.size)
            file.truncate()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.size += len(data)


def _put_file(file: StoredFile) -> tuple[str, tuple[object, ...]]:
    row = (file.id, file.tenant, file.created_s, file.expires_s, file.size, msgspec.json.encode(file))
    return _PUT_FILE, row


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # takes the lock
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if (application, version) == (0, 0):
                for statement in _SCHEMA:
                    connection.execute(statement)
            elif (application, version) != (APPLICATION_ID, FORMAT):
                raise ValueError(f"is not batches of format {FORMAT}")
    except BaseException:
        connection.close()
        raise
    return connection
