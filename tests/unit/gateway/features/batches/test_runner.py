from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from msgspec.structs import replace
from structlog import get_logger
from structlog.testing import capture_logs

from gateway.core.vocabulary import ModelName, RequestId, ServiceClass, TenantName
from gateway.door.parse import Caller
from gateway.features.batches import runner as runner_module
from gateway.features.batches.classes import LineClasses
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.database import LeaseLost, RowOutdated
from gateway.features.batches.forecast import LineRate
from gateway.features.batches.lease import BatchHolding, HoldingMark
from gateway.features.batches.lines import LineResult, ResultError, digest_of, read_line
from gateway.features.batches.results import BatchResults
from gateway.features.batches.runner import BatchLeft, BatchRunner, InputUnreadable, _disk_error, _of_input
from gateway.features.batches.sqlite import FORMAT, SqliteDatabase
from gateway.features.batches.state import WINDOW_S, BatchStatus, ClientBatch, cancelling, validated
from gateway.features.batches.store import ResultGroup, ResultKind, TakenBatch
from gateway.http1.server import Exchange
from gateway.request.callers import ClientKey, KeyId
from mesh.clock import Clock
from mesh.task_group import TaskGroup
from tests.support.batch_conformance import stored_file
from tests.support.batches import SettableClock, book_in, client_batch, keep_input, line_of, lines_of
from tests.support.core import MODEL
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


async def test_a_store_of_another_version_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    book = book_in(tmp_path)
    await book.open()
    await book.close()
    mark_as_format(tmp_path, FORMAT + 1)
    runner = BatchRunner(BatchesConfig(), book, Clock(), get_logger())
    runner.meet_clients(NoModels(), None)
    with capture_logs() as logged, pytest.raises(OSError, match="is not batches of format"):
        await runner.run()
    assert [each["event"] for each in logged] == ["batch_store_unavailable"]
    assert f"is not batches of format {FORMAT}" in runner.store_fault
    mark_as_format(tmp_path, FORMAT)
    async with running(runner):
        assert not runner.store_fault


def mark_as_format(folder: Path, number: int) -> None:
    with closing(sqlite3.connect(folder / "batches.sqlite")) as database:
        database.execute(f"PRAGMA user_version = {number}")


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


@pytest.mark.usefixtures("shared")
async def test_a_batch_that_another_gateway_deletes_runs_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("step", ["sweep", "delete"])
async def test_a_place_of_files_that_does_not_answer_keeps_no_batch_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    book, hung, may_go_on, began = book_in(tmp_path), asyncio.Event(), asyncio.Event(), asyncio.Event()
    runner = BatchRunner(BatchesConfig(), book, Clock(), get_logger())

    async def hang(*_: object) -> None:
        hung.set()
        await may_go_on.wait()

    async def begin(_: str) -> None:
        began.set()

    monkeypatch.setattr(book, "sweep" if step == "sweep" else "delete_file", hang)
    monkeypatch.setattr(runner, "_drive", begin)
    async with running(runner):
        if step == "delete":
            await keep_input(book, replace(client_batch(), input_file_id="file-old"))
        await hung.wait()
        await keep_input(book)
        await book.put_new(client_batch(created_s=runner.now_s))
        await began.wait()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteDatabase, "is_shared", True)


def keyed_batch(**changes: object) -> ClientBatch:
    """Batch that was just handed in with a key."""
    now_s = Clock.wall_ns() // 1_000_000_000
    made = replace(client_batch(created_s=now_s), key=ClientKey(key_id=KeyId("k"), tenant=TenantName("acme")))
    return replace(made, **changes)


def runner_without_keys(folder: Path) -> BatchRunner:
    runner = BatchRunner(BatchesConfig(), book_in(folder), Clock(), get_logger())
    runner.meet_clients(NoModels(), lambda _: None)
    return runner


def test_a_batch_that_no_other_gateway_can_run_is_not_left(tmp_path: Path) -> None:
    batch, runner = keyed_batch(), runner_without_keys(tmp_path)
    assert runner._is_idle(batch)


