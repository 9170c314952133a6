from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.store.store import Store
from mesh.clock import Clock
from tests.hostile.split_brain import SPLIT_CASES, SplitCase
from tests.support.shared_store import SharedMemory, SharedStore
from tests.support.split_brain import staged
from tests.support.store_conformance import LeasedConformance


@pytest.mark.parametrize("case", SPLIT_CASES, ids=lambda case: case.name)
async def test_of_two_controllers_one_leads_whatever_the_store_and_clocks_do(case: SplitCase, tmp_path: Path) -> None:
    async with asyncio.timeout(60), staged(case, tmp_path) as stage:
        for step in case.story.split("; "):
            await stage.play(step)
        stage.end()


class TestTheStoreOfTheStories(LeasedConformance):
    """The stories' store passes the tests of every shared store, so that the stories hold for each of them."""

    @pytest.fixture(autouse=True)
    def shared(self) -> SharedMemory:
        self._shared = SharedMemory()
        return self._shared

    async def open_with(self, clock: Clock, lease_ns: int) -> Store:
        return SharedStore(self._shared, clock, lease_ns)
