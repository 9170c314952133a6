"""Writer of the store: one write at a time, and reports of what has been written.

Decisions of the core are written again and again until they are on the disk. A change that a caller asks for is tried
once, and the caller is told if it failed. State that is not stored is never sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from controller.documents import Changes
from controller.store.store import (
    CHANGES_MAX,
    Store,
    StoreError,
    StoreHolding,
    StoreLost,
    StoreUnavailable,
    StoreUncertain,
    check_changes,
)
from gateway.core.vocabulary import ControlVersion
from mesh.supervisor import Backoff

_BACKOFF = Backoff(min_ns=200_000_000, max_ns=10_000_000_000)
_ASKED_MAX = 1024
"""Callers that wait for a write: each waits for its answer, so that there are no more than gateways and operators."""


Written = Callable[[Changes, ControlVersion], None]
"""Called once a write is on the disk, with the changes that callers asked for and the version."""
Take = Callable[[bool], Written]
"""Called as a write begins. True: the write has all that the core has decided so far."""


@dataclass
class _Asked:
    changes: Mapping[str, bytes | None]
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class StoreWriter:
    """The only writer of the store. Not shared between event loops."""

    def __init__(
        self,
        store: Store,
        holding: StoreHolding,
        revision: int,
        log: FilteringBoundLogger,
        *,
        on_failure: Callable[[StoreError], None] = lambda _: None,
        on_rise: Callable[[int], None] = lambda _: None,
        on_lost: Callable[[], None] = lambda: None,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self.version = ControlVersion(holding.token, revision)
        """Version of the last write."""
        self.fault = ""
        """Reason why the last write failed; empty after one that did not."""
        self.lost = asyncio.Event()
        """Another controller holds the store: nothing more is written or sent."""
        self._store = store
        self._holding = holding
        self._above = 0
        """Highest term that gateways have reported."""
        self._log = log
        self._on_failure = on_failure
        self._on_rise = on_rise
        self._on_lost = on_lost
        self._backoff = backoff
        self._pending: Changes = {}
        self._uncertain: Changes = {}
        """Changes that callers asked for and that may be written already: they are written again until that is
        certain."""
        self._under_way = 0
        self._asked: deque[_Asked] = deque()
        self._wanted = asyncio.Event()
        self._take: Take | None = None

    def follow(self, take: Take) -> None:
        self._take = take

    @property
    def pending(self) -> int:
        """Documents of the core that are not known to be written."""
        return len(self._pending) + self._under_way

    def keep(self, changes: Mapping[str, bytes | None]) -> None:
        """Queue documents to be written. A later change of the same document replaces an earlier one."""
        for name in changes:
            check_changes({name: changes[name]})
        self._pending |= changes
        self._wanted.set()

    @property
    def holding(self) -> StoreHolding:
        """Holding to be given back in the end."""
        return self._holding

    async def write(self, changes: Mapping[str, bytes | None], *, above: int = 0) -> None:
        """Write changes: on the disk when this returns, with a term above `above`. Raises StoreError, and nothing has
        changed then; StoreUncertain, and it will have changed once the store can be written; ValueError for changes
        that no store accepts."""
        check_changes(changes)
        if self.lost.is_set():
            raise StoreLost("the store is another controller's now")
        if len(self._asked) >= _ASKED_MAX:
            raise StoreError(f"{_ASKED_MAX} changes wait to be written")
        self._above = max(self._above, above)
        asked = _Asked(changes)
        self._asked.append(asked)
        self._wanted.set()
        await asked.done

    async def run(self) -> None:
        """Write until cancelled, or until the store is lost."""
        failures = 0
        while not self.lost.is_set():
            await self._wanted.wait()
            self._wanted.clear()
            while (self._pending or self._uncertain or self._asked) and not self.lost.is_set():
                failures = 0 if await self._write() else failures + 1
                if failures and (self._pending or self._uncertain):
                    await self._pause(failures)

    async def write_last(self) -> None:
        """Write once what is still queued, when nothing else runs any more. Raises StoreError."""
        if (self._pending or self._uncertain) and not self.lost.is_set():
            await self._stored(self._uncertain | self._batch([]))

    async def _pause(self, failures: int) -> None:
        """Wait after a failed write, unless a caller asks for one: then everything is tried at once."""
        try:
            async with asyncio.timeout(self._backoff.pause_s(failures)):
                while not self._asked:
                    self._wanted.clear()
                    await self._wanted.wait()
        except TimeoutError:
            pass

    async def _write(self) -> bool:
        asked = self._asked_that_fit()
        is_full = not asked and bool(self._asked)
        batch = self._batch(asked)
        wanted: Changes = self._uncertain | {name: text for each in asked for name, text in each.changes.items()}
        self._under_way = len(batch)
        try:
            written = self._take(not self._pending) if self._take is not None else None
            revision = await self._stored(wanted | batch)
            self._under_way, self._uncertain = 0, {}
            self._succeeded(revision)
            if written is not None:
                written(wanted, self.version)
        except StoreError as error:
            if isinstance(error, StoreUncertain):
                self._uncertain = wanted
            self._pending = batch | self._pending
            self._failed(error, asked)
            if is_full:  # uncertain changes leave no room until they are written
                _fail(self._asked, StoreUnavailable(str(error)))
                self._asked.clear()
            return False
        except BaseException as error:
            self._pending = batch | self._pending
            _fail((*asked, *self._asked), error)
            self._asked.clear()
            raise
        finally:
            self._under_way = 0
            self._wanted.set()
        for each in asked:
            if not each.done.done():
                each.done.set_result(None)
        return True

    async def _stored(self, changes: Changes) -> int:
        """Write changes, with a term above those that gateways have reported; returns the revision."""
        if self._above >= self._holding.token:
            self._holding = await self._store.rise(self._holding, self._above)
            self._on_rise(self._holding.token)
        return await self._store.write(self._holding, changes)

    def _asked_that_fit(self) -> list[_Asked]:
        """Take the changes of as many callers as a store accepts at once; those of the others are written next."""
        fitting: list[_Asked] = []
        room = CHANGES_MAX - len(self._uncertain)
        while self._asked and len(self._asked[0].changes) <= room:
            fitting.append(self._asked.popleft())
            room -= len(fitting[-1].changes)
        return fitting

    def _batch(self, asked: list[_Asked]) -> Changes:
        """Take as many changes as a store accepts at once; the rest is written next."""
        room = CHANGES_MAX - len(self._uncertain) - sum(len(each.changes) for each in asked)
        names = list(self._pending)[: max(room, 0)]
        return {name: self._pending.pop(name) for name in names}

    def lose(self, error: StoreLost) -> None:
        """Note that another controller holds the store, and tell the waiting callers."""
        if not self.lost.is_set():
            self._log.error("store_lost", reason=str(error))
        self.fault = str(error)
        self._on_lost()
        self.lost.set()
        _fail(self._asked, error)
        self._asked.clear()
        self._wanted.set()

    def _succeeded(self, revision: int) -> None:
        self.version = ControlVersion(self._holding.token, revision)
        if self.fault:
            self._log.info("store_write_recovered", version=revision)
            self.fault = ""

    def _failed(self, error: StoreError, asked: list[_Asked]) -> None:
        if str(error) != self.fault:
            self._log.error("store_write_failed", reason=str(error))
        self.fault = str(error)
        self._on_failure(error)
        if isinstance(error, StoreLost):
            self.lose(error)
        _fail(asked, error)


def _fail(asked: Iterable[_Asked], error: BaseException) -> None:
    """Tell callers that their changes were not written, as far as is known."""
    for each in asked:
        if isinstance(error, asyncio.CancelledError):
            each.done.cancel()
        elif not each.done.done():
            each.done.set_exception(error)
