"""Gateways and controllers as processes that can be killed and started again, or replaced one by one by those of
another version, on the same files."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import GatewayId, ModelName
from loadgen.demo.layout import Layout, Seat, make_certificates, url_at
from loadgen.demo.members import state_at, until_attached, until_ready
from loadgen.demo.mesh import NamedMesh
from loadgen.demo.processes import Child, DemoFailure, log_tail, running_child
from loadgen.demo.region_files import (
    ZONE,
    Controlled,
    ControllerPorts,
    controller_file,
    free_ports,
    region_file,
)
from loadgen.demo.scenario import DemoScenario
from tests.upgrade.releases import Release

DRAIN_S = 20
_WITHIN_S = 60.0
_LOOK_S = 0.1


@dataclass
class Part:
    """A gateway, controller or engine, which processes run one after the other, of several versions."""

    name: str
    command: tuple[str, ...]
    admin: str
    folder: Path
    stack: AsyncExitStack
    tasks: asyncio.TaskGroup
    release: Release | None = None
    logs: dict[Path, Release] = field(default_factory=dict)
    """Log of each process, in the order of their starts."""
    _child: Child | None = None

    @property
    def child(self) -> Child:
        assert self._child is not None, "it was started"
        return self._child

    async def start(self, release: Release, *options: str) -> None:
        log = self.folder / f"{self.name}-{len(self.logs) + 1}.log"
        arguments = ["nightside", *self.command, *options]
        running = running_child(
            f"{self.name} ({release.name})", arguments, log, self.tasks, runner=release.runner, is_vital=False
        )
        self._child = await self.stack.enter_async_context(running)
        self.release = release
        self.logs[log] = release

    async def stop(self) -> int:
        """Send SIGTERM, as a supervisor does; returns the exit status, which is negative after SIGKILL."""
        await self.child.stop(DRAIN_S + 30)
        return await self.child.ended()

    async def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        await self.child.kill()

    async def until_answers(self, path: str) -> None:
        await until_ready(self.child, [self.admin + path])

    async def until_logged(self, event: str, before: int = 0) -> None:
        """Wait until the newest process has logged an event once more than `before`. Raises DemoFailure where it ends
        first, or takes long."""
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(self.child.ended())

            async def is_over() -> bool:
                return self.count_of(event) > before or ended.done()

            await until(is_over, f"{self.name}: {event}")
            if self.count_of(event) <= before:
                raise DemoFailure(f"{self.child.name} ended before {event}\n{log_tail(self.child.log)}")
            ended.cancel()

    def count_of(self, event: str) -> int:
        """Lines of this event in the log of the newest process."""
        return sum(line.get("event") == event for line in lines_of(self.child.log))

    def tree(self) -> Path:
        """Tree in which the process runs: `nightside` takes packages from no other."""
        return Path(f"/proc/{self.child.pid}/cwd").resolve()


@dataclass(frozen=True)
class MeshPlan:
    """Regions, controllers and settings of a mesh."""

    scenario: DemoScenario
    layout: Layout
    controllers: Sequence[str]
    store: Mapping[str, object]
    """Store of all controllers."""
    sections: Callable[[Seat], Mapping[str, object]]
    """Sections of a gateway's file beyond those of the demo."""


