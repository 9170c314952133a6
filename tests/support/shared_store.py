"""A controllers' store in memory that several controllers share, with failures on demand. It passes
`tests/support/store_conformance.py`, like every store.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from controller.store.lease_watch import LeaseMark, LeaseWatch
from controller.store.store import (
    Contents,
    StoreHolding,
    StoreLost,
    StoreTaken,
    StoreUnavailable,
    StoreUncertain,
    check_changes,
)
from mesh.clock import Clock


@dataclass(frozen=True)
class _State:
    mark: LeaseMark = field(default_factory=lambda: LeaseMark(0, "", 0))
    holder: str = ""
    lease_ns: int = 0
    revision: int = 0
    documents: Mapping[str, bytes] = field(default_factory=dict)


class SharedMemory:
    """State that all clients of the store see, and its faults."""

    def __init__(self) -> None:
        self.state = _State()
        self.before_write = self.state
        self.is_silent = False
        """True if the next write takes place without an answer."""
        self.late: Callable[[], None] | None = None
        """Called once before the next answer, to let time pass."""
        self.keys = 0

    def forget(self, *, everything: bool) -> None:
        self.state = _State() if everything else self.before_write

    def take(self, holder: str, lease_ns: int = 0) -> str:
        """Give the store to a holder; returns the new key."""
        self.keys += 1
        key = f"key-{self.keys}"
        mark = LeaseMark(self.state.mark.token + 1, key, self.state.mark.renewals + 1)
        self.state = dataclasses.replace(self.state, mark=mark, holder=holder, lease_ns=lease_ns)
        return key


class SharedStore:
    """One client's connection to the store."""

    def __init__(self, shared: SharedMemory, clock: Clock, lease_ns: int) -> None:
        self.shared = shared
        self.is_gone = False
        self.requests, self.answers = asyncio.Event(), asyncio.Event()
        """Set while requests reach the store, and while answers come back."""
        self.requests.set()
        self.answers.set()
        self._clock = clock
        self._lease_ns = lease_ns
        self._watch = LeaseWatch()
        self._key = ""
        self._known = 0
        self._is_closed = False

    @property
    def lease_ns(self) -> int:
        return self._lease_ns

    async def acquire(self, holder: str) -> StoreHolding:
        self._check_reached()
        asked_ns = self._clock.boot_ns()
        await self._answered()
        mark = self.shared.state.mark
        if mark.key not in ("", self._key) and not self._watch.has_ended(
            mark, self.shared.state.lease_ns, asked_ns=asked_ns, answered_ns=self._clock.boot_ns()
        ):
            raise StoreTaken(f"another controller has it ({self.shared.state.holder})")
        self._key = self.shared.take(holder, self._lease_ns)
        self._known = self.shared.state.revision
        return StoreHolding(self.shared.state.mark.token, holder, self._key)

    async def renew(self, holding: StoreHolding) -> None:
        self._check_reached()
        self._check(holding)
        mark = self.shared.state.mark
        self.shared.state = dataclasses.replace(self.shared.state, mark=replace(mark, renewals=mark.renewals + 1))
        await self._answered()

    async def release(self, holding: StoreHolding) -> None:
        self._check_reached()
        mark = self.shared.state.mark
        if mark.key == holding.key:
            self.shared.state = dataclasses.replace(self.shared.state, mark=replace(mark, key=""), holder="")
        self._key = ""

    async def rise(self, holding: StoreHolding, above: int) -> StoreHolding:
        self._check_reached()
        mark = self.shared.state.mark
        self._check(replace(holding, token=max(mark.token, holding.token)))
        token = max(mark.token, above) + 1
        self.shared.state = dataclasses.replace(
            self.shared.state, mark=replace(mark, token=token, renewals=mark.renewals + 1)
        )
        return replace(holding, token=token)

    async def read(self) -> Contents:
        await asyncio.sleep(0)
        self._check_reached()
        return Contents(self.shared.state.revision, dict(self.shared.state.documents))

    async def write(self, holding: StoreHolding, changes: Mapping[str, bytes | None]) -> int:
        check_changes(changes)
        await self.requests.wait()
        await asyncio.sleep(0)
        self._check_reached()
        self._check(holding)
        state = self.shared.before_write = self.shared.state
        documents = {name: text for name, text in {**state.documents, **changes}.items() if text is not None}
        mark = replace(state.mark, renewals=state.mark.renewals + 1)
        self.shared.state = dataclasses.replace(state, mark=mark, revision=state.revision + 1, documents=documents)
        if self.shared.is_silent:
            self.shared.is_silent = False
            raise StoreUncertain("it does not answer")
        self._known = self.shared.state.revision
        return self._known

    async def close(self) -> None:
        if not self._is_closed:
            await self.release(StoreHolding(0, "", self._key or "nobody's"))
        self._is_closed = True

    async def _answered(self) -> None:
        if self.shared.late is not None:
            late, self.shared.late = self.shared.late, None
            late()
        await self.answers.wait()

    def _check_reached(self) -> None:
        if self.is_gone or self._is_closed:
            raise StoreUnavailable("it cannot be reached")

    def _check(self, holding: StoreHolding) -> None:
        state = self.shared.state
        if (state.mark.token, state.mark.key) != (holding.token, holding.key):
            raise StoreLost(f"it is now held by {state.holder or 'no controller'}")
        if state.revision < self._known:
            raise StoreLost(f"it has forgotten writes: {state.revision} is the last, and {self._known} was answered")
