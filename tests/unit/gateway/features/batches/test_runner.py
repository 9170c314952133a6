from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog import get_logger

from gateway.core.vocabulary import ModelName
from gateway.door.parse import Caller
from gateway.features.batches import runner as runner_module
from gateway.features.batches.classes import LineClasses
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.database import LeaseLost, RowOutdated
from gateway.features.batches.forecast import LineRate
from gateway.features.batches.lease import HoldingMark
from gateway.features.batches.runner import BatchRunner, InputUnreadable, _disk_error, _of_input
from gateway.features.batches.sqlite import SqliteDatabase
from gateway.features.batches.state import validated
from gateway.features.batches.store import TakenBatch
from gateway.http1.server import Exchange
from mesh.clock import Clock
from mesh.task_group import TaskGroup
from tests.support.batches import SettableClock, book_in, client_batch, keep_input
from tests.support.gateways import ENOUGH_S, until

FULL = OSError("full")
DEFECT = ValueError("defect")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (FULL, FULL),
        (DEFECT, None),
        (ExceptionGroup("", [FULL]), FULL),
        (ExceptionGroup("", [ExceptionGroup("", [FULL]), OSError("other")]), FULL),
        (ExceptionGroup("", [FULL, DEFECT]), None),
    ],
)
def test_only_errors_of_the_disk_stop_all_batches(error: Exception, found: OSError | None) -> None:
    assert _disk_error(error) is found


def test_an_input_file_that_goes_missing_stops_its_batch_alone() -> None:
    with pytest.raises(InputUnreadable) as stopped, _of_input():
        raise FileNotFoundError("file-in")
    assert _disk_error(stopped.value) is None


@asynccontextmanager
async def running(runner: BatchRunner) -> AsyncIterator[None]:
    """Runner of a gateway without models and keys, once its book is open."""
    runner.meet_clients(NoModels(), None)
    async with TaskGroup() as tasks:
        task = tasks.create_task(runner.run())
        await until(lambda: runner._book.is_open)
        yield
        task.cancel()


async def test_a_batch_that_the_store_has_no_more_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, takes = book_in(tmp_path), []
    take = book.store.take

    def told(batch_id: str, lapsed: HoldingMark | None) -> TakenBatch | None:
        takes.append(batch_id)
        return take(batch_id, lapsed)

    monkeypatch.setattr(book.store, "take", told)
    async with running(BatchRunner(BatchesConfig(), book, Clock(), get_logger())):
        batch = client_batch(created_s=Clock.wall_ns() // 1_000_000_000)
        book._remember(batch, 1, ())
        await until(lambda: not book.batches)
        assert takes == [batch.id]


async def test_a_batch_that_another_gateway_deletes_runs_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteDatabase, "is_shared", True)
    monkeypatch.setattr(runner_module, "_LOOK_S", ENOUGH_S)
    book = book_in(tmp_path)
    book.lease_ns = 3600 * 1_000_000_000
    runner = BatchRunner(BatchesConfig(), book, Clock(), get_logger())
    began = asyncio.Event()

    async def hang(_: str) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(runner, "_drive", hang)
    async with running(runner):
        await keep_input(book)
        await book.put_new(batch := client_batch(created_s=Clock.wall_ns() // 1_000_000_000))
        await began.wait()
        await book.do(book.store.delete_batch, batch.id)
        await book.look()
        await until(lambda: not runner._tasks)
        assert (book.batches, runner.counts.lost) == ({}, 0)


@pytest.mark.parametrize(("refusal", "lost"), [(LeaseLost("b"), 1), (ExceptionGroup("", [RowOutdated("b")]), 0)])
async def test_a_batch_that_was_cancelled_elsewhere_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception, lost: int
) -> None:
    book = book_in(tmp_path)
    runner = BatchRunner(BatchesConfig(), book, Clock(), get_logger())

    async def refused(_: str) -> None:
        raise refusal

    monkeypatch.setattr(runner, "_drive", refused)
    await book.open()
    await keep_input(book)
    await book.put_new(batch := client_batch())
    await runner._drive_apart(batch.id)
    assert (runner.counts.lost, runner.stopped) == (lost, 0)
    await book.close()


class NoModels:
    """API of a gateway without models."""

    def serve_for(self, exchange: Exchange, path: str, caller: Caller) -> None:
        raise AssertionError("no line is sent")

    def give_up(self, exchange: Exchange) -> None: ...

    def models_of(self, _: Caller) -> list[ModelName]:
        return []


def late_runner(folder: Path, tenants: list[str]) -> BatchRunner:
    """Runner late in the window of batches that have run for a while without a result, one of each of these tenants.
    Four lines may be urgent at once."""
    clock, now_ns = SettableClock(), Clock.now_ns()
    clock.ahead_s = 20 * 3600
    book = book_in(folder)
    runner = BatchRunner(BatchesConfig(requests_max=8, urgent_share=0.5), book, clock, get_logger())
    for number, tenant in enumerate(tenants):
        handed_in = client_batch(f"batch_{number}", tenant, created_s=Clock.wall_ns() // 1_000_000_000)
        book.batches[handed_in.id] = validated(handed_in, "m", 100, (), handed_in.created_s)
        book.rates[handed_in.id] = LineRate(now_ns - 600_000_000_000)
        runner._classes[handed_in.id] = LineClasses()
    return runner


def test_tenants_share_the_urgent_places(tmp_path: Path) -> None:
    runner = late_runner(tmp_path, ["acme", "acme", "zenith"])
    runner._classes["batch_0"].urgent = 2
    assert [runner._may_be_urgent(f"batch_{number}") for number in range(3)] == [False, False, True]
    zenith = runner._book.batches["batch_2"]
    runner._book.batches["batch_2"] = replace(zenith, completed=zenith.total)
    assert [runner._may_be_urgent(f"batch_{number}") for number in range(3)] == [True, True, False]
    runner._classes["batch_1"].urgent = 2
    assert not any(runner._may_be_urgent(f"batch_{number}") for number in range(3))


def test_a_batch_that_has_just_begun_has_no_urgent_line(tmp_path: Path) -> None:
    runner = late_runner(tmp_path, ["acme"])
    assert runner._may_be_urgent("batch_0")
    runner._book.rates["batch_0"] = LineRate(Clock.now_ns())
    assert not runner._may_be_urgent("batch_0")
