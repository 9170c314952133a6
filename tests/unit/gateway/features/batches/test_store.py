from __future__ import annotations

from pathlib import Path

import pytest

from gateway.features.batches.database import Database
from gateway.features.batches.sqlite import SqliteDatabase
from tests.support.batch_conformance import BatchStoreConformance


class TestConformance(BatchStoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "batches.sqlite"

    def database(self) -> SqliteDatabase:
        return SqliteDatabase(self.path, lambda: 0)

    def second(self, first: Database) -> Database:
        return first  # the file is locked by the process that has it open


def test_a_database_of_another_process_is_refused(tmp_path: Path) -> None:
    first, second = (SqliteDatabase(tmp_path / "batches.sqlite", lambda: 0) for _ in range(2))
    first.open(())
    with pytest.raises(OSError, match="locked"):
        second.open(())
    first.close()
    second.open(())
    second.close()


def test_a_database_of_another_format_is_refused(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "batches.sqlite", lambda: 0)
    database.open(("PRAGMA user_version = 1",))
    assert database._db is not None
    database._db.execute("PRAGMA user_version = 1")
    database.close()
    with pytest.raises(OSError, match="is not batches of format 2"):
        database.open(())
