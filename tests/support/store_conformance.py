"""Tests for every store of a controller. Each kind of store has a test class that inherits these and opens it."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from controller.store.store import (
    CHANGES_MAX,
    DOCUMENT_BYTES_MAX,
    NAME_BYTES_MAX,
    Store,
    StoreError,
    StoreLost,
    StoreTaken,
)
from mesh.clock import Clock
from tests.support.clock import StillClock

Open = Callable[[], Awaitable[Store]]


class StoreConformance(ABC):
    """Tests of one kind of store. All stores that one test opens have the same contents."""

    @abstractmethod
    async def open(self) -> Store:
        """Open one more store with the same contents."""

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

    async def test_it_is_renewed_by_whoever_has_it(self, stores: Open) -> None:
        store = await stores()
        first = await store.acquire("one")
        await store.renew(first)
        await store.release(first)
        with pytest.raises(StoreLost):
            await store.renew(first)

    @pytest.mark.parametrize(("above", "least"), [(0, 2), (7_000_000_000, 7_000_000_001)])
    async def test_a_token_that_rose_counts_from_then_on(self, stores: Open, above: int, least: int) -> None:
        store, other = await stores(), await stores()
        first = await store.acquire("one")
        risen = await store.rise(first, above)
        assert risen.token >= max(least, first.token + 1)
        with pytest.raises(StoreLost):
            await store.write(first, {"a": b"1"})
        await store.write(risen, {"a": b"2"})
        await store.release(risen)
        assert (await other.acquire("two")).token > risen.token

    async def test_a_rise_whose_answer_was_lost_is_made_again_with_the_holding_from_before(self, stores: Open) -> None:
        store = await stores()
        first = await store.acquire("one")
        for above in (40, 40, 60, 9):
            await store.rise(first, above)  # the caller never learns of the answer
        risen = await store.rise(first, 50)
        assert risen.token > 60
        await store.write(risen, {"a": b"1"})
        await store.acquire("one")
        with pytest.raises(StoreLost):
            await store.rise(risen, 0)

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


LEASE_NS = 6_000_000_000


async def looks_on(store: Store, clock: StillClock, duration_ns: int) -> None:
    """Assert that the lease is another's at each attempt during this time."""
    for _ in range(LOOKS):
        clock.now += duration_ns // LOOKS
        with pytest.raises(StoreTaken):
            await store.acquire("one who waits")
    clock.now += duration_ns % LOOKS


LOOKS = 7


