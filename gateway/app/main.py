"""Puts a gateway together, runs it and takes it down again. It wires and supervises; it decides nothing about requests.

`serve_gateway` is a whole gateway as a context, for tests and tools; `nightside gateway run` adds signals to it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Any, Self

import click
import uvloop
import yaml
from aiohttp import web
from structlog.typing import FilteringBoundLogger

from gateway.app.fleet import Fleet, check_engine_certificates
from gateway.app.lockdown_cli import lockdown
from gateway.app.reload import PolicyPart, RegionPart
from gateway.config import (
    Address,
    ConfigError,
    GatewayConfig,
    RegionFile,
    read_region_file,
)
from gateway.core.effects import EndRequest
from gateway.core.events import ConfigApplied, DrainRequested, PolicyApplied
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import GatewayId, ModelName, RequestId, RequestProfile, TargetKind
from gateway.engines.client import ClientSettings, EngineClient
from gateway.ground.clock import Clock
from gateway.ground.placement_plug_ins import find_policy
from gateway.ground.reloader import Reloader
from gateway.http.admin import AdminSources, LockdownOrder, make_admin_app
from gateway.http.app import Api, make_runner
from gateway.http.settings import HttpSettings
from gateway.http.site import Site
from gateway.peers.board import LoadBoard
from gateway.peers.client import PeerLegOpener
from gateway.peers.explain import PeerExplainer
from gateway.peers.heartbeats import Heartbeats
from gateway.peers.link import PeerLink
from gateway.peers.roster import PeerRoster
from gateway.peers.server import PeerServer, PeerService
from gateway.peers.transport import Plaintext, Transport
from gateway.policy.file import load_policy_or_closed
from gateway.records.audit import Audit, AuditLevels
from gateway.records.decisions import DecisionLog, ExplainedRequest, Explanation, explain_both
from gateway.records.journal import Header, Journal, JournalSettings, new_header, write_tail
from gateway.records.logs import RequestLog, make_logger
from gateway.records.metrics import CONTENT_TYPE, Metrics
from gateway.request.driver import Crash, Driver, Observer
from gateway.request.legs import RequestSummary
from gateway.request.owner import OwnerContext, OwnerSettings
from gateway.security.certificates import CertificateFault
from gateway.security.keyring import Keyring
from gateway.security.keys import read_keys_file
from gateway.security.tls import Certificates, ExpiryWatch
from gateway.state.lockdown import Lockdown, LockdownAnswer

_SECOND_NS = 1_000_000_000
_LAST_BYTES_S = 2.0
"""After the last request is over, its answer may still be on its way out for this long."""
_LOOP_CHECK_NS = 100_000_000
_GARBAGE_THRESHOLDS = (20_000, 20, 50)
"""Python's own are made for programs that are short or leave many cycles."""
_RESTART_MIN_S = 0.1
_RESTART_MAX_S = 30.0
_HEALTHY_NS = 60 * _SECOND_NS
"""A loop that ran this long before it failed starts again without a longer pause."""
_BACKLOG = 1024
_OPEN_FILES = 2**20


