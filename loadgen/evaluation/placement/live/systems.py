"""Who answers live: our mesh as it comes, or another router in front of the same engines, as far away as they are.

It starts processes and says where clients ask. It sends them nothing but the question whether they are ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.core.config import OverflowMode
from gateway.core.vocabulary import RegionName
from loadgen.bench.relay.machine import process_tree
from loadgen.bench.relay.relays import SGLANG_ROUTER, VLLM_ROUTER, Relay, router_arguments
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
class Fleet:
    """What all systems are given alike: engines, and where a router for all of them would stand."""

    demo: DemoScenario
    balancer: RegionName


@dataclass(frozen=True, slots=True)
class Answering:
    """A system that runs."""

    urls: Urls
    """Where each region's clients ask."""
    pids: tuple[int, ...]
    """Of engines, gateways and routers, with all that they started."""


Running = Callable[[Fleet, Path, asyncio.TaskGroup], AbstractAsyncContextManager[Answering]]
"""With a folder for files and logs; a process that dies fails the tasks."""


@dataclass(frozen=True, slots=True)
class LiveSystem:
    name: str
    what: str
    running: Running
    relay: Relay | None = None
    """Another project's, of which some release is installed; None for ours."""


NIGHTSIDE = "nightside"


@asynccontextmanager
async def _running_mesh(fleet: Fleet, folder: Path, tasks: asyncio.TaskGroup) -> AsyncIterator[Answering]:
    async with running_mesh(fleet.demo, OverflowMode.ON, folder, tasks) as mesh:
        yield Answering(urls_of(mesh), _with_children(mesh.pids))


def _router(path: Path) -> Running:
    @asynccontextmanager
    async def running(fleet: Fleet, folder: Path, tasks: asyncio.TaskGroup) -> AsyncIterator[Answering]:
        """One process in one region: clients of the others come to it from afar, and it goes afar to their engines."""
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
            yield Answering(urls, _with_children((engines.pid, child.pid)))

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
    """Ours, and the others as they are installed there. Whether they are is for whoever asks to find out."""
    others = [
        LiveSystem(relay.name, _WHERE + more, _router(rivals.absolute() / "bin" / relay.name), relay)
        for relay, more in ((VLLM_ROUTER, _ASKS_FIRST), (SGLANG_ROUTER, ""))
    ]
    return [OURS, *others]
