"""Assembles a gateway, runs it and shuts it down. It wires; it decides nothing about requests.

`serve_gateway` is a whole gateway as a context manager, for tests and tools; `nightside gateway run` adds signals to
it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol

from aiohttp import web
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.app.accounts import Accounts
from gateway.app.active_config import ActiveConfig
from gateway.app.budgets import Budgets
from gateway.app.control import ControllerLink
from gateway.app.fleet import ReplicaFleet
from gateway.app.listening import listen_for_clients, listen_for_operators
from gateway.app.mesh_links import listen_for_control, make_control, make_peer_server, make_roster, stop_peer_server
from gateway.app.naming import make_names
from gateway.app.observed_core import LAST_BYTES_S, ObservedCore
from gateway.app.open_files import warn_of_open_files
from gateway.app.overview import GatewayOverview
from gateway.app.reload import RegionPart
from gateway.app.takeover import GatewayParts, Takeover
from gateway.app.tracing import TracedGateway, requests_traced
from gateway.app.unlisted_hosts import UnlistedHosts
from gateway.app.wording import in_words
from gateway.config.classifiers import plug_in_of
from gateway.config.orders import Orders
from gateway.config.region_file import RegionFile
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.events import DrainLifted, DrainRequested
from gateway.core.vocabulary import Category, TargetKind, TenantName
from gateway.door.admin import GatewayAdminSources, make_admin_app
from gateway.door.api import ClientApi
from gateway.door.health import Notes
from gateway.door.settings import HttpSettings, operators_connections_max
from gateway.engines.client import ClientSettings, EngineClient
from gateway.features.extension import no_allowances
from gateway.peers.client import PeerLegOpener
from gateway.peers.explain import PeerExplainer
from gateway.peers.peer_links import PeerRoster
from gateway.peers.server import PeerServer
from gateway.records.decisions import Explanation, explain_both
from gateway.records.metrics import CONTENT_TYPE
from gateway.request.answer import AnswerSettings
from gateway.request.callers import NO_BUDGET
from gateway.request.content import ContentReader
from gateway.request.legs import LegOpener
from gateway.request.media import MediaTokens
from gateway.request.model_names import ModelNames
from gateway.request.promises import NO_PROMISES
from gateway.request.proxied import RequestContext
from gateway.security.tls import Certificates
from gateway.takeover.successor import Successor
from mesh.admin_listening import ListenLimits
from mesh.clock import Clock
from mesh.line_writer import lines_written_aside
from mesh.listening import named_by
from mesh.logs import libraries_told_of, make_logger
from mesh.operators import Operator, Operators, told_of
from mesh.reloader import Reloader
from mesh.supervisor import OwnedLoops, Supervisor
from mesh.task_group import TaskGroup
from mesh.tls import ExpiryWatch

_SECOND_NS = 1_000_000_000


class Describes(Protocol):
    def describe(self) -> object: ...


class GatewayHandle:
    """Running gateway: its addresses, its parts, and how it is drained."""

    def __init__(
        self,
        in_force: ActiveConfig,
        observed: ObservedCore,
        peer_server: PeerServer,
        reloader: Reloader,
        *,
        control: ControllerLink,
        budgets: Budgets,
        estate: GatewayParts,
    ) -> None:
        self.estate = estate
        self.succession = estate.succession
        self.reloader = reloader
        self.control = control
        self.budgets = budgets
        self.core = observed.core
        self.driver = observed.driver
        self.metrics = observed.metrics
        self.names = in_force.names
        """DNS service. It gets every record tree that this gateway accepts, even where it does not listen."""
        listen = in_force.config.listen
        self.http_address, self.admin_address, self.peers_address = listen.http, listen.admin, listen.peers
        self.admin_app: web.Application | None = None
        """Application for operators; None until it is served."""
        self._in_force = in_force
        self._observed = observed
        self._peer_server = peer_server

    @property
    def config(self) -> GatewayConfig:
        """Config in force."""
        return self._in_force.config

    @property
    def http_url(self) -> str:
        return f"http{'s' if self.config.listen.tls else ''}://{self.http_address}"

    @property
    def admin_url(self) -> str:
        return f"http{'s' if self.config.listen.admin_tls else ''}://{self.admin_address}"

    async def drain(self, wait_max_s: float) -> bool:
        """Refuse new requests and let running and queued ones finish. Returns False if time ran out first."""
        log, began_ns = self._observed.log, self._observed.clock.now_ns()
        log.info("drain_started", requests=self.driver.open_requests, wait_max_s=wait_max_s)
        self._observed.is_ending = True
        self.driver.submit(DrainRequested())
        try:
            await self._peer_server.drain()
            is_empty = await self._within(
                wait_max_s, self._observed.until_peers_are_told, self._observed.until_idle, self.succession.until_alone
            )
        except BaseException:
            duration_s = self._seconds_since(began_ns)
            log.warning("drain_interrupted", requests=self.driver.open_requests, duration_s=duration_s)
            raise
        duration_s = self._seconds_since(began_ns)
        if is_empty:
            log.info("drain_completed", duration_s=duration_s)
        else:
            log.warning("drain_timed_out", requests=self.driver.open_requests, duration_s=duration_s)
        return is_empty

    async def leave(self, wait_max_s: float) -> None:
        """Finish the running requests after another process has taken over; their usage and audit lines go to that
        process."""
        log, began_ns = self._observed.log, self._observed.clock.now_ns()
        log.info("takeover_drain_started", requests=self.driver.open_requests)
        try:
            is_empty = await self.estate.until_empty(wait_max_s)
        except BaseException:
            duration_s = self._seconds_since(began_ns)
            log.warning("takeover_drain_interrupted", requests=self.driver.open_requests, duration_s=duration_s)
            raise
        duration_s = self._seconds_since(began_ns)
        if is_empty:
            log.info("takeover_drain_completed", duration_s=duration_s)
        else:
            log.warning("takeover_drain_timed_out", requests=self.driver.open_requests, duration_s=duration_s)

    async def settle(self, wait_max_s: float) -> bool:
        """Wait until no request is left. Returns False if time ran out first."""
        return await self._within(wait_max_s, self._observed.until_idle)

    def _seconds_since(self, began_ns: int) -> float:
        return round((self._observed.clock.now_ns() - began_ns) / _SECOND_NS, 3)

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
    successor: Successor | None = None,
    lines_lost: Callable[[], int] = lambda: 0,
) -> AsyncIterator[GatewayHandle]:
    """Run a gateway until the context is left. Requests that still run then are cut off: drain first.

    Several may run in one process. With `region`, the file that the config comes from, it can be reloaded. With
    `successor` it takes over from another process, and raises TakeOverFault where it cannot. `lines_lost` is the number
    of log lines that were dropped so far. Raises OSError when an
    address cannot be listened on or the journal not written, ConfigError when the keys file or an engine's certificates
    cannot be used, and CertificateFault.
    """
    clock = clock or Clock()
    log = log or make_logger(config.logging, config.gateway_id, clock=clock)
    accounts = Accounts(config, clock, log)
    certificates = Certificates(config, clock)
    async with AsyncExitStack() as stack:
        observed = ObservedCore(config, clock, log, lines_lost=lines_lost)
        loops = Supervisor(clock, observed.loop_failed)
        tenure = OwnedLoops(loops, clock, observed.loop_failed)
        succession = Takeover(config, observed, accounts, tenure, successor)
        for close in (succession.close, observed.close, accounts.close):
            stack.callback(close)
        control = make_control(
            config, observed, certificates, left_out=lambda: fleet.left_out, refused=lambda: fleet.refused
        )
        orders = control.precedence.orders
        observed.apply(config, orders)
        fleet = _fleet(config, orders, observed)
        roster = make_roster(config, observed, loops, control, budgets=accounts.budgets)
        listen_for_control(config, observed, loops, roster, control)
        stack.push_async_callback(roster.close)
        tracing = await stack.enter_async_context(requests_traced(config, observed, fleet, roster))
        engines = await stack.enter_async_context(_engine_client(config, fleet, observed))
        openers: dict[TargetKind, LegOpener] = {
            TargetKind.REPLICA: engines,
            TargetKind.PEER: _peer_opener(config, roster, observed),
        }
        context = _request_context(config, observed, openers, tracing=tracing)
        peer_server = make_peer_server(config, observed, context, roster, control, budgets=accounts.budgets)
        names = make_names(config, observed)
        in_force = ActiveConfig(config, orders, observed, fleet=fleet, roster=roster, names=names)
        handle = GatewayHandle(
            in_force,
            observed,
            peer_server,
            _reloader(config, observed),
            control=control,
            budgets=accounts.budgets,
            estate=GatewayParts(succession, peer_server, names),
        )

        await stack.enter_async_context(loops)
        _run_loops(config, loops, observed, certificates, accounts=accounts, tenure=tenure)
        own = partial(_own, stack, handle, peer_server, observed)
        learn = partial(_learn, orders, in_force, fleet, control, observed, loops=loops)
        for begin in (learn, own) if succession.takes_over else (own, learn):  # peers connect back once called
            await begin()
        _add_parts(handle.reloader, observed, accounts, certificates, loops, region=region, control=control)

        described = _described(
            certificates=certificates,
            control=control,
            tracing=tracing,
            **{each.state_key or each.name: each for each in observed.features},
            issuers=accounts.identities,
            taken_over_from=succession,
            refused_files=handle.reloader,
        )
        state = partial(_state, observed, described)
        overview = GatewayOverview(config, observed, names, state)
        loops.run("overview", overview.run)
        await _open_doors(
            stack,
            handle,
            observed,
            admin=accounts.with_routes(
                _admin_app(
                    config,
                    observed,
                    roster,
                    state,
                    operators=accounts.identities.operators,
                    drain=partial(_begin_drain, observed, peer_server),
                    undrain=partial(_end_drain, observed, peer_server),
                    overview=overview,
                    notes=lambda: {**observed.notes(), **accounts.usage.notes()},
                )
            ),
            api=_api(observed, context, accounts, in_force),
            certificates=certificates,
        )
        control.run(loops, tenure, handle.http_address, handle.peers_address)
        succession.serve(handle.estate, loops)
        yield handle


async def run_gateway(
    config: GatewayConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[GatewayHandle], None],
    stop_at_once: asyncio.Event | None = None,
    region: RegionFile | None = None,
    successor: Successor | None = None,
) -> int:
    """Serve until `stop` is set, drain, and return the exit status: 1 when the core failed, else 0. A gateway that
    another process takes over ends by itself."""
    stop_at_once = stop_at_once or asyncio.Event()
    with lines_written_aside(sys.stderr) as (lines, writer):
        log = make_logger(config.logging, config.gateway_id, lines)
        with libraries_told_of(log):
            serving = serve_gateway(
                config, log=log, region=region, successor=successor, lines_lost=lambda: writer.lines_lost
            )
            return await _run_until(stop, stop_at_once, serving, ready)


async def _run_until(
    stop: asyncio.Event,
    stop_at_once: asyncio.Event,
    serving: AbstractAsyncContextManager[GatewayHandle],
    ready: Callable[[GatewayHandle], None],
) -> int:
    async with serving as gateway:
        ready(gateway)
        await _first_of(stop.wait, stop_at_once.wait, gateway.driver.failed.wait, gateway.succession.until_taken)
        if not gateway.driver.failed.is_set():
            drain_s = gateway.config.limits.drain_ns / _SECOND_NS
            end = gateway.leave if gateway.succession.is_taken else gateway.drain
            await _first_of(lambda: end(drain_s), stop_at_once.wait, gateway.driver.failed.wait)
        if not gateway.driver.failed.is_set():
            return 0
        await gateway.settle(LAST_BYTES_S)
        return 1


async def _own(stack: AsyncExitStack, handle: GatewayHandle, peer_server: PeerServer, observed: ObservedCore) -> None:
    """Open the stores, and serve peers and DNS queries."""
    succession = handle.succession
    await succession.own()
    address = succession.peers_address()
    stack.push_async_callback(handle.names.stop)
    stack.push_async_callback(stop_peer_server, peer_server, observed.driver)
    with named_by("listen.peers", address):
        handle.peers_address = await peer_server.start(address, takes_over=succession.takes_over)
    handle.estate.peers_address = handle.peers_address
    await handle.names.start(handle.config.dns.listen, succession.names_at)


async def _learn(
    orders: Orders,
    in_force: ActiveConfig,
    fleet: ReplicaFleet,
    control: ControllerLink,
    observed: ObservedCore,
    *,
    loops: Supervisor,
) -> None:
    """Learn peers and replicas, and start what needs them."""
    in_force.begin(orders)
    await fleet.start(loops)
    for each in observed.features:
        each.begin()
    control.precedence.start(in_force.apply)


def _request_context(
    config: GatewayConfig,
    observed: ObservedCore,
    openers: Mapping[TargetKind, LegOpener],
    *,
    tracing: TracedGateway,
) -> RequestContext:
    return RequestContext(
        observed.driver,
        openers,
        AnswerSettings(engine_stall_s=config.limits.engine_stall_ns / _SECOND_NS),
        on_finished=observed.on_finished,
        on_refused=observed.on_refused,
        prompt_key=next((each.prompt_key for each in observed.features if each.prompt_key is not None), None),
        compare=next((each.compare for each in observed.features if each.compare is not None), None),
        on_stray=UnlistedHosts(observed.log).take,
        keep_answer=next((each.keep_answer for each in observed.features if each.keep_answer is not None), None),
        on_fault=observed.request_failed,
        begin_trace=tracing.begin,
    )


def _api(observed: ObservedCore, context: RequestContext, accounts: Accounts, in_force: ActiveConfig) -> ClientApi:
    keyring = accounts.keyring
    names = ModelNames(lambda: in_force.config.models, observed.core.first_served)
    media_tokens = MediaTokens(lambda: in_force.config.content, observed.core.context_max)

    def category_of(tenant: TenantName) -> Category | None:
        return in_force.config.content.tenants.get(tenant)

    api = ClientApi(
        context,
        HttpSettings.from_config(in_force.config),
        observed.models,
        observed.readiness,
        clock=observed.clock,
        turn_over=observed.driver.run,
        on_fault=observed.handler_failed,
        check_key=keyring.check if keyring else None,
        tokens=accounts.identities.client_tokens,
        has_audit=observed.has_audit,
        may_enter=observed.may_enter,
        on_refused=observed.refusals.take,
        names=names,
        book=accounts.usage.book,
        tenant_budget=keyring.tenant_budget if keyring else lambda _: NO_BUDGET,
        contents=ContentReader(
            category_of,
            observed.core.has_thresholds,
            media_tokens,
            lambda: plug_in_of(in_force.config.content.classifier),
        ),
        media_tokens=media_tokens,
        promises=next((each.promises for each in observed.features if each.promises is not None), NO_PROMISES),
        allowances=next((each.allowances for each in observed.features if each.allowances is not None), no_allowances),
    )
    for each in observed.features:
        each.serve_clients(api, keyring.in_force if keyring else None)
    return api


async def _open_doors(
    stack: AsyncExitStack,
    handle: GatewayHandle,
    observed: ObservedCore,
    *,
    admin: web.Application,
    api: ClientApi,
    certificates: Certificates,
) -> None:
    """Listen for operators first, then for clients."""
    handle.admin_app, asked, succession = admin, handle.config.listen, handle.succession
    settings = HttpSettings.from_config(handle.config)
    tls = certificates.http.context if certificates.http else None
    doors = handle.estate.doors
    doors["admin"] = await listen_for_operators(
        stack,
        admin,
        ListenLimits(operators_connections_max(settings.connections_max), settings.headers_s),
        asked.admin,
        tls=tls if asked.admin_tls else None,
        inherited=succession.listening("admin", asked.admin),
    )
    doors["http"] = await listen_for_clients(
        stack,
        observed,
        api,
        settings,
        asked.http,
        tls=tls,
        reuse_port=asked.reuse_port,
        inherited=succession.listening("http", asked.http),
    )
    handle.admin_address, handle.http_address = doors["admin"].address, doors["http"].address


def _run_loops(
    config: GatewayConfig,
    loops: Supervisor,
    observed: ObservedCore,
    certificates: Certificates,
    *,
    accounts: Accounts,
    tenure: OwnedLoops,
) -> None:
    """Run the loops that watch the gateway itself and write its records."""
    warn_of_open_files(config, observed.log)
    loops.run("usage", accounts.usage.run)
    for each in accounts.identities.counters.collectors():
        observed.metrics.registry.register(each)
    accounts.identities.run(loops)
    for part in observed.features:
        part.run(loops, tenure)
    if observed.journal is not None:
        loops.run("journal", observed.journal.run)
    loops.run("event_loop_watch", observed.watch_loop)
    if observed.audit is not None:
        loops.run("audit", observed.audit.run)
    for holder in certificates.holders:
        observed.metrics.follow_certificate(holder.role, partial(certificates.left_s, holder))
    loops.run("certificate_expiry", ExpiryWatch(certificates.holders, observed.clock, observed.log).run)


def _engine_client(config: GatewayConfig, fleet: ReplicaFleet, observed: ObservedCore) -> EngineClient:
    settings = ClientSettings(connect_s=config.limits.engine_connect_ns / _SECOND_NS)
    return EngineClient(fleet.endpoints, observed.clock, settings, on_turn=observed.driver.run)


def _peer_opener(config: GatewayConfig, roster: PeerRoster, observed: ObservedCore) -> PeerLegOpener:
    return PeerLegOpener(roster.links, config.gateway_id, observed.clock, on_violation=observed.trust.violated)


def _described(**parts: Describes) -> Mapping[str, Describes]:
    return parts


def _fleet(config: GatewayConfig, orders: Orders, observed: ObservedCore) -> ReplicaFleet:
    def on_restart(url: str, error: Exception) -> None:
        observed.log.error("probe_task_failed", engine=url, exc_info=error)
        observed.metrics.restarted("probe")

    return ReplicaFleet(
        config,
        orders,
        observed.submit,
        clock=observed.clock,
        log=observed.log,
        on_restart=on_restart,
        on_misplaced=observed.place_found,
        on_followed=observed.follow,
    )


def _reloader(config: GatewayConfig, observed: ObservedCore) -> Reloader:
    watch_ns = config.reload.watch_ns
    watch_s = None if watch_ns is None else watch_ns / _SECOND_NS
    return Reloader(observed.log, observed.clock, watch_s=watch_s, on_reload=observed.metrics.reloaded)


def _add_region(reloader: Reloader, region: RegionFile | None, control: ControllerLink, observed: ObservedCore) -> None:
    if region is None:
        return
    part = RegionPart(region, partial(_reload, control, observed.log))
    reloader.add("region", part.reload, part.files)
    reloader.add("engine_credentials", part.reload_credentials, part.credential_files)


async def _reload(control: ControllerLink, log: FilteringBoundLogger, config: GatewayConfig) -> None:
    """Apply a changed region file. Raises ConfigError, and has changed nothing then."""
    await control.reload(config)
    warn_of_open_files(config, log)


def _add_parts(
    reloader: Reloader,
    observed: ObservedCore,
    accounts: Accounts,
    certificates: Certificates,
    loops: Supervisor,
    *,
    region: RegionFile | None,
    control: ControllerLink,
) -> None:
    _add_region(reloader, region, control, observed)
    reloader.add("policy", observed.policy.reload, observed.policy.files)
    for each in observed.features:
        each.add_reloads(reloader)
    if accounts.keyring is not None:
        reloader.add("keys", accounts.keyring.reload, accounts.keyring.files)
    operators = accounts.identities.operators
    reloader.add("operators", operators.reload, operators.files)
    for holder in certificates.holders:
        reloader.add(f"certificate_of_{holder.role}", holder.reload, holder.files)
    loops.run("reloader", reloader.run)


async def _begin_drain(observed: ObservedCore, peer_server: PeerServer, by: Operator) -> dict[str, object] | None:
    """Drain by an operator's order: as before an exit, but the process stays. Returns None if another process takes
    over, or has."""
    if observed.is_given_away:
        return None
    left = observed.driver.open_requests
    observed.log.warning("drain_ordered", requests=left, **told_of(by))
    observed.driver.submit(DrainRequested())
    await peer_server.drain()
    return {"draining": True, "requests": observed.driver.open_requests}


async def _end_drain(observed: ObservedCore, peer_server: PeerServer, by: Operator) -> dict[str, object] | None:
    """End a drain by an operator's order. Returns None if the process is exiting or taken over: it accepts no new
    requests then."""
    if observed.is_ending or observed.is_given_away:
        return None
    observed.log.warning("drain_lifted", **told_of(by))
    observed.driver.submit(DrainLifted())
    await peer_server.undrain()
    return {"draining": False, "drained_by_controller": observed.is_drained}


def _state(observed: ObservedCore, described: Mapping[str, Describes]) -> dict[str, object]:
    """Content of `/admin/state`."""
    told = {name: each.describe() for name, each in described.items()}
    return {**observed.state(), **{name: part for name, part in told.items() if part is not None}}


def _admin_app(
    config: GatewayConfig,
    observed: ObservedCore,
    roster: PeerRoster,
    state: Callable[[], dict[str, object]],
    *,
    operators: Operators,
    drain: Callable[[Operator], Awaitable[object]],
    undrain: Callable[[Operator], Awaitable[object | None]],
    overview: GatewayOverview,
    notes: Notes,
) -> web.Application:
    explainer = PeerExplainer(roster.links, config.gateway_id)

    async def explain(wanted: str) -> Explanation | None:
        observed.driver.tell_observers()
        explained = await explain_both(observed.decisions, explainer.ask, wanted, observed.clock.now_ns())
        refused = observed.refusals.explain(wanted) if explained is None else None
        explained = explained if refused is None else Explanation(refused)
        return None if explained is None else replace(explained, words=tuple(in_words(explained)))

    sources = GatewayAdminSources(
        observed.metrics_page,
        CONTENT_TYPE,
        state,
        observed.readiness,
        explain,
        drain,
        undrain,
        overview.sections,
        notes,
    )
    listen = config.listen
    hosts = (listen.admin.host, *listen.admin_hosts) if listen.admin.is_loopback else None
    admin = make_admin_app(sources, operators, hosts)
    for each in observed.features:
        each.add_routes(admin)
    return admin


async def _first_of(*waits: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Wait until one of them is done, and cancel the others."""
    async with TaskGroup() as tasks:
        running = [tasks.create_task(wait()) for wait in waits]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
