"""Batches of two gateways on one PostgreSQL database, with files in a shared folder or in S3: one is killed or frozen,
or the store goes away, and each line has one result.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.features.batches.database import Database
from gateway.features.batches.postgresql import _BEGIN, PostgresqlDatabase
from gateway.features.batches.state import ClientBatch
from gateway.features.batches.store import BatchStore
from mesh.postgresql import PostgresqlSettings
from mesh.task_group import TaskGroup
from tests.cloud.buckets import new_bucket
from tests.cloud.conftest import needs
from tests.cloud.dynamodb import NOBODY
from tests.cloud.postgresql import DATABASE, USER, Postgresql
from tests.cloud.programs import Emulator
from tests.fakes.engine import GOOD_ANSWER, Exchange, FakeEngine, Received, answer
from tests.support.batch_conformance import BatchStoreConformance
from tests.support.batches import client_of, ended, line_of, lines_of, results, submit, until_status
from tests.support.core import US
from tests.support.gateways import ENOUGH_S
from tests.support.processes import Process, gateway_process, region_file

pytestmark = pytest.mark.needs("pg_createcluster")
LINES = 240
DONE = 40
"""Lines that are done when something happens to the gateway that runs their batch."""
_TABLES = ("store", "format", "files", "gone", "results", "parts", "uploads")


@pytest.fixture
def database(running_postgresql: Postgresql) -> Postgresql:
    """Empty database."""
    tables = ", ".join(f"nightside_batch_{each}" for each in _TABLES)
    running_postgresql.sql(f"DROP TABLE IF EXISTS nightside_batches, {tables}")
    return running_postgresql


class TestConformance(BatchStoreConformance):
    @pytest.fixture(autouse=True)
    def _database(self, database: Postgresql) -> None:
        self.settings = PostgresqlSettings(
            (database.address,), DATABASE, USER, call_timeout_ns=20 * 10**9, write_timeout_ns=60 * 10**9
        )

    def database(self) -> PostgresqlDatabase:
        return PostgresqlDatabase(self.settings)

    def second(self, first: Database) -> PostgresqlDatabase:
        return self.database()

    def test_a_gateway_that_freezes_within_a_transaction_does_not_stop_others(
        self, one: BatchStore, two: BatchStore, batch: ClientBatch
    ) -> None:
        async def lock_and_freeze(connection: Any) -> None:
            await connection.execute(_BEGIN)
            await connection.execute("UPDATE nightside_batch_store SET revision = revision + 1")

        frozen = self.database()
        frozen.open(())
        frozen._call(lock_and_freeze)
        assert two.take(batch.id, None) is not None
        frozen.close()

    def test_a_row_is_not_missed_that_a_transaction_without_an_answer_still_stores(
        self, two: BatchStore, database: Postgresql
    ) -> None:
        async def store(connection: Any) -> None:
            await connection.execute("BEGIN; UPDATE nightside_batch_store SET revision = revision + 1")
            await connection.execute("INSERT INTO nightside_batch_files VALUES ('file-1', 1, '')")

        async def commit(connection: Any) -> None:
            await connection.execute("COMMIT")

        slow = self.database()
        slow.open(())
        slow._call(store)
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(two.has_file, "file-1")
            while not asked.done() and database.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == "0":
                pass
            slow._call(commit)
            assert asked.result()
        slow.close()


@dataclass
class Mesh:
    """Two gateways that share batches; which of them owns one is for them to find."""

    gateways: dict[str, Process]
    database: Postgresql

    async def until_owned(self, batch_id: str) -> tuple[Process, Process]:
        """Gateway that runs the lines of a batch, and the other one, once there is one."""
        is_running = "owner <> '' AND convert_from(document, 'UTF8') LIKE '%in_progress_at%'"
        owner = ""
        async with asyncio.timeout(ENOUGH_S):
            while not owner:
                owner = self.database.sql(
                    f"SELECT owner FROM nightside_batches WHERE id = '{batch_id}' AND {is_running}"
                )
                await asyncio.sleep(0.01)
        (other,) = self.gateways.keys() - {owner}
        return self.gateways[owner], self.gateways[other]


@asynccontextmanager
async def mesh(folder: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]) -> AsyncIterator[Mesh]:
    state = {"hosts": [str(database.address)], "database": DATABASE, "user": USER, "tls": False}
    async with AsyncExitStack() as stack:
        gateways = {}
        for name in ("us-1", "us-2"):
            (folder / name).mkdir()
            batches = {"postgresql": state, "lease": "3s", "requests_max": 8, **where}
            file = region_file(folder / name, name, US, engine, batches=batches)
            gateways[name] = await stack.enter_async_context(gateway_process(file))
        yield Mesh(gateways, database)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine().serving() as fake:
        yield fake


@pytest.fixture(params=["folder", "bucket"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Keys of the place of files that both gateways use."""
    if request.param == "folder":
        return {"folder": str(tmp_path / "shared")}
    needs("emulators", request.config)
    for name, secret in NOBODY.items():
        monkeypatch.setenv(name, secret)
    emulator: Emulator = request.getfixturevalue("running_moto")
    return {"s3": {"bucket": new_bucket(emulator), "prefix": "night/", "endpoint": emulator.url}}


