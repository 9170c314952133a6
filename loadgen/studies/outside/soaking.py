"""Plays a soak: AIPerf at a modest rate against three regions in which an engine and a gateway are killed in turn,
while what processes hold is sampled. It judges nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp

from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import CONTROLLER
from loadgen.demo.scenario import DemoScenario
from loadgen.interrupts import leaves
from loadgen.studies.long.flatness import ProcessSample
from loadgen.studies.long.fleet import LongMesh, running_fleet
from loadgen.studies.long.sampling import read_process
from loadgen.studies.outside.counts import COMPLETED, ends_in
from loadgen.studies.outside.outcomes import SOAK, SOAK_KEPT
from loadgen.studies.outside.playing import files_in, scenario_in, versions_of
from loadgen.studies.outside.running import run_tool
from loadgen.studies.outside.soak import (
    DOWN_S,
    SAMPLE_S,
    KeptSoak,
    PlannedKill,
    SoakKill,
    plan_kills,
)
from loadgen.studies.outside.tools import AIPERF, ENVIRONMENTS, SOAK_ARGUMENTS, shown_command
from mesh.clock import Clock

_ANSWER_S = 5.0
_REST_S = 20.0
"""Time at rest before what processes hold is read."""
_WHOLE_S = 60.0
_POLL_S = 1.0
_LATE_S = 600.0
"""Time that AIPerf may take beyond the load: it makes all prompts before."""
_SECOND_NS = 1_000_000_000


def play_soak(folder: Path, seconds: float, machine: Mapping[str, object], tell: Callable[[str], None]) -> None:
    """Play a soak and keep what comes of it in the folder. Raises DemoFailure where AIPerf is not installed, and where
    the mesh cannot be started or a process ends by itself."""
    program = AIPERF.program(ENVIRONMENTS)
    if program is None:
        raise DemoFailure(f"{AIPERF.name} is needed: {AIPERF.why_absent(ENVIRONMENTS)}")
    where = (folder / SOAK).absolute()
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    try:
        asyncio.run(_play(where, program, seconds, machine, tell))
    except* DemoFailure as failures:
        reasons = [str(each) for each in leaves(failures)]
    else:
        return
    raise DemoFailure("\n".join(reasons))


async def _play(
    folder: Path, program: Path, seconds: float, machine: Mapping[str, object], tell: Callable[[str], None]
) -> None:
    scenario = scenario_in(folder)
    places = {**files_in(folder, scenario.model), "model": scenario.model, "seconds": f"{seconds:g}", "out": folder}
    (folder / "mesh").mkdir()
    async with asyncio.TaskGroup() as tasks:
        version = (await versions_of(folder, {AIPERF.name: program}, tasks))[AIPERF.name]
        async with running_fleet(scenario, folder / "mesh", tasks) as mesh:
            urls = dict(zip(("us", "eu", "ap"), (each.url for each in mesh.gateways.values()), strict=True))
            command = [str(program), *(each.format(**places, **urls) for each in SOAK_ARGUMENTS.split())]
            played = _Played(mesh, scenario, tell)
            before = await played.at_rest()
            async with asyncio.TaskGroup() as load:
                kills = plan_kills(seconds, played.mortal, [*mesh.engines])
                meanwhile = load.create_task(played.follow(seconds, kills))
                end = await run_tool(command, folder, seconds + _LATE_S, tasks)
                if not played.has_begun:
                    meanwhile.cancel()
            after = await played.at_rest()
    kept = KeptSoak(
        seconds, version, machine, shown_command(AIPERF, SOAK_ARGUMENTS), end.status, played.began_ns, end.took_s,
        played.kills, played.processes, played.loads, played.ends, [*mesh.gateways], played.decisions, (before, after),
    )  # fmt: skip
    (folder / SOAK_KEPT).write_text(json.dumps(asdict(kept)), encoding="utf-8")


@dataclass(slots=True)
class _Played:
    mesh: LongMesh
    scenario: DemoScenario
    tell: Callable[[str], None]
    kills: list[SoakKill] = field(default_factory=list)
    processes: list[ProcessSample] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    _clock: Clock = field(default_factory=Clock)
    decisions: dict[str, tuple[int, int]] = field(default_factory=dict)
    _lives: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)
    _down: str = ""
    """Process that is killed, or not yet ready again."""
    began_ns: int = 0
    """Wall time at which the first answer was seen; 0 before it."""

    @property
    def has_begun(self) -> bool:
        return self.began_ns > 0

    @property
    def mortal(self) -> str:
        """Gateway that is killed."""
        return next(name for name, each in self.mesh.gateways.items() if each.region == self.scenario.killed)

    @property
    def ends(self) -> dict[str, dict[str, int]]:
        found: dict[str, Counter[str]] = {}
        for (name, _), ends in self._lives.items():
            found.setdefault(name, Counter()).update(ends)
        return {name: dict(each) for name, each in found.items()}

    @property
    def _now_s(self) -> float:
        return (self._clock.wall_ns() - self.began_ns) / _SECOND_NS

    async def at_rest(self) -> dict[str, int]:
        """Descriptors of each process, once the mesh has been at rest for a while."""
        await asyncio.sleep(_REST_S)
        await self._read_ends()
        return {each.name: each.descriptors for each in self._held()}

    async def follow(self, seconds: float, kills: list[PlannedKill]) -> None:
        """Sample and kill, from the first answer on."""
        while not any(ends[COMPLETED] for ends in self._lives.values()):
            await asyncio.sleep(_POLL_S)
            await self._read_ends()
        self.began_ns = self._clock.wall_ns()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample(seconds))
            tasks.create_task(self._strike(kills))

    async def _sample(self, seconds: float) -> None:
        while self._now_s < seconds:
            self.processes.extend(self._held())
            self.loads.append(os.getloadavg()[0])
            await self._read_ends()
            await asyncio.sleep(SAMPLE_S)

    def _held(self) -> list[ProcessSample]:
        watched = {**self.mesh.gateways, CONTROLLER: self.mesh.controller}
        found = [
            read_process(self._now_s, name, each.child.pid) for name, each in watched.items() if name != self._down
        ]
        return [each for each in found if each is not None]

    async def _read_ends(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
            for name, gateway in self.mesh.gateways.items():
                pid = gateway.child.pid
                try:
                    async with session.get(f"{gateway.admin}/metrics") as response:
                        self._lives[name, pid] = ends_in([await response.text()])
                    async with session.get(f"{gateway.admin}/admin/state") as response:
                        kept = (await response.json())["decisions"]
                        self.decisions[name] = kept["requests"], kept["bytes"]
                except (aiohttp.ClientError, TimeoutError):  # the gateway is down, or was killed meanwhile
                    continue

    async def _strike(self, planned: list[PlannedKill]) -> None:
        for each in planned:
            await asyncio.sleep(max(0.0, each.at_s - self._now_s))
            await self._kill(each)

    async def _kill(self, planned: PlannedKill) -> None:
        name, process = planned.name, self.mesh.processes[planned.name]
        self._down, killed_ns = name, self._clock.wall_ns()
        await process.child.kill()
        dead_ns = self._clock.wall_ns()
        await asyncio.sleep(DOWN_S)
        await process.start()
        await process.until_ready()
        ready_ns, self._down = self._clock.wall_ns(), ""
        whole_ns = self._clock.wall_ns() if await self.mesh.becomes_whole(process, _WHOLE_S) else None
        gateways = [*self.mesh.gateways]
        address = gateways.index(name) if name in gateways else None
        self.kills.append(SoakKill(name, killed_ns, dead_ns, ready_ns, whole_ns, address))
        self.tell(f"{planned.at_s:.0f} s: {name} killed; ready after {(ready_ns - killed_ns) / _SECOND_NS:.1f} s")
