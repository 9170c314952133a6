from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.features.batches.database import Database, Row, Statement
from gateway.features.batches.sqlite import SqliteDatabase
from gateway.features.batches.state import ended, validated
from gateway.features.batches.store import BatchStore
from tests.support.batch_conformance import BatchStoreConformance, held, stored_file
from tests.support.batches import client_batch


class TestConformance(BatchStoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "batches.sqlite"

    def database(self) -> SqliteDatabase:
        return SqliteDatabase(self.path, lambda: 0)

    def second(self, first: Database) -> Database:
        return first  # the file is locked by the process that has it open


class _BetweenStatements(SqliteDatabase):
    """Database that another gateway writes to between two statements of one transaction, as PostgreSQL allows it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda: 0)
        self.meanwhile: list[Callable[[], None]] = []

    def run(self, *statements: Statement) -> list[list[Row]]:
        if not self.meanwhile:
            return super().run(*statements)
        (write,), self.meanwhile = self.meanwhile, []
        answers = []
        for number, each in enumerate(statements):
            answers += super().run(each)
            if number == 1:
                write()
        return answers


def test_a_batch_that_ends_during_a_look_is_not_seen_without_its_files(tmp_path: Path) -> None:
    store = BatchStore(database := _BetweenStatements(tmp_path / "batches.sqlite"))
    store.open()
    store.put_file(stored_file("file-in"))
    store.put_new(batch := validated(client_batch(), "m", 1, (), 0))
    holding, done = held(store.take(batch.id, None)).holding, ended(batch, 1, 0, 9)
    database.meanwhile.append(lambda: store.put_batch(done, 1, holding, [stored_file("file-out")]))
    seen = store.changes(0)
    assert not seen.batches[0].batch.has_ended
    later = store.changes(seen.revision)
    assert ([each.batch for each in later.batches], [each.id for each in later.files]) == ([done], ["file-out"])
    store.close()


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