async def until_deleted(client: openai.AsyncOpenAI, file_id: str) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while file_id in [each.id async for each in client.files.list()]:  # noqa: ASYNC110 - a list to poll
            await asyncio.sleep(0.01)


async def check_results(client: openai.AsyncOpenAI, batch_id: str) -> None:
    """Each line has one result, and all have succeeded."""
    done = await ended(client, batch_id)
    assert (done.status, done.request_counts.completed, done.error_file_id) == ("completed", LINES, None)
    told = await results(client, done.output_file_id)
    assert sorted(each["custom_id"] for each in told) == sorted(f"line-{number}" for number in range(LINES))


async def test_each_gateway_serves_what_the_other_one_took(
    tmp_path: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]
) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    async with mesh(tmp_path, database, engine, where) as shared, AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(client_of(each)) for each in shared.gateways.values()]
        file = await one.files.create(file=("in.jsonl", lines_of(LINES)), purpose="batch")
        batch = await two.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        assert (await one.batches.retrieve(batch.id)).status in ("validating", "in_progress")
        await until_status(two, batch.id, lambda each: each.request_counts.completed >= 20)
        await check_results(one, batch.id)
        await check_results(two, batch.id)
        assert (await one.files.delete(file.id)).deleted
        await until_deleted(two, file.id)


async def test_an_upload_goes_on_at_the_other_gateway(
    tmp_path: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]
) -> None:
    data = lines_of(10)
    async with mesh(tmp_path, database, engine, where) as shared, AsyncExitStack() as stack:
        first, second = shared.gateways.values()
        one, two = [await stack.enter_async_context(client_of(each)) for each in (first, second)]
        upload = await one.uploads.create(
            bytes=len(data), filename="in.jsonl", mime_type="application/jsonl", purpose="batch"
        )
        part_ids = []
        for client, piece in ((two, data[:99]), (one, data[99:199]), (two, data[199:])):
            part_ids.append((await client.uploads.parts.create(upload.id, data=piece)).id)
        first.process.kill()
        done = await two.uploads.complete(upload.id, part_ids=part_ids)
        assert done.file is not None
        assert (await two.files.content(done.file.id)).content == data


async def test_of_two_gateways_one_completes_an_upload(
    tmp_path: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]
) -> None:
    async with mesh(tmp_path, database, engine, where) as shared, AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(client_of(each)) for each in shared.gateways.values()]
        upload = await one.uploads.create(bytes=2, filename="in", mime_type="application/jsonl", purpose="batch")
        part_ids = [(await each.uploads.parts.create(upload.id, data=b"x")).id for each in (one, two)]
        async with TaskGroup() as tasks:
            calls = [tasks.create_task(each.uploads.complete(upload.id, part_ids=part_ids)) for each in (one, two)]
        first, second = (each.result() for each in calls)
        assert first == second
        assert [each.id async for each in one.files.list()] == [first.file and first.file.id]