class GatewayHandle:
    """A running gateway: where it is reached, what it is made of, and how it is emptied."""

    def __init__(self, config: GatewayConfig, desk: _Desk, peer_server: PeerServer, reloader: Reloader) -> None:
        self.config = config
        self.reloader = reloader
        self.core = desk.core
        self.driver = desk.driver
        self.metrics = desk.metrics
        self.http_address = config.listen.http
        self.admin_address = config.listen.admin
        self.peers_address = config.listen.peers
        self._desk = desk
        self._peer_server = peer_server

    @property
    def http_url(self) -> str:
        return f"http{'s' if self.config.listen.tls else ''}://{self.http_address}"

    @property
    def admin_url(self) -> str:
        return f"http{'s' if self.config.listen.admin_tls else ''}://{self.admin_address}"

    def move_policy(self, path: Path | None) -> None:
        """The region file names this policy file from now on."""
        self._desk.policy.move(path)

    async def drain(self, wait_max_s: float) -> bool:
        """Take nothing new and let what runs or waits finish. False when time ran out first."""
        self.driver.submit(DrainRequested())
        await self._peer_server.drain()
        return await self._within(wait_max_s, self._desk.until_peers_are_told, self._desk.until_idle)

    async def settle(self, wait_max_s: float) -> bool:
        """Wait until no request is left. False when time ran out first."""
        return await self._within(wait_max_s, self._desk.until_idle)

    async def _within(self, wait_max_s: float, *waits: Callable[[], Awaitable[None]]) -> bool:
        try:
            async with asyncio.timeout(wait_max_s):
                for wait in waits:
                    await wait()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def serve_gateway(
    config: GatewayConfig,
    *,
    clock: Clock | None = None,
    log: FilteringBoundLogger | None = None,
    region: RegionFile | None = None,
) -> AsyncIterator[GatewayHandle]:
    """Run a gateway until the context is left. What still runs then is cut off: drain first.

    Several may run in one process. With `region`, the file that the config comes from, it can be read anew.
    Raises OSError when an address cannot be listened on or the journal not written, ConfigError when the keys file or
    an engine's certificates cannot be used, and CertificateFault.
    """
    clock = clock or Clock()
    log = log or make_logger(config.logging, config.gateway_id, clock=clock)
    keyring = None if config.keys_file is None else Keyring(config.keys_file, clock)
    certificates = Certificates(config, clock)
    transport = certificates.mesh or Plaintext()
    async with AsyncExitStack() as stack:
        desk = _Desk(config, clock, log)
        stack.callback(desk.close)
        desk.apply(config)
        fleet = _fleet(config, desk)
        loops = _Supervisor(desk)
        roster = _roster(config, desk, loops, transport)
        stack.push_async_callback(roster.close)
        engine_settings = ClientSettings(connect_s=config.limits.engine_connect_ns / _SECOND_NS)
        engines = await stack.enter_async_context(EngineClient(fleet.endpoints, clock, engine_settings))
        peers = PeerLegOpener(roster.links, config.gateway_id, clock)
        owners = OwnerContext(
            desk.driver,
            clock,
            {TargetKind.REPLICA: engines, TargetKind.PEER: peers},
            OwnerSettings(engine_stall_s=config.limits.engine_stall_ns / _SECOND_NS),
            on_finished=desk.on_finished,
        )
        peer_server = _peer_server(config, desk, owners, transport, roster)
        reloader = _reloader(config, desk)
        handle = GatewayHandle(config, desk, peer_server, reloader)

        await stack.enter_async_context(loops)
        _run_loops(loops, desk, certificates)
        roster.replace(config.peers)
        for name, loop in fleet.loops():
            loops.run(name, loop)
        await fleet.start()
        if region is not None:
            _add_region(reloader, RegionPart(region, partial(_apply, handle, fleet, roster)))
        _add_parts(reloader, desk, keyring, certificates)
        loops.run("reloader", reloader.run)

        stack.push_async_callback(_stop_peer_server, peer_server, desk.driver)
        handle.peers_address = await peer_server.start(config.listen.peers)
        settings = HttpSettings.from_config(config)
        tls = certificates.http.context if certificates.http else None
        admin_tls = tls if config.listen.admin_tls else None
        admin = _admin_app(config, desk, PeerExplainer(roster.links, config.gateway_id))
        handle.admin_address = await _listen(stack, desk, admin, settings, config.listen.admin, tls=admin_tls)
        api = Api(
            owners,
            settings,
            desk.models,
            desk.readiness,
            check_key=keyring.check if keyring else None,
            has_audit=desk.has_audit,
        ).make_app()
        handle.http_address = await _listen(
            stack, desk, api, settings, config.listen.http, tls=tls, reuse_port=config.listen.reuse_port
        )
        yield handle


async def run_gateway(
    config: GatewayConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[GatewayHandle], None],
    stop_at_once: asyncio.Event | None = None,
    region: RegionFile | None = None,
) -> int:
    """Serve until `stop` is set, drain, and return the exit status: 1 when the core failed, else 0."""
    stop_at_once = stop_at_once or asyncio.Event()
    async with serve_gateway(config, region=region) as gateway:
        ready(gateway)
        await _first_of(stop.wait, stop_at_once.wait, gateway.driver.failed.wait)
        if not gateway.driver.failed.is_set():
            drain_s = config.limits.drain_ns / _SECOND_NS
            await _first_of(lambda: gateway.drain(drain_s), stop_at_once.wait, gateway.driver.failed.wait)
        if not gateway.driver.failed.is_set():
            return 0
        await gateway.settle(_LAST_BYTES_S)
        return 1


