"""Leader election: one controller leads, the one that holds the store, for as long as it renews its lease; others stand
by.

The module says which controller may act, and until when; it acts on nothing itself. A lease that could not be renewed
is not given back: a store that comes back, and that no other controller has taken, finds its leader as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from controller.lease import Lease
from controller.store.lease_watch import lease_end_ns
from controller.store.store import Store, StoreError, StoreHolding, StoreLost, StoreTaken, StoreUnavailable
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000


class LeaseTimes(Struct, frozen=True):
    margin_ns: int
    """Time taken off the end of a lease, for messages under way and for clock drift."""
    renew_interval_ns: int


async def lead(
    store: Store,
    holder: str,
    times: LeaseTimes,
    clock: Clock,
    wait: Callable[[StoreError], Awaitable[None]],
) -> tuple[StoreHolding, Lease]:
    """Wait until this controller holds the store. Raises StoreTaken at once where another controller holds it without a
    time limit, and StoreError where the store is unusable. `wait` is called after each try with the reason why it
    failed, and returns when it is time for the next."""
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
    """Renewals of one lease, while its controller leads."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        holding: Callable[[], StoreHolding],
        times: LeaseTimes,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        on_lost: Callable[[StoreLost], None],
    ) -> None:
        self.fault = ""
        """Reason why the last renewal failed; empty when it did not."""
        self._store = store
        self._lease = lease
        self._holding = holding
        self._times = times
        self._clock = clock
        self._log = log
        self._on_lost = on_lost

    async def run(self) -> None:
        """Renew until cancelled, or until the store is lost."""
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
            self._log.info("lease_renewal_recovered", term=holding.token)
            self.fault = ""
        return True

    def _failed(self, error: StoreError) -> None:
        if not self.fault:
            left_s = round(self._lease.left_s(), 1)
            self._log.error("lease_renewal_failed", remaining_s=left_s, reason=str(error))
        self.fault = str(error)