@asynccontextmanager
async def running_batch(
    folder: Path,
    database: Postgresql,
    engine: FakeEngine,
    where: dict[str, Any],
    answered: list[Received] | None = None,
) -> AsyncIterator[tuple[str, Process, Process, asyncio.Event]]:
    """Batch of which DONE lines are done, the gateway that runs it, and the other one. The engine answers the next line
    once the event is set. Requests for the lines that are done are added to ``answered``."""
    gate, first = asyncio.Event(), answered if answered is not None else []

    async def gated(exchange: Exchange) -> None:
        if len(first) == DONE:
            await gate.wait()
        else:
            first.append(exchange.received)
        await answer(200, GOOD_ANSWER)(exchange)

    engine.plays(gated)
    async with mesh(folder, database, engine, where) as shared:
        async with client_of(shared.gateways["us-1"]) as client:
            batch = await submit(client, lines_of(LINES))
            owner, other = await shared.until_owned(batch.id)
        async with client_of(owner) as client:
            await until_status(client, batch.id, lambda each: each.request_counts.completed == DONE)
        yield batch.id, owner, other, gate


def question_of(request: Received) -> str:
    """Text of the message of a line."""
    text: str = json.loads(request.body)["messages"][0]["content"]
    return text


async def test_a_batch_whose_gateway_is_killed_goes_on_at_the_other_one(
    tmp_path: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]
) -> None:
    answered: list[Received] = []
    async with running_batch(tmp_path, database, engine, where, answered) as (batch_id, owner, other, gate):
        done = {question_of(each) for each in answered}
        owner.process.kill()
        gate.set()
        async with client_of(other) as client:
            await other.until_logged("batch_taken_over", batch=batch_id)
            await check_results(client, batch_id)
        asked = Counter(map(question_of, engine.received))
        assert {each: asked[each] for each in done} == dict.fromkeys(done, 1), "what was done is not done again"


async def test_a_gateway_that_wakes_writes_nothing_to_a_batch_that_was_taken_over(
    tmp_path: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]
) -> None:
    async with running_batch(tmp_path, database, engine, where) as (batch_id, owner, other, gate):
        owner.signal(signal.SIGSTOP)
        gate.set()
        await other.until_logged("batch_taken_over", batch=batch_id)
        owner.signal(signal.SIGCONT)
        await owner.until_logged("batch_lost", batch=batch_id)
        for each in (owner, other):
            async with client_of(each) as client:
                await check_results(client, batch_id)


async def test_a_gateway_that_ends_in_order_hands_its_batch_over_at_once(
    tmp_path: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]
) -> None:
    async with running_batch(tmp_path, database, engine, {**where, "lease": "1h"}) as (batch_id, owner, other, gate):
        owner.signal(signal.SIGTERM)
        gate.set()
        assert await owner.process.wait() == 0
        async with client_of(other) as client:
            await check_results(client, batch_id)


@pytest.mark.parametrize("how", ["frozen", "restarted"])
async def test_a_store_that_goes_away_and_comes_back_loses_and_doubles_nothing(
    tmp_path: Path, engine: FakeEngine, where: dict[str, Any], how: str
) -> None:
    database = Postgresql.made()
    try:
        async with running_batch(tmp_path, database, engine, where) as (batch_id, owner, other, gate):
            if how == "frozen":
                database.freeze()
            else:
                database.kill()
            gate.set()
            await owner.until_logged("batch_results_write_failed")
            if how == "frozen":
                database.thaw()
            else:
                database.start()
            async with client_of(other) as client:
                await check_results(client, batch_id)
    finally:
        database.end()


async def test_a_cancelled_batch_is_cancelled_at_the_gateway_that_runs_it(
    tmp_path: Path, database: Postgresql, engine: FakeEngine, where: dict[str, Any]
) -> None:
    async def never(_: Exchange) -> None:
        await asyncio.Event().wait()

    engine.plays(never)
    async with mesh(tmp_path, database, engine, where) as shared:
        async with client_of(shared.gateways["us-1"]) as client:
            batch = await submit(client, line_of(0) + line_of(1))
            _, other = await shared.until_owned(batch.id)
        await engine.arrived.reaches(1)
        async with client_of(other) as client:
            assert (await client.batches.cancel(batch.id)).status == "cancelling"
            done = await ended(client, batch.id)
            assert (done.status, done.request_counts.failed) == ("cancelled", 2)