@pytest.mark.usefixtures("shared")
def test_a_batch_whose_key_is_not_known_here_is_left_to_others_until_it_is_over(tmp_path: Path) -> None:
    batch, runner = keyed_batch(), runner_without_keys(tmp_path)
    assert not runner._is_idle(batch)
    assert runner._is_idle(replace(batch, is_token=True))
    assert runner._is_idle(cancelling(batch, 1))
    assert runner._is_idle(replace(batch, expires_s=runner.now_s))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_batch_that_may_not_enter_the_region_is_ended_here_only_where_no_other_gateway_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.setattr(SqliteDatabase, "is_shared", is_shared)
    batch, runner = keyed_batch(is_token=True), barred_runner(tmp_path)
    assert not runner._is_idle(batch)
    assert runner._is_idle(cancelling(batch, 1)) is not is_shared
    assert runner._is_idle(replace(batch, expires_s=runner.now_s)) is not is_shared


def barred_runner(folder: Path) -> BatchRunner:
    """Runner of a gateway whose region no batch may enter."""
    runner = BatchRunner(BatchesConfig(), book_in(folder), Clock(), get_logger(), lambda _: False)
    runner.meet_clients(NoModels(), None)
    return runner


@pytest.mark.usefixtures("shared")
async def test_a_batch_that_no_gateway_may_end_is_deleted_when_its_files_would_be_unless_one_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = barred_runner(tmp_path)
    book, gone_s = runner._book, runner.now_s - WINDOW_S - 30 * 24 * 3600
    await book.open()
    await keep_input(book)
    for batch_id, created_s in (("batch_old", gone_s), ("batch_new", gone_s + 60), ("batch_held", gone_s)):
        await book.put_new(client_batch(batch_id, created_s=created_s))
    monkeypatch.setattr(book.leases, "is_anothers", lambda batch_id: batch_id == "batch_held")
    book.sizes.put("file-out", TenantName("acme"), 9)
    await runner._delete_old()
    assert (list(book.batches), book.sizes.total) == (["batch_new", "batch_held"], 0)
    await book.close()


@pytest.mark.usefixtures("shared")
async def test_a_key_that_goes_ends_no_line_that_another_gateway_may_run(tmp_path: Path) -> None:
    batch, runner = keyed_batch(), runner_without_keys(tmp_path)
    runner._book.batches[batch.id], runner._classes[batch.id] = batch, LineClasses()
    runner._book.rates[batch.id] = LineRate(Clock.now_ns())
    with pytest.raises(BatchLeft):
        await runner._ask(batch, read_line(line_of(0)), 1)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(("lines", "is_patient"), [(1_000, True), (1_000_000, False)])
def test_lines_are_patient_while_their_batch_has_time_to_spare(tmp_path: Path, lines: int, *, is_patient: bool) -> None:
    batch, runner, now_ns = keyed_batch(is_token=True), runner_without_keys(tmp_path), Clock.now_ns()
    checked = validated(batch, MODEL, lines, (), batch.created_s)
    runner._book.batches[batch.id] = checked

    def caller(served_as: ServiceClass) -> bool:
        made = runner._caller(checked, served_as)
        assert made is not None
        return made.is_patient

    assert caller(ServiceClass.BATCH), "it has not begun to run"
    runner._book.rates[batch.id] = rate = LineRate(now_ns - 600_000_000_000)
    rate.add(600, now_ns)
    assert caller(ServiceClass.BATCH) == is_patient
    assert not caller(ServiceClass.INTERACTIVE)


async def driven(runner: BatchRunner, batch: ClientBatch) -> ClientBatch:
    """Batch after its gateway, which knows no model, has had it."""
    book = runner._book
    await book.open()
    upload = book.folder.begin(batch.input_file_id)
    upload.write(lines_of(2))
    await book.keep_file(upload, stored_file(batch.input_file_id))
    await book.put_new(batch)
    await runner._drive_apart(batch.id)
    (row,) = (await book.do(book.store.changes, 0)).batches
    assert row.owner == "", "other gateways may take it"
    await book.close()
    return row.batch


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("is_checked", [False, True])
async def test_a_batch_whose_model_is_not_known_here_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checked: bool, is_shared: bool
) -> None:
    monkeypatch.setattr(SqliteDatabase, "is_shared", is_shared)
    runner, batch = runner_without_keys(tmp_path), keyed_batch(is_token=True)
    if is_checked:
        batch = validated(batch, MODEL, 2, (), batch.created_s)
    assert await driven(runner, batch) == batch
    assert (runner._is_idle(batch), runner.stopped) == (False, 0)
    assert runner._is_idle(cancelling(batch, 1))