class _Desk:
    """The core with everything that watches it."""

    def __init__(self, config: GatewayConfig, clock: Clock, log: FilteringBoundLogger) -> None:
        """Raises OSError when the journal cannot be written."""
        self.clock = clock
        self.log = log
        self.board = LoadBoard()
        seed = secrets.randbits(63) if config.seed is None else config.seed
        self.core = GatewayCore(config.gateway_id, config.place, seed=seed, plug_ins=find_policy)
        self.metrics = Metrics(lambda: self.core.gauges(clock.now_ns()))
        self._header = _journal_header(config, clock, seed)
        self._journal = _journal(config, self._header, self._journal_stopped)
        self._folder = config.journal.folder
        self._requests = RequestLog(log, config.gateway_id)
        self.decisions = DecisionLog(config.gateway_id, config.place, config.decisions, log)
        self.audit = _audit(config, clock, log)
        self._idle = asyncio.Event()
        observers: list[Observer] = [self.metrics, self._requests, self.decisions]
        if self.audit is not None:
            observers.append(self.audit)
            self.metrics.registry.register(AuditLevels(self.audit))
        if self._journal is not None:
            observers.append(self._journal)
        self.driver = Driver(self.core, clock, observers=observers, on_crash=self._on_crash)
        self.driver.on_publish(lambda report: self.board.post(report, clock.now_ns()))
        self.policy = PolicyPart(
            config.policy_file, config.place, lambda policy: self.driver.submit(PolicyApplied(policy)), log
        )
        self.lockdown = Lockdown(
            config.gateway_id, config.state.folder, submit=self.driver.submit, clock=clock, log=log
        )

    @property
    def journal(self) -> Journal | None:
        return self._journal

    def apply(self, config: GatewayConfig) -> None:
        """Tell the core what it is to know before it is told of replicas and peers."""
        self.driver.submit(ConfigApplied(config.core))
        self.policy.start()
        self.lockdown.restore()

    def models(self) -> Sequence[ModelName]:
        return list(dict.fromkeys([*self.core.replicas.models(), *self.core.peers.models()]))

    def readiness(self) -> str:
        """Neither engines nor peers are needed to be ready: requests wait, or leave, or are told why not."""
        if self.driver.crash is not None:
            return "this gateway met an error of its own and restarts"
        if self.core.draining:
            return "draining"
        return self.why_closed()

    def why_closed(self) -> str:
        """Why nothing new is taken that the core would take; empty when it is asked."""
        return "" if self.audit is None else self.audit.refusal

    def has_audit(self) -> bool:
        return not self.why_closed()

    def notes(self) -> dict[str, str]:
        """What an operator should know of a gateway that is ready all the same."""
        return {"lockdown": self.lockdown.state.reason or "no reason given"} if self.core.locked_down else {}

    def metrics_page(self) -> bytes:
        self.driver.tell_observers()
        return self.metrics.render()

    def state(self) -> dict[str, object]:
        self.driver.tell_observers()
        state = {**self.core.describe(self.clock.now_ns()), **self.decisions.describe()}
        return {**state, "lockdown_order": self.lockdown.describe()}

    def explain_to(self, peer: GatewayId, request_id: RequestId) -> ExplainedRequest | None:
        self.driver.tell_observers()
        return self.decisions.explain_to(peer, request_id, self.clock.now_ns())

    def on_finished(self, profile: RequestProfile, end: EndRequest, summary: RequestSummary) -> None:
        self._requests.on_finished(profile, end, summary)
        self.decisions.on_finished(profile, end, summary)
        if self.audit is not None:
            self.audit.on_finished(profile, end, summary)
        if self.driver.open_requests == 0:
            self._idle.set()

    async def until_idle(self) -> None:
        while self.driver.open_requests > 0:
            self._idle.clear()
            await self._idle.wait()

    async def until_peers_are_told(self) -> None:
        """Until the heartbeat that says that we take nothing is up; the core owes it within its publish interval."""
        newest = self.board.newest
        while not self.board.closed and (newest is None or newest.report.accepting):
            newest = await self.board.newer_than(newest, wait_max_s=_LAST_BYTES_S)

    async def watch_loop(self) -> None:
        """Measures how late the event loop is, which every request feels."""
        while True:
            asked_ns = self.clock.now_ns() + _LOOP_CHECK_NS
            await asyncio.sleep(_LOOP_CHECK_NS / _SECOND_NS)
            self.metrics.loop_delayed(self.clock.now_ns() - asked_ns)

    def close(self) -> None:
        self.driver.close()
        if self._journal is not None:
            self._journal.close()
        if self.audit is not None:
            self.audit.close()

    def _on_crash(self, crash: Crash) -> None:
        self.log.critical("the core failed; this gateway stops", exc_info=crash.error)
        last = crash.tail[-1]
        if self._journal is not None and last.effects is None:
            self._journal.on_crash(last.now_ns, last.event)
        if self._folder is not None:
            self._keep_tail(self._folder / f"{self._header.story}.crash", crash)

    def _keep_tail(self, path: Path, crash: Crash) -> None:
        """A disk that cannot take it must not keep the process from ending in order."""
        try:
            write_tail(path, self._header, crash.tail)
        except OSError as error:
            self.log.critical("the steps before the failure are lost", path=str(path), reason=str(error))
        else:
            self.log.critical("the steps before the failure are kept", path=str(path))

    def _journal_stopped(self, reason: str) -> None:
        self.log.error("the journal stopped", reason=reason)
        self.metrics.journal_stopped()