@dataclass
class VersionedMesh:
    gateways: dict[GatewayId, Part]
    controllers: list[Part]
    seats: dict[GatewayId, Seat]
    name: NamedMesh
    model: ModelName

    @property
    def parts(self) -> list[Part]:
        return [*self.gateways.values(), *self.controllers]

    async def leader(self, session: aiohttp.ClientSession) -> Part:
        """Controller that leads, once there is one. Raises DemoFailure."""
        found: list[Part] = []

        async def leads() -> bool:
            for each in self.controllers:
                with suppress(aiohttp.ClientError, OSError):
                    async with session.get(f"{each.admin}/ready") as answer:
                        if answer.status == 200:
                            found.append(each)
            return bool(found)

        await until(leads, "a controller that leads")
        return found[0]

    async def until_attached(self, session: aiohttp.ClientSession) -> None:
        leader = await self.leader(session)
        await until_attached(leader.child, leader.admin, self.gateways)

    async def state(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        state = await state_at(session, (await self.leader(session)).admin)
        return state or {}


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition of other processes; one that does not answer does not meet it yet. Raises DemoFailure if it
    does not come in time."""
    why = ""
    try:
        async with asyncio.timeout(_WITHIN_S):
            while True:
                try:
                    if await holds():
                        return
                except (aiohttp.ClientError, OSError) as error:
                    why = f" ({str(error) or type(error).__name__})"
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise DemoFailure(f"{what}: not within {_WITHIN_S:.0f} s{why}") from None


def lines_of(log: Path) -> Iterator[dict[str, Any]]:
    """Lines of a log; one that is no JSON counts as an error."""
    for line in log.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            yield {"event": line, "level": "error"}


async def verified_audits(release: Release, folder: Path) -> tuple[int, list[str]]:
    """Number of the gateways' audit chains in a mesh's folder, and those that a version does not find whole. Raises
    DemoFailure where it takes long."""
    chains, faults = sorted((folder / "audit").iterdir()), []
    for chain in chains:
        process = await asyncio.create_subprocess_exec(
            *release.runner, "nightside", "audit", "verify", str(chain),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_WITHIN_S):
                said, _ = await process.communicate()
        except TimeoutError:
            raise DemoFailure(f"audit verify {chain.name}: not within {_WITHIN_S:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        if process.returncode:
            last = said.decode(errors="replace").strip().splitlines()[-1:]
            faults.append(f"{chain.name} by {release.name}: {' '.join(last)}")
    return len(chains), faults


@asynccontextmanager
async def running_mesh_of(
    plan: MeshPlan, release: Release, folder: Path, tasks: asyncio.TaskGroup
) -> AsyncIterator[VersionedMesh]:
    """Run the gateways and controllers in one version, ready for requests; engines run before."""
    layout = plan.layout
    async with AsyncExitStack() as stack, aiohttp.ClientSession() as session:
        tls = await make_certificates(folder / "certificates", layout, plan.controllers)
        files = _Files(folder, plan, tls, _controller_ports(layout, plan.controllers))
        controllers = [
            Part(name, ("controller", "run", files.of_controller(name)), url_at(ports.admin), folder, stack, tasks)
            for name, ports in files.controllers.items()
        ]
        gateways = {
            seat.gateway_id: Part(
                seat.gateway_id,
                ("gateway", "run", files.of_gateway(seat)),
                url_at(seat.ports.admin),
                folder,
                stack,
                tasks,
            )
            for seat in layout.seats
        }
        for part in (*controllers, *gateways.values()):
            await part.start(release)
            await part.until_answers("/health" if part in controllers[1:] else "/ready")
        servers = tuple((seat.ports.host, seat.ports.dns) for seat in layout.seats)
        name = NamedMesh(url_at(layout.seats[0].ports.http, ZONE), servers, layout.networks)
        seats = {seat.gateway_id: seat for seat in layout.seats}
        mesh = VersionedMesh(gateways, controllers, seats, name, plan.scenario.model)
        await mesh.until_attached(session)
        yield mesh


def _controller_ports(layout: Layout, names: Sequence[str]) -> dict[str, ControllerPorts]:
    first = layout.controller
    assert first is not None, "the scenario has one"
    taken = {first.grpc, first.admin, first.dns, *(port for each in layout.engines.values() for port in each)}
    for seat in layout.seats:
        taken |= {seat.ports.http, seat.ports.peers, seat.ports.admin, seat.ports.dns}
    free = [port for port in free_ports(3 * len(names) + len(taken), random.Random()) if port not in taken]
    found = [first]
    while len(found) < len(names):
        found.append(ControllerPorts(free.pop(), free.pop(), free.pop()))
    return dict(zip(names, found, strict=True))


@dataclass(frozen=True)
class _Files:
    """Configuration files of the mesh, which all versions read."""

    folder: Path
    plan: MeshPlan
    tls: Mapping[str, Mapping[str, str]]
    controllers: Mapping[str, ControllerPorts]

    def of_controller(self, name: str) -> str:
        seats = self.plan.layout.seats
        text = controller_file(
            ports=self.controllers[name],
            store=self.plan.store,
            tls=self.tls[name],
            name_servers=[seat.ports.host for seat in seats],
            networks=self.plan.layout.networks,
            client_port=seats[0].ports.http,
            regions=seats[0].region.table_file,
            region=seats[0].region.name,
            name=name,
            history=self.folder / f"{name}.history",
        )
        document = yaml.safe_load(text)
        del document["decisions"]  # every version has defaults
        return self._written(name, document)

    def of_gateway(self, seat: Seat) -> str:
        addresses = [f"{each.host}:{each.grpc}" for each in self.controllers.values()]
        scenario, layout = self.plan.scenario, self.plan.layout
        others = [each for each in layout.seats if each != seat]
        text = region_file(
            seat.region,
            ports=seat.ports,
            engines=[layout.url_of_engine(seat.region.name, port) for port in seat.engines],
            model=scenario.model,
            peers=[(each.gateway_id, each.region, f"{each.ports.peers_host}:{each.ports.peers}") for each in others],
            overflow=OverflowMode.ON,
            seed=scenario.seed,
            number=seat.number,
            controlled=Controlled(addresses, self.tls[seat.gateway_id], self.folder / "state"),
            sections=self.plan.sections(seat),
        )
        return self._written(seat.gateway_id, yaml.safe_load(text))

    def _written(self, name: str, document: dict[str, Any]) -> str:
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        return str(file)
