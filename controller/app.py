"""Assembles a controller, runs it and shuts it down. It wires parts together and decides nothing.

`serve_controller` is a whole controller as a context, for tests and tools; `nightside controller run` adds signals.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from structlog.typing import FilteringBoundLogger

from controller.admin import ControllerAdminSources, make_admin_app
from controller.config import ControllerFile, ControllerSections
from controller.core.controller_core import ControllerCore
from controller.decision_queries import GatewayQuestions, LatestDecisions
from controller.dns.embedded import EmbeddedDns
from controller.dns.publisher import RecordPublisher
from controller.dns.publishing import provider_of, publisher_of
from controller.driver import ControllerCrash, ControllerDriver, ControllerObserver
from controller.history import OperatorAuditLog
from controller.history_exchange import HistoryExchange
from controller.journal import ControllerJournal, new_header
from controller.leader_election import Lead, StandbyView, admin_hosts, admin_url, take_the_lead
from controller.lease import Lease
from controller.links import Links
from controller.logs import CoreLog, Recent
from controller.metrics import CONTENT_TYPE, ControllerMetrics
from controller.operations import Operations, state_of
from controller.overview import ControllerOverview
from controller.prober import GatewayProber
from controller.recovery import Recovery
from controller.reload import FilePart, naming_of
from controller.server import ControlServer, ControlService
from controller.standby import StandbyEnded
from controller.state_manager import StateManager
from controller.store.store import Store, StoreError
from controller.store_writer import StoreWriter
from gateway.core.vocabulary import GatewayId, RegionName
from mesh.admin_listening import listen_for_operators
from mesh.clock import Clock
from mesh.journal import JournalSettings
from mesh.line_writer import LostLines, lines_written_aside
from mesh.listening import named_by
from mesh.logs import libraries_told_of, make_logger
from mesh.naming.limits import DnsLimits
from mesh.naming.service import NameService
from mesh.operators import Operators
from mesh.reloader import Reloader
from mesh.supervisor import Supervisor
from mesh.task_group import TaskGroup
from mesh.tls import CertificateHolder, ControllerTls, ExpiryWatch, HttpTls
from mesh.tokens.issuer import IssuerDependencies
from mesh.tokens.operators import make_operators
from mesh.transport import Plaintext
from mesh.values import Address

_SECOND_NS = 1_000_000_000
_LAST_WRITE_S = 2.0
"""Time limit of the last write as the controller ends."""


class ControllerHandle:
    """A running controller: its addresses and its parts."""

    def __init__(
        self,
        file: ControllerFile,
        manager: StateManager,
        links: Links,
        metrics: ControllerMetrics,
        log: FilteringBoundLogger,
        *,
        lead: Lead,
        clock: Clock,
    ) -> None:
        self.file = file
        self.manager = manager
        self.lead = lead
        self.links = links
        self.questions = GatewayQuestions(links)
        self.histories = HistoryExchange(file.place, manager.board, clock, log, metrics)
        self.metrics = metrics
        watch_ns = file.sections.reload.watch_ns
        watch_s = None if watch_ns is None else watch_ns / _SECOND_NS
        self.reloader = Reloader(log, watch_s=watch_s, on_reload=metrics.reloaded)
        self.grpc_address = file.sections.listen.grpc
        self.admin_address = file.sections.listen.admin
        """Admin address, with the real port where the system chose it."""
        self.dns_addresses: tuple[Address, ...] = ()
        self.admin_app: web.Application | None = None
        """Operators' HTTP application, once it is up."""
        self.publisher: RecordPublisher | None = None
        """Publisher of the records beyond Nightside's own name servers."""

    @property
    def admin_url(self) -> str:
        return admin_url(self.admin_address, self.file.sections.listen)

    def readiness(self) -> str:
        """Reason why the controller is not ready; empty when it is. A store that cannot be written is reported, but
        leaves the controller ready: gateways go on with what they were told last."""
        if self.manager.driver.crash is not None:
            return "this controller met an error of its own and restarts"
        if self.manager.store_writer.lost.is_set():
            return "the store is another controller's now"
        return "" if self.lead.lease.left_s() else "its lease was not renewed in time, and another controller may lead"

    def elsewhere(self) -> str:
        """Reason why gateways should look for another controller; empty while they should not. A controller that only
        lost its store keeps them for `store.lapse_max`: the store may come back before another controller holds it."""
        lapse_max_ns = self.file.sections.store.lapse_max_ns
        return self.readiness() if self.lead.lease.over_s() * _SECOND_NS > lapse_max_ns else ""


