"""Kills processes of a mesh while it runs a batch, and writes down what was seen. It judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName
from loadgen.demo.layout import Seat, lay_out, url_at
from loadgen.demo.region_files import write_open_policies
from loadgen.demo.scenario import DemoScenario, RegionScenario
from loadgen.studies.batches.large_file import lost_and_doubled
from loadgen.studies.commands import tell
from mesh.clock import Clock
from tests.cloud.postgresql import Postgresql
from tests.kills.figures import AuditedTries, Kill, KilledBatch, is_whole
from tests.upgrade.batches import ENDED, fetch, hand_in, told_of
from tests.upgrade.mesh import MeshPlan, Part, VersionedMesh, lines_of, running_mesh_of, until, verified_audits
from tests.upgrade.releases import Release

LINES = 2000
TOKENS = 10
"""Length of each answer."""
SLOTS = 4
"""Requests that each engine runs at once."""
HOME, FURTHER, OUTSIDE = RegionName("us-east-1"), RegionName("us-west-2"), RegionName("eu-west-1")
LEASE_S = 15
AWAY = 100
"""Lines that end before most of what was killed is started again, and before the next kill."""
KILLS_AT = (200, 450, 700, 950, 1200, 1500)
"""Lines that have ended at each kill, at least."""
ENGINES = {HOME: 4, FURTHER: 2, OUTSIDE: 1}
_GATEWAYS = {HOME: 2, FURTHER: 1, OUTSIDE: 1}
_PLACES = {HOME: ("US", (39.0, -77.5)), FURTHER: ("US", (45.9, -119.3)), OUTSIDE: ("EU", (53.3, -6.3))}
_LOOK_S = 0.1


def new_findings() -> KilledBatch:
    return KilledBatch(LINES, AuditedTries(HOME, frozenset({HOME, FURTHER})))


@dataclass(frozen=True)
class Stores:
    """Stores of the mesh."""

    server: Postgresql
    postgresql: Mapping[str, object]
    """Keys by which gateways and controllers find that server."""
    s3: Mapping[str, object]
    """Bucket of the batch's files."""


async def play(release: Release, folder: Path, stores: Stores, played: KilledBatch) -> None:
    """Run a batch while processes are killed; `played` has the findings so far at each end. Raises DemoFailure."""
    scenario = _scenario(folder / "policies")
    layout = lay_out(scenario)

    def sections(seat: Seat) -> Mapping[str, object]:
        audit = {"audit": {"folder": str(folder / "audit" / seat.gateway_id)}}
        if seat.region.name != HOME:
            return audit
        return audit | {"batches": {"postgresql": stores.postgresql, "s3": stores.s3, "lease": f"{LEASE_S}s"}}

    controllers = {"kind": "postgresql", "postgresql": stores.postgresql}
    plan = MeshPlan(scenario, layout, ["controller-1"], controllers, sections)
    async with (
        asyncio.TaskGroup() as tasks,
        AsyncExitStack() as stack,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
    ):
        engines = {
            port: Part(f"engine-{name}-{port}", _engine(scenario, port), url_at(port), folder, stack, tasks)
            for name, ports in layout.engines.items()
            for port in ports
        }
        await _start(release, [*engines.values()])
        mesh = await stack.enter_async_context(running_mesh_of(plan, release, folder, tasks))
        await _Kills(mesh, engines, stores.server, session, played).run(folder)
    for file in sorted((folder / "audit").glob("*/*")):
        for line in file.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):  # a kill tears the last line
                played.audited.add(msgspec.json.decode(line))
    played.audits, played.audit_faults = await verified_audits(release, folder)


def _scenario(policies: Path) -> DemoScenario:
    """Scenario in which HOME may use FURTHER, and OUTSIDE would accept HOME's requests."""
    regions = tuple(
        RegionScenario(
            Place(name, Jurisdiction(jurisdiction)), clients=0, engines=ENGINES[name], slots=SLOTS, policies=policies,
            gateways=_GATEWAYS[name], location=where,
        )
        for name, (jurisdiction, where) in _PLACES.items()
    )  # fmt: skip
    write_open_policies(regions, policies)
    outside = regions[-1].policy_file
    accepts_all = {"accept": {"jurisdictions": ["EU", "US"]}}
    outside.write_text(yaml.safe_dump(yaml.safe_load(outside.read_text()) | accepts_all))
    return DemoScenario(regions=regions)


