from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.vocabulary import TenantName
from gateway.features.batches.book import BatchBook
from gateway.features.batches.sqlite import SqliteDatabase
from gateway.features.batches.state import StoredFile
from gateway.features.batches.store import FileInUse
from mesh.task_group import TaskGroup
from tests.support.batches import book_in, client_batch, fail_after, keep_input

FILE = StoredFile(
    id="file-1", tenant=TenantName("acme"), filename="a", purpose="batch", size=1, created_s=1, expires_s=2
)


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


def fail(*_: object) -> None:
    raise OSError("no answer")


async def test_a_client_that_leaves_while_its_batch_is_deleted_leaves_none(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep_input(book)
    await book.put_new(client_batch())
    await cancelled(book, "delete_batch", monkeypatch)
    assert ((await book.do(book.store.changes, 0)).batches, book.batches) == ([], {})
