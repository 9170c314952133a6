"""Prices in force: the controller's list or else the region's own file, and the times of day at which the core is told
of others.

It decides nothing by them, and a list that cannot be read never replaces one that can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Never

from structlog.typing import FilteringBoundLogger

from gateway.core.features.prices.events import PricesChanged
from gateway.core.features.prices.price_list import PriceList
from gateway.core.features.prices.price_table import Prices
from gateway.features.prices.file import read_prices
from gateway.features.prices.metrics import CONTROLLER, FILE, NO_SOURCE
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.reloader import ReloadRefused

_SECOND_NS = 1_000_000_000
_LOOK_S = 60.0
"""Longest wait in seconds for prices of another hour, since the wall clock may be set meanwhile."""


class ListInForce:
    """Price list in force. A controller's list replaces the region's own file as a whole: two lists are never mixed."""

    def __init__(
        self,
        path: Path | None,
        submit: Callable[[PricesChanged], object],
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """Raises ConfigError, so that an unreadable list is found at the start."""
        self._own_fault = self._told_fault = ""
        self._path = path
        self._own = None if path is None else read_prices(path)
        self._told: PriceList | None = None
        self._submit = submit
        self._clock = clock
        self._log = log
        self._in_force: Prices | None = None
        self._list_since_ns: int | None = None
        self._since_ns: int | None = None
        self._changed = asyncio.Event()

    def files(self) -> list[Path]:
        return [] if self._path is None else [self._path]

    # Changes of the list

    def take(self, told: PriceList | None, fault: str) -> None:
        """Take a controller's list; None where it sent none, or none that could be read."""
        if fault and fault != self._told_fault:
            self._log.error("controller_price_list_unreadable", reason=fault)
        self._told_fault = fault
        self._put(self._own, told)

    def move(self, path: Path | None) -> None:
        """Follow the region file to another prices file. It was readable when the region file was checked; if it has
        become unreadable since, that is logged, and the list before stays."""
        if path == self._path:
            return
        try:
            own = None if path is None else read_prices(path)
        except ConfigError as error:
            self._own_fault = str(error)
            self._log.error("price_list_rejected", reason=self._own_fault)
            return
        self._path, self._own_fault = path, ""
        self._put(own, self._told)

    async def reload(self) -> None:
        """Read the file again. Raises ReloadRefused, and has changed nothing then."""
        if self._path is None:
            return
        try:
            own = await asyncio.to_thread(read_prices, self._path)
        except ConfigError as error:
            raise ReloadRefused(str(error)) from error
        self._own_fault = ""
        self._put(own, self._told)

    def _put(self, own: PriceList | None, told: PriceList | None) -> None:
        before = self.list
        self._own, self._told = own, told
        if self.list != before or self._list_since_ns is None:
            self._list_since_ns = self._clock.wall_ns()
            if self.list is not None:
                self._log.info("price_list_applied", source=self.source, digest=self.list.digest)
            elif before is not None:
                self._log.info("price_list_removed")
        self.look()
        self._changed.set()

    # The time of day

    def look(self) -> None:
        """Tell the core the prices of this moment, if they have changed."""
        wall_ns = self._clock.wall_ns()
        prices = None if self.list is None else self.list.at(wall_ns // _SECOND_NS)
        if prices != self._in_force:
            self._in_force, self._since_ns = prices, wall_ns
            self._submit(PricesChanged(prices))

    def wait_s(self) -> float | None:
        """Seconds until prices may change by the time of day; None: they will not."""
        wall_ns = self._clock.wall_ns()
        change_s = None if self.list is None else self.list.next_change_s(wall_ns // _SECOND_NS)
        return None if change_s is None else min(_LOOK_S, max(0.0, change_s - wall_ns / _SECOND_NS))

    async def run(self) -> Never:
        """Follow the time of day, until cancelled."""
        while True:
            self.look()
            try:
                async with asyncio.timeout(self.wait_s()):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()

    # State for operators

    @property
    def fault(self) -> str:
        """Reason why the latest list is not in force; empty if it is."""
        return self._told_fault or self._own_fault

    @property
    def list(self) -> PriceList | None:
        return self._own if self._told is None else self._told

    @property
    def source(self) -> str:
        if self._told is not None:
            return CONTROLLER
        return NO_SOURCE if self._own is None else FILE

    @property
    def in_force(self) -> Prices | None:
        return self._in_force

    @property
    def age_s(self) -> float | None:
        """Seconds since the list came into force; None without a list."""
        if self.list is None or self._list_since_ns is None:
            return None
        return max(0, self._clock.wall_ns() - self._list_since_ns) / _SECOND_NS

    @property
    def valid_s(self) -> float | None:
        """Seconds until the figures should be checked again, below 0 once that is past; None where the list names no
        date."""
        if self.list is None or self.list.valid_until_s is None:
            return None
        return self.list.valid_until_s - self._clock.wall_ns() / _SECOND_NS

    def describe(self) -> dict[str, object] | None:
        """State for operators; None with neither a list nor a fault."""
        if self.list is None:
            return None if not self.fault else {"source": NO_SOURCE, "fault": self.fault}
        assert self._in_force is not None, "a list is looked at as soon as it is there"
        wall_ns = self._clock.wall_ns()
        change_s = self.list.next_change_s(wall_ns // _SECOND_NS)
        return {
            "source": self.source,
            "fault": self.fault,
            "digest": self.list.digest,
            "currency": self.list.currency,
            "age_s": self.age_s,
            "valid_s": self.valid_s,
            "since_s": None if self._since_ns is None else max(0, wall_ns - self._since_ns) / _SECOND_NS,
            "next_change_s": None if change_s is None else change_s - wall_ns / _SECOND_NS,
            "carbon_price": self._in_force.carbon_micros / 1_000_000,
            "replicas": [
                {
                    "region": each.region,
                    "pool": each.pool,
                    "replica_hour": each.hour_micros / 1_000_000,
                    "per_use": each.is_per_use,
                    "busy_grams_hour": each.busy_milligrams / 1000,
                }
                for each in self._in_force.replicas
            ],
            "egress": [
                {"from": each.origin, "to": each.destination, "gigabyte": each.gigabyte_micros / 1_000_000}
                for each in self._in_force.egress
            ],
        }
