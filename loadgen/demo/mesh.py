"""Brings up the demo's regions on loopback: engines, gateways, their controller, and the network delays between them.

It sends no load.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import GatewayId, RegionName, ReplicaRole
from loadgen.demo.layout import ControllerSeat, Layout, RegionHost, Seat, lay_out, make_certificates, url_at
from loadgen.demo.members import Member, NewSession, until_attached, until_met, until_ready
from loadgen.demo.processes import Child, running_child
from loadgen.demo.region_files import CONTROLLER, ZONE, Controlled, controller_file, region_file
from loadgen.demo.scenario import LLAMACPP_SERVER, DemoScenario, RegionScenario
from loadgen.report import PrefixTokens
from loadgen.round_trips import read_round_trips
from loadgen.wan import Wan

_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """The mesh's one DNS name, and the name servers that answer for it."""

    url: str
    """URL that leads to any of the gateways by name."""
    servers: tuple[tuple[str, int], ...]
    networks: dict[RegionName, str]
    """Network of each region's clients."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The running regions, with the addresses of their gateways and engines."""

    gateways: dict[RegionName, str]
    """URLs for clients, of the first gateway of each region."""
    admins: dict[RegionName, str]
    engines: dict[RegionName, tuple[str, ...]]
    pids: tuple[int, ...] = ()
    members: dict[GatewayId, Member] = field(default_factory=dict)
    """All gateways of all regions."""
    controller_admin: str = ""
    """Empty without a controller."""
    controller: Child | None = None
    standby_admin: str = ""
    """Empty without a second controller."""
    name: NamedMesh | None = None
    """Absent (None) without a controller, and on a system where all gateways share one address."""

    def first_of(self, region: RegionName) -> Member:
        """First gateway of the region."""
        return next(each for each in self.members.values() if each.region == region)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts on which the regions' processes run, instead of this machine's loopback."""

    regions: Mapping[RegionName, RegionHost]
    new_session: NewSession
    """Makes HTTP sessions that reach every host."""
    store: Mapping[str, object] | None = None
    """Section `store` of all controllers; None: a file."""
    standby: RegionName | None = None
    """Region on whose host a second controller stands by, on the same store."""


@asynccontextmanager
async def running_mesh(
    scenario: DemoScenario,
    overflow: OverflowMode,
    folder: Path,
    tasks: asyncio.TaskGroup,
    *,
    may_gateways_die: bool = False,
    further_gateways: int = 1,
    hosts: Hosts | None = None,
) -> AsyncIterator[Mesh]:
    """Run all regions, ready for requests; their files and logs are in `folder`. A process that dies fails `tasks`,
    except gateways when `may_gateways_die`. `further_gateways`: regions beyond the nearest that the name leads to. With
    `hosts`, each region runs on its own, and the network between them delays."""
    new_session = aiohttp.ClientSession if hosts is None else hosts.new_session
    async with AsyncExitStack() as stack:
        wan = await stack.enter_async_context(Wan(read_round_trips(scenario.round_trips_file)))
        layout = lay_out(scenario, region_hosts=None if hosts is None else hosts.regions)
        controllers = layout.controllers(None if hosts is None else hosts.standby)
        store = {"path": str(folder / "controller.db")} if hosts is None or hosts.store is None else hosts.store
        start = _Start(
            scenario, overflow, folder, tasks, wan, layout, controllers, store, may_gateways_die, further_gateways
        )
        engines = await stack.enter_async_context(running_engines(scenario, layout, folder, tasks, new_session))
        engine_urls = urls_of_engines(layout)
        tls: Mapping[str, Mapping[str, str]] = {}
        running: list[Child] = []
        if controllers:
            tls = await make_certificates(folder / "certificates", layout, [each.name for each in controllers])
        for each in controllers:
            running.append(await stack.enter_async_context(start.controller(each, tls[each.name])))
            path = "ready" if len(running) == 1 else "health"
            await until_ready(running[-1], [f"{each.admin}/{path}"], new_session)
        for seat in layout.seats:
            start.file_of(seat).write_text(await start.region_file(seat, tls))
        members = {
            seat.gateway_id: Member(seat, partial(start.gateway, seat), stack, new_session) for seat in layout.seats
        }
        for member in members.values():
            await member.start()
        for member in members.values():
            await member.until_ready()
        first = {seat.region.name: members[seat.gateway_id] for seat in reversed(layout.seats)}
        mesh = Mesh(
            gateways={region.name: first[region.name].url for region in scenario.regions},
            admins={region.name: first[region.name].admin for region in scenario.regions},
            engines=engine_urls,
            members=members,
        )
        children = [*engines, *(member.child for member in members.values())]
        if controllers:
            admin, standby_admin, *_ = *(each.admin for each in controllers), ""
            mesh = replace(
                mesh, controller=running[0], controller_admin=admin, standby_admin=standby_admin,
                name=_named(layout, controllers),
            )  # fmt: skip
            await until_attached(running[0], admin, members, new_session)
            children += running
        await until_met(members.values())
        yield replace(mesh, pids=tuple(child.pid for child in children))


@asynccontextmanager
async def running_engines(
    scenario: DemoScenario,
    layout: Layout,
    folder: Path,
    tasks: asyncio.TaskGroup,
    new_session: NewSession = aiohttp.ClientSession,
) -> AsyncIterator[Sequence[Child]]:
    """Run all engines, ready for requests: those of all regions in one process, or in one process on each host. The
    death of one fails `tasks`."""
    together = [[each] for each in scenario.regions] if layout.hosts else [scenario.regions]
    async with AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(_running_engines(scenario, each, layout, folder, tasks))
            for each in together
        ]
        for child, regions in zip(children, together, strict=True):
            urls = urls_of_engines(layout)
            await until_ready(child, [f"{url}/health" for each in regions for url in urls[each.name]], new_session)
        yield children


def _running_engines(
    scenario: DemoScenario, regions: Sequence[RegionScenario], layout: Layout, folder: Path, tasks: asyncio.TaskGroup
) -> AbstractAsyncContextManager[Child]:
    """Run the engines of some regions in one process."""
    host, name = layout.hosts.get(regions[0].name), "the engines' process"
    log = folder / ("engines.log" if host is None else f"engines-{regions[0].name}.log")
    slots = {port: region.slots for region in regions for port in layout.engines[region.name]}
    if scenario.llamacpp is not None:
        assert host is None, "real engines listen on loopback"
        real = [str(LLAMACPP_SERVER), scenario.model, str(scenario.regions[0].slots), *map(str, slots)]
        return running_child("llama.cpp", real, log, tasks, runner=[str(scenario.llamacpp)])
    options = ["--model", scenario.model, "--preset", scenario.preset]
    options += ["--host", host.address] if host is not None else []
    options += ["--experts", scenario.experts] if scenario.experts else []
    for port, role in layout.roles.items():
        if role is not ReplicaRole.UNIFIED and port in slots:
            options += [f"--{role}", str(port)]
    engines = [f"{port}={count}" for port, count in slots.items()]
    runner = layout.runner_in(regions[0].name)
    return running_child(name, ["loadgen.demo.engines", *options, *engines], log, tasks, runner=runner)


def urls_of_engines(layout: Layout) -> dict[RegionName, tuple[str, ...]]:
    return {name: tuple(layout.url_of_engine(name, port) for port in ports) for name, ports in layout.engines.items()}


@dataclass(frozen=True, slots=True)
class _Start:
    """Inputs for starting each of the processes."""

    scenario: DemoScenario
    overflow: OverflowMode
    folder: Path
    tasks: asyncio.TaskGroup
    wan: Wan
    layout: Layout
    controllers: tuple[ControllerSeat, ...]
    store: Mapping[str, object]
    may_gateways_die: bool = False
    further_gateways: int = 1

    def controller(self, seat: ControllerSeat, tls: Mapping[str, str]) -> AbstractAsyncContextManager[Child]:
        layout, name = self.layout, seat.name.replace(CONTROLLER, "controller")
        file = self.folder / f"{name}.yaml"
        others = [each.ports.host for each in self.controllers if each != seat]
        text = controller_file(
            further_gateways=self.further_gateways,
            ports=seat.ports,
            store=self.store,
            tls=tls,
            name_servers=[*others, *(each.ports.host for each in layout.seats if each.ports.dns)],
            networks=layout.networks,
            client_port=layout.seats[0].ports.http,
            regions=layout.seats[0].region.table_file,
            region=seat.region,
            name=seat.name,
            history=self.folder / f"{name}.history" if others else None,
            insecure=bool(layout.hosts),
        )
        file.write_text(text)
        arguments = ["nightside", "controller", "run", str(file)]
        log, runner = self.folder / f"{name}.log", layout.runner_in(seat.region)
        return running_child(f"the {name}", arguments, log, self.tasks, runner=runner)

    def gateway(self, seat: Seat) -> AbstractAsyncContextManager[Child]:
        """Start a gateway whose configuration file has been written."""
        arguments = ["nightside", "gateway", "run", str(self.file_of(seat))]
        log = self.folder / f"{_named_after(seat)}.log"
        name, is_vital = f"the gateway {seat.gateway_id}", not self.may_gateways_die
        runner = self.layout.runner_in(seat.region.name)
        return running_child(name, arguments, log, self.tasks, runner=runner, is_vital=is_vital)

    def file_of(self, seat: Seat) -> Path:
        return self.folder / f"{seat.gateway_id.removeprefix('gw-')}.yaml"

    async def region_file(self, seat: Seat, tls: Mapping[str, Mapping[str, str]]) -> str:
        layout, controlled = self.layout, None
        if self.controllers:
            at = [f"{layout.found_at(each.region, each.ports.host)}:{each.ports.grpc}" for each in self.controllers]
            host = layout.hosts.get(seat.region.name)
            state = self.folder / "state" if host is None or host.state is None else host.state
            controlled = Controlled(at, tls[seat.gateway_id], state, self.scenario.artifacts)
        return region_file(
            seat.region,
            ports=seat.ports,
            engines=[layout.url_of_engine(seat.region.name, port) for port in seat.engines],
            model=self.scenario.model,
            peers=[
                (each.gateway_id, each.region, await self._way(seat, each)) for each in layout.seats if each != seat
            ],
            overflow=self.overflow,
            seed=self.scenario.seed,
            dialect="vllm" if self.scenario.llamacpp is None else "llamacpp",
            roles=[layout.roles[port] for port in seat.engines],
            number=seat.number,
            controlled=controlled,
            sections=self.scenario.sections,
        )

    async def _way(self, seat: Seat, other: Seat) -> str:
        """Address through which one gateway reaches another, with the network delay between their regions."""
        port = other.ports.peers
        if seat.region != other.region and not self.layout.hosts:
            port = await self.wan.route(seat.region.name, other.region.name, port)
        return f"{self.layout.found_at(other.region.name, other.ports.peers_host)}:{port}"


def _named_after(seat: Seat) -> str:
    return f"gateway-{seat.gateway_id.removeprefix('gw-')}"


def _named(layout: Layout, controllers: Sequence[ControllerSeat]) -> NamedMesh | None:
    """Name of the mesh; None where gateways have no addresses of their own."""
    if not layout.networks:
        return None
    servers = [
        *((each.ports.host, each.ports.dns) for each in controllers),
        *((seat.ports.host, seat.ports.dns) for seat in layout.seats),
    ]
    return NamedMesh(url_at(layout.seats[0].ports.http, ZONE), tuple(servers), layout.networks)


async def read_prefix_tokens(engines: Mapping[RegionName, Iterable[str]]) -> dict[RegionName, PrefixTokens]:
    """Prefix cache counters of each region's engines since they started; a region that does not answer is left out."""
    tokens: dict[RegionName, PrefixTokens] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S), raise_for_status=True) as session:
        for region, urls in engines.items():
            try:
                counters = [await _counters(session, url) for url in urls]
            except (aiohttp.ClientError, TimeoutError):
                continue
            tokens[region] = PrefixTokens(
                queried=sum(each["vllm:prefix_cache_queries_total"] for each in counters),
                hit=sum(each["vllm:prefix_cache_hits_total"] for each in counters),
            )
    return tokens


async def _counters(session: aiohttp.ClientSession, url: str) -> dict[str, int]:
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.name: int(sample.value) for sample in samples if sample.name.endswith("_total")}