class _Supervisor:
    """Keeps background loops alive: one that fails is logged, counted, and starts again after a growing pause."""

    def __init__(self, desk: _Desk) -> None:
        self._desk = desk
        self._tasks = asyncio.TaskGroup()
        self._loops: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        if self._desk.journal is not None:
            self.run("journal", self._desk.journal.run)
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await self._tasks.__aexit__(None, None, None)

    def run(self, name: str, loop: Callable[[], Awaitable[None]]) -> Callable[[], object]:
        """Gives what ends a loop that is wanted no longer."""
        task = self._tasks.create_task(self._keep_running(name, loop), name=name)
        self._loops.add(task)
        task.add_done_callback(self._loops.discard)
        return task.cancel

    async def _keep_running(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        pause_s = _RESTART_MIN_S
        while True:
            started_ns = self._desk.clock.now_ns()
            try:
                return await loop()
            except Exception:  # a fault of ours in one loop must not end the requests that run
                self._desk.log.exception("a background loop failed and starts again", loop=name)
                self._desk.metrics.restarted(name)
            if self._desk.clock.now_ns() - started_ns > _HEALTHY_NS:
                pause_s = _RESTART_MIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RESTART_MAX_S)


def _run_loops(loops: _Supervisor, desk: _Desk, certificates: Certificates) -> None:
    """What watches the gateway itself."""
    loops.run("event_loop_watch", desk.watch_loop)
    if desk.audit is not None:
        loops.run("audit", desk.audit.run)
    for holder in certificates.holders:
        desk.metrics.follow_certificate(holder.role, partial(certificates.left_s, holder))
    loops.run("certificate_expiry", ExpiryWatch(certificates.holders, desk.clock, desk.log).run)


def _journal_header(config: GatewayConfig, clock: Clock, seed: int) -> Header:
    started = "".join(character for character in clock.wall_time() if character.isalnum())
    return new_header(config.gateway_id, config.place, seed=seed, story=f"{config.gateway_id}-{started}")


def _journal(config: GatewayConfig, header: Header, on_stopped: Callable[[str], None]) -> Journal | None:
    if config.journal.folder is None:
        return None
    settings = JournalSettings(
        config.journal.folder, file_bytes_max=config.journal.file_max_bytes, files_max=config.journal.files_max
    )
    return Journal(settings, header, on_stopped=on_stopped)


def _audit(config: GatewayConfig, clock: Clock, log: FilteringBoundLogger) -> Audit | None:
    if config.audit.folder is None:
        return None
    return Audit(config.audit, config.gateway_id, config.place, clock, log)


