from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import TenantName
from gateway.features.batches import files as files_module
from gateway.features.batches.book import BatchBook, RowsOutdated
from gateway.features.batches.database import LeaseLost
from gateway.features.batches.sqlite import SqliteDatabase
from gateway.features.batches.state import StoredFile, cancelling
from gateway.features.batches.store import FileInUse, StoreChanges
from mesh.task_group import TaskGroup
from tests.support.batch_conformance import stored_file
from tests.support.batches import SettableClock, book_in, client_batch, fail_after, keep_input

FILE = StoredFile(
    id="file-1", tenant=TenantName("acme"), filename="a", purpose="batch", size=1, created_s=1, expires_s=2
)
UNKNOWN = [f"file-{number:024x}" for number in range(20)]


@pytest.fixture
async def book(tmp_path: Path) -> AsyncIterator[BatchBook]:
    made = book_in(tmp_path / "batches")
    await made.open()
    yield made
    await made.close()


async def cancelled(book: BatchBook, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the file or the batch, and be cancelled while the store is at it."""
    loop, began, may_go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    work = getattr(book.store, what)

    def slow(row_id: str) -> None:
        loop.call_soon_threadsafe(began.set)
        may_go_on.wait()
        work(row_id)

    monkeypatch.setattr(book.store, what, slow)
    async with TaskGroup() as tasks:
        task = tasks.create_task(getattr(book, what)(FILE.id if what == "delete_file" else "batch_1"))
        await began.wait()
        task.cancel()
        may_go_on.set()
    assert task.cancelled()


async def test_a_client_that_leaves_while_its_file_is_deleted_leaves_none(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await book.keep_file(book.folder.begin(FILE.id), FILE)
    await cancelled(book, "delete_file", monkeypatch)
    assert ((await book.do(book.store.changes, 0)).files, book.files, book.sizes.total) == ([], {}, 0)
    with pytest.raises(FileNotFoundError):
        book.folder.read(FILE.id)


async def test_an_upload_that_is_under_way_while_the_book_is_opened_anew_is_kept(book: BatchBook) -> None:
    upload = book.folder.begin(UNKNOWN[0])
    upload.write(b"a")
    await book.close()
    await book.open()
    await book.keep_file(upload, stored_file(UNKNOWN[0]))
    with book.folder.read(UNKNOWN[0]) as file:
        assert file.read() == b"a"


async def test_a_file_of_a_batch_that_this_gateway_does_not_know_stays(book: BatchBook) -> None:
    await keep_input(book)
    await book.do(book.store.put_new, batch := client_batch())
    with pytest.raises(FileInUse):
        await book.delete_file(batch.input_file_id)
    assert batch.input_file_id in book.files
    book.folder.read(batch.input_file_id).close()


async def test_a_file_whose_row_cannot_be_deleted_keeps_its_content_where_others_may_read_it(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep_input(book)
    monkeypatch.setattr(SqliteDatabase, "is_shared", True)
    monkeypatch.setattr(book.store, "delete_file", fail)
    with pytest.raises(OSError, match="no answer"):
        await book.delete_file("file-in")
    book.folder.read("file-in").close()


@pytest.mark.parametrize("is_away", [False, True])
async def test_an_upload_whose_row_may_be_stored_has_both_or_neither(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    monkeypatch.setattr(book.store, "put_file", fail_after(book.store.put_file))
    if is_away:
        monkeypatch.setattr(book.store, "delete_file", fail)
    with pytest.raises(OSError, match="no answer"):
        await keep_input(book)
    stored = [each.id for each in (await book.do(book.store.changes, 0)).files]
    assert stored == (["file-in"] if is_away else [])
    if is_away:
        book.folder.read("file-in").close()
    else:
        with pytest.raises(FileNotFoundError):
            book.folder.read("file-in")


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_batch_whose_row_is_stored_is_kept_though_the_answer_is_lost(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.setattr(type(book.store), "is_shared", is_shared)
    await keep_input(book)
    monkeypatch.setattr(book.store, "put_new", fail_after(book.store.put_new))
    await book.put_new(client_batch("batch_1"))
    assert list(book.batches) == ["batch_1"]


async def test_a_batch_whose_row_is_not_stored_is_not_kept(book: BatchBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book.store, "put_new", fail)
    with pytest.raises(OSError, match="no answer"):
        await book.put_new(client_batch("batch_1"))
    assert not book.batches


def fail(*_: object) -> NoReturn:
    raise OSError("no answer")


async def test_a_client_that_leaves_while_its_batch_is_deleted_leaves_none(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep_input(book)
    await book.put_new(client_batch())
    await cancelled(book, "delete_batch", monkeypatch)
    assert ((await book.do(book.store.changes, 0)).batches, book.batches) == ([], {})


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SettableClock) -> AsyncIterator[BatchBook]:
    monkeypatch.setattr(SqliteDatabase, "is_shared", True)
    made = book_in(tmp_path, clock)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def looks(shared: BatchBook, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Revisions since which the store was looked at."""
    found: list[int] = []
    changes = shared.store.changes

    def told(since: int) -> StoreChanges:
        found.append(since)
        return changes(since)

    monkeypatch.setattr(shared.store, "changes", told)
    return found


async def test_clients_that_ask_for_unknown_ids_share_one_look(shared: BatchBook, looks: list[int]) -> None:
    await keep_input(shared, replace(client_batch(), input_file_id=UNKNOWN[0]))
    known = shared.files.pop(UNKNOWN[0])
    async with TaskGroup() as tasks:
        finds = [tasks.create_task(shared.find_file(each)) for each in UNKNOWN]
    assert ([each.result() for each in finds], len(looks)) == ([known, *[None] * 19], 1)
    assert await shared.find_batch(f"msgbatch_{'0' * 24}") is None
    assert len(looks) == 2


async def test_clients_share_the_error_of_a_look(shared: BatchBook, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def told(since: int) -> StoreChanges:
        tries.append(since)
        return fail(since)

    monkeypatch.setattr(shared.store, "changes", told)

    async def find(file_id: str) -> None:
        with pytest.raises(OSError, match="no answer"):
            await shared.find_file(file_id)

    async with TaskGroup() as tasks:
        for each in UNKNOWN:
            tasks.create_task(find(each))
    assert len(tries) == 1


@pytest.mark.parametrize("told", ["", "a", "file-1", f"file-{'a' * 25}", f"file-{'A' * 24}", f"batch_{'a' * 24}"])
async def test_an_id_that_no_gateway_gives_asks_for_no_look(shared: BatchBook, looks: list[int], told: str) -> None:
    assert await shared.find_file(told) is None
    assert await shared.find_batch(told.replace("batch", "file")) is None
    assert looks == []


async def test_a_sweep_looks_for_what_other_gateways_keep_once_it_has_listed_the_files(
    shared: BatchBook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files_module, "STALE_S", -1)
    for file_id in UNKNOWN[:2]:
        await shared.in_files(shared.folder.finish, shared.folder.begin(file_id), file_id)
    await shared.do(shared.store.put_file, stored_file(UNKNOWN[0]))
    await shared.sweep()
    assert sorted(each.name for each in (tmp_path / "files").iterdir()) == ["database", UNKNOWN[0]]


async def test_a_sweep_deletes_nothing_where_the_store_does_not_answer(
    shared: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "STALE_S", -1)
    await shared.in_files(shared.folder.finish, shared.folder.begin(UNKNOWN[0]), UNKNOWN[0])
    monkeypatch.setattr(shared.store, "changes", fail)
    with pytest.raises(OSError, match="no answer"):
        await shared.sweep()
    shared.folder.read(UNKNOWN[0]).close()


async def test_files_of_another_database_are_not_opened(shared: BatchBook, tmp_path: Path) -> None:
    await shared.close()
    mark = tmp_path / "files" / "database"
    mark.rename(mark.with_suffix(".part"))  # a gateway has died while it marked the files
    await shared.open()
    other = book_in(tmp_path / "other")
    other.folder = shared.folder
    with pytest.raises(OSError, match="are those of another database"):
        await other.open()
    await other.close()


async def test_an_empty_place_is_not_that_of_a_database_with_files(shared: BatchBook, tmp_path: Path) -> None:
    await keep_input(shared)
    await shared.close()
    mounted, elsewhere = tmp_path / "files", tmp_path / "elsewhere"
    mounted.rename(elsewhere)
    with pytest.raises(OSError, match="are not where they were"):
        await shared.open()
    assert (shared.is_open, list(mounted.iterdir())) == (False, [])
    await shared.close()
    mounted.rmdir()
    elsewhere.rename(mounted)
    await shared.open()
    assert not await shared.has_lost("file-in")


async def test_a_file_is_lost_only_where_the_place_of_files_is_the_right_one(shared: BatchBook, tmp_path: Path) -> None:
    assert await shared.has_lost("file-in")
    (tmp_path / "files" / "database").unlink()
    with pytest.raises(OSError, match="are not where they were"):
        await shared.has_lost("file-in")


async def test_a_holding_that_lapses_is_news_at_once(shared: BatchBook, clock: SettableClock) -> None:
    await keep_input(shared)
    await shared.put_new(batch := client_batch())
    await shared.do(shared.store.take, batch.id, None)  # a gateway that then dies
    await shared.look()
    found = []
    async with TaskGroup() as tasks:
        news = tasks.create_task(shared.news.wait())
        for clock.ahead_s in (7, 14, 20):
            await shared.look()
            await asyncio.sleep(0)
            found.append((shared.may_take(batch.id), news.done()))
        again, clock.ahead_s = tasks.create_task(shared.news.wait()), 21
        await asyncio.sleep(0)
        await shared.look()
        await asyncio.sleep(0)
        found.append((shared.may_take(batch.id), again.done()))
        again.cancel()
    assert found == [(False, False), (False, False), (True, True), (True, False)]


async def test_rows_are_read_anew_after_a_long_silence(shared: BatchBook, clock: SettableClock) -> None:
    await shared.look()
    clock.ahead_s = 601
    with pytest.raises(RowsOutdated):
        await shared.look()
    await shared.close()
    await shared.open()
    await shared.look()


async def test_rows_are_read_anew_where_the_store_has_lost_changes(
    shared: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep_input(shared)
    await shared.look()
    before = shared.store.changes(0)
    monkeypatch.setattr(shared.store, "changes", lambda _: replace(before, revision=before.revision - 1))
    with pytest.raises(RowsOutdated):
        await shared.look()


async def test_a_batch_that_is_not_held_here_is_not_changed_as_its_holder(shared: BatchBook) -> None:
    await keep_input(shared)
    await shared.put_new(batch := client_batch())
    with pytest.raises(LeaseLost):
        await shared.change(batch.id, lambda each: cancelling(each, 1))
    with pytest.raises(LeaseLost):
        await shared.end(batch)
    assert (await shared.change(batch.id, lambda each: cancelling(each, 1), is_holder=False)).is_cancelling
