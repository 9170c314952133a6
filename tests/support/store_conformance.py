"""What every store of a controller has to do. A kind of store is tested by a class that inherits this and opens one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from controller.store.store import (
    CHANGES_MAX,
    DOCUMENT_BYTES_MAX,
    NAME_BYTES_MAX,
    Store,
    StoreError,
    StoreLost,
    StoreTaken,
)

Open = Callable[[], Awaitable[Store]]


class StoreConformance(ABC):
    """Opens stores as often as a test asks; all of one test are of the same contents."""

    @abstractmethod
    async def open(self) -> Store:
        """One more way to the same contents."""

    @pytest.fixture
    async def stores(self) -> AsyncIterator[Open]:
        async with AsyncExitStack() as stack:

            async def open_another() -> Store:
                store = await self.open()
                stack.push_async_callback(store.close)
                return store

            yield open_another

    async def test_a_new_one_is_empty(self, stores: Open) -> None:
        contents = await (await stores()).read()
        assert (contents.revision, contents.documents) == (0, {})

    async def test_what_was_written_is_read_by_anybody(self, stores: Open) -> None:
        store, other = await stores(), await stores()
        holding = await store.acquire("one")
        revision = await store.write(holding, {"a": b"1", "b/c": b"\x00\xff", "é": b""})
        for reader in (store, other):
            contents = await reader.read()
            assert contents.revision == revision
            assert contents.documents == {"a": b"1", "b/c": b"\x00\xff", "é": b""}

    async def test_changes_put_replace_and_delete_together(self, stores: Open) -> None:
        store = await stores()
        holding = await store.acquire("one")
        first = await store.write(holding, {"a": b"1", "b": b"1"})
        second = await store.write(holding, {"a": b"2", "b": None, "c": b"2", "never": None})
        assert second > first
        assert (await store.read()).documents == {"a": b"2", "c": b"2"}

    async def test_only_one_has_it_and_the_other_is_told_who(self, stores: Open) -> None:
        store, other = await stores(), await stores()
        await store.acquire("the first of them")
        with pytest.raises(StoreTaken, match="the first of them"):
            await other.acquire("two")

    async def test_whoever_comes_next_has_a_higher_token(self, stores: Open) -> None:
        store, other = await stores(), await stores()
        first = await store.acquire("one")
        await store.release(first)
        assert (await other.acquire("two")).token > first.token

    async def test_nothing_is_written_with_a_holding_that_was_lost(self, stores: Open) -> None:
        store, other = await stores(), await stores()
        lost = await store.acquire("one")
        await store.write(lost, {"a": b"1"})
        await store.release(lost)
        await other.acquire("two")
        with pytest.raises(StoreLost):
            await store.write(lost, {"a": b"2"})
        await store.release(lost)
        assert (await other.read()).documents == {"a": b"1"}

    async def test_whoever_acquires_again_has_lost_its_first_holding(self, stores: Open) -> None:
        store = await stores()
        first = await store.acquire("one")
        second = await store.acquire("one")
        with pytest.raises(StoreLost):
            await store.write(first, {"a": b"1"})
        await store.write(second, {"a": b"2"})

    @pytest.mark.parametrize(("above", "least"), [(0, 2), (7_000_000_000, 7_000_000_001)])
    async def test_a_token_that_rose_counts_from_then_on(self, stores: Open, above: int, least: int) -> None:
        store, other = await stores(), await stores()
        first = await store.acquire("one")
        risen = await store.rise(first, above)
        assert risen.token >= max(least, first.token + 1)
        for late in (store.write(first, {"a": b"1"}), store.rise(first, 9)):
            with pytest.raises(StoreLost):
                await late
        await store.write(risen, {"a": b"2"})
        await store.release(risen)
        assert (await other.acquire("two")).token > risen.token

    async def test_closing_lets_it_go(self, stores: Open) -> None:
        store, other = await self.open(), await stores()
        await store.acquire("one")
        await store.close()
        await other.acquire("two")
        with pytest.raises(StoreError):
            await store.read()

    async def test_a_write_that_is_given_up_happens_wholly_or_not_at_all(self, stores: Open) -> None:
        store = await stores()
        holding = await store.acquire("one")
        names = [f"n{number}" for number in range(200)]
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(store.write(holding, dict.fromkeys(names, b"x" * 1000)))
            await asyncio.sleep(0)
            writing.cancel()
        found = (await store.read()).documents
        assert sorted(found) in ([], sorted(names))

    async def test_many_readers_see_whole_writes(self, stores: Open) -> None:
        store, other = await stores(), await stores()
        holding = await store.acquire("one")

        async def write() -> None:
            for number in range(30):
                await store.write(holding, dict.fromkeys("abc", str(number).encode()))

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            while not writing.done():
                assert len(set((await other.read()).documents.values())) <= 1

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"": b""}, id="no-name"),
            pytest.param({"n" * (NAME_BYTES_MAX + 1): b""}, id="a-long-name"),
            pytest.param({"a": b"", "b": bytes(DOCUMENT_BYTES_MAX + 1)}, id="a-large-document"),
            pytest.param({str(number): None for number in range(CHANGES_MAX + 1)}, id="too-many"),
        ],
    )
    async def test_what_is_too_much_is_refused_whole(self, stores: Open, changes: dict[str, bytes | None]) -> None:
        store = await stores()
        holding = await store.acquire("one")
        with pytest.raises(ValueError, match=r"."):
            await store.write(holding, changes)
        assert (await store.read()).documents == {}
