from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.features.batches.places import LinePlaces
from gateway.features.batches.state import ClientBatch
from mesh.task_group import TaskGroup
from tests.support.batches import client_batch

ACME, ACME_TOO, ZENITH = client_batch("a"), client_batch("b"), client_batch("z", "zenith")


class Lines:
    """Lines of batches that wait for one of four places, and keep it until they are ended."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.places = LinePlaces(4)
        self._tasks = tasks
        self._of: dict[str, list[asyncio.Task[None]]] = {}
        self._holding: list[tuple[str, asyncio.Event]] = []

    async def add(self, batch: ClientBatch, count: int) -> None:
        async def hold() -> None:
            async with self.places.one_for(batch):
                self._holding.append((batch.id, over := asyncio.Event()))
                await over.wait()

        self._of.setdefault(batch.id, []).extend(self._tasks.create_task(hold()) for _ in range(count))
        await settled()

    async def end(self, batch: ClientBatch, count: int = 1) -> None:
        for held in [each for each in self._holding if each[0] == batch.id][:count]:
            self._holding.remove(held)
            held[1].set()
            await settled()

    async def cancel(self, batch: ClientBatch) -> None:
        for each in self._of.pop(batch.id):
            each.cancel()
        self._holding = [each for each in self._holding if each[0] != batch.id]
        await settled()

    @property
    def held(self) -> str:
        """Batches that hold places, once for each."""
        return "".join(sorted(batch_id for batch_id, _ in self._holding))


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    async with TaskGroup() as tasks:
        yield (made := Lines(tasks))
        for batch in (ACME, ACME_TOO, ZENITH):
            if batch.id in made._of:
                await made.cancel(batch)
        kept = made.places
        assert (kept._free, len(kept._waiting), len(kept._of_batches), len(kept._of_tenants)) == (4, 0, 0, 0)


async def test_a_batch_alone_has_all_places(lines: Lines) -> None:
    await lines.add(ACME, 9)
    assert lines.held == "aaaa"


async def test_free_places_go_to_the_batch_that_holds_the_fewest_until_shares_are_equal(lines: Lines) -> None:
    await lines.add(ACME, 20)
    await lines.add(ZENITH, 20)
    assert lines.held == "aaaa"
    await lines.end(ACME, 2)
    assert lines.held == "aazz"
    for _ in range(5):  # one batch is much faster than the other
        await lines.end(ZENITH)
        assert lines.held == "aazz"
    await lines.end(ACME)
    assert lines.held == "aazz"


async def test_of_batches_with_as_few_places_that_of_the_tenant_with_the_fewest_is_the_first(lines: Lines) -> None:
    await lines.add(ACME, 9)
    await lines.add(ACME_TOO, 9)
    await lines.add(ZENITH, 9)
    await lines.end(ACME)
    assert lines.held == "aaaz"
    await lines.end(ACME, 2)
    assert lines.held == "abzz"


async def test_lines_that_are_cancelled_leave_their_places_to_others(lines: Lines) -> None:
    await lines.add(ACME, 9)
    await lines.add(ZENITH, 9)
    await lines.cancel(ACME)
    assert lines.held == "zzzz"
    await lines.add(ACME, 1)
    await lines.cancel(ACME)
    await lines.end(ZENITH)
    assert lines.held == "zzzz"
