"""The store in DynamoDB, against an emulator of it over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from msgspec.structs import replace

from controller.store.dynamodb import DynamodbStore
from controller.store.dynamodb_table import DynamodbSettings, DynamodbTable
from controller.store.store import (
    Contents,
    Store,
    StoreLost,
    StoreTaken,
    StoreUnavailable,
    StoreUncertain,
    StoreUnusable,
)
from mesh.clock import Clock
from tests.cloud.dynamodb import NOBODY, new_table
from tests.cloud.programs import Emulator, free_port
from tests.support.clock import StillClock
from tests.support.store_conformance import LeasedConformance

pytestmark = pytest.mark.needs("emulators")


@pytest.fixture
def _as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in NOBODY.items():
        monkeypatch.setenv(name, secret)


class TestConformance(LeasedConformance):
    @pytest.fixture(autouse=True)
    def _table(self, _as_nobody: None, running_ministack: Emulator) -> None:
        """Time-outs long enough for a busy machine."""
        self.settings = DynamodbSettings(
            new_table(running_ministack), "us-east-1", running_ministack.url, 20 * 10**9, 120 * 10**9
        )

    async def open_with(self, clock: Clock, lease_ns: int) -> Store:
        return await DynamodbStore.open(self.settings, lease_ns=lease_ns, clock=clock)


# Failures


@pytest.fixture
def table(_as_nobody: None, running_ministack: Emulator) -> DynamodbSettings:
    return DynamodbSettings(new_table(running_ministack), "us-east-1", running_ministack.url, 20 * 10**9, 120 * 10**9)


async def opened(settings: DynamodbSettings, clock: Clock | None = None) -> DynamodbStore:
    return await DynamodbStore.open(settings, lease_ns=6 * 10**9, clock=clock or StillClock())


async def test_a_table_that_is_not_there_is_named(table: DynamodbSettings) -> None:
    with pytest.raises(StoreUnavailable, match=r"DynamoDB table nobodys: .*ResourceNotFound"):
        await opened(replace(table, table="nobodys"))


async def test_an_endpoint_where_nobody_answers_is_named(table: DynamodbSettings) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(StoreUnavailable, match="Could not connect"):
        await opened(replace(table, endpoint=nowhere))


async def test_nothing_is_left_lying_about_whoever_writes_or_is_deposed_meanwhile(table: DynamodbSettings) -> None:
    store, other = await opened(table), await opened(table)
    holding = await store.acquire("one")
    for number in range(5):
        await store.write(holding, {f"n{each}": str(number).encode() for each in range(1000)})
    await store._stage({"staged": b"and never written"})
    await store.release(holding)
    assert len(await store._table.ids()) == 1 + 32 + 1
    new = await other.acquire("two")
    assert len(await store._table.ids()) == 1 + 32
    with pytest.raises(StoreLost):
        await store.write(holding, {"n0": b"late"})
    await other.write(new, {f"n{each}": None for each in range(1000)})
    assert (await other.read()).documents == {}
    await other.release(new)
    await store.acquire("one again")
    assert await store._table.ids() == ["head"]
    for each in (store, other):
        await each.close()


async def test_a_write_whose_answer_was_lost_is_written_once_more_and_counts_once(table: DynamodbSettings) -> None:
    store = await opened(table)
    holding = await store.acquire("one")
    with silent_for(store._table, "update_item", is_done=True):
        with pytest.raises(StoreUncertain):
            await store.write(holding, {"a": b"1", "b": b"1"})
    assert (await store.read()).documents == {"a": b"1", "b": b"1"}, "it was done, and nobody knew"
    revision = await store.write(holding, {"a": b"2", "c": b"2"})
    assert await store.read() == Contents(revision, {"a": b"2", "b": b"1", "c": b"2"})
    with silent_for(store._table, "update_item", is_done=False):
        with pytest.raises(StoreUncertain):
            await store.write(holding, {"a": b"3"})
    assert await store.write(holding, {"b": None}) == revision + 1
    assert (await store.read()).documents == {"a": b"2", "c": b"2"}
    await store.close()


@contextmanager
def silent_for(table: DynamodbTable, operation: str, *, is_done: bool) -> Iterator[None]:
    """Lose the answers to `operation`, which the service has carried out or not (`is_done`)."""
    real = getattr(table._client, operation)

    def unanswered(**arguments: Any) -> Any:
        if is_done:
            real(**arguments)
        raise ReadTimeoutError(endpoint_url="the service")

    setattr(table._client, operation, unanswered)
    yield
    setattr(table._client, operation, real)


async def test_one_that_came_to_have_it_without_knowing_has_it(table: DynamodbSettings) -> None:
    store, other = await opened(table), await opened(table)
    with silent_for(store._table, "update_item", is_done=True):
        with pytest.raises(StoreUnavailable):
            await store.acquire("one")
    with pytest.raises(StoreTaken, match="one"):
        await other.acquire("two")
    holding = await store.acquire("one")
    await store.write(holding, {"a": b"1"})
    for each in (store, other):
        await each.close()


async def test_a_table_that_was_put_back_to_an_older_copy_is_not_written_on(table: DynamodbSettings) -> None:
    store = await opened(table)
    holding = await store.acquire("one")
    await store.write(holding, {"a": b"1"})
    await store.write(holding, {"a": b"2"})
    await store._table.update("head", "SET revision = :one", "#key = :key", one=1, key=holding.key)
    for late in (store.renew(holding), store.write(holding, {"a": b"3"})):
        with pytest.raises(StoreLost, match="lost writes"):
            await late
    await store.close()


async def test_what_is_missing_or_damaged_is_not_guessed_at(table: DynamodbSettings) -> None:
    store = await opened(table)
    holding = await store.acquire("one")
    await store.write(holding, {"a": b"1"})
    (item_id,) = [each for each in await store._table.ids() if each != "head"]
    await store._table.put([{"id": {"S": item_id}, "part": {"B": b"nonsense"}}])
    with pytest.raises(StoreUnusable, match="damaged"):
        await store.read()
    await store._table.delete([item_id])
    with pytest.raises(StoreUnusable, match="1 of its items are missing"):
        await store.read()
    await store._table.put([{"id": {"S": "head"}, "format": {"N": "9"}}])
    with pytest.raises(StoreUnusable, match="format 9, and this controller reads 1"):
        await opened(table)
    await store._table.delete(["head"])
    await store.close()
