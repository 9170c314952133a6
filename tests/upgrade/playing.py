"""Upgrades a mesh under load, and back, and writes down what was seen. It judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName
from gateway.door.parse import TENANT_HEADER
from loadgen.demo.layout import Seat, lay_out
from loadgen.demo.mesh import running_engines
from loadgen.demo.processes import Child, DemoFailure
from loadgen.demo.region_files import ZONE, write_open_policies
from loadgen.demo.scenario import DemoScenario, RegionScenario
from loadgen.demo.watch import TTL_S
from loadgen.names import NameResolver
from loadgen.studies.batches.large_file import lost_and_doubled
from loadgen.studies.commands import tell
from loadgen.studies.failover.clients import Clients
from mesh.clock import Clock
from tests.upgrade.batches import ENDED, fetch, hand_in, told_of
from tests.upgrade.figures import Played, Step
from tests.upgrade.mesh import (
    DRAIN_S,
    MeshPlan,
    Part,
    VersionedMesh,
    lines_of,
    running_mesh_of,
    until,
    verified_audits,
)
from tests.upgrade.releases import Release

USERS = {"us-east-1": (3, 3, 3), "eu-west-1": (1, 1)}
"""Users of each region, in groups with one resolver each: answers are shuffled, so that both siblings are asked."""
ANSWER_TOKENS = 40
BATCH_LINES = 40
USED = 3
"""Requests that a tenant of its own sends to each gateway before all others."""
WAIT_S = TTL_S + 1.0
"""Time after which no client keeps an older answer of the name."""
SLOTS = 2
"""Requests that each engine runs at once."""
_ENGINES = 4
_REGIONS = {"us-east-1": (39.0, -77.5), "eu-west-1": (53.3, -6.3)}
_CONTROLLERS = ("controller-1", "controller-2")
_TENANT = "asks-no-more"
_BATCH_TOKENS = 24
_STEADY_S = 6.0
_END_S = 20.0
_TAKEN_OVER = "us-east-1"
"""Region whose gateways are taken over; those of the others are drained."""


async def play(old: Release, new: Release, folder: Path, store: Mapping[str, object], played: Played) -> None:
    """Upgrade a mesh from `old` to `new` and back; `played` has the findings so far at each end. Raises
    DemoFailure."""
    async with (
        asyncio.TaskGroup() as tasks,
        _running_mesh(old, folder, store, tasks) as mesh,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
    ):
        try:
            await _Upgrade(mesh, session, folder, played).there_and_back(old, new)
        finally:
            for log, release in [each for part in mesh.parts for each in part.logs.items()]:
                for line in lines_of(log):
                    played.checks.logs.add(release.name, line)
        for release in (old, new):
            audits, faults = await verified_audits(release, folder)
            played.checks.audits += audits
            played.checks.audit_faults += faults


@asynccontextmanager
async def _running_mesh(
    release: Release, folder: Path, store: Mapping[str, object], tasks: asyncio.TaskGroup
) -> AsyncIterator[VersionedMesh]:
    """Run two regions of two gateways each and two controllers on one store."""
    regions = tuple(
        RegionScenario(
            Place(RegionName(name), Jurisdiction("XX")),
            clients=0,
            engines=_ENGINES,
            slots=SLOTS,
            policies=folder / "policies",
            gateways=2,
            location=where,
        )
        for name, where in _REGIONS.items()
    )
    write_open_policies(regions, folder / "policies")
    scenario = DemoScenario(regions=regions)
    layout = lay_out(scenario)

    def sections(seat: Seat) -> Mapping[str, object]:
        return {
            "limits": {"drain": f"{DRAIN_S}s"},
            "trust_tenant_header": True,
            "audit": {"folder": str(folder / "audit" / seat.gateway_id)},
            "batches": {"folder": str(folder / "batches" / seat.gateway_id)},
            "classes": {"batch": {"free_share": 0.5}},
        }

    plan = MeshPlan(scenario, layout, _CONTROLLERS, store, sections)
    async with (
        running_engines(scenario, layout, folder, tasks),
        running_mesh_of(plan, release, folder, tasks) as mesh,
    ):
        yield mesh


class _Upgrade:
    def __init__(
        self, mesh: VersionedMesh, session: aiohttp.ClientSession, folder: Path, played: Played
    ) -> None:  # fmt: skip
        self._mesh = mesh
        self._session = session
        self._folder = folder
        self._played = played
        self._checks = played.checks
        self._clock = Clock()
        self._wait_max = ""
        self._ordered_at: Child | None = None
        """Process that took the order."""
        self._first_day = ""

    async def there_and_back(self, old: Release, new: Release) -> None:
        for part in self._mesh.gateways.values():
            await self._use(part)
        async with self._load():
            await self._steady(f"all run {old.name}")
            for seconds, release in ((61, new), (62, old)):
                await self._set_order(seconds)
                batches: list[tuple[Part, str]] = []
                for name, part in self._mesh.gateways.items():
                    if not self._mesh.seats[name].number:
                        with self._lines_of(part):
                            batch = await hand_in(
                                self._session, self._url(part), self._mesh.model, BATCH_LINES, _BATCH_TOKENS
                            )
                            batches.append((part, batch))
                    await self._replace_gateway(part, release)
                for part in await self._controllers():
                    await self._replace_controller(part, release)
                self._begin("batches end", "")
                for part, batch in batches:
                    with self._lines_of(part):
                        await self._collect(part, batch)
                await self._steady(f"all run {release.name}")

    @asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        name = self._mesh.name
        clients = [
            (users, Clients(
                RegionName(region), name.url, self._mesh.model,
                NameResolver(name.servers, name.networks[RegionName(region)], self._clock), self._clock,
                answer_tokens=ANSWER_TOKENS,
            ))
            for region, groups in USERS.items() for users in groups
        ]  # fmt: skip
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(each.run(users)) for users, each in clients]
                yield
                self._played.ended_ns = self._clock.now_ns()
                for _, each in clients:
                    each.is_over = True
                await asyncio.wait(running, timeout=_END_S)
                for task in running:
                    task.cancel()
        finally:
            self._played.ended_ns = self._played.ended_ns or self._clock.now_ns()
            self._played.calls = [call for _, each in clients for call in each.asked]
            self._played.rejected_ns = [at_ns for _, each in clients for at_ns in each.answers.rejected_ns]
            self._played.refused_ns = [at_ns for _, each in clients for at_ns in each.answers.refused_ns]

    # Steps

    def _begin(self, what: str, how: str) -> None:
        self._played.steps.append(Step(what, how, self._clock.now_ns()))
        tell(f"{what}: {how}" if how else what)

    async def _steady(self, what: str) -> None:
        self._begin(what, "")
        await asyncio.sleep(_STEADY_S)
        for part in self._mesh.parts:
            assert part.release is not None, "it was started"
            self._checks.processes += 1
            if part.tree() != part.release.tree:
                self._checks.strangers.append(f"{part.name} in {part.tree()}")

    async def _replace_gateway(self, part: Part, release: Release) -> None:
        is_taken_over = self._mesh.seats[GatewayId(part.name)].region.name == _TAKEN_OVER
        self._begin(f"{part.name} to {release.name}", "take-over" if is_taken_over else "drain")
        if is_taken_over:
            before = part.child
            await part.start(release, "--take-over")
            await part.until_logged("ready")
            status: list[int] = []
            await until(lambda: _ends(before.ended, status), f"{part.name}: the end of the process before")
            self._note_exit(part, status[0])
        else:
            await self._order({"order": "gateway-drain", "gateway": part.name})
            await until(lambda: self._leads_elsewhere(part), f"{part.name}: the name leads elsewhere")
            await asyncio.sleep(WAIT_S)
            self._note_exit(part, await part.stop())
            await part.start(release)
            await part.until_answers("/health")
            await self._order({"order": "gateway-undrain", "gateway": part.name})
            await part.until_answers("/ready")
        await self._mesh.until_attached(self._session)
        used = await self._used(part)
        self._checks.usage += used == USED
        if used != USED:
            self._checks.forgotten.append(f"usage of {part.name}: {used} of {USED} requests")

    async def _replace_controller(self, part: Part, release: Release) -> None:
        self._begin(f"{part.name} to {release.name}", "stop, start")
        self._note_exit(part, await part.stop())
        await part.start(release)
        await part.until_answers("/health")
        await self._mesh.until_attached(self._session)
        leader = await self._mesh.leader(self._session)
        if leader.child is self._ordered_at:
            return
        found = (await self._mesh.state(self._session)).get("parameters")
        if self._wait_max in str(found):
            self._checks.orders += 1
        else:
            self._checks.forgotten.append(f"parameters at {leader.name}: {found}")

    def _note_exit(self, part: Part, status: int) -> None:
        if status:
            self._checks.bad_exits.append(f"{part.name} with {status}")

    @contextmanager
    def _lines_of(self, part: Part) -> Iterator[None]:
        """Count all lines of a batch as lost if its gateway does not take it, or does not end it."""
        try:
            yield
        except (DemoFailure, aiohttp.ClientError, OSError) as error:
            self._checks.lines += BATCH_LINES
            self._checks.lines_lost += BATCH_LINES
            self._checks.forgotten.append(f"batch at {part.name}: {error}")

    # Controllers

    async def _controllers(self) -> list[Part]:
        """Controllers in the order in which they are replaced: the one that leads comes last."""
        leader = await self._mesh.leader(self._session)
        return sorted(self._mesh.controllers, key=lambda each: each is leader)

    async def _set_order(self, seconds: int) -> None:
        """Give an order that the other version has to find."""
        self._wait_max = f"{seconds}s"
        self._ordered_at = (await self._mesh.leader(self._session)).child
        await self._order({"order": "parameters-set", "sections": {"queue": {"wait_max": self._wait_max}}})

    async def _order(self, order: dict[str, Any]) -> None:
        leader = await self._mesh.leader(self._session)
        async with self._session.post(f"{leader.admin}/admin/orders", json={"order": order}) as answer:
            answer.raise_for_status()

    async def _leads_elsewhere(self, part: Part) -> bool:
        """True once no gateway's name server names the gateway, and none of its replicas is its own."""
        name, host = self._mesh.name, self._mesh.seats[GatewayId(part.name)].ports.host
        for server in name.servers:
            for network in name.networks.values():
                told = await NameResolver([server], network, self._clock).ask(ZONE)
                if host in told.addresses or not told.addresses:
                    return False
        state = await self._mesh.state(self._session)
        owned = {each["id"]: each["replicas_owned"] for each in state.get("gateways", ())}
        return owned.get(part.name) == 0

    # Gateways

    async def _use(self, part: Part) -> None:
        """Send the only requests of a tenant."""
        body = {"model": self._mesh.model, "max_tokens": 1, "messages": [{"role": "user", "content": "?"}]}
        headers = {TENANT_HEADER: _TENANT}
        for _ in range(USED):
            url = f"{self._url(part)}/chat/completions"
            async with self._session.post(url, json=body, headers=headers, raise_for_status=True) as answer:
                await answer.read()

        async def is_counted() -> bool:
            return await self._used(part) == USED

        await until(is_counted, f"{part.name}: usage of {USED} requests")

    async def _used(self, part: Part) -> int:
        """Requests of that tenant, since the day of the first look."""
        asked = {"by": "tenant"} | ({"from": self._first_day} if self._first_day else {})
        async with self._session.get(f"{part.admin}/admin/usage", params=asked, raise_for_status=True) as answer:
            told = await answer.json()
        self._first_day = told["from"]
        return sum(row["requests"] for row in told["rows"] if row["tenant"] == _TENANT)

    def _url(self, part: Part) -> str:
        ports = self._mesh.seats[GatewayId(part.name)].ports
        return f"http://{ports.host}:{ports.http}/v1"

    async def _collect(self, part: Part, batch: str) -> None:
        """Wait for the batch, and count its lines."""
        told: dict[str, Any] = {}

        async def is_over() -> bool:
            told.update(await told_of(self._session, self._url(part), batch))
            return told["status"] in ENDED

        await until(is_over, f"{part.name}: the end of {batch}")
        results = await fetch(self._session, self._url(part), told, self._folder)
        lost, doubled = lost_and_doubled(results, BATCH_LINES)
        self._checks.batches += 1
        self._checks.lines += BATCH_LINES
        self._checks.lines_failed += told["request_counts"]["failed"]
        self._checks.lines_lost += lost
        self._checks.lines_doubled += doubled


async def _ends(ended: Callable[[], Awaitable[int]], status: list[int]) -> bool:
    """True once the process has ended; its status is then in the list."""
    try:
        async with asyncio.timeout(0.1):
            status.append(await ended())
    except TimeoutError:
        return False
    return True
