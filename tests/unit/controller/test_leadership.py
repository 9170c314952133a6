from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controller.leadership import LeaseTimes, Renewals, lead
from controller.lease import Lease
from controller.store.store import StoreError, StoreHolding, StoreLost, StoreTaken, StoreUnavailable, StoreUnusable
from tests.support.clock import StillClock
from tests.support.desks import LOG, MemoryStore

SECOND = 1_000_000_000
TIMES = LeaseTimes(margin_ns=SECOND, renew_interval_ns=1_000_000)


class LeasedStore(MemoryStore):
    """Store that gives the answers of a list, each after a time by which it advances the clock."""

    def __init__(self, clock: StillClock, *answers: StoreError | None) -> None:
        super().__init__()
        self.clock = clock
        self.answers = list(answers)
        self.takes_ns = 0
        self.renewals = 0

    @property
    def lease_ns(self) -> int:  # type: ignore[override]
        return 6 * SECOND

    async def acquire(self, holder: str) -> StoreHolding:
        self._answer()
        return await super().acquire(holder)

    async def renew(self, holding: StoreHolding) -> None:
        self.renewals += 1
        self._answer()

    def _answer(self) -> None:
        self.clock.now += self.takes_ns
        if self.answers and (answer := self.answers.pop(0)) is not None:
            raise answer


def waiting(told: list[str]) -> Callable[[StoreError], Awaitable[None]]:
    async def wait(error: StoreError) -> None:
        told.append(str(error))

    return wait


async def test_it_waits_until_the_store_can_be_had_and_counts_from_before_it_asked() -> None:
    clock = StillClock()
    store = LeasedStore(clock, StoreTaken("ctl-1 has it"), StoreUnavailable("gone"), None)
    store.takes_ns = 2 * SECOND
    told: list[str] = []
    holding, lease = await lead(store, "ctl-2", TIMES, clock, waiting(told))
    assert (told, holding.holder) == (["ctl-1 has it", "gone"], "ctl-2")
    assert lease.left_s() == 6 - 1 - 2, "a margin, and what the answer took"


async def test_a_store_of_one_machine_is_not_waited_for() -> None:
    class Taken(MemoryStore):
        async def acquire(self, holder: str) -> StoreHolding:
            raise StoreTaken("ctl-1 has it")

    with pytest.raises(StoreTaken):
        await lead(Taken(), "ctl-2", TIMES, StillClock(), waiting([]))
    _, lease = await lead(MemoryStore(), "ctl-2", TIMES, StillClock(), waiting([]))
    assert lease.left_s() == float("inf")


async def test_what_is_no_store_of_ours_is_not_waited_for() -> None:
    clock = StillClock()
    with pytest.raises(StoreUnusable):
        await lead(LeasedStore(clock, StoreUnusable("not ours")), "ctl-2", TIMES, clock, waiting([]))


async def test_a_lease_that_is_not_renewed_ends_and_lasts_again_once_it_is() -> None:
    clock = StillClock()
    store = LeasedStore(clock, StoreUnavailable("gone"))
    lease = Lease(clock, 3, 5 * SECOND)
    lost: list[StoreLost] = []
    renewals = Renewals(store, lease, lambda: StoreHolding(3, "us"), TIMES, clock=clock, log=LOG, on_lost=lost.append)
    assert await renewals._renew()
    assert (lease.left_s(), renewals.fault) == (5, "gone")
    clock.now = 8 * SECOND
    assert lease.over_s() == 3
    assert await renewals._renew()
    assert (lease.left_s(), renewals.fault, lost) == (5, "", [])


async def test_one_that_another_has_is_over_at_once_and_no_longer_renewed() -> None:
    clock = StillClock()
    store = LeasedStore(clock, None, StoreLost("it is ctl-2's now"))
    lease = Lease(clock, 3, 5 * SECOND)
    lost: list[StoreLost] = []
    renewals = Renewals(store, lease, lambda: StoreHolding(3, "us"), TIMES, clock=clock, log=LOG, on_lost=lost.append)
    async with asyncio.timeout(60):
        await renewals.run()
    assert (store.renewals, lease.left_s(), [str(each) for each in lost]) == (2, 0, ["it is ctl-2's now"])


async def test_where_it_has_no_end_there_is_nothing_to_renew() -> None:
    clock = StillClock()
    store = MemoryStore()
    renewals = Renewals(
        store, Lease(clock, 3, None), lambda: StoreHolding(3, "us"), TIMES, clock=clock, log=LOG, on_lost=lambda _: None
    )
    await renewals.run()