def _fleet(config: GatewayConfig, desk: _Desk) -> Fleet:
    def on_restart(url: str, error: Exception) -> None:
        desk.log.error("probing failed and starts again", engine=url, exc_info=error)
        desk.metrics.restarted("probe")

    return Fleet(config, desk.driver.submit, desk.clock, desk.log, on_restart)


def _roster(config: GatewayConfig, desk: _Desk, loops: _Supervisor, transport: Transport) -> PeerRoster:
    def run_loops(link: PeerLink) -> list[Callable[[], object]]:
        heartbeats = _heartbeats(config, desk, link)
        return [
            loops.run("peer_credentials", link.follow_credentials),
            loops.run("peer_pings", heartbeats.measure),
            loops.run("peer_heartbeats", heartbeats.listen),
        ]

    def retire(link: PeerLink) -> None:
        loops.run("peer_retiring", partial(link.retire, config.limits.request_deadline_ns / _SECOND_NS))

    return PeerRoster(lambda peer: PeerLink(peer, config.peering, transport), run_loops, retire)


def _reloader(config: GatewayConfig, desk: _Desk) -> Reloader:
    watch_ns = config.reload.watch_ns
    watch_s = None if watch_ns is None else watch_ns / _SECOND_NS
    return Reloader(desk.log, watch_s=watch_s, on_reload=desk.metrics.reloaded)


def _add_region(reloader: Reloader, part: RegionPart) -> None:
    reloader.add("region", part.reload, part.files)
    reloader.add("engine_credentials", part.reload_credentials, part.credential_files)


def _add_parts(reloader: Reloader, desk: _Desk, keyring: Keyring | None, certificates: Certificates) -> None:
    reloader.add("policy", desk.policy.reload, desk.policy.files)
    if keyring is not None:
        reloader.add("keys", keyring.reload, keyring.files)
    for holder in certificates.holders:
        reloader.add(f"certificate_of_{holder.role}", holder.reload, holder.files)


def _apply(handle: GatewayHandle, fleet: Fleet, roster: PeerRoster, config: GatewayConfig) -> None:
    """A region file that changed, in force at once: the event loop does not turn in between. Raises ConfigError, and
    has done nothing then."""
    apply_to_fleet = fleet.prepare(config)
    if config.core != handle.config.core:
        handle.driver.submit(ConfigApplied(config.core))
    handle.move_policy(config.policy_file)
    roster.replace(config.peers)
    apply_to_fleet()
    handle.config = config


def _heartbeats(config: GatewayConfig, desk: _Desk, link: PeerLink) -> Heartbeats:
    return Heartbeats(
        link,
        config.gateway_id,
        config.place,
        submit=desk.driver.submit,
        clock=desk.clock,
        rng=random.Random(),
        on_refused=lambda: desk.metrics.peer_refused("caller"),
        log=desk.log,
    )


def _peer_server(
    config: GatewayConfig, desk: _Desk, owners: OwnerContext, transport: Transport, roster: PeerRoster
) -> PeerServer:
    service = PeerService(
        owners,
        desk.board,
        roster.specs,
        peering=config.peering,
        keep_alive_ns=config.core.observation.keep_alive_ns,
        transport=transport,
        on_refused=lambda: desk.metrics.peer_refused("called"),
        log=desk.log,
        explain=desk.explain_to,
        why_closed=desk.why_closed,
    )
    return PeerServer(service, desk.board, config.peering, transport)


async def _stop_peer_server(server: PeerServer, driver: Driver) -> None:
    await server.stop(0.0 if driver.open_requests else _LAST_BYTES_S)


def _admin_app(config: GatewayConfig, desk: _Desk, explainer: PeerExplainer) -> web.Application:
    async def explain(wanted: str) -> Explanation | None:
        desk.driver.tell_observers()
        return await explain_both(desk.decisions, explainer.ask, wanted, desk.clock.now_ns())

    async def order_lockdown(order: LockdownOrder) -> LockdownAnswer:
        return await desk.lockdown.order(active=order.active, cut=order.cut, reason=order.reason)

    sources = AdminSources(
        desk.metrics_page, CONTENT_TYPE, desk.state, desk.readiness, explain, order_lockdown, desk.notes
    )
    return make_admin_app(sources, config.admin_token)


