"""Brings up the demo's regions on loopback: engines, gateways, and the distance between them. It sends no load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.config import OverflowMode
from gateway.core.vocabulary import RegionName
from loadgen.demo.processes import Child, DemoFailure, log_tail, running_child
from loadgen.demo.region_files import LOOPBACK, GatewayPorts, free_ports, region_file
from loadgen.demo.scenario import LLAMACPP_SERVER, DemoScenario, RegionScenario
from loadgen.report import PrefixTokens
from loadgen.round_trips import read_round_trips
from loadgen.wan import Wan

_READY_S = 30.0
_POLL_S = 0.1
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Mesh:
    """The running regions: where their gateways and engines are."""

    gateways: dict[RegionName, str]
    """URLs for clients."""
    admins: dict[RegionName, str]
    engines: dict[RegionName, tuple[str, ...]]
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ports:
    gateways: dict[RegionName, GatewayPorts]
    engines: dict[RegionName, tuple[int, ...]]


@asynccontextmanager
async def running_mesh(
    scenario: DemoScenario, overflow: OverflowMode, folder: Path, tasks: asyncio.TaskGroup
) -> AsyncIterator[Mesh]:
    """All regions, ready for requests; their files and logs are in `folder`. A process that dies fails `tasks`."""
    async with AsyncExitStack() as stack:
        wan = await stack.enter_async_context(Wan(read_round_trips(scenario.round_trips_file)))
        ports = _choose_ports(scenario)
        start = _Start(scenario, overflow, folder, tasks, wan, ports, _mesh(ports))
        engines = await stack.enter_async_context(start.engines())
        await _until_ready(engines, [f"{url}/health" for urls in start.mesh.engines.values() for url in urls])
        gateways = {region.name: await stack.enter_async_context(start.gateway(region)) for region in scenario.regions}
        for name, child in gateways.items():
            await _until_ready(child, [f"{start.mesh.admins[name]}/ready"])
        pids = tuple(child.pid for child in (engines, *gateways.values()))
        yield replace(start.mesh, pids=pids)


@dataclass(frozen=True, slots=True)
class _Start:
    """What starting each of the processes needs."""

    scenario: DemoScenario
    overflow: OverflowMode
    folder: Path
    tasks: asyncio.TaskGroup
    wan: Wan
    ports: _Ports
    mesh: Mesh

    def engines(self) -> AbstractAsyncContextManager[Child]:
        """All engines, in one process."""
        scenario, log = self.scenario, self.folder / "engines.log"
        ports = [str(port) for region_ports in self.ports.engines.values() for port in region_ports]
        if scenario.llamacpp is not None:
            real = [str(LLAMACPP_SERVER), scenario.model, str(scenario.slots), *ports]
            return running_child("llama.cpp", real, log, self.tasks, runner=[str(scenario.llamacpp)])
        options = ["--model", scenario.model, "--preset", scenario.preset, "--slots", str(scenario.slots)]
        return running_child("the engines' process", ["loadgen.demo.engines", *options, *ports], log, self.tasks)

    @asynccontextmanager
    async def gateway(self, region: RegionScenario) -> AsyncIterator[Child]:
        file = self.folder / f"{region.name}.yaml"
        file.write_text(await self._region_file(region))
        arguments = ["nightside", "gateway", "run", str(file)]
        log = self.folder / f"gateway-{region.name}.log"
        async with running_child(f"the gateway of {region.name}", arguments, log, self.tasks) as child:
            yield child

    async def _region_file(self, region: RegionScenario) -> str:
        others = [other for other in self.scenario.regions if other != region]
        return region_file(
            region,
            ports=self.ports.gateways[region.name],
            engines=self.mesh.engines[region.name],
            model=self.scenario.model,
            peers={other: await self._way(region, other) for other in others},
            overflow=self.overflow,
            seed=self.scenario.seed,
            dialect="vllm" if self.scenario.llamacpp is None else "llamacpp",
        )

    async def _way(self, region: RegionScenario, other: RegionScenario) -> int:
        """The port through which one region's gateway reaches another's, as far away as it is."""
        return await self.wan.route(region.name, other.name, self.ports.gateways[other.name].peers)


async def read_prefix_tokens(engines: Mapping[RegionName, Iterable[str]]) -> dict[RegionName, PrefixTokens]:
    """What the engines of each region have counted since they started; a region that does not answer is left out."""
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


def _choose_ports(scenario: DemoScenario) -> _Ports:
    per_region = {region: 3 + region.engines for region in scenario.regions}
    free = iter(free_ports(sum(per_region.values()), random.Random()))
    return _Ports(
        gateways={region.name: GatewayPorts(next(free), next(free), next(free)) for region in scenario.regions},
        engines={region.name: tuple(next(free) for _ in range(region.engines)) for region in scenario.regions},
    )


def _mesh(ports: _Ports) -> Mesh:
    return Mesh(
        gateways={name: _url(each.http) for name, each in ports.gateways.items()},
        admins={name: _url(each.admin) for name, each in ports.gateways.items()},
        engines={name: tuple(map(_url, each)) for name, each in ports.engines.items()},
    )


def _url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


async def _until_ready(child: Child, urls: Iterable[str]) -> None:
    """Wait until all of them answer 200."""
    try:
        async with asyncio.timeout(_READY_S), aiohttp.ClientSession() as session:
            for url in urls:
                while not await _answers(session, url):  # noqa: ASYNC110 - another process, which tells us nothing
                    await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise DemoFailure(f"{child.name} was not ready after {_READY_S:.0f} s\n{log_tail(child.log)}") from None


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
