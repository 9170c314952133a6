"""A controller's desk without streams, clocks or disks."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from controller.core.config import ControllerConfig
from controller.core.controller_core import ControllerCore
from controller.driver import ControllerDriver
from controller.state_manager import Naming, StateManager
from controller.store.store import Contents, StoreHolding
from controller.store_writer import StoreWriter
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.supervisor import Backoff
from tests.support.clock import StillClock
from tests.support.core import REGIONS

LOG = make_logger(LoggingConfig(LogFormat.JSON), "ctl", io.StringIO())
QUICK = Backoff(min_ns=1_000_000, max_ns=2_000_000)


class MemoryStore:
    """Store in memory that takes writes, or fails them as a test sets it."""

    def __init__(self, documents: Mapping[str, bytes] | None = None) -> None:
        self.documents = dict(documents or {})
        self.writes: list[dict[str, bytes | None]] = []
        self.failures: list[Exception] = []
        self.attempts = 0
        self.token = 2
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def lease_ns(self) -> None: ...

    async def renew(self, holding: StoreHolding) -> None: ...

    async def acquire(self, holder: str) -> StoreHolding:
        self.token += 1
        return StoreHolding(self.token, holder)

    async def rise(self, holding: StoreHolding, above: int) -> StoreHolding:
        self.token = max(self.token, above) + 1
        return StoreHolding(self.token, holding.holder)

    async def release(self, holding: StoreHolding) -> None: ...

    async def close(self) -> None: ...

    async def read(self) -> Contents:
        return Contents(len(self.writes), dict(self.documents))

    async def write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        self.attempts += 1
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.writes.append(dict(changes))
        self.documents = {name: text for name, text in self.documents.items() if name not in changes}
        self.documents |= {name: text for name, text in changes.items() if text is not None}
        return len(self.writes)


@asynccontextmanager
async def running_keeper(store: MemoryStore) -> AsyncIterator[StoreWriter]:
    holding, contents = await store.acquire("a test"), await store.read()
    keeper = StoreWriter(store, holding, contents.revision, LOG, backoff=QUICK)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(keeper.run())
        yield keeper
        task.cancel()


@asynccontextmanager
async def running_desk(
    store: MemoryStore,
    naming: Naming | None = None,
    config: ControllerConfig | None = None,
    *,
    wall_s: int = 0,
    clock: Clock | None = None,
) -> AsyncIterator[StateManager]:
    """Run a desk on clocks that stand still."""
    core = ControllerCore()
    driver = ControllerDriver(core, clock or StillClock(1))
    async with running_keeper(store) as keeper:
        desk = StateManager(
            core, driver, keeper, store.documents, naming or Naming(), wall_ns=lambda: wall_s * 10**9, regions=REGIONS
        )
        desk.start(config or ControllerConfig())
        yield desk
    driver.close()