@asynccontextmanager
async def serve_controller(
    file: ControllerFile,
    *,
    clock: Clock | None = None,
    log: FilteringBoundLogger | None = None,
    store: Store | None = None,
    stop: asyncio.Event | None = None,
    standing_by: Callable[[str], None] = lambda _: None,
    lines_lost: Callable[[], int] = lambda: 0,
) -> AsyncIterator[ControllerHandle]:
    """Run a controller until the context is left. The context is entered once the controller leads; `standing_by` is
    called with the operators' URL if it has to wait for that. `lines_lost` is the number of log lines that were
    dropped so far. Raises StandbyEnded when `stop` is set meanwhile,
    StoreError when the store cannot be had, CertificateFault, and OSError when an address cannot be listened on, or the
    journal or the history not be written."""
    clock = clock or Clock()
    sections = file.sections
    log = log or make_logger(sections.logging, file.controller, clock=clock, role="controller")
    shown = _Shown(file, clock, log)
    async with AsyncExitStack() as stack:
        history = OperatorAuditLog(_history_path(sections), sections.history.file_max_bytes)
        metrics = await _metrics_of_standby(stack, shown, lines_lost, clock=clock, log=log)
        waiting = StandbyView(
            file,
            shown.operators_tls,
            metrics,
            log,
            stop=stop or asyncio.Event(),
            standing_by=standing_by,
            operators=shown.operators,
        )
        lead = await take_the_lead(stack, store, waiting, clock)
        journal = _journal(file, clock, log, metrics)
        core = ControllerCore()
        recent = Recent(clock)
        driver = _driver(core, clock, log, metrics=metrics, journal=journal, recent=recent)
        stack.callback(_close, driver, journal)
        manager = StateManager(
            core,
            driver,
            lead.store_writer,
            lead.documents,
            naming_of(file),
            wall_ns=clock.wall_ns,
            regions=file.region_table,
        )
        handle = ControllerHandle(file, manager, Links(), metrics, log, lead=lead, clock=clock)
        handle.admin_address = waiting.address
        loops = Supervisor(clock, partial(_loop_failed, log, metrics))
        prober = GatewayProber(lambda: manager.registry, handle.links.__contains__, driver.submit, sections.probes)
        recovery = Recovery(
            sections.recovery,
            partial(_region_of, manager),
            loops.start,
            log,
            lease=lead.lease,
            on_end=metrics.recovered,
        )
        driver.on_recovery(recovery.begin)
        metrics.follow(manager, handle.links.__len__, lambda: not handle.readiness(), lead.lease.left_s)
        _add_parts(handle.reloader, FilePart(file, partial(_apply, handle, prober, recovery)), shown)

        stack.push_async_callback(_last_write, lead.store_writer, log)
        await stack.enter_async_context(loops)
        lead.start(loops)
        manager.start(sections.decisions)
        _run_loops(loops, prober, handle, journal)
        _watch_certificates(loops, shown.holders, metrics, clock, log)
        await _tell_names(stack, loops, handle, clock, log)
        door = shown.mesh or Plaintext()
        service = ControlService(
            manager,
            handle.links,
            handle.questions,
            door,
            sections.link,
            clock=clock,
            log=log,
            histories=handle.histories,
            watch=metrics,
            on_link=prober.look,
            elsewhere=handle.elsewhere,
        )
        server = ControlServer(service, sections.link, door)
        stack.push_async_callback(server.stop)
        handle.grpc_address = await _listen_for_gateways(server, sections.listen.grpc)
        operations = Operations(manager, history, clock, on_order=metrics.ordered)
        admin = _admin_app(handle, operations, history, clock, operators=shown.operators, recent=recent, loops=loops)
        handle.admin_address = await listen_for_operators(stack, admin, handle.admin_address, shown.operators_tls)
        yield handle


async def _metrics_of_standby(
    stack: AsyncExitStack,
    shown: _Shown,
    lines_lost: Callable[[], int],
    *,
    clock: Clock,
    log: FilteringBoundLogger,
) -> ControllerMetrics:
    """Metrics with what a controller counts on standby as well: lost log lines, and what the issuers of operators'
    tokens answer, which are followed from here on."""
    metrics = ControllerMetrics()
    metrics.add(shown.token_counters.collectors())
    loops = await stack.enter_async_context(Supervisor(clock, partial(_loop_failed, log, metrics)))
    for each in shown.issuers:
        each.restore()
        loops.run(f"issuer_{each.config.name}", each.run)
    loops.run("log_lines", LostLines(lines_lost, metrics.log_lines_lost, clock, log).watch)
    return metrics


async def _listen_for_gateways(server: ControlServer, address: Address) -> Address:
    with named_by("listen.grpc", address):
        return await server.start(address)


