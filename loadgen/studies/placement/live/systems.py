"""The systems compared live: the mesh with its defaults, or another router in front of the same engines at the same
distances.

It starts processes and returns the clients' URLs. It sends no requests except readiness checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import RegionName
from loadgen.bench.relay.installed import folder_of
from loadgen.bench.relay.machine import process_tree
from loadgen.bench.relay.rivals import SGLANG_ROUTER, SMG, VLLM_ROUTER, router_arguments
from loadgen.bench.relay.setting import Relay
from loadgen.demo.layout import lay_out, url_at
from loadgen.demo.members import until_ready
from loadgen.demo.mesh import running_engines, running_mesh
from loadgen.demo.processes import running_child
from loadgen.demo.scenario import DemoScenario
from loadgen.load.local_mesh import urls_of
from loadgen.load.plan import Urls
from loadgen.round_trips import read_round_trips
from loadgen.wan import Wan


@dataclass(frozen=True, slots=True)
class LiveFleet:
    """Inputs that all systems share: engines, and the region of a router for all of them."""

    demo: DemoScenario
    balancer: RegionName


@dataclass(frozen=True, slots=True)
class Answering:
    """A running system."""

    urls: Urls
    """URLs for each region's clients."""
    pids: tuple[int, ...]
    """PIDs of engines, gateways and routers, with all their child processes."""


Running = Callable[[LiveFleet, Path, asyncio.TaskGroup], AbstractAsyncContextManager[Answering]]
"""Function that runs a system, with a folder for files and logs; a process that dies fails the tasks."""


@dataclass(frozen=True, slots=True)
class LiveSystem:
    name: str
    what: str
    running: Running
    relay: Relay | None = None
    """Another project's router, whose installed release is used; None for the mesh."""


NIGHTSIDE = "nightside"


@asynccontextmanager
async def _running_mesh(fleet: LiveFleet, folder: Path, tasks: asyncio.TaskGroup) -> AsyncIterator[Answering]:
    async with running_mesh(fleet.demo, OverflowMode.ON, folder, tasks) as mesh:
        yield Answering(urls_of(mesh), _with_children(mesh.pids))


def _router(path: Path) -> Running:
    @asynccontextmanager
    async def running(fleet: LiveFleet, folder: Path, tasks: asyncio.TaskGroup) -> AsyncIterator[Answering]:
        """Run one router process in one region: clients of other regions reach it, and it reaches other regions'
        engines, with network delay."""
        layout, here = lay_out(fleet.demo), fleet.balancer
        ports = layout.seats[0].ports
        async with AsyncExitStack() as stack:
            wan = await stack.enter_async_context(Wan(read_round_trips(fleet.demo.round_trips_file)))
            engines = await stack.enter_async_context(running_engines(fleet.demo, layout, folder, tasks))

            async def way(one: RegionName, other: RegionName, port: int) -> str:
                return url_at(port if one == other else await wan.route(one, other, port))

            there = [await way(here, region, port) for region, own in layout.engines.items() for port in own]
            arguments = router_arguments(str(path), there, port=ports.http, prometheus=ports.admin)
            child = await stack.enter_async_context(
                running_child(path.name, arguments, folder / f"{path.name}.log", tasks, runner=())
            )
            await until_ready(child, [f"{url_at(ports.http)}/readiness"])
            urls = {region.name: (await way(region.name, here, ports.http),) for region in fleet.demo.regions}
            yield Answering(urls, _with_children((*(each.pid for each in engines), child.pid)))

    return running


def _with_children(pids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(each for pid in pids for each in process_tree(pid)))


_WHERE = "one router, in front of all engines; policy cache_aware, else as it comes"
_ASKS_FIRST = (
    "; before each request it asks all of them for the prompt's tokens, which they refuse, as vLLM does unless it was"
    " started with `--enable-scale-out`"
)
OURS = LiveSystem(
    NIGHTSIDE, "one gateway in each region, each as a region file that sets nothing has it", _running_mesh
)


def systems(rivals: Path) -> list[LiveSystem]:
    """The mesh, and the other routers of the environment `rivals`. It does not check that they are installed."""
    installed = rivals.absolute()
    others = [
        LiveSystem(relay.name, _WHERE + more, _router(folder_of(relay.name, installed) / "bin" / relay.name), relay)
        for relay, more in ((SMG, ""), (VLLM_ROUTER, _ASKS_FIRST), (SGLANG_ROUTER, ""))
    ]
    return [OURS, *others]
