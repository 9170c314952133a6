from __future__ import annotations

import asyncio

import pytest

from controller.documents import Changes
from controller.store.store import (
    CHANGES_MAX,
    DOCUMENT_BYTES_MAX,
    StoreError,
    StoreLost,
    StoreUnavailable,
    StoreUncertain,
)
from controller.store_writer import StoreWriter
from gateway.core.vocabulary import ControlVersion
from tests.support.desks import LOG, MemoryStore, running_keeper
from tests.support.gateways import until


async def until_written(store_writer: StoreWriter) -> None:
    await until(lambda: not store_writer.pending and not store_writer.fault)


async def test_what_is_asked_for_is_written_when_the_answer_comes() -> None:
    store = MemoryStore()
    async with running_keeper(store) as store_writer:
        await store_writer.write({"a": b"1"})
        assert store.writes == [{"a": b"1"}]
        assert store_writer.version == ControlVersion(3, 1)


async def test_what_the_core_decides_is_written_until_it_is_and_the_last_word_counts() -> None:
    store = MemoryStore()
    store.failures = [StoreUnavailable("full"), StoreUnavailable("full")]
    async with running_keeper(store) as store_writer:
        store_writer.keep({"a": b"1", "b": b"1"})
        await asyncio.sleep(0)
        store_writer.keep({"a": b"2"})
        await until_written(store_writer)
        assert store.attempts >= 3
        assert {name: text for each in store.writes for name, text in each.items()} == {"a": b"2", "b": b"1"}


async def test_what_somebody_asked_for_and_was_not_written_is_his_to_ask_again() -> None:
    store = MemoryStore()
    store.failures = [StoreUnavailable("full")]
    async with running_keeper(store) as store_writer:
        with pytest.raises(StoreUnavailable, match="full"):
            await store_writer.write({"asked": b"1"})
        assert store_writer.fault == "full"
        store_writer.keep({"a": b"1"})
        await until_written(store_writer)
        assert store.writes == [{"a": b"1"}]


async def test_a_word_that_comes_while_an_older_one_is_written_is_written_after_it() -> None:
    store = MemoryStore()
    store.gate.clear()
    store.failures = [StoreUnavailable("full")]
    async with running_keeper(store) as store_writer:
        store_writer.keep({"a": b"1"})
        await until(lambda: store.attempts > 0)
        store_writer.keep({"a": b"2"})
        store.gate.set()
        await until_written(store_writer)
        assert store.writes == [{"a": b"2"}]


async def test_it_rises_above_a_term_that_somebody_has_heard_of_once() -> None:
    store = MemoryStore()
    async with running_keeper(store) as store_writer:
        await store_writer.write({}, above=8)
        assert store_writer.version == ControlVersion(9, 1)
        await store_writer.write({"a": b"1"}, above=8)
        assert store_writer.version == ControlVersion(9, 2)
        assert store_writer.holding.token == 9


async def test_a_store_that_is_lost_is_written_no_more() -> None:
    store = MemoryStore()
    store.failures = [StoreLost("it is another's")]
    async with running_keeper(store) as store_writer:
        with pytest.raises(StoreLost):
            await store_writer.write({"a": b"1"})
        assert store_writer.lost.is_set()
        store_writer.keep({"b": b"1"})
        with pytest.raises(StoreLost):
            await store_writer.write({"a": b"1"})
        await store_writer.write_last()
        assert store.writes == []


async def test_more_than_one_write_holds_is_written_in_several_and_only_the_last_is_whole() -> None:
    store = MemoryStore()
    seen: list[bool] = []
    async with running_keeper(store) as store_writer:

        def take(is_whole: bool):  # type: ignore[no-untyped-def]
            seen.append(is_whole)
            return lambda _changes, _version: None

        store_writer.follow(take)
        store_writer.keep({f"n{number}": b"" for number in range(CHANGES_MAX + 1)})
        await until_written(store_writer)
        assert [len(each) for each in store.writes] == [CHANGES_MAX, 1]
        assert seen == [False, True]


async def test_callers_who_together_ask_for_more_than_one_write_holds_are_all_answered() -> None:
    store = MemoryStore()
    store.gate.clear()
    async with running_keeper(store) as store_writer, asyncio.TaskGroup() as tasks:
        store_writer.keep({"first": b""})
        await until(lambda: store.attempts > 0)
        tasks.create_task(store_writer.write({f"n{number}": b"" for number in range(CHANGES_MAX)}))
        tasks.create_task(store_writer.write({"gateway": b""}))
        store_writer.keep({"kept": b""})
        await until(lambda: len(store_writer._asked) == 2)
        store.gate.set()
    assert [len(each) for each in store.writes] == [1, CHANGES_MAX, 2]


