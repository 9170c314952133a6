"""Acquires the leadership before a controller begins. Until then operators see that it waits.

The module decides nothing: the store says which controller leads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from socket import gethostname

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from controller.config import ControllerFile, ControllerListenConfig
from controller.leadership import LeaseTimes, Renewals, lead
from controller.lease import Lease
from controller.metrics import CONTENT_TYPE, ControllerMetrics
from controller.standby import Standby, make_standby_app
from controller.store.opening import open_store
from controller.store.store import Store, StoreError, StoreHolding
from controller.store_writer import StoreWriter
from mesh.admin_listening import listen_for_operators
from mesh.clock import Clock
from mesh.operators import Operators
from mesh.supervisor import Supervisor
from mesh.tls import HttpTls
from mesh.values import Address


class Lead(Struct, frozen=True):
    """Parts of a controller that leads."""

    store_writer: StoreWriter
    lease: Lease
    renewals: Renewals
    documents: Mapping[str, bytes]
    """Documents in the store when it was acquired."""

    def start(self, loops: Supervisor) -> None:
        loops.run("store_writer", self.store_writer.run)
        loops.run("lease", self.renewals.run)


class StandbyView:
    """View of a standby controller for operators."""

    def __init__(
        self,
        file: ControllerFile,
        tls: HttpTls | None,
        metrics: ControllerMetrics,
        log: FilteringBoundLogger,
        *,
        stop: asyncio.Event,
        standing_by: Callable[[str], None],
        operators: Operators,
    ) -> None:
        self.file = file
        self.log = log
        self.metrics = metrics
        self.address = file.sections.listen.admin
        """Admin address, with the real port once it is listened on."""
        self._tls = tls
        self._operators = operators
        self._standing_by = standing_by
        self._page = AsyncExitStack()
        self._standby = Standby(file.sections.store.look_interval_ns, stop, log, self._show)

    async def lead(self, store: Store, holder: str, times: LeaseTimes, clock: Clock) -> tuple[StoreHolding, Lease]:
        """Acquire the store while the standby page is up. Raises what `lead` does, and StandbyEnded."""
        async with self._page:
            return await lead(store, holder, times, clock, self._standby.wait)

    async def _show(self) -> None:
        listen = self.file.sections.listen
        app = make_standby_app(
            lambda: self._standby.reason,
            self.metrics.render,
            CONTENT_TYPE,
            self._operators,
            admin_hosts(listen),
        )
        self.address = await listen_for_operators(self._page, app, listen.admin, self._tls)
        self._standing_by(admin_url(self.address, listen))


async def take_the_lead(stack: AsyncExitStack, store: Store | None, waiting: StandbyView, clock: Clock) -> Lead:
    """Acquire the store, until the stack is left or another controller takes the store. A store that is passed in is
    closed by its owner."""
    file, log, metrics = waiting.file, waiting.log, waiting.metrics
    config = file.sections.store
    if store is None:
        store = await open_store(config, clock)
        stack.push_async_callback(store.close)
    times = LeaseTimes(config.margin_ns, config.renew_interval_ns)
    holder = f"{file.controller} on {gethostname()}, process {os.getpid()}"
    holding, lease = await waiting.lead(store, holder, times, clock)
    try:
        contents = await store.read()
    except BaseException:
        await _release(store, holding, log)
        raise
    store_writer = StoreWriter(
        store,
        holding,
        contents.revision,
        log,
        on_failure=metrics.store_failed,
        on_rise=lease.rose,
        on_lost=lease.end,
    )
    stack.push_async_callback(_give_back, store, store_writer, lease, log)
    renewals = Renewals(
        store, lease, lambda: store_writer.holding, times, clock=clock, log=log, on_lost=store_writer.lose
    )
    return Lead(store_writer, lease, renewals, contents.documents)


async def _give_back(store: Store, store_writer: StoreWriter, lease: Lease, log: FilteringBoundLogger) -> None:
    """End the lease before the store is released: a standby may take it at once, and this controller must act no
    more."""
    lease.end()
    await _release(store, store_writer.holding, log)


async def _release(store: Store, holding: StoreHolding, log: FilteringBoundLogger) -> None:
    try:
        await store.release(holding)
    except StoreError as error:
        log.warning("store_release_failed", reason=str(error))


def admin_hosts(listen: ControllerListenConfig) -> tuple[str, ...] | None:
    """Host names under which the admin address may be requested; None: any."""
    return (listen.admin.host, *listen.admin_hosts) if listen.admin.is_loopback else None


def admin_url(address: Address, listen: ControllerListenConfig) -> str:
    return f"http{'' if listen.admin_tls is None else 's'}://{address}"