async def run_controller(
    file: ControllerFile,
    *,
    stop: asyncio.Event,
    ready: Callable[[ControllerHandle], None],
    standing_by: Callable[[str], None] = lambda _: None,
) -> int:
    """Serve until `stop` is set, and return the exit status: 1 when the core failed or the store was lost, else 0."""
    with lines_written_aside(sys.stderr) as (lines, writer):
        log = make_logger(file.sections.logging, file.controller, lines, role="controller")
        serving = serve_controller(
            file, log=log, stop=stop, standing_by=standing_by, lines_lost=lambda: writer.lines_lost
        )
        with libraries_told_of(log):
            try:
                return await _run_until(stop, serving, ready)
            except StandbyEnded:
                return 0


async def _run_until(
    stop: asyncio.Event,
    serving: AbstractAsyncContextManager[ControllerHandle],
    ready: Callable[[ControllerHandle], None],
) -> int:
    async with serving as controller:
        ready(controller)
        failed, lost = controller.manager.driver.failed, controller.manager.store_writer.lost
        await _first_of(stop.wait, failed.wait, lost.wait)
        return 1 if failed.is_set() or lost.is_set() else 0


class _Shown:
    """Certificates in use, and the credentials of operators."""

    def __init__(self, file: ControllerFile, clock: Clock, log: FilteringBoundLogger) -> None:
        """Load certificates and credentials. Raises CertificateFault and ConfigError."""
        sections = file.sections
        around = IssuerDependencies(file.controller, _state_folder(sections), clock, log)
        self.operators, self.issuers = make_operators(file.admin_token, sections.operators, around)
        self.token_counters = around.counters
        self.mesh = None if sections.link.tls is None else ControllerTls(sections.link.tls, clock)
        admin_tls = sections.listen.admin_tls
        self.operators_tls = None if admin_tls is None else HttpTls(admin_tls, clock)
        if self.operators_tls is not None:
            self.operators_tls.role = "operators"

    @property
    def holders(self) -> list[CertificateHolder]:
        return [each for each in (self.mesh, self.operators_tls) if each is not None]


async def _tell_names(
    stack: AsyncExitStack, loops: Supervisor, handle: ControllerHandle, clock: Clock, log: FilteringBoundLogger
) -> None:
    """Serve the records by Nightside's own name server, and publish them at the configured provider. Raises
    ConfigError, and OSError."""
    handle.dns_addresses = await _answer_names(stack, loops, handle, clock, log)
    _publish_records(stack, loops, handle, lease=handle.lead.lease, clock=clock, log=log)


async def _answer_names(
    stack: AsyncExitStack, loops: Supervisor, handle: ControllerHandle, clock: Clock, log: FilteringBoundLogger
) -> tuple[Address, ...]:
    """Start the name server. It answers from the stored records until the core publishes others, and also while the
    store cannot be written."""
    config = handle.file.sections.dns
    if not config.listen:
        return ()
    service = NameService(clock, log, DnsLimits.from_config(config))
    handle.metrics.add(service.counters.collectors())
    publisher = RecordPublisher(EmbeddedDns(service), log)
    handle.manager.on_records(publisher.take)
    loops.run("records", publisher.run)
    stack.push_async_callback(service.stop)
    await service.start(config.listen)
    return service.addresses


def _publish_records(
    stack: AsyncExitStack,
    loops: Supervisor,
    handle: ControllerHandle,
    *,
    lease: Lease,
    clock: Clock,
    log: FilteringBoundLogger,
) -> None:
    """Start publishing at the configured provider, if there is one. Raises ConfigError."""
    provider = provider_of(handle.file, lease, clock, handle.metrics)
    if provider is None:
        return
    stack.push_async_callback(provider.close)
    handle.publisher = publisher_of(handle.file, provider, handle.metrics, log)
    handle.manager.on_records(handle.publisher.take)
    loops.run("published_records", handle.publisher.run)


def _driver(
    core: ControllerCore,
    clock: Clock,
    log: FilteringBoundLogger,
    *,
    metrics: ControllerMetrics,
    journal: ControllerJournal | None,
    recent: Recent,
) -> ControllerDriver:
    def on_crash(crash: ControllerCrash) -> None:
        log.critical("core_crashed", exc_info=crash.error)
        if journal is None:
            return
        try:
            log.critical("crash_record_written", path=str(journal.on_crash(crash)))
        except OSError as error:
            log.critical("crash_record_write_failed", reason=str(error))

    observers: list[ControllerObserver] = [metrics, CoreLog(log), recent]
    if journal is not None:
        observers.append(journal)
    return ControllerDriver(core, clock, observers=observers, on_crash=on_crash)


def _run_loops(
    loops: Supervisor, prober: GatewayProber, handle: ControllerHandle, journal: ControllerJournal | None
) -> None:
    loops.run("prober", prober.run)
    loops.run("reloader", handle.reloader.run)
    loops.run("pool_histories", handle.histories.follow_views)
    if journal is not None:
        loops.run("journal", journal.run)


def _close(driver: ControllerDriver, journal: ControllerJournal | None) -> None:
    driver.close()
    if journal is not None:
        journal.close()


