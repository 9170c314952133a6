"""Puts a controller together, runs it and takes it down again. It wires; it decides nothing.

`serve_controller` is a whole controller as a context, for tests and tools; `nightside controller run` adds signals.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from controller.admin import AdminSources, make_admin_app
from controller.config import ControllerFile, Sections
from controller.core.controller_core import ControllerCore
from controller.desk import Desk
from controller.dns.embedded import EmbeddedDns
from controller.dns.publisher import Publisher
from controller.driver import ControllerCrash, ControllerObserver, Driver
from controller.history import History
from controller.journal import Journal, new_header
from controller.keeper import Keeper
from controller.links import Links
from controller.logs import CoreLog
from controller.metrics import CONTENT_TYPE, Metrics
from controller.operations import Operations, state_of
from controller.prober import Prober
from controller.recovery import Recovery
from controller.reload import FilePart, naming_of
from controller.server import ControlServer, ControlService
from controller.store.sqlite import SqliteStore
from controller.store.store import Holding, Store, StoreError
from gateway.core.vocabulary import GatewayId, RegionName
from gateway.ground.clock import Clock
from gateway.ground.journal import JournalSettings
from gateway.ground.listening import named_by
from gateway.ground.logs import libraries_told_of, make_logger
from gateway.ground.naming.limits import DnsLimits
from gateway.ground.naming.service import NameService
from gateway.ground.reloader import Reloader
from gateway.ground.supervisor import Supervisor
from gateway.ground.task_group import TaskGroup
from gateway.ground.tls import ControllerTls, ExpiryWatch, Holder, HttpTls
from gateway.ground.transport import Plaintext
from gateway.ground.values import Address

_SECOND_NS = 1_000_000_000
_LAST_WRITE_S = 2.0
"""What waits to be written when the controller ends is given so long."""


class ControllerHandle:
    """A running controller: where it is reached, and what it is made of."""

    def __init__(
        self, file: ControllerFile, desk: Desk, links: Links, metrics: Metrics, log: FilteringBoundLogger
    ) -> None:
        self.file = file
        self.desk = desk
        self.links = links
        self.metrics = metrics
        watch_ns = file.sections.reload.watch_ns
        watch_s = None if watch_ns is None else watch_ns / _SECOND_NS
        self.reloader = Reloader(log, watch_s=watch_s, on_reload=metrics.reloaded)
        self.grpc_address = file.sections.listen.grpc
        self.admin_address = file.sections.listen.admin
        self.dns_addresses: tuple[Address, ...] = ()

    @property
    def admin_url(self) -> str:
        is_tls = self.file.sections.listen.admin_tls is not None
        return f"http{'s' if is_tls else ''}://{self.admin_address}"

    def readiness(self) -> str:
        """Why it is not ready; empty when it is. A store that cannot be written is told, and does not make it so: what
        gateways do meanwhile is what they were told last."""
        if self.desk.driver.crash is not None:
            return "this controller met an error of its own and restarts"
        return "the store is another controller's now" if self.desk.keeper.lost.is_set() else ""


@asynccontextmanager
async def serve_controller(
    file: ControllerFile,
    *,
    clock: Clock | None = None,
    log: FilteringBoundLogger | None = None,
    store: Store | None = None,
) -> AsyncIterator[ControllerHandle]:
    """Run a controller until the context is left. Raises StoreError when the store cannot be had, CertificateFault, and
    OSError when an address cannot be listened on, or the journal or the history not be written."""
    clock = clock or Clock()
    sections = file.sections
    log = log or make_logger(sections.logging, file.controller, clock=clock, role="controller")
    shown = _Shown(sections, clock)
    async with AsyncExitStack() as stack:
        history = History(_history_path(sections), sections.history.file_max_bytes)
        metrics = Metrics()
        keeper, documents = await _keeper(stack, store, file, log, metrics)
        journal = _journal(file, clock, log, metrics)
        core = ControllerCore()
        driver = _driver(core, clock, log, metrics, journal)
        stack.callback(_close, driver, journal)
        desk = Desk(core, driver, keeper, documents, naming_of(file), wall_ns=clock.wall_ns)
        links = Links()
        handle = ControllerHandle(file, desk, links, metrics, log)
        loops = Supervisor(clock, partial(_loop_failed, log, metrics))
        prober = Prober(lambda: desk.registry, links.__contains__, driver.submit, sections.probes)
        recovery = Recovery(sections.recovery, partial(_region_of, desk), loops.start, log, on_end=metrics.recovered)
        driver.on_recovery(recovery.begin)
        metrics.follow(desk, links.__len__, lambda: not handle.readiness())
        _add_parts(handle.reloader, FilePart(file, partial(_apply, handle, prober, recovery)), shown.holders)

        stack.push_async_callback(_last_write, keeper, log)
        await stack.enter_async_context(loops)
        loops.run("keeper", keeper.run)
        desk.start(sections.decisions)
        for name, loop in (("prober", prober.run), ("reloader", handle.reloader.run)):
            loops.run(name, loop)
        if journal is not None:
            loops.run("journal", journal.run)
        _watch_certificates(loops, shown.holders, metrics, clock, log)
        handle.dns_addresses = await _answer_names(stack, loops, handle, clock, log)
        door = shown.mesh or Plaintext()
        service = ControlService(
            desk, links, door, sections.link, clock=clock, log=log, watch=metrics, on_link=prober.look
        )
        server = ControlServer(service, sections.link, door)
        stack.push_async_callback(server.stop)
        with named_by("listen.grpc", sections.listen.grpc):
            handle.grpc_address = await server.start(sections.listen.grpc)
        admin = _admin_app(handle, Operations(desk, history, clock, on_order=metrics.ordered), history, clock)
        handle.admin_address = await _listen(stack, admin, sections.listen.admin, shown.operators)
        yield handle


async def run_controller(
    file: ControllerFile, *, stop: asyncio.Event, ready: Callable[[ControllerHandle], None]
) -> int:
    """Serve until `stop` is set, and return the exit status: 1 when the core failed or the store was lost, else 0."""
    log = make_logger(file.sections.logging, file.controller, role="controller")
    with libraries_told_of(log):
        return await _run_until(stop, serve_controller(file, log=log), ready)


async def _run_until(
    stop: asyncio.Event,
    serving: AbstractAsyncContextManager[ControllerHandle],
    ready: Callable[[ControllerHandle], None],
) -> int:
    async with serving as controller:
        ready(controller)
        failed, lost = controller.desk.driver.failed, controller.desk.keeper.lost
        await _first_of(stop.wait, failed.wait, lost.wait)
        return 1 if failed.is_set() or lost.is_set() else 0


class _Shown:
    """The certificates in use."""

    def __init__(self, sections: Sections, clock: Clock) -> None:
        """Raises CertificateFault."""
        self.mesh = None if sections.link.tls is None else ControllerTls(sections.link.tls, clock)
        admin_tls = sections.listen.admin_tls
        self.operators = None if admin_tls is None else HttpTls(admin_tls, clock)
        if self.operators is not None:
            self.operators.role = "operators"

    @property
    def holders(self) -> list[Holder]:
        return [each for each in (self.mesh, self.operators) if each is not None]


async def _keeper(
    stack: AsyncExitStack, store: Store | None, file: ControllerFile, log: FilteringBoundLogger, metrics: Metrics
) -> tuple[Keeper, Mapping[str, bytes]]:
    """With the store ours until the stack is left, and what is in it."""
    if store is None:
        store = await SqliteStore.open(file.sections.store.path)
        stack.push_async_callback(store.close)
    holding = await store.acquire(f"{file.controller} on {gethostname()}, process {os.getpid()}")
    try:
        contents = await store.read()
    except BaseException:
        await _release(store, holding, log)
        raise
    keeper = Keeper(store, holding, contents.revision, log, on_failure=metrics.store_failed)
    stack.push_async_callback(_give_back, store, keeper, log)
    return keeper, contents.documents


async def _answer_names(
    stack: AsyncExitStack, loops: Supervisor, handle: ControllerHandle, clock: Clock, log: FilteringBoundLogger
) -> tuple[Address, ...]:
    """From what was last written down until the core says something else, and while nothing can be written too."""
    config = handle.file.sections.dns
    if not config.listen:
        return ()
    service = NameService(clock, log, DnsLimits.from_config(config))
    handle.metrics.add(service.counters.collectors())
    publisher = Publisher(EmbeddedDns(service), log)
    handle.desk.on_records(publisher.take)
    loops.run("records", publisher.run)
    stack.push_async_callback(service.stop)
    await service.start(config.listen)
    return service.addresses


def _driver(
    core: ControllerCore, clock: Clock, log: FilteringBoundLogger, metrics: Metrics, journal: Journal | None
) -> Driver:
    def on_crash(crash: ControllerCrash) -> None:
        log.critical("the core failed; this controller stops", exc_info=crash.error)
        if journal is None:
            return
        try:
            log.critical("the steps before the failure are kept", path=str(journal.on_crash(crash)))
        except OSError as error:
            log.critical("the steps before the failure are lost", reason=str(error))

    observers: list[ControllerObserver] = [metrics, CoreLog(log)]
    if journal is not None:
        observers.append(journal)
    return Driver(core, clock, observers=observers, on_crash=on_crash)


def _close(driver: Driver, journal: Journal | None) -> None:
    driver.close()
    if journal is not None:
        journal.close()


def _journal(file: ControllerFile, clock: Clock, log: FilteringBoundLogger, metrics: Metrics) -> Journal | None:
    settings = file.sections.journal
    if settings.folder is None:
        return None

    def on_stopped(reason: str) -> None:
        log.error("the journal stopped", reason=reason)
        metrics.journal_stopped()

    started = "".join(character for character in clock.wall_time() if character.isalnum())
    header = new_header(file.controller, f"{file.controller}-{started}")
    return Journal(JournalSettings(settings.folder, settings.file_max_bytes, settings.files_max), header, on_stopped)


def _history_path(sections: Sections) -> Path:
    store = sections.store.path
    return sections.history.path or store.with_name(f"{store.name}.history")


def _region_of(desk: Desk, gateway_id: GatewayId) -> RegionName:
    known = desk.registry.gateways.get(gateway_id)
    return RegionName("") if known is None else known.place.region


def _watch_certificates(
    loops: Supervisor, holders: list[Holder], metrics: Metrics, clock: Clock, log: FilteringBoundLogger
) -> None:
    def left_s(holder: Holder) -> float:
        return (holder.pair.ends_ns - clock.wall_ns()) / _SECOND_NS

    for holder in holders:
        metrics.follow_certificate(holder.role, partial(left_s, holder))
    loops.run("certificate_expiry", ExpiryWatch(holders, clock, log).run)


def _add_parts(reloader: Reloader, part: FilePart, holders: list[Holder]) -> None:
    reloader.add("controller", part.reload, part.files)
    for holder in holders:
        reloader.add(f"certificate_of_{holder.role}", holder.reload, holder.files)


def _apply(handle: ControllerHandle, prober: Prober, recovery: Recovery, file: ControllerFile) -> None:
    """A file that changed, in force at once. Raises OSError over authorities that cannot be read, and has done nothing
    then."""
    prober.configure(file.sections.probes)
    recovery.configure(file.sections.recovery)
    handle.desk.configure(file.sections.decisions, naming_of(file))
    handle.file = file


def _loop_failed(log: FilteringBoundLogger, metrics: Metrics, name: str, error: Exception) -> None:
    log.error("a background loop failed and starts again", loop=name, exc_info=error)
    metrics.restarted(name)


# Operators


def _admin_app(handle: ControllerHandle, operations: Operations, history: History, clock: Clock) -> web.Application:
    desk = handle.desk

    def metrics_page() -> bytes:
        desk.driver.tell_observers()
        return handle.metrics.render()

    def state() -> dict[str, object]:
        state = state_of(desk, handle.links, clock.now_ns(), handle.file.controller)
        return {**state, "not_ready_reason": handle.readiness(), "history_fault": history.fault}

    sources = AdminSources(
        metrics_page, CONTENT_TYPE, state, handle.readiness, operations.take, history.last, operations.export
    )
    listen = handle.file.sections.listen
    hosts = (listen.admin.host, *listen.admin_hosts) if listen.admin.is_loopback else None
    return make_admin_app(sources, handle.file.admin_token, hosts)


async def _listen(stack: AsyncExitStack, app: web.Application, address: Address, tls: HttpTls | None) -> Address:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    context = None if tls is None else tls.context
    with named_by("listen.admin", address):
        await web.TCPSite(runner, address.host, address.port, ssl_context=context).start()
    return Address(address.host, runner.addresses[0][1])


# The end


async def _last_write(keeper: Keeper, log: FilteringBoundLogger) -> None:
    """The loops have ended: what the core decided last is written now, or worked out anew by the next controller."""
    try:
        async with asyncio.timeout(_LAST_WRITE_S):
            await keeper.write_last()
    except (StoreError, TimeoutError) as error:
        log.warning("the last decisions were not written down", reason=str(error) or "the store takes too long")


async def _give_back(store: Store, keeper: Keeper, log: FilteringBoundLogger) -> None:
    await _release(store, keeper.holding, log)


async def _release(store: Store, holding: Holding, log: FilteringBoundLogger) -> None:
    try:
        await store.release(holding)
    except StoreError as error:
        log.warning("the store was not given back in order", reason=str(error))


async def _first_of(*waits: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Until one of them is done; the others are cancelled."""
    async with TaskGroup() as tasks:
        running = [tasks.create_task(wait()) for wait in waits]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
