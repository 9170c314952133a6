"""Looks of a book at what other gateways have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.features.batches import files as files_module
from gateway.features.batches.book import BatchBook, RowsOutdated
from gateway.features.batches.database import LeaseLost
from gateway.features.batches.sqlite import SqliteDatabase
from gateway.features.batches.state import cancelling
from gateway.features.batches.store import StoreChanges
from mesh.task_group import TaskGroup
from tests.support.batch_conformance import stored_file
from tests.support.batches import SettableClock, book_in, client_batch, keep_input

UNKNOWN = [f"file-{number:024x}" for number in range(20)]


def fail(_: int) -> StoreChanges:
    raise OSError("no answer")


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SettableClock) -> AsyncIterator[BatchBook]:
    monkeypatch.setattr(SqliteDatabase, "is_shared", True)
    made = book_in(tmp_path, clock)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def looks(book: BatchBook, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Revisions since which the store was looked at."""
    found: list[int] = []
    changes = book.store.changes

    def told(since: int) -> StoreChanges:
        found.append(since)
        return changes(since)

    monkeypatch.setattr(book.store, "changes", told)
    return found


async def test_clients_that_ask_for_unknown_ids_share_one_look(book: BatchBook, looks: list[int]) -> None:
    await keep_input(book, replace(client_batch(), input_file_id=UNKNOWN[0]))
    known = book.files.pop(UNKNOWN[0])
    async with TaskGroup() as tasks:
        finds = [tasks.create_task(book.find_file(each)) for each in UNKNOWN]
    assert ([each.result() for each in finds], len(looks)) == ([known, *[None] * 19], 1)
    assert await book.find_batch(f"msgbatch_{'0' * 24}") is None
    assert len(looks) == 2


async def test_clients_share_the_error_of_a_look(book: BatchBook, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def told(since: int) -> StoreChanges:
        tries.append(since)
        return fail(since)

    monkeypatch.setattr(book.store, "changes", told)

    async def find(file_id: str) -> None:
        with pytest.raises(OSError, match="no answer"):
            await book.find_file(file_id)

    async with TaskGroup() as tasks:
        for each in UNKNOWN:
            tasks.create_task(find(each))
    assert len(tries) == 1


@pytest.mark.parametrize("told", ["", "a", "file-1", f"file-{'a' * 25}", f"file-{'A' * 24}", f"batch_{'a' * 24}"])
async def test_an_id_that_no_gateway_gives_asks_for_no_look(book: BatchBook, looks: list[int], told: str) -> None:
    assert await book.find_file(told) is None
    assert await book.find_batch(told.replace("batch", "file")) is None
    assert looks == []


async def test_a_sweep_looks_for_what_other_gateways_keep_once_it_has_listed_the_files(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files_module, "STALE_S", -1)
    for file_id in UNKNOWN[:2]:
        await book.in_files(book.folder.finish, book.folder.begin(file_id), file_id)
    await book.do(book.store.put_file, stored_file(UNKNOWN[0]))
    await book.sweep()
    assert sorted(each.name for each in (tmp_path / "files").iterdir()) == ["database", UNKNOWN[0]]


async def test_a_sweep_deletes_nothing_where_the_store_does_not_answer(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "STALE_S", -1)
    await book.in_files(book.folder.finish, book.folder.begin(UNKNOWN[0]), UNKNOWN[0])
    monkeypatch.setattr(book.store, "changes", fail)
    with pytest.raises(OSError, match="no answer"):
        await book.sweep()
    book.folder.read(UNKNOWN[0]).close()


async def test_files_of_another_database_are_not_opened(book: BatchBook, tmp_path: Path) -> None:
    await book.close()
    mark = tmp_path / "files" / "database"
    mark.rename(mark.with_suffix(".part"))  # a gateway has died while it marked the files
    await book.open()
    other = book_in(tmp_path / "other")
    other.folder = book.folder
    with pytest.raises(OSError, match="are those of another database"):
        await other.open()
    await other.close()


async def test_rows_are_read_anew_after_a_long_silence(book: BatchBook, clock: SettableClock) -> None:
    await book.look()
    clock.ahead_s = 601
    with pytest.raises(RowsOutdated):
        await book.look()
    await book.close()
    await book.open()
    await book.look()


async def test_rows_are_read_anew_where_the_store_has_lost_changes(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep_input(book)
    await book.look()
    before = book.store.changes(0)
    monkeypatch.setattr(book.store, "changes", lambda _: replace(before, revision=before.revision - 1))
    with pytest.raises(RowsOutdated):
        await book.look()


async def test_a_batch_that_is_not_held_here_is_not_changed_as_its_holder(book: BatchBook) -> None:
    await keep_input(book)
    await book.put_new(batch := client_batch())
    with pytest.raises(LeaseLost):
        await book.change(batch.id, lambda each: cancelling(each, 1))
    with pytest.raises(LeaseLost):
        await book.end(batch)
    assert (await book.change(batch.id, lambda each: cancelling(each, 1), is_holder=False)).is_cancelling