async def test_who_finds_no_room_beside_changes_that_may_be_written_is_told_so_while_the_store_is_away() -> None:
    store = MemoryStore()
    store.failures = [StoreUncertain("no answer")]
    async with running_keeper(store) as store_writer:
        with pytest.raises(StoreUncertain):
            await store_writer.write({f"n{number}": b"" for number in range(CHANGES_MAX)})
        store.failures = [StoreUncertain("no answer")]
        with pytest.raises(StoreUnavailable, match="no answer") as told:
            await store_writer.write({"gateway": b""})
        assert not isinstance(told.value, StoreUncertain), "none of it was written"
        await store_writer.write({"gateway": b""})
        assert [len(each) for each in store.writes] == [CHANGES_MAX, 1]


async def test_an_unexpected_exception_is_told_to_callers_and_loses_no_document() -> None:
    store = MemoryStore()
    store.failures = [RuntimeError("a bug")]
    holding = await store.acquire("a test")
    store_writer = StoreWriter(store, holding, 0, LOG)
    store_writer.keep({"a": b"1"})
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(refused(store_writer, RuntimeError))
        await until(lambda: bool(store_writer._asked))
        with pytest.raises(RuntimeError, match="a bug"):
            await store_writer.run()
        assert await asking == "a bug"
        assert store_writer.pending == 1
        running = tasks.create_task(store_writer.run())
        await until_written(store_writer)
        running.cancel()
    assert store.writes == [{"a": b"1"}]


async def test_callers_beyond_one_write_hear_of_an_unexpected_exception_as_well() -> None:
    store = MemoryStore()
    store.failures = [RuntimeError("a bug")]
    store_writer = StoreWriter(store, await store.acquire("a test"), 0, LOG)
    many: Changes = {f"n{number}": b"" for number in range(CHANGES_MAX)}
    one: Changes = {"one": b""}
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(refused(store_writer, RuntimeError, changes)) for changes in (many, one)]
        await until(lambda: len(store_writer._asked) == len(asking))
        with pytest.raises(RuntimeError, match="a bug"):
            await store_writer.run()
    assert [each.result() for each in asking] == ["a bug", "a bug"]


async def test_what_was_being_written_when_the_writer_ends_is_in_the_last_write() -> None:
    store = MemoryStore()
    store.gate.clear()
    async with running_keeper(store) as store_writer:
        store_writer.keep({"a": b"1"})
        await until(lambda: store.attempts > 0)
    store.gate.set()
    await store_writer.write_last()
    assert store.writes == [{"a": b"1"}]


async def test_what_no_store_takes_is_refused_at_once() -> None:
    async with running_keeper(MemoryStore()) as store_writer:
        with pytest.raises(ValueError, match="at most"):
            await store_writer.write({"a": bytes(DOCUMENT_BYTES_MAX + 1)})
        with pytest.raises(ValueError, match="at most"):
            store_writer.keep({"a": bytes(DOCUMENT_BYTES_MAX + 1)})


async def test_what_may_have_been_written_is_told_so_and_written_until_that_is_certain() -> None:
    store = MemoryStore()
    store.failures = [StoreUncertain("no answer"), StoreUnavailable("gone")]
    taken: list[Changes] = []
    async with running_keeper(store) as store_writer:
        store_writer.follow(lambda _: lambda asked, _version: taken.append(asked))
        with pytest.raises(StoreUncertain):
            await store_writer.write({"asked": b"1"})
        await until(lambda: bool(store.writes))
        assert store.writes == [{"asked": b"1"}]
        assert taken == [{"asked": b"1"}], "then it is in force"
        await store_writer.write({"asked": b"2"})
        assert store.writes[1:] == [{"asked": b"2"}]


async def test_one_that_learns_elsewhere_that_the_store_is_lost_tells_everybody_who_waits() -> None:
    store = MemoryStore()
    store.gate.clear()
    store.failures = [StoreUnavailable("gone")]
    async with running_keeper(store) as store_writer, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(refused(store_writer))
        await until(lambda: store.attempts > 0)
        second = tasks.create_task(refused(store_writer))
        await until(lambda: bool(store_writer._asked))
        store_writer.lose(StoreLost("another's"))
        store.gate.set()
        assert await second == "another's"
        assert await first == "gone"
        assert await refused(store_writer) == "the store is another controller's now"


async def refused(store_writer: StoreWriter, kind: type[Exception] = StoreError, changes: Changes | None = None) -> str:
    with pytest.raises(kind) as error:
        await store_writer.write(changes or {"asked": b"1"})
    return str(error.value)
