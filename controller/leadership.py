"""One controller leads, and others wait for their turn: whoever has the store, for as long as its lease is renewed.

It says who may act, and until when. It acts on nothing itself, and never gives back what it has only failed to renew: a
store that comes back, and that nobody else has taken, finds its leader as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from controller.lease import Lease
from controller.store.held import lease_end_ns
from controller.store.store import Holding, Store, StoreError, StoreLost, StoreTaken, StoreUnavailable
from gateway.ground.clock import Clock

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    margin_ns: int
    """Taken off the end of a lease: for what is on its way, and for clocks that run apart."""
    renew_interval_ns: int


async def lead(
    store: Store,
    holder: str,
    times: LeaseTimes,
    clock: Clock,
    wait: Callable[[StoreError], Awaitable[None]],
) -> tuple[Holding, Lease]:
    """Once the store is ours. Raises StoreTaken at once where another has it and its time does not run out, and
    StoreError where it is no store of ours. `wait` is told, after each look, why it is not ours yet, and returns when
    it is time for the next."""
    while True:
        asked_ns = clock.boot_ns()
        try:
            holding = await store.acquire(holder)
        except (StoreTaken, StoreUnavailable) as error:
            if store.lease_ns is None:
                raise
            await wait(error)
            continue
        return holding, Lease(clock, holding.token, _end_ns(store, times, asked_ns))


def _end_ns(store: Store, times: LeaseTimes, asked_ns: int) -> int | None:
    return None if store.lease_ns is None else lease_end_ns(asked_ns, store.lease_ns, times.margin_ns)


class Renewals:
    """Of one lease, while its controller leads."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        holding: Callable[[], Holding],
        times: LeaseTimes,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        on_lost: Callable[[StoreLost], None],
    ) -> None:
        self.fault = ""
        """Why the lease was not renewed last; empty when it was."""
        self._store = store
        self._lease = lease
        self._holding = holding
        self._times = times
        self._clock = clock
        self._log = log
        self._on_lost = on_lost

    async def run(self) -> None:
        """Until cancelled, or until the store is another's."""
        if self._store.lease_ns is None:
            return
        pause_s = self._times.renew_interval_ns / _SECOND_NS
        while await self._renew():  # noqa: ASYNC110 - nothing happens that could be waited for
            await asyncio.sleep(pause_s)

    async def _renew(self) -> bool:
        asked_ns, holding = self._clock.boot_ns(), self._holding()
        try:
            await self._store.renew(holding)
        except StoreLost as error:
            self._lease.end()
            self._on_lost(error)
            return False
        except StoreError as error:
            self._failed(error)
            return True
        self._lease.renewed(_end_ns(self._store, self._times, asked_ns))
        if self.fault:
            self._log.info("the lease is renewed again", term=holding.token)
            self.fault = ""
        return True

    def _failed(self, error: StoreError) -> None:
        if not self.fault:
            left_s = round(self._lease.left_s(), 1)
            self._log.error("THE LEASE IS NOT RENEWED: another may lead soon", lasts_s=left_s, reason=str(error))
        self.fault = str(error)