@pytest.mark.usefixtures("shared")
async def test_a_model_that_no_gateway_knows_fails_a_batch_in_the_end(tmp_path: Path) -> None:
    runner, batch = runner_without_keys(tmp_path), keyed_batch(is_token=True)
    found = await driven(runner, replace(batch, created_s=batch.created_s - 600))
    assert [each.code for each in found.faults] == ["model_not_found"]


async def test_a_gateway_that_has_just_begun_does_not_know_that_a_model_does_not_exist(tmp_path: Path) -> None:
    runner, batch = runner_without_keys(tmp_path), keyed_batch(is_token=True)
    runner._opened_s, early = runner.now_s, replace(batch, created_s=batch.created_s - 600)
    assert await driven(runner, early) == early


async def test_lines_whose_model_goes_are_not_refused_for_good(tmp_path: Path) -> None:
    runner, batch = runner_without_keys(tmp_path), keyed_batch(is_token=True)
    runner.meet_clients(api := NotFound(), None)
    checked = validated(batch, MODEL, 2, (), batch.created_s)
    of_messages = replace(checked, model="")
    runner._book.batches[batch.id], runner._classes[batch.id] = checked, LineClasses()
    runner._book.rates[batch.id] = LineRate(Clock.now_ns())

    async def wait_s(asked: ClientBatch, tries: int) -> float | None:
        return (await runner._ask(asked, read_line(line_of(0)), tries))[1]

    assert await wait_s(checked, 4) == 8
    with pytest.raises(BatchLeft):
        await wait_s(checked, 5)
    assert await wait_s(of_messages, 5) == 30
    assert await wait_s(replace(of_messages, created_s=batch.created_s - 600), 5) is None
    api.models = [MODEL]
    assert await wait_s(checked, 5) is None, "the client asked an engine for what it does not have"


@pytest.mark.usefixtures("shared")
async def test_a_batch_whose_input_file_was_deleted_keeps_its_results(tmp_path: Path) -> None:
    runner, batch = runner_without_keys(tmp_path), keyed_batch(is_token=True)
    book, result = runner._book, LineResult("r", "line-0", None, ResultError("", ""))
    await book.open()
    await keep_input(book, batch)
    await book.put_new(validated(batch, MODEL, 2, (), batch.created_s))
    taken = await book.take(batch.id)
    assert taken is not None
    text = result.encoded()
    group = ResultGroup(number=1, digests=digest_of("line-0"), unrun=0, size=len(text), data=text)
    await book.do(book.store.append, taken.holding, ResultKind.ERROR, group, 1)
    await book.release(batch.id)
    book.folder.delete(batch.input_file_id)
    await runner._drive_apart(batch.id)
    (row,) = (await book.do(book.store.changes, 0)).batches
    assert [each.code for each in row.batch.faults] == ["input_file_lost"]
    told = row.batch.document()
    assert (told["status"], told["output_file_id"], told["error_file_id"]) == ("failed", None, "file-errors")
    assert told["request_counts"] == {"total": 2, "completed": 0, "failed": 1}
    (part,) = book.files["file-errors"].parts
    with book.folder.read(part.name) as file:
        assert file.read() == text
    await book.close()


@pytest.mark.usefixtures("shared")
async def test_no_more_batches_are_held_than_are_brought_to_their_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = BatchRunner(BatchesConfig(), book_in(tmp_path), Clock(), get_logger())
    book, drive, held = runner._book, runner._drive, list[int]()

    async def told(batch_id: str) -> None:
        held.append(len(book.leases.held))
        await drive(batch_id)

    monkeypatch.setattr(runner, "_drive", told)
    await book.open()
    upload = book.folder.begin("file-in")
    upload.write(lines_of(2))
    await book.keep_file(upload, stored_file("file-in"))
    for number in range(6):
        over = client_batch(f"batch_{number}", created_s=runner.now_s - WINDOW_S)
        names = {"output_file_id": f"file-out-{number}", "error_file_id": f"file-errors-{number}"}
        await book.put_new(replace(validated(over, MODEL, 2, (), over.created_s), **names))
    await book.close()
    async with running(runner):
        await until(lambda: all(each.has_ended for each in book.batches.values()))
    assert ({each.status for each in book.batches.values()}, max(held)) == ({BatchStatus.EXPIRED}, 2)