class LeasedConformance(StoreConformance):
    """Tests for stores that several machines share, whose lease expires."""

    @abstractmethod
    async def open_with(self, clock: Clock, lease_ns: int) -> Store:
        """Open one more store with the same contents, for a holder with that clock."""

    async def open(self) -> Store:
        return await self.open_with(StillClock(), LEASE_NS)

    @pytest.fixture
    async def watched(self) -> AsyncIterator[tuple[Store, Store, StillClock]]:
        """Store of the present or former holder, store of a waiting one, and the latter's clock."""
        clock = StillClock()
        first, second = await self.open(), await self.open_with(clock, LEASE_NS)
        yield first, second, clock
        await first.close()
        await second.close()

    async def test_one_that_is_not_renewed_is_had_by_whoever_has_watched_it_for_as_long_as_it_lasts(
        self, watched: tuple[Store, Store, StillClock]
    ) -> None:
        first, second, clock = watched
        old = await first.acquire("one")
        await first.write(old, {"a": b"1"})
        clock.now += 1000 * LEASE_NS  # the lease's age is not known before the first look
        with pytest.raises(StoreTaken, match="one"):
            await second.acquire("two")
        await looks_on(second, clock, LEASE_NS - 1)
        clock.now += 1
        new = await second.acquire("two")
        assert new.token > old.token
        late = (
            first.write(old, {"a": b"late"}),
            first.write(old, {}),
            first.renew(old),
            first.rise(old, new.token + 5),
        )
        for each in late:
            with pytest.raises(StoreLost, match="it is now held by two"):
                await each
        await first.release(old)
        await second.write(new, {"b": b"2"})
        assert (await second.read()).documents == {"a": b"1", "b": b"2"}

    async def test_one_that_is_renewed_or_written_is_not_had(self, watched: tuple[Store, Store, StillClock]) -> None:
        first, second, clock = watched
        holding = await first.acquire("one")
        for number in range(6):
            with pytest.raises(StoreTaken):
                await second.acquire("two")
            if number % 2:
                await first.renew(holding)
            else:
                await first.write(holding, {"a": str(number).encode()})
            await looks_on(second, clock, LEASE_NS)

    async def test_a_lease_lasts_as_long_as_whoever_has_it_thinks(self) -> None:
        """Two controllers' files configure different leases."""
        clock = StillClock()
        first, second = await self.open_with(StillClock(), 3 * LEASE_NS), await self.open_with(clock, LEASE_NS)
        await first.acquire("one")
        with pytest.raises(StoreTaken):
            await second.acquire("two")
        await looks_on(second, clock, 3 * LEASE_NS - 1)
        clock.now += 1
        await second.acquire("two")
        await first.close()
        await second.close()

    async def test_of_many_that_wait_one_has_it(self) -> None:
        clock = StillClock()
        dead = await self.open()
        await dead.acquire("the dead one")
        waiting = [await self.open_with(clock, LEASE_NS) for _ in range(6)]
        for store in waiting:
            with pytest.raises(StoreTaken):
                await store.acquire("too early")
        for _ in range(3):
            clock.now += LEASE_NS // 3
            for store in waiting if clock.now < LEASE_NS else ():
                with pytest.raises(StoreTaken):
                    await store.acquire("too early")

        async def got_it(store: Store) -> bool:
            try:
                await store.acquire("one of them")
            except StoreTaken:
                return False
            return True

        async with asyncio.TaskGroup() as tasks:
            tries = [tasks.create_task(got_it(store)) for store in waiting]
        assert sum(each.result() for each in tries) == 1
        for store in (*waiting, dead):
            await store.close()

    async def test_a_token_that_was_given_twice_opens_nothing(self, watched: tuple[Store, Store, StillClock]) -> None:
        """Simulate a database that lost its last writes and gave a token twice."""
        first, second, _ = watched
        holding = await first.acquire("one")
        await first.release(holding)
        other = await second.acquire("two")
        forged = replace(holding, token=other.token)
        for each in (first.write(forged, {"a": b"1"}), first.renew(forged), first.rise(forged, 0)):
            with pytest.raises(StoreLost):
                await each
        assert (await second.read()).documents == {}

    async def test_a_deposed_one_that_writes_while_the_next_one_does_changes_nothing(
        self, watched: tuple[Store, Store, StillClock]
    ) -> None:
        first, second, _ = watched
        old = await first.acquire("one")
        await first.release(old)
        new = await second.acquire("two")

        async def write_late() -> None:
            for number in range(20):
                with pytest.raises(StoreLost):
                    await first.write(old, {f"late{number}": b"", "a": b"late"})

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_late())
            for number in range(20):
                await second.write(new, {"a": str(number).encode()})
        assert (await second.read()).documents == {"a": b"19"}

    async def test_a_whole_fleet_is_written_at_once(self, stores: Open) -> None:
        store, other = await stores(), await stores()
        holding = await store.acquire("one")
        fleet: dict[str, bytes | None] = {f"owner/replica-{number}": b"us-east-1a" for number in range(CHANGES_MAX)}
        await store.write(holding, fleet)
        assert (await other.read()).documents == fleet
        await store.write(holding, dict.fromkeys(list(fleet)[1:]))
        assert (await other.read()).documents == {"owner/replica-0": b"us-east-1a"}

    async def test_a_document_of_the_largest_size_comes_back_and_goes(self, stores: Open) -> None:
        store, other = await stores(), await stores()
        holding = await store.acquire("one")
        large = random.Random(1).randbytes(DOCUMENT_BYTES_MAX)
        await store.write(holding, {"a": large, "b": b"1"})
        assert (await other.read()).documents == {"a": large, "b": b"1"}
        await store.write(holding, {"a": b"small"})
        assert (await other.read()).documents == {"a": b"small", "b": b"1"}
