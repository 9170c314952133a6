from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from controller.documents import Changes
from controller.keeper import Keeper
from controller.store.store import (
    CHANGES_MAX,
    DOCUMENT_BYTES_MAX,
    Contents,
    Holding,
    StoreError,
    StoreLost,
    StoreUnavailable,
)
from gateway.core.vocabulary import ControlVersion
from gateway.ground.config import LogFormat, LoggingConfig
from gateway.ground.logs import make_logger
from gateway.ground.supervisor import Backoff
from tests.support.gateways import until

LOG = make_logger(LoggingConfig(LogFormat.JSON), "ctl", io.StringIO())
QUICK = Backoff(min_ns=1_000_000, max_ns=2_000_000)


class MemoryStore:
    """Takes writes, or fails them as it is told."""

    def __init__(self) -> None:
        self.writes: list[Changes] = []
        self.failures: list[StoreError] = []
        self.attempts = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def acquire(self, holder: str) -> Holding:
        return Holding(3, holder)

    async def release(self, holding: Holding) -> None: ...

    async def close(self) -> None: ...

    async def read(self) -> Contents:
        return Contents(0, {})

    async def write(self, holding: Holding, changes: Mapping[str, bytes | None]) -> int:
        self.attempts += 1
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.writes.append(dict(changes))
        return len(self.writes)


@asynccontextmanager
async def running(store: MemoryStore) -> AsyncIterator[Keeper]:
    keeper = Keeper(store, await store.acquire("a test"), 0, LOG, backoff=QUICK)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(keeper.run())
        yield keeper
        task.cancel()


async def until_written(keeper: Keeper) -> None:
    await until(lambda: not keeper.pending and not keeper.fault)


async def test_what_is_asked_for_is_written_when_the_answer_comes() -> None:
    store = MemoryStore()
    async with running(store) as keeper:
        await keeper.write({"a": b"1"})
        assert store.writes == [{"a": b"1"}]
        assert keeper.version == ControlVersion(3, 1)


async def test_what_the_core_decides_is_written_until_it_is_and_the_last_word_counts() -> None:
    store = MemoryStore()
    store.failures = [StoreUnavailable("full"), StoreUnavailable("full")]
    async with running(store) as keeper:
        keeper.keep({"a": b"1", "b": b"1"})
        await asyncio.sleep(0)
        keeper.keep({"a": b"2"})
        await until_written(keeper)
        assert store.attempts >= 3
        assert {name: text for each in store.writes for name, text in each.items()} == {"a": b"2", "b": b"1"}


async def test_what_somebody_asked_for_and_was_not_written_is_his_to_ask_again() -> None:
    store = MemoryStore()
    store.failures = [StoreUnavailable("full")]
    async with running(store) as keeper:
        with pytest.raises(StoreUnavailable, match="full"):
            await keeper.write({"asked": b"1"})
        assert keeper.fault == "full"
        keeper.keep({"a": b"1"})
        await until_written(keeper)
        assert store.writes == [{"a": b"1"}]


async def test_a_word_that_comes_while_an_older_one_is_written_is_written_after_it() -> None:
    store = MemoryStore()
    store.gate.clear()
    store.failures = [StoreUnavailable("full")]
    async with running(store) as keeper:
        keeper.keep({"a": b"1"})
        await until(lambda: store.attempts > 0)
        keeper.keep({"a": b"2"})
        store.gate.set()
        await until_written(keeper)
        assert store.writes == [{"a": b"2"}]


async def test_a_store_that_is_lost_is_written_no_more() -> None:
    store = MemoryStore()
    store.failures = [StoreLost("it is another's")]
    async with running(store) as keeper:
        with pytest.raises(StoreLost):
            await keeper.write({"a": b"1"})
        assert keeper.lost.is_set()
        keeper.keep({"b": b"1"})
        with pytest.raises(StoreLost):
            await keeper.write({"a": b"1"})
        await keeper.write_last()
        assert store.writes == []


async def test_more_than_one_write_holds_is_written_in_several_and_only_the_last_is_whole() -> None:
    store = MemoryStore()
    seen: list[bool] = []
    async with running(store) as keeper:

        def take(is_whole: bool):  # type: ignore[no-untyped-def]
            seen.append(is_whole)
            return lambda _changes, _version: None

        keeper.follow(take)
        keeper.keep({f"n{number}": b"" for number in range(CHANGES_MAX + 1)})
        await until_written(keeper)
        assert [len(each) for each in store.writes] == [CHANGES_MAX, 1]
        assert seen == [False, True]


async def test_what_no_store_takes_is_refused_at_once() -> None:
    async with running(MemoryStore()) as keeper:
        with pytest.raises(ValueError, match="at most"):
            await keeper.write({"a": bytes(DOCUMENT_BYTES_MAX + 1)})
        with pytest.raises(ValueError, match="at most"):
            keeper.keep({"a": bytes(DOCUMENT_BYTES_MAX + 1)})
