"""Runs the demo's three regions on loopback with every process by itself, so that each can be killed, halted and
started again, and with links between regions that can be cut. It sends no load.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import RegionName
from loadgen.demo.layout import Layout, Seat, lay_out, make_certificates, url_at
from loadgen.demo.members import Member, RestartedProcess, until_attached, until_met
from loadgen.demo.mesh import NamedMesh
from loadgen.demo.processes import Child, DemoFailure, running_child
from loadgen.demo.region_files import CONTROLLER, ZONE, Controlled, controller_file, region_file
from loadgen.demo.scenario import DemoScenario
from loadgen.round_trips import read_round_trips
from loadgen.wan import Wan


@dataclass(frozen=True, slots=True)
class LongMesh:
    """The running regions. Names of processes are those of the page."""

    gateways: Mapping[str, Member]
    engines: Mapping[str, RestartedProcess]
    controller: RestartedProcess
    admin: str
    """URL of the controller's admin API."""
    name: NamedMesh
    wan: Wan

    async def becomes_whole(self, process: RestartedProcess | None, limit_s: float) -> bool:
        """Wait until the process is ready, if one is given, all gateways are attached to the controller, and each has
        met its peers. Returns False if that takes longer than the limit, in seconds."""
        try:
            async with asyncio.timeout(limit_s):
                while not await self._is_whole(process):
                    pass
        except TimeoutError:
            return False
        return True

    async def _is_whole(self, process: RestartedProcess | None) -> bool:
        """Wait for each condition in turn; False if one takes longer than a start by itself does."""
        try:
            if process is not None:
                await process.until_ready()
            gateways = [each.gateway_id for each in self.gateways.values()]
            await until_attached(self.controller.child, self.admin, gateways)
            await until_met(self.gateways.values())
        except DemoFailure:
            return False
        return True

    @property
    def processes(self) -> dict[str, RestartedProcess]:
        return {**self.gateways, **self.engines, CONTROLLER: self.controller}


@asynccontextmanager
async def running_fleet(scenario: DemoScenario, folder: Path, tasks: asyncio.TaskGroup) -> AsyncIterator[LongMesh]:
    """Run all processes, ready for requests; files and logs are in `folder`. One that ends by itself fails `tasks`.
    Raises DemoFailure."""
    async with AsyncExitStack() as stack:
        wan = await stack.enter_async_context(Wan(read_round_trips(scenario.round_trips_file)))
        layout = lay_out(scenario)
        assert layout.controller is not None, "the scenario has one"
        start = _Processes(scenario, layout, folder, tasks, await make_certificates(folder / "certificates", layout))
        engines: dict[str, RestartedProcess] = {
            f"engine {region} {number}": RestartedProcess(partial(start.engine, port), f"{url_at(port)}/health", stack)
            for region, ports in layout.engines.items()
            for number, port in enumerate(ports)
        }
        admin = url_at(layout.controller.admin)
        controller = RestartedProcess(start.controller, f"{admin}/ready", stack)
        start.write_controller()
        for seat in layout.seats:
            await start.write_gateway(seat, wan)
        gateways = [Member(seat, partial(start.gateway, seat), stack) for seat in layout.seats]
        for group in ([*engines.values(), controller], gateways):
            for each in group:
                await each.start()
            for each in group:
                await each.until_ready()
        await until_attached(controller.child, admin, [each.gateway_id for each in gateways])
        await until_met(gateways)
        named = {str(each.gateway_id): each for each in gateways}
        yield LongMesh(named, engines, controller, admin, start.named(), wan)


@dataclass(frozen=True, slots=True)
class _Processes:
    """Starts the processes, and writes their files."""

    scenario: DemoScenario
    layout: Layout
    folder: Path
    tasks: asyncio.TaskGroup
    tls: Mapping[str, Mapping[str, str]]

    def named(self) -> NamedMesh:
        controller, seats = self.layout.controller, self.layout.seats
        assert controller is not None, "there is one"
        servers = [(controller.host, controller.dns), *((each.ports.host, each.ports.dns) for each in seats)]
        return NamedMesh(url_at(seats[0].ports.http, ZONE), tuple(servers), self.layout.networks)

    def engine(self, port: int) -> AbstractAsyncContextManager[Child]:
        scenario = self.scenario
        model = ["--model", str(scenario.model), "--preset", scenario.preset]
        arguments = ["loadgen.demo.engines", *model, f"{port}={scenario.regions[0].slots}"]
        return running_child(f"engine {port}", arguments, self.folder / f"engine-{port}.log", self.tasks)

    def controller(self) -> AbstractAsyncContextManager[Child]:
        return self._nightside("controller", CONTROLLER)

    def gateway(self, seat: Seat) -> AbstractAsyncContextManager[Child]:
        return self._nightside("gateway", seat.gateway_id)

    def _nightside(self, program: str, name: str) -> AbstractAsyncContextManager[Child]:
        arguments = ["nightside", program, "run", str(self.folder / f"{name}.yaml")]
        return running_child(name, arguments, self.folder / f"{program}-{name}.log", self.tasks)

    def write_controller(self) -> None:
        first, ports = self.layout.seats[0], self.layout.controller
        assert ports is not None, "there is one"
        text = controller_file(
            ports=ports, store={"path": str(self.folder / "controller" / "store.db")}, tls=self.tls[CONTROLLER],
            name_servers=[each.ports.host for each in self.layout.seats], networks=self.layout.networks,
            client_port=first.ports.http, regions=first.region.table_file, region=first.region.name,
        )  # fmt: skip
        (self.folder / "controller").mkdir()
        (self.folder / f"{CONTROLLER}.yaml").write_text(text)

    async def write_gateway(self, seat: Seat, wan: Wan) -> None:
        controller = self.layout.controller
        assert controller is not None, "there is one"
        at = f"{controller.host}:{controller.grpc}"
        peers = [
            (each.gateway_id, each.region, await _way(wan, seat.region.name, each))
            for each in self.layout.seats
            if each != seat
        ]
        text = region_file(
            seat.region, ports=seat.ports, engines=[url_at(port) for port in seat.engines], model=self.scenario.model,
            peers=peers, overflow=OverflowMode.ON, seed=self.scenario.seed, number=seat.number,
            controlled=Controlled([at], self.tls[seat.gateway_id], self.folder / "state"),
            sections=self.scenario.sections,
        )  # fmt: skip
        (self.folder / f"{seat.gateway_id}.yaml").write_text(text)


async def _way(wan: Wan, region: RegionName, other: Seat) -> str:
    """Address through which a region's gateway reaches another, with the delay between their regions."""
    return f"{other.ports.peers_host}:{await wan.route(region, other.region.name, other.ports.peers)}"
