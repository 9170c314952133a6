"""Puts a gateway together, runs it and takes it down again. It wires and supervises; it decides nothing about requests.

`serve_gateway` is a whole gateway as a context, for tests and tools; `nightside gateway run` adds signals to it.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import click
import uvloop
import yaml
from aiohttp import web
from structlog.typing import FilteringBoundLogger

from gateway.clock import Clock
from gateway.config import (
    Address,
    ConfigError,
    GatewayConfig,
    RegionFile,
    read_region_file,
)
from gateway.core.effects import EndRequest
from gateway.core.events import AssignmentApplied, ConfigApplied, DrainRequested, PolicyApplied
from gateway.core.gateway_core import GatewayCore
from gateway.core.residency import ResidencyPolicy, closed_policy
from gateway.core.vocabulary import ModelName, Place, ReplicaId, RequestProfile, TargetKind
from gateway.driver import Crash, Driver, Observer
from gateway.engines.client import ClientSettings, EngineClient
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.prober import Prober, ProberSettings
from gateway.http.admin import AdminSources, make_admin_app
from gateway.http.app import Api, make_runner
from gateway.http.settings import HttpSettings
from gateway.journal import Header, Journal, JournalSettings, new_header, write_tail
from gateway.legs import RequestSummary
from gateway.logs import RequestLog, make_logger
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.owner import OwnerContext
from gateway.peers.board import LoadBoard
from gateway.peers.client import PeerLegOpener
from gateway.peers.heartbeats import Heartbeats
from gateway.peers.link import PeerLink
from gateway.peers.server import PeerServer, PeerService
from gateway.policy_file import load_policy_or_closed

_SECOND_NS = 1_000_000_000
_LAST_BYTES_S = 2.0
"""After the last request is over, its answer may still be on its way out for this long."""
_LOOP_CHECK_NS = 100_000_000
_RESTART_MIN_S = 0.1
_RESTART_MAX_S = 30.0
_HEALTHY_NS = 60 * _SECOND_NS
"""A loop that ran this long before it failed starts again without a longer pause."""
_BACKLOG = 1024
_OPEN_FILES = 2**20


class GatewayHandle:
    """A running gateway: where it is reached, what it is made of, and how it is emptied."""

    def __init__(self, config: GatewayConfig, desk: _Desk, peer_server: PeerServer) -> None:
        self.config = config
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
        return f"http://{self.http_address}"

    @property
    def admin_url(self) -> str:
        return f"http://{self.admin_address}"

    async def drain(self, wait_max_s: float) -> bool:
        """Take nothing new and let what runs or waits finish. False when time ran out first."""
        self.driver.submit(DrainRequested())
        await self._peer_server.drain()
        return await self.settle(wait_max_s)

    async def settle(self, wait_max_s: float) -> bool:
        """Wait until no request is left. False when time ran out first."""
        try:
            async with asyncio.timeout(wait_max_s):
                await self._desk.until_idle()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def serve_gateway(
    config: GatewayConfig, *, clock: Clock | None = None, log: FilteringBoundLogger | None = None
) -> AsyncIterator[GatewayHandle]:
    """Run a gateway until the context is left. What still runs then is cut off: drain first.

    Several may run in one process. Raises OSError when an address cannot be listened on or the journal not written.
    """
    clock = clock or Clock()
    log = log or make_logger(config.logging, config.gateway_id)
    async with AsyncExitStack() as stack:
        desk = _Desk(config, clock, log)
        stack.callback(desk.close)
        desk.apply(config)
        links = {peer.spec.gateway_id: PeerLink(peer, config.peering) for peer in config.peers}
        for link in links.values():
            stack.push_async_callback(link.close)
        endpoints = ReplicaEndpoints(map(ReplicaEndpoint.from_config, config.replicas))
        engine_settings = ClientSettings(connect_s=config.limits.engine_connect_ns / _SECOND_NS)
        engines = await stack.enter_async_context(EngineClient(endpoints, clock, engine_settings))
        peers = PeerLegOpener(links, config.gateway_id, clock)
        owners = OwnerContext(
            desk.driver, clock, {TargetKind.REPLICA: engines, TargetKind.PEER: peers}, on_finished=desk.on_finished
        )
        peer_server = _peer_server(config, desk, owners)
        handle = GatewayHandle(config, desk, peer_server)

        loops = await stack.enter_async_context(_Supervisor(desk))
        loops.run("event_loop_watch", desk.watch_loop)
        loops.run("prober", _prober(config, desk, endpoints).run)
        for link in links.values():
            heartbeats = _heartbeats(config, desk, link)
            loops.run("peer_pings", heartbeats.measure)
            loops.run("peer_heartbeats", heartbeats.listen)

        stack.push_async_callback(_stop_peer_server, peer_server, desk.driver)
        handle.peers_address = await peer_server.start(config.listen.peers)
        settings = HttpSettings.from_config(config)
        handle.admin_address = await _listen(stack, desk.driver, _admin_app(desk), settings, config.listen.admin)
        api = Api(owners, settings, desk.models, desk.readiness).make_app()
        handle.http_address = await _listen(stack, desk.driver, api, settings, config.listen.http)
        yield handle


async def run_gateway(
    config: GatewayConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[GatewayHandle], None],
    stop_at_once: asyncio.Event | None = None,
) -> int:
    """Serve until `stop` is set, drain, and return the exit status: 1 when the core failed, else 0."""
    stop_at_once = stop_at_once or asyncio.Event()
    async with serve_gateway(config) as gateway:
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
        self.core = GatewayCore(config.gateway_id, config.place, seed=seed)
        self.metrics = Metrics(lambda: self.core.gauges(clock.now_ns()))
        self._header = _journal_header(config, clock, seed)
        self._journal = _journal(config, self._header, log)
        self._folder = config.journal.folder
        self._requests = RequestLog(log)
        self._idle = asyncio.Event()
        observers: list[Observer] = [self.metrics, self._requests]
        if self._journal is not None:
            observers.append(self._journal)
        self.driver = Driver(self.core, clock, observers=observers, on_crash=self._on_crash)
        self.driver.on_publish(lambda report: self.board.post(report, clock.now_ns()))

    @property
    def journal(self) -> Journal | None:
        return self._journal

    def apply(self, config: GatewayConfig) -> None:
        """Tell the core what it is to know before anything else happens."""
        self.driver.submit(ConfigApplied(config.core))
        self.driver.submit(PolicyApplied(self._policy(config.policy_file, config.place)))
        replicas = tuple(replica.spec for replica in config.replicas)
        self.driver.submit(AssignmentApplied(1, replicas, tuple(peer.spec for peer in config.peers)))

    def models(self) -> Sequence[ModelName]:
        return list(dict.fromkeys([*self.core.replicas.models(), *self.core.peers.models()]))

    def readiness(self) -> str:
        """Neither engines nor peers are needed to be ready: requests wait, or leave, or are told why not."""
        if self.driver.crash is not None:
            return "this gateway met an error of its own and restarts"
        return "draining" if self.core.draining else ""

    def state(self) -> dict[str, object]:
        return self.core.describe(self.clock.now_ns())

    def on_finished(self, profile: RequestProfile, end: EndRequest, summary: RequestSummary) -> None:
        self._requests.on_finished(profile, end, summary)
        if self.driver.open_requests == 0:
            self._idle.set()

    async def until_idle(self) -> None:
        while self.driver.open_requests > 0:
            self._idle.clear()
            await self._idle.wait()

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

    def _policy(self, path: Path | None, place: Place) -> ResidencyPolicy:
        if path is None:
            policy = closed_policy(place, "no policy file is configured")
        else:
            policy, _ = load_policy_or_closed(path, place)
        if policy.closed_reason:
            self.log.error("CLOSED: nothing leaves this region and nothing is taken in", reason=policy.closed_reason)
        else:
            self.log.info("residency policy in force", digest=policy.digest)
        return policy

    def _on_crash(self, crash: Crash) -> None:
        self.log.critical("the core failed; this gateway stops", exc_info=crash.error)
        if self._journal is not None:
            self._journal.on_crash(crash.tail[-1].now_ns, crash.tail[-1].event)
        if self._folder is not None:
            path = self._folder / f"{self._header.story}.crash"
            write_tail(path, self._header, crash.tail)
            self.log.critical("the steps before the failure are kept", path=str(path))


class _Supervisor:
    """Keeps background loops alive: one that fails is logged, counted, and starts again after a growing pause."""

    def __init__(self, desk: _Desk) -> None:
        self._desk = desk
        self._tasks = asyncio.TaskGroup()
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        if self._desk.journal is not None:
            self.run("journal", self._desk.journal.run)
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await self._tasks.__aexit__(None, None, None)

    def run(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        self._loops.append(self._tasks.create_task(self._keep_running(name, loop), name=name))

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


def _journal_header(config: GatewayConfig, clock: Clock, seed: int) -> Header:
    started = "".join(character for character in clock.wall_time() if character.isalnum())
    return new_header(config.gateway_id, config.place, seed=seed, story=f"{config.gateway_id}-{started}")


def _journal(config: GatewayConfig, header: Header, log: FilteringBoundLogger) -> Journal | None:
    if config.journal.folder is None:
        return None
    settings = JournalSettings(
        config.journal.folder, file_bytes_max=config.journal.file_max_bytes, files_max=config.journal.files_max
    )
    return Journal(settings, header, on_stopped=lambda reason: log.error("the journal stopped", reason=reason))


def _prober(config: GatewayConfig, desk: _Desk, endpoints: ReplicaEndpoints) -> Prober:
    def on_restart(replica_id: ReplicaId, error: Exception) -> None:
        desk.log.error("probing failed and starts again", replica=replica_id, exc_info=error)
        desk.metrics.restarted("probe")

    settings = ProberSettings(interval_ns=config.probes.interval_ns, timeout_ns=config.probes.timeout_ns)
    return Prober(endpoints, desk.clock, settings, desk.driver.submit, on_restart)


def _heartbeats(config: GatewayConfig, desk: _Desk, link: PeerLink) -> Heartbeats:
    return Heartbeats(
        link,
        config.gateway_id,
        config.place,
        submit=desk.driver.submit,
        clock=desk.clock,
        rng=random.Random(),
        log=desk.log,
    )


def _peer_server(config: GatewayConfig, desk: _Desk, owners: OwnerContext) -> PeerServer:
    service = PeerService(
        owners,
        desk.board,
        {peer.spec.gateway_id: peer.spec for peer in config.peers},
        peering=config.peering,
        keep_alive_ns=config.core.observation.keep_alive_ns,
        log=desk.log,
    )
    return PeerServer(service, desk.board, config.peering)


async def _stop_peer_server(server: PeerServer, driver: Driver) -> None:
    await server.stop(0.0 if driver.open_requests else _LAST_BYTES_S)


def _admin_app(desk: _Desk) -> web.Application:
    return make_admin_app(AdminSources(desk.metrics.render, CONTENT_TYPE, desk.state, desk.readiness))


async def _listen(
    stack: AsyncExitStack, driver: Driver, app: web.Application, settings: HttpSettings, address: Address
) -> Address:
    """Listen until the stack is left. Returns the real address, also where the system chose the port."""
    runner = make_runner(app, settings)
    await runner.setup()
    stack.push_async_callback(_stop_listening, runner, driver)
    await web.TCPSite(runner, address.host, address.port, backlog=_BACKLOG).start()
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
    """Serve one region, or check its region file."""


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
def run(file: Path) -> None:
    """Serve the region that FILE describes, until SIGTERM or SIGINT; a second signal does not wait for requests."""
    config = _read(file).as_config()
    _raise_open_files_limit()
    try:
        status = uvloop.run(_run_until_signalled(config))
    except OSError as error:
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
    document = region.as_document()
    click.echo(json.dumps(document, indent=2) if as_json else yaml.safe_dump(document, sort_keys=False), nl=as_json)


def _read(file: Path) -> RegionFile:
    try:
        return read_region_file(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


async def _run_until_signalled(config: GatewayConfig) -> int:
    stop, stop_at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return await run_gateway(config, stop=stop, ready=_announce, stop_at_once=stop_at_once)


def _announce(gateway: GatewayHandle) -> None:
    config = gateway.config
    click.echo(
        f"ready: gateway {config.gateway_id} in {config.place.region} ({config.place.jurisdiction}),"
        f" clients {gateway.http_url}, admin {gateway.admin_url}, peers {gateway.peers_address}"
    )


def _raise_open_files_limit() -> None:
    """Each request holds two connections; the usual soft limit is for shells, not for servers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
