"""A controller and gateways as processes, which can be killed and restarted with their state, while clients send
requests.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml

from gateway.core.vocabulary import Place
from loadgen.names import NameAnswer, NameResolver
from mesh.clock import Clock
from tests.fakes.engine import GOOD_STREAM, FakeEngine
from tests.support.controllers import QUICK, ControllerProcess, controller_file, controller_process
from tests.support.core import AP, EU, MODEL, US
from tests.support.gateways import CHAT, region_document, write_policy
from tests.support.processes import QUICK_OBSERVATION, QUICK_PEERS, QUICK_PROBES, Process, gateway_process

PLACES = {"us-1": US, "ap-1": AP, "eu-1": EU}
OPEN = (US, AP)
"""Regions that exchange requests with each other. The third one exchanges none."""
ADDRESSES = {"us-1": "192.0.2.1", "ap-1": "192.0.2.2", "eu-1": "192.0.2.3"}
"""Addresses that DNS answers contain; no client connects to them."""
NAMED = {"us-1": ("us-1", "ap-1"), "ap-1": ("ap-1", "us-1"), "eu-1": ("eu-1",)}
"""Gateways that the answer to clients beside each gateway names while all live: the nearest, and a further one."""
NETWORKS = {"us-1": "198.51.100.0/26", "ap-1": "198.51.100.64/26", "eu-1": "198.51.100.128/26"}
ZONE = "mesh.test"
PATIENT = {**QUICK["decisions"], "silence": "1m"}
"""Decision settings under which no gateway is declared down for being slow, however slow the machine."""
_WHOLE = b"".join(GOOD_STREAM)
_LOOK_S = 0.02
ENOUGH_S = 100.0
"""Seconds after which a condition counts as never true."""


@dataclass
class Controlled:
    """The processes, none of which runs at first."""

    folder: Path
    ports: Callable[[], int]
    session: aiohttp.ClientSession
    stack: AsyncExitStack
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    gateways: dict[str, Process] = field(default_factory=dict)
    controller: ControllerProcess | None = None
    listen: dict[str, dict[str, str]] = field(default_factory=dict)
    dns: dict[str, int] = field(default_factory=dict)
    control_port: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    """Additional settings of the controller's file."""
    control: dict[str, Any] = field(default_factory=dict)
    """Additional settings of each region file's `control` section."""
    more: dict[str, Any] = field(default_factory=dict)
    """Additional settings of each region file."""
    replica: dict[str, Any] = field(default_factory=dict)
    """Additional settings of each replica."""
    ways: dict[str, int] = field(default_factory=dict)
    """Port at which each gateway dials the controller, where it is not the controller's own."""
    health: dict[str, int] = field(default_factory=dict)
    """Port at which the controller asks for each gateway's health, where it is not the gateway's own."""

    async def prepare(self, *names: str) -> None:
        """Choose the gateways that take part, and start an engine for each."""
        self.control_port = self.ports()
        for name in names:
            self.engines[name] = await self.stack.enter_async_context(FakeEngine().serving())
            self.listen[name] = {part: f"127.0.0.1:{self.ports()}" for part in ("http", "admin", "peers")}
            self.dns[name] = self.ports()

    async def start(self, *names: str) -> None:
        """Start the controller, then the gateways, and wait until all have settled."""
        await self.prepare(*names)
        await self.start_controller()
        for name in names:
            await self.start_gateway(name)
        await self.settled()

    async def start_controller(self, **more: object) -> ControllerProcess:
        naming = {
            "zone": ZONE,
            "networks": {PLACES[name].region: [NETWORKS[name]] for name in self.engines},
            "name_servers": [{"name": f"{name}.example", "addresses": []} for name in ("ns1", "ns2")],
        }
        own = {"listen": {"grpc": f"127.0.0.1:{self.control_port}", "admin": "127.0.0.1:0"}, "naming": naming}
        file = controller_file(self.folder, **{**own, "decisions": PATIENT, **self.settings, **more})
        self.controller = await self.stack.enter_async_context(controller_process(file))
        return self.controller

    async def start_gateway(self, name: str) -> Process:
        self.gateways[name] = await self.stack.enter_async_context(gateway_process(self.write_region(name)))
        return self.gateways[name]

    def write_region(self, name: str) -> Path:
        place, path = PLACES[name], self.folder / f"{name}.yaml"
        health = self.health.get(name) or int(self.listen[name]["http"].rpartition(":")[2])
        peers = [
            {"gateway": other, **_where(PLACES[other]), "address": self.listen[other]["peers"]}
            for other in self.engines
            if other != name
        ]
        control = {
            "controllers": [f"127.0.0.1:{self.ways.get(name, self.control_port)}"],
            "client_addresses": [ADDRESSES[name]],
            "health_url": f"http://127.0.0.1:{health}/health",
            "report_interval": "50ms",
            "silence_max": "30s",
            "reconnect_min": "10ms",
            "reconnect_max": "100ms",
        }
        document = region_document(
            self.folder,
            name,
            place,
            listen=self.listen[name],
            peers=peers,
            replicas=[{"id": f"{name}-r0", "url": self.engines[name].url, "models": [MODEL], **self.replica}],
            probes=QUICK_PROBES,
            peering=QUICK_PEERS,
            observation=QUICK_OBSERVATION,
            pushing={"mode": "blind"},
            state={"folder": str(self.folder / f"state-{name}")},
            dns={"listen": [f"127.0.0.1:{self.dns[name]}"], "answers_per_s": 100_000},
            control=control | self.control,
        )
        allowed = OPEN if place in OPEN else (place,)
        write_policy(self.folder, place, process=allowed, accept=allowed)
        path.write_text(yaml.safe_dump(document | self.more))
        return path

    async def kill(self, *names: str) -> None:
        """Kill processes with SIGKILL; `controller` is one of the names."""
        for name in names:
            process = self.gateways.pop(name).process if name in self.gateways else self._controller.process
            process.kill()
            await process.wait()

    # Observing

    @property
    def _controller(self) -> ControllerProcess:
        assert self.controller is not None, "it was started"
        return self.controller

    async def state(self) -> dict[str, Any]:
        """State of the controller, by its admin API."""
        return await self._json(f"{self._controller.admin_url}/admin/state")

    async def served(self, name: str) -> set[str]:
        """Replicas that a gateway serves."""
        state = await self._json(f"{self.gateways[name].admin_url}/admin/state")
        return {each["id"] for each in state["replicas"]}

    async def gateway(self, name: str) -> dict[str, Any]:
        """State of one gateway, by the controller's admin API; an empty one if the controller does not know it."""
        found: list[dict[str, Any]] = [each for each in (await self.state())["gateways"] if each["id"] == name]
        return found[0] if found else {"condition": "", "attached": False}

    async def _json(self, url: str) -> dict[str, Any]:
        async with self.session.get(url) as response:
            found: dict[str, Any] = json.loads(await response.read())
            return found

    async def until_served(self, name: str, *replicas: str) -> None:
        """Wait until the gateway serves exactly these replicas."""
        await until_seen(lambda: self.served(name), lambda served: served == set(replicas))

    async def until_state(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return await until_seen(self.state, holds)

    async def until_gateway(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        await until_seen(lambda: self.gateway(name), holds)

    async def settled(self) -> None:
        """Wait until every running gateway is up, serves its own replica by the newest snapshot, and is the answer of
        every gateway's DNS to clients near it."""

        def is_settled(state: dict[str, Any]) -> bool:
            named = {name for area in state["names"] for name in area["gateways"]}
            well = {each["id"] for each in state["gateways"] if each["condition"] == "up" and _is_told(each)}
            return self.gateways.keys() <= well & named

        await self.until_state(is_settled)
        for name in self.gateways:
            await self.until_served(name, f"{name}-r0")
            await self.until_told(name, *(ADDRESSES[each] for each in NAMED[name] if each in self.gateways))

    async def told(self, client: str, by: str) -> NameAnswer:
        """Answer of a gateway's DNS to clients in the network of another region. Raises OSError if there is none."""
        resolver = NameResolver([("127.0.0.1", self.dns[by])], NETWORKS[client], Clock())
        return await resolver.ask(ZONE)

    async def until_told(self, client: str, *addresses: str) -> None:
        """Wait until every running gateway answers these addresses."""
        for by in self.gateways:
            await until_seen(partial(self._told_or_not, client, by), lambda told: set(told) == set(addresses))

    async def _told_or_not(self, client: str, by: str) -> tuple[str, ...]:
        """Addresses of the answer, or the error: a busy machine may answer later than a client waits."""
        try:
            return (await self.told(client, by)).addresses
        except OSError as error:
            return (str(error),)


_Seen = TypeVar("_Seen")


async def until_seen(look: Callable[[], Awaitable[_Seen]], holds: Callable[[_Seen], bool]) -> _Seen:
    """Poll another process until its state is as wanted; returns the state. Raises AssertionError with the last
    state."""
    seen: list[_Seen] = []
    try:
        async with asyncio.timeout(ENOUGH_S):
            while True:
                seen = [await look()]
                if holds(seen[0]):
                    return seen[0]
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise AssertionError(f"it never came true; seen last: {seen}") from error


def _is_told(gateway: dict[str, Any]) -> bool:
    return bool(gateway["attached"]) and gateway["taken"] == gateway["pushed"]


def _where(place: Place) -> dict[str, str]:
    return {"region": place.region, "jurisdiction": place.jurisdiction}


@asynccontextmanager
async def controlled(
    folder: Path, ports: Callable[[], int], session: aiohttp.ClientSession
) -> AsyncIterator[Controlled]:
    async with AsyncExitStack() as stack:
        yield Controlled(folder, ports, session, stack)


@dataclass
class Onlookers:
    """Clients that send requests to each gateway without a pause, and resolvers, all the while. Every outcome is
    counted."""

    mesh: Controlled
    ends: dict[str, Counter[str]]
    """Outcomes by gateway."""
    silent: list[str] = field(default_factory=list)
    """DNS queries without an answer although a gateway was alive that it could have named."""
    breaches: list[str] = field(default_factory=list)
    """Replicas served where the policy of their home does not allow it."""

    async def ask(self, name: str) -> None:
        while True:
            self.ends[name][await self._ask(name)] += 1
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, name: str) -> str:
        url = f"http://{self.mesh.listen[name]['http']}/v1/chat/completions"
        body = b""
        try:
            async with self.mesh.session.post(url, json=CHAT) as response:
                body = await response.read()
                if response.status != 200:
                    return f"{response.status} {json.loads(body)['error']['code']}"
                return "answered" if body == _WHOLE else "cut"
        except aiohttp.ClientConnectorError:
            return "not connected"
        except aiohttp.ClientError:
            return "cut"

    async def resolve(self, clients: Iterable[str]) -> None:
        while True:
            for client in clients:
                for by in list(self.mesh.gateways):
                    with suppress(OSError):
                        told = await self.mesh.told(client, by)
                        if not told.addresses:
                            self.silent.append(f"{by} to clients of {client}: {told.why}")
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        while True:
            for name in list(self.mesh.gateways):
                with suppress(aiohttp.ClientError, KeyError, OSError):
                    served = await self.mesh.served(name)
                    self.breaches += [f"{each} at {name}" for each in served if not _may_serve(name, each)]
            await asyncio.sleep(_LOOK_S)

    async def until_answered(self, *names: str) -> None:
        """Wait until each of these gateways has answered once more."""
        before = {name: self.ends[name]["answered"] for name in names}

        async def answered() -> dict[str, int]:
            return {name: self.ends[name]["answered"] - count for name, count in before.items()}

        await until_seen(answered, lambda more: all(more.values()))

    def check(self, *, died: Iterable[str] = ()) -> None:
        """Assert that gateways which lived answered every request; requests to gateways that died may also be cut or
        not connect."""
        for name, ends in self.ends.items():
            allowed = {"answered", "cut", "not connected"} if name in died else {"answered"}
            assert ends["answered"], f"nobody was answered by {name}"
            assert ends.keys() <= allowed, f"{name}: {ends}"
        assert not self.silent, self.silent
        assert not self.breaches, self.breaches


def _may_serve(name: str, replica: str) -> bool:
    home = PLACES[replica.removesuffix("-r0")]
    return home == PLACES[name] or (home in OPEN and PLACES[name] in OPEN)


@asynccontextmanager
async def watched(mesh: Controlled, *, resolves: Iterable[str] = ("us-1", "ap-1")) -> AsyncIterator[Onlookers]:
    """Send requests and queries, and watch the replicas, until the block ends. It begins once each gateway has
    answered."""
    seen = Onlookers(mesh, {name: Counter() for name in mesh.engines})
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(seen.ask(name)) for name in mesh.engines]
        asking += [tasks.create_task(seen.resolve(tuple(resolves))), tasks.create_task(seen.look())]
        await seen.until_answered(*mesh.gateways)
        yield seen
        for task in asking:
            task.cancel()
