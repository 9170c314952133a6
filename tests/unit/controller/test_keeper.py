from __future__ import annotations

import asyncio

import pytest

from controller.keeper import Keeper
from controller.store.store import (
    CHANGES_MAX,
    DOCUMENT_BYTES_MAX,
    StoreLost,
    StoreUnavailable,
)
from gateway.core.vocabulary import ControlVersion
from tests.support.desks import MemoryStore, running_keeper
from tests.support.gateways import until


async def until_written(keeper: Keeper) -> None:
    await until(lambda: not keeper.pending and not keeper.fault)


async def test_what_is_asked_for_is_written_when_the_answer_comes() -> None:
    store = MemoryStore()
    async with running_keeper(store) as keeper:
        await keeper.write({"a": b"1"})
        assert store.writes == [{"a": b"1"}]
        assert keeper.version == ControlVersion(3, 1)


async def test_what_the_core_decides_is_written_until_it_is_and_the_last_word_counts() -> None:
    store = MemoryStore()
    store.failures = [StoreUnavailable("full"), StoreUnavailable("full")]
    async with running_keeper(store) as keeper:
        keeper.keep({"a": b"1", "b": b"1"})
        await asyncio.sleep(0)
        keeper.keep({"a": b"2"})
        await until_written(keeper)
        assert store.attempts >= 3
        assert {name: text for each in store.writes for name, text in each.items()} == {"a": b"2", "b": b"1"}


async def test_what_somebody_asked_for_and_was_not_written_is_his_to_ask_again() -> None:
    store = MemoryStore()
    store.failures = [StoreUnavailable("full")]
    async with running_keeper(store) as keeper:
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
    async with running_keeper(store) as keeper:
        keeper.keep({"a": b"1"})
        await until(lambda: store.attempts > 0)
        keeper.keep({"a": b"2"})
        store.gate.set()
        await until_written(keeper)
        assert store.writes == [{"a": b"2"}]


async def test_it_rises_above_a_term_that_somebody_has_heard_of_once() -> None:
    store = MemoryStore()
    async with running_keeper(store) as keeper:
        await keeper.write({}, above=8)
        assert keeper.version == ControlVersion(9, 1)
        await keeper.write({"a": b"1"}, above=8)
        assert keeper.version == ControlVersion(9, 2)
        assert keeper.holding.token == 9


async def test_a_store_that_is_lost_is_written_no_more() -> None:
    store = MemoryStore()
    store.failures = [StoreLost("it is another's")]
    async with running_keeper(store) as keeper:
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
    async with running_keeper(store) as keeper:

        def take(is_whole: bool):  # type: ignore[no-untyped-def]
            seen.append(is_whole)
            return lambda _changes, _version: None

        keeper.follow(take)
        keeper.keep({f"n{number}": b"" for number in range(CHANGES_MAX + 1)})
        await until_written(keeper)
        assert [len(each) for each in store.writes] == [CHANGES_MAX, 1]
        assert seen == [False, True]


async def test_what_no_store_takes_is_refused_at_once() -> None:
    async with running_keeper(MemoryStore()) as keeper:
        with pytest.raises(ValueError, match="at most"):
            await keeper.write({"a": bytes(DOCUMENT_BYTES_MAX + 1)})
        with pytest.raises(ValueError, match="at most"):
            keeper.keep({"a": bytes(DOCUMENT_BYTES_MAX + 1)})