def _journal(
    file: ControllerFile, clock: Clock, log: FilteringBoundLogger, metrics: ControllerMetrics
) -> ControllerJournal | None:
    settings = file.sections.journal
    if settings.folder is None:
        return None

    def on_stopped(reason: str) -> None:
        log.error("journal_stopped", reason=reason)
        metrics.journal_stopped()

    started = "".join(character for character in clock.wall_time() if character.isalnum())
    header = new_header(file.controller, f"{file.controller}-{started}")
    return ControllerJournal(
        JournalSettings(settings.folder, settings.file_max_bytes, settings.files_max), header, on_stopped
    )


def _state_folder(sections: ControllerSections) -> Path | None:
    """Folder of the store, where that is a file."""
    return None if sections.store.path is None else sections.store.path.parent


def _history_path(sections: ControllerSections) -> Path:
    if sections.history.path is not None:
        return sections.history.path
    store = sections.store.path
    assert store is not None, "the file was checked"
    return store.with_name(f"{store.name}.history")


def _region_of(manager: StateManager, gateway_id: GatewayId) -> RegionName:
    known = manager.registry.gateways.get(gateway_id)
    return RegionName("") if known is None else known.place.region


def _watch_certificates(
    loops: Supervisor,
    holders: list[CertificateHolder],
    metrics: ControllerMetrics,
    clock: Clock,
    log: FilteringBoundLogger,
) -> None:
    def left_s(holder: CertificateHolder) -> float:
        return (holder.pair.ends_ns - clock.wall_ns()) / _SECOND_NS

    for holder in holders:
        metrics.follow_certificate(holder.role, partial(left_s, holder))
    loops.run("certificate_expiry", ExpiryWatch(holders, clock, log).run)


def _add_parts(reloader: Reloader, part: FilePart, shown: _Shown) -> None:
    reloader.add("controller", part.reload, part.files)
    reloader.add("operators", shown.operators.reload, shown.operators.files)
    for holder in shown.holders:
        reloader.add(f"certificate_of_{holder.role}", holder.reload, holder.files)


def _apply(handle: ControllerHandle, prober: GatewayProber, recovery: Recovery, file: ControllerFile) -> None:
    """Put a changed file in force. Raises OSError where a CA file cannot be read, and has then changed nothing."""
    prober.configure(file.sections.probes)
    recovery.configure(file.sections.recovery)
    handle.manager.configure(file.sections.decisions, naming_of(file))
    handle.file = file


def _loop_failed(log: FilteringBoundLogger, metrics: ControllerMetrics, name: str, error: Exception) -> None:
    log.error("background_task_failed", loop=name, exc_info=error)
    metrics.restarted(name)


# Operators


def _admin_app(
    handle: ControllerHandle,
    operations: Operations,
    history: OperatorAuditLog,
    clock: Clock,
    *,
    operators: Operators,
    recent: Recent,
    loops: Supervisor,
) -> web.Application:
    manager = handle.manager

    def state() -> dict[str, object]:
        state = state_of(manager, handle.links, clock.now_ns(), handle.file.controller)
        publisher = handle.publisher
        published: dict[str, object] = {} if publisher is None else {"published_records": publisher.state()}
        published["pool_histories"] = handle.histories.describe()
        return {**state, **published, "not_ready_reason": handle.readiness(), "history_fault": history.fault}

    overview = ControllerOverview(
        handle.file.controller,
        manager,
        handle.links,
        lease=handle.lead.lease,
        recent=recent,
        history=history,
        decisions=LatestDecisions(handle.questions, clock, loops.start),
        clock=clock,
        state=state,
    )
    loops.run("overview", overview.run)

    def metrics_page() -> bytes:
        manager.driver.tell_observers()
        return handle.metrics.render()

    sources = ControllerAdminSources(
        metrics_page,
        CONTENT_TYPE,
        state,
        handle.readiness,
        operations.take,
        history.last,
        operations.export,
        partial(overview.sections, handle.readiness),
        handle.questions.about,
    )
    handle.admin_app = make_admin_app(sources, operators, admin_hosts(handle.file.sections.listen))
    return handle.admin_app


# Shutdown


async def _last_write(store_writer: StoreWriter, log: FilteringBoundLogger) -> None:
    """Write what the core decided last, once the loops have ended; otherwise the next controller computes it anew."""
    try:
        async with asyncio.timeout(_LAST_WRITE_S):
            await store_writer.write_last()
    except (StoreError, TimeoutError) as error:
        log.warning("last_decisions_not_persisted", reason=str(error) or "the store takes too long")


async def _first_of(*waits: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Wait until one of them is done; cancel the others."""
    async with TaskGroup() as tasks:
        running = [tasks.create_task(wait()) for wait in waits]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