async def test_only_lines_that_wait_are_taken_back_and_they_are_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_TAKEN_BACK_S", 0.0)
    api, waiting, batch = Silent(), set[RequestId](), keyed_batch(is_token=True)
    runner = BatchRunner(BatchesConfig(), book_in(tmp_path), Clock(), get_logger(), waits_in_drain=waiting.__contains__)
    runner.meet_clients(api, None)
    book = runner._book
    book.batches[batch.id], runner._classes[batch.id] = batch, LineClasses()
    book.rates[batch.id] = LineRate(Clock.now_ns())
    book.leases.took(BatchHolding(batch.id, 1))
    async with TaskGroup() as tasks:
        results = BatchResults(book, batch, runner._on_written, runner._write_failed)
        task = tasks.create_task(runner._send(batch, read_line(line_of(0)), results))
        await until(lambda: len(api.sent) == 1)
        runner._take_back()
        assert not api.given_up
        waiting |= api.sent
        runner._take_back()
        await until(lambda: len(api.sent) == 2)
        assert len(api.given_up) == 1
        task.cancel()
    assert not runner._sent


class Silent:
    """API of a gateway whose engine does not answer."""

    def __init__(self) -> None:
        self.sent: set[RequestId] = set()
        self.given_up: list[Exchange] = []

    def serve_for(self, exchange: Exchange, path: str, caller: Caller) -> None:
        self.sent.add(caller.request_id)

    def give_up(self, exchange: Exchange) -> None:
        self.given_up.append(exchange)

    def models_of(self, _: Caller) -> list[ModelName]:
        return [MODEL]


class NotFound(Silent):
    """API that finds no model."""

    def __init__(self) -> None:
        super().__init__()
        self.models: list[ModelName] = []

    def serve_for(self, exchange: Any, path: str, caller: Caller) -> None:
        exchange.start(404, "", has_length=True)
        exchange.write(b"{}")
        exchange.finish()

    def models_of(self, _: Caller) -> list[ModelName]:
        return self.models


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


def test_batches_with_lines_to_run_here_are_in_line(tmp_path: Path) -> None:
    book, now_s = book_in(tmp_path), Clock.wall_ns() // 1_000_000_000
    runner = BatchRunner(BatchesConfig(), book, Clock(), get_logger(), lambda each: each.tenant != "barred")
    checked = {"status": BatchStatus.IN_PROGRESS, "total": 9}
    changes: dict[str, dict[str, Any]] = {
        "late": checked | {"created_s": now_s},
        "early": checked,
        "fresh": {"created_s": now_s - 1},
        "finalizing": checked | {"status": BatchStatus.FINALIZING},
        "cancelling": {"status": BatchStatus.CANCELLING},
        "expired": checked | {"expires_s": now_s},
        "stale": {"expires_s": now_s},
        "ended": checked | {"status": BatchStatus.COMPLETED},
        "barred": checked | {"tenant": TenantName("barred")},
        "runs": checked | {"created_s": now_s - 2},
        "ends": checked | {"status": BatchStatus.FINALIZING},
    }
    book.batches = {name: replace(client_batch(name, created_s=now_s - 9), **each) for name, each in changes.items()}
    runner._tasks = dict.fromkeys(["runs", "ends"])  # type: ignore[assignment]
    assert [(each.id, runs) for each, runs in runner.in_line()] == [
        ("early", False),
        ("runs", True),
        ("fresh", False),
        ("late", False),
    ]


class _Held(ThreadPoolExecutor):
    """Threads that begin no check of a file, and say that they were asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not any("check" in getattr(each, "__name__", "") for each in getattr(work, "args", ())):
            return super().submit(work, *args, **kwargs)
        self.asked.set()
        return Future()


async def test_a_batch_that_is_cancelled_before_its_check_begins_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = _Held()
    asyncio.get_running_loop().set_default_executor(threads)
    book, opened = book_in(tmp_path), []
    read = book.folder.read

    def told(name: str, offset: int = 0) -> BinaryIO:
        opened.append(read(name, offset))
        return opened[-1]

    monkeypatch.setattr(book.folder, "read", told)
    async with running(BatchRunner(BatchesConfig(), book, Clock(), get_logger())):
        await keep_input(book)
        await book.put_new(client_batch(created_s=Clock.wall_ns() // 1_000_000_000))
        await threads.asked.wait()
    assert all(each.closed for each in opened)