def _engine(scenario: DemoScenario, port: int) -> tuple[str, ...]:
    """Command of an engine."""
    speed = ("--preset", scenario.preset, "--max-num-seqs", str(SLOTS), "--ignore-eos")
    return ("engine", "--model", str(scenario.model), "--port", str(port), *speed)


async def _start(release: Release, parts: Sequence[Part]) -> None:
    """Start processes, and wait until they are ready."""
    for each in parts:
        await each.start(release)
    for each in parts:
        await each.until_answers("/health" if each.command[0] == "engine" else "/ready")


async def _kill_together(parts: Sequence[Part]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for each in parts:
            tasks.create_task(each.kill())


@dataclass(frozen=True)
class _Victim:
    """Processes that are killed together."""

    kill: Callable[[], Awaitable[object]]
    start: Callable[[], Awaitable[object]]


class _Kills:
    def __init__(
        self, mesh: VersionedMesh, engines: dict[int, Part], database: Postgresql, session: aiohttp.ClientSession,
        played: KilledBatch,
    ) -> None:  # fmt: skip
        self._mesh = mesh
        self._engines = engines
        self._database = database
        self._session = session
        self._played = played
        self._clock = Clock()
        release = mesh.controllers[0].release
        assert release is not None, "it was started"
        self._release = release
        self._batch = ""
        self._told: dict[str, Any] = {}
        """Batch as it was told with the most lines."""
        self._done = 0

    async def run(self, folder: Path) -> None:
        await self._ask_outside()
        home = self._gateways_of(HOME)
        self._played.began_ns = self._clock.now_ns()
        self._batch = await hand_in(self._session, self._url(home[0]), self._mesh.model, LINES, TOKENS)
        async with asyncio.TaskGroup() as tasks:
            looks = [tasks.create_task(self._follow(each)) for each in home]
            await self._kill_all()
            await self._reaches(LINES)
            await until(self._is_over, "the end of the batch")
            for each in looks:
                each.cancel()
        await self._ask_outside()
        results = await fetch(self._session, self._url(home[0]), self._told, folder)
        played = self._played
        played.status, played.failed = self._told["status"], self._told["request_counts"]["failed"]
        lines = [msgspec.json.decode(line) for each in results for line in each.read_bytes().splitlines()]
        played.results, played.whole = len(lines), sum(is_whole(each, TOKENS) for each in lines)
        played.lost, played.doubled = lost_and_doubled(results, LINES)
        (outside,) = self._gateways_of(OUTSIDE)
        for port in self._seat(outside).engines:
            played.ran_outside += await self._value(self._engines[port], "vllm:request_success_total")

    # Kills

    async def _kill_all(self) -> None:
        at = iter(KILLS_AT)
        words = f"{AWAY} lines later"
        await self._reaches(next(at))
        holder = await self._holder()
        replica = f"{holder.name.removeprefix('gw-')}-0"
        engine = self._victim([self._engines[self._seat(holder.name).engines[0]]])
        await self._kill("an engine of the gateway that holds the batch", words, engine, self._away,
                         lambda: self._value(holder, "nightside_replica_in_flight", replica=replica))  # fmt: skip
        await self._reaches(next(at))
        await self._kill("the controller", words, self._victim(self._mesh.controllers), self._away)
        await self._reaches(next(at))
        (further,) = self._gateways_of(FURTHER)
        gateway = self._mesh.gateways[further]
        region = self._victim([gateway, *(self._engines[each] for each in self._seat(further).engines)])
        await self._kill(f"{FURTHER}: its gateway and engines", words, region, self._away, lambda: self._open(gateway))
        await self._reaches(next(at))
        holder = await self._holder()
        await self._kill("the gateway that holds the batch", "at once", self._victim([holder]), _at_once,
                         lambda: self._open(holder))  # fmt: skip
        await self._reaches(next(at))
        held = await self._holder()
        await self._kill("the gateway that then holds it", f"{words}, which the other one runs", self._victim([held]),
                         self._away, lambda: self._open(held))  # fmt: skip
        await self._reaches(next(at))
        last, event = await self._holder(), "batch_results_write_failed"
        before = last.count_of(event)
        database = self._database
        server = _Victim(lambda: asyncio.to_thread(database.kill), lambda: asyncio.to_thread(database.start))
        await self._kill("the database", "once a result could not be stored", server,
                         lambda _: last.until_logged(event, before))  # fmt: skip

    def _victim(self, parts: Sequence[Part]) -> _Victim:
        return _Victim(lambda: _kill_together(parts), lambda: _start(self._release, parts))

    async def _kill(
        self, what: str, again: str, victim: _Victim, until_again: Callable[[int], Awaitable[None]],
        in_flight: Callable[[], Awaitable[int]] | None = None,
    ) -> None:  # fmt: skip
        """Kill processes once lines are in flight there, start them again, and wait for further lines. `until_again`
        is given the lines that had ended; `in_flight` counts lines in flight there."""
        holder, taken_over = await self._holder(), self._take_overs()
        counts: list[int] = []

        async def are_there() -> bool:
            counts[:] = [await self._open(holder), 1 if in_flight is None else await in_flight()]
            return min(counts) > 0

        await until(are_there, f"lines in flight: {what}")
        line, killed_ns = self._done, self._clock.now_ns()
        await victim.kill()
        tell(f"{line:,} lines: killed {what}, with {counts[0]} in flight")
        await until_again(line)
        await victim.start()
        up_ns = self._clock.now_ns()
        await self._reaches(line + AWAY)
        there = None if in_flight is None else min(counts)  # counts are taken one after the other
        holders = holder.name, (await self._holder()).name
        is_taken_over = self._take_overs() > taken_over
        self._played.kills.append(Kill(what, again, line, counts[0], there, killed_ns, up_ns, holders, is_taken_over))

    async def _away(self, line: int) -> None:
        await self._reaches(line + AWAY)

    def _take_overs(self) -> int:
        """Take-overs of the batch, as its gateways have logged them."""
        logs = [log for name in self._gateways_of(HOME) for log in self._mesh.gateways[name].logs]
        return sum(line.get("event") == "batch_taken_over" for log in logs for line in lines_of(log))

    # The batch

    async def _follow(self, name: GatewayId) -> None:
        """Note what a gateway tells of the batch, until cancelled."""
        while True:
            with suppress(aiohttp.ClientError, OSError):
                told = await told_of(self._session, self._url(name), self._batch)
                counts = told["request_counts"]
                done = counts["completed"] + counts["failed"]
                if done > self._done:
                    self._done = done
                    self._played.ended.append((self._clock.now_ns(), done))
                if done == self._done:
                    self._told = told
            await asyncio.sleep(_LOOK_S)

    async def _reaches(self, line: int) -> None:
        """Wait until so many lines have ended. Raises DemoFailure where none does for long."""
        while (before := self._done) < line:

            async def is_further(before: int = before) -> bool:
                return self._done > before

            await until(is_further, f"a line after {before:,}")

    async def _is_over(self) -> bool:
        return self._told["status"] in ENDED

    async def _holder(self) -> Part:
        """Gateway that holds the batch, once there is one. Raises DemoFailure."""
        names: list[str] = []

        async def is_held() -> bool:
            query = f"SELECT owner FROM nightside_batches WHERE id = '{self._batch}'"
            names[:] = [await asyncio.to_thread(self._database.sql, query)]
            return bool(names[0])

        await until(is_held, "a gateway that holds the batch")
        return self._mesh.gateways[GatewayId(names[0])]

    async def _ask_outside(self) -> None:
        """Send a request to the gateway outside, whose engine runs it."""
        body = {"model": self._mesh.model, "max_tokens": 1, "messages": [{"role": "user", "content": "?"}]}
        (name,) = self._gateways_of(OUTSIDE)
        url = f"{self._url(name)}/chat/completions"
        async with self._session.post(url, json=body, raise_for_status=True) as answer:
            await answer.read()
        self._played.asked_outside += 1

    def _gateways_of(self, region: RegionName) -> list[GatewayId]:
        return [name for name, seat in self._mesh.seats.items() if seat.region.name == region]

    def _seat(self, name: str) -> Seat:
        return self._mesh.seats[GatewayId(name)]

    def _url(self, name: str) -> str:
        ports = self._seat(name).ports
        return f"http://{ports.host}:{ports.http}/v1"

    async def _open(self, part: Part) -> int:
        """Requests in flight at a gateway."""
        return await self._value(part, "nightside_requests_open")

    async def _value(self, part: Part, name: str, **labels: str) -> int:
        """Sum of the series of a process that have these labels."""
        async with self._session.get(f"{part.admin}/metrics", raise_for_status=True) as answer:
            families = text_string_to_metric_families(await answer.text())
        samples = [each for family in families for each in family.samples if each.name == name]
        return int(sum(each.value for each in samples if labels.items() <= each.labels.items()))


async def _at_once(_: int) -> None:
    """Start again at once."""
