from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.vocabulary import TenantName
from gateway.features.batches.book import BatchBook
from gateway.features.batches.state import StoredFile
from mesh.task_group import TaskGroup
from tests.support.batches import book_in, client_batch

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


async def test_a_client_that_leaves_while_its_batch_is_deleted_leaves_none(
    book: BatchBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    await book.put_new(client_batch())
    await cancelled(book, "delete_batch", monkeypatch)
    assert ((await book.do(book.store.changes, 0)).batches, book.batches) == ([], {})
