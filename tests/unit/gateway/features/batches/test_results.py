from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.features.batches import results as results_module
from gateway.features.batches.book import BatchBook
from gateway.features.batches.lease import BatchHolding
from gateway.features.batches.lines import BATCH_EXPIRED, LineResult
from gateway.features.batches.results import BatchResults
from gateway.features.batches.state import ClientBatch, StoredPart, validated
from gateway.features.batches.store import ResultGroup, ResultKind
from mesh.task_group import TaskGroup
from tests.support.batches import book_in, client_batch, keep_input

LINES = [f"line-{number}" for number in range(3)]


@pytest.fixture
async def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BatchBook]:
    monkeypatch.setattr(results_module, "_RETRY_WRITE_S", 0.0)
    made = book_in(tmp_path)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def batch(book: BatchBook) -> ClientBatch:
    await keep_input(book)
    batch = validated(client_batch(), "m", len(LINES), (), 0)
    await book.put_new(batch)
    await book.take(batch.id)
    return batch


@asynccontextmanager
async def writing(book: BatchBook, batch: ClientBatch, faults: list[str]) -> AsyncIterator[BatchResults]:
    results = BatchResults(book, batch, lambda *_: None, faults.append)
    await results.reconcile()
    async with TaskGroup() as tasks:
        task = tasks.create_task(results.run())
        yield results
        task.cancel()


async def put_all(results: BatchResults) -> None:
    for each in LINES:
        await results.put_unrun(LineResult(f"r-{each}", each, None, BATCH_EXPIRED))
        await results.until_written()


async def lines_in(book: BatchBook, parts: tuple[StoredPart, ...]) -> list[int]:
    """Numbers of lines in the parts of a file, each of which has the size that its row tells."""
    found = []
    for part in parts:
        with await book.in_files(book.folder.read, part.name) as file:
            data = file.read()
        assert len(data) == part.size
        found.append(data.count(b"\n"))
    return found


def lost_once(work: Callable[..., None]) -> Callable[..., None]:
    """Work whose first answer is lost."""
    answers = iter([OSError("no answer")])

    def done_and_failed(*arguments: object) -> None:
        work(*arguments)
        if (error := next(answers, None)) is not None:
            raise error

    return done_and_failed


async def test_a_part_whose_answer_is_lost_keeps_its_results(
    book: BatchBook, batch: ClientBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book.store, "add_part", lost_once(book.store.add_part))
    faults: list[str] = []
    async with writing(book, batch, faults) as results:
        await put_all(results)
        _, errors = await results.parts()
    assert (await lines_in(book, errors), faults[-2:]) == ([3], ["no answer", ""])


async def test_a_part_that_is_stored_while_the_next_try_reads_is_the_one_that_counts(
    book: BatchBook, batch: ClientBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Callable[[], None]] = []
    add_part, groups = book.store.add_part, book.store.groups

    def not_yet(holding: BatchHolding, kind: ResultKind, last: int, part: StoredPart) -> None:
        late.append(partial(add_part, holding, kind, last, part))
        raise OSError("no answer")

    def read(batch_id: str, kind: ResultKind, after: int, *, with_data: bool) -> list[ResultGroup]:
        if with_data and after and late:
            monkeypatch.setattr(book.store, "add_part", add_part)
            late[0]()
        return groups(batch_id, kind, after, with_data=with_data)

    monkeypatch.setattr(book.store, "add_part", not_yet)
    async with writing(book, batch, []) as results:
        await put_all(results)
        monkeypatch.setattr(book.store, "groups", read)
        _, errors = await results.parts()
    assert await lines_in(book, errors) == [3]


async def test_a_try_writes_to_no_file_of_another(
    book: BatchBook, batch: ClientBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    begin = book.folder.begin

    def told(name: str) -> object:
        begun.append(name)
        return begin(name)

    monkeypatch.setattr(book.folder, "begin", told)
    monkeypatch.setattr(book.store, "add_part", lost_once(book.store.add_part))
    async with writing(book, batch, []) as results:
        await put_all(results)
        await results.parts()
    assert len(set(begun)) == len(begun) == 2


async def test_results_of_a_running_batch_become_parts(
    book: BatchBook, batch: ClientBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "_PART_BYTES", 1)
    monkeypatch.setattr(book.store, "append", lost_once(book.store.append))
    monkeypatch.setattr(book.store, "add_part", lost_once(book.store.add_part))
    async with writing(book, batch, []) as results:
        await put_all(results)
        _, errors = await results.parts()
    assert await lines_in(book, errors) == [1, 1, 1]