async def _listen(
    stack: AsyncExitStack,
    desk: _Desk,
    app: web.Application,
    settings: HttpSettings,
    address: Address,
    *,
    tls: SSLContext | None,
    reuse_port: bool = False,
) -> Address:
    """Listen until the stack is left. Returns the real address, also where the system chose the port."""
    runner = make_runner(app, settings, lambda error: desk.log.error("answering a client failed", exc_info=error))
    await runner.setup()
    stack.push_async_callback(_stop_listening, runner, desk.driver)
    handshake_s = settings.headers_s
    site = Site(
        runner,
        address.host,
        address.port,
        backlog=_BACKLOG,
        tls=tls,
        handshake_s=handshake_s,
        reuse_port=reuse_port,
    )
    await site.start()
    return Address(address.host, runner.addresses[0][1])


async def _stop_listening(runner: web.AppRunner, driver: Driver) -> None:
    """Answers that are complete go out; requests that still run have had their time and are cut off."""
    for site in tuple(runner.sites):
        await site.stop()
    if driver.open_requests and runner.server is not None:
        for connection in runner.server.connections:
            connection.force_close()
    await runner.cleanup()


async def _first_of(*waits: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Until one of them is done; the others are cancelled."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(wait()) for wait in waits]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()


# The command line


@click.group()
def cli() -> None:
    """Serve one region, check its region file, or stop all its forwarding."""


cli.add_command(lockdown)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
def run(file: Path) -> None:
    """Serve the region that FILE describes, until SIGTERM or SIGINT; a second signal does not wait for requests.

    SIGHUP reads FILE and what it names anew, without ending any request.
    """
    region = _read(file)
    _raise_open_files_limit()
    try:
        status = uvloop.run(_run_until_signalled(region))
    except (OSError, ConfigError, CertificateFault) as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(status)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def check(file: Path, as_json: bool) -> None:
    """Check FILE and its residency policy, and print the region file with every default filled in."""
    region = _read(file)
    if region.policy is None:
        click.echo(f"{file.name}: policy: none is named, so nothing leaves the region or is taken in", err=True)
    else:
        problem = load_policy_or_closed(region.policy, region.as_config().place)[1]
        if problem is not None:
            raise click.ClickException(f"{file.name}: policy: {problem}")
    if region.keys is not None:
        _read_keys(region.keys)
    _read_certificates(region.as_config())
    _read_engine_certificates(file, region.as_config())
    document = region.as_document()
    click.echo(json.dumps(document, indent=2) if as_json else yaml.safe_dump(document, sort_keys=False), nl=as_json)


def _read_keys(file: Path) -> None:
    try:
        read_keys_file(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _read_certificates(config: GatewayConfig) -> None:
    try:
        faults = Certificates(config, Clock()).date_faults()
    except CertificateFault as fault:
        faults = [str(fault)]
    if faults:
        raise click.ClickException("\n".join(faults))


def _read_engine_certificates(file: Path, config: GatewayConfig) -> None:
    try:
        check_engine_certificates(config)
    except ConfigError as error:
        raise click.ClickException(f"{file.name}: {error}") from error


def _read(file: Path) -> RegionFile:
    try:
        return read_region_file(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


async def _run_until_signalled(region: RegionFile) -> int:
    stop, stop_at_once = asyncio.Event(), asyncio.Event()
    running: list[GatewayHandle] = []

    def on_signal() -> None:
        (stop_at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    def on_hangup() -> None:
        for gateway in running:
            gateway.reloader.request()

    def on_ready(gateway: GatewayHandle) -> None:
        running.append(gateway)
        _set_garbage_collection()
        _announce(gateway)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    config = region.as_config()
    return await run_gateway(config, stop=stop, ready=on_ready, stop_at_once=stop_at_once, region=region)


def _announce(gateway: GatewayHandle) -> None:
    config = gateway.config
    click.echo(
        f"ready: gateway {config.gateway_id} in {config.place.region} ({config.place.jurisdiction}),"
        f" clients {gateway.http_url}, admin {gateway.admin_url}, peers {gateway.peers_address}"
    )


def _set_garbage_collection() -> None:
    """What there is by now stays, and requests leave no cycles: the collector need not look often or at everything."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _raise_open_files_limit() -> None:
    """Each request holds two connections; the usual soft limit is for shells, not for servers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
