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
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import aiohttp

from loadgen.demo.members import RestartedProcess
from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import CONTROLLER
from loadgen.demo.scenario import DemoScenario
from loadgen.interrupts import leaves
from loadgen.studies.long.flatness import ProcessSample
from loadgen.studies.long.fleet import LongMesh, running_fleet
from loadgen.studies.long.playing import BOUNDS
from loadgen.studies.long.sampling import read_process
from loadgen.studies.outside.counts import COMPLETED, ends_in
from loadgen.studies.outside.outcomes import SOAK, SOAK_KEPT
from loadgen.studies.outside.playing import HUB, files_in, scenario_in, versions_of
from loadgen.studies.outside.running import ToolEnd, run_tool
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

_WARM = "before"
"""Folder of what AIPerf reports on the load before the soak."""
_PLAYED = f"{SOAK}-played"
"""Folder in which a soak is played."""
_ANSWER_S = 5.0
_REST_S = 80.0
"""Time at rest before what processes hold is read: longer than `limits.idle_connection`, so that connections to engines
are closed."""
_REST_READINGS, _REST_STEP_S = 20, 0.7
_WARM_S = 180.0
"""Duration of the load before the soak: by its end each process has opened what it keeps open, and a gateway and an
engine have been killed."""
_WHOLE_S = 60.0
_POLL_S = 1.0
_LATE_S = 600.0
"""Time that AIPerf may take beyond the load: it makes all prompts before."""
_SECOND_NS = 1_000_000_000


def play_soak(folder: Path, seconds: float, machine: Mapping[str, object], tell: Callable[[str], None]) -> None:
    """Play a soak and keep what comes of it in the folder, in place of an earlier one once it has been played. Raises
    DemoFailure where AIPerf is not installed, and where the mesh cannot be started or a process ends by itself."""
    program = AIPERF.program(ENVIRONMENTS)
    if program is None:
        raise DemoFailure(f"{AIPERF.name} is needed: {AIPERF.why_absent(ENVIRONMENTS)}")
    where = (folder / _PLAYED).absolute()
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    try:
        kept = asyncio.run(_play(where, program, seconds, machine, tell))
    except* DemoFailure as failures:
        reasons = [str(each) for each in leaves(failures)]
    else:
        keep_soak(kept, where, folder / SOAK)
        return
    raise DemoFailure("\n".join(reasons))


def keep_soak(kept: KeptSoak, played: Path, place: Path) -> None:
    """Keep a soak with the files in the folder where it was played, which replaces the folder of an earlier one."""
    (played / SOAK_KEPT).write_text(json.dumps(asdict(kept)), encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)
    played.rename(place)


async def _play(
    folder: Path, program: Path, seconds: float, machine: Mapping[str, object], tell: Callable[[str], None]
) -> KeptSoak:
    scenario = replace(scenario_in(folder), sections=BOUNDS)
    places = {**files_in(folder, scenario.model), "model": scenario.model}
    for name in ("mesh", _WARM):
        (folder / name).mkdir()
    async with asyncio.TaskGroup() as tasks:
        version = (await versions_of(folder, {AIPERF.name: program}, tasks))[AIPERF.name]
        async with running_fleet(scenario, folder / "mesh", tasks) as mesh:
            places |= dict(zip(("us", "eu", "ap"), (each.url for each in mesh.gateways.values()), strict=True))

            async def load(played: SoakPlay, load_s: float, out: Path) -> ToolEnd:
                """Run AIPerf for so long, and kill meanwhile."""
                named = {**places, "seconds": f"{load_s:g}", "out": out}
                command = [str(program), *(each.format_map(named) for each in SOAK_ARGUMENTS.split())]
                async with asyncio.TaskGroup() as loading:
                    kills = plan_kills(load_s, played.mortal, [*mesh.engines])
                    loading.create_task(played.follow(load_s, kills))
                    end = await run_tool(command, out, load_s + _LATE_S, tasks, folder / HUB)
                    played.load_ended.set()
                return end

            tell(f"A load of {_WARM_S:.0f} s comes first, of which nothing is kept.")
            warm = SoakPlay(mesh, scenario, tell)
            await load(warm, _WARM_S, folder / _WARM)
            shutil.rmtree(folder / _WARM)  # a report is looked for in all of the folder
            before = await warm.at_rest()
            played = SoakPlay(mesh, scenario, tell, before=warm.lives)
            end = await load(played, seconds, folder)
            after = await played.at_rest()
    return KeptSoak(
        seconds, version, machine, shown_command(AIPERF, SOAK_ARGUMENTS), end.status, played.began_ns, end.took_s,
        played.kills, played.processes, played.loads, played.ends, [*mesh.gateways], (before, after),
    )  # fmt: skip


@dataclass(slots=True)
class SoakPlay:
    """Kills and samples of one soak, from AIPerf's first answer on."""

    mesh: LongMesh
    scenario: DemoScenario
    tell: Callable[[str], None]
    kills: list[SoakKill] = field(default_factory=list)
    processes: list[ProcessSample] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    before: Mapping[tuple[str, int], Counter[str]] = field(default_factory=dict)
    """Ends of requests that are not the soak's, by gateway and PID."""
    load_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once AIPerf has ended."""
    down_s: float = DOWN_S
    _clock: Clock = field(default_factory=Clock)
    lives: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)
    """Ends of requests since the soak began, by gateway and PID."""
    _down: str = ""
    """Process that is killed, or not yet ready again."""
    began_ns: int = 0
    """Wall time at which the first answer was seen; 0 before it."""

    @property
    def mortal(self) -> str:
        """Gateway that is killed."""
        return next(name for name, each in self.mesh.gateways.items() if each.region == self.scenario.killed)

    @property
    def ends(self) -> dict[str, dict[str, int]]:
        found: dict[str, Counter[str]] = {}
        for (name, _), ends in self.lives.items():
            found.setdefault(name, Counter()).update(ends)
        return {name: dict(each) for name, each in found.items()}

    @property
    def _now_s(self) -> float:
        return (self._clock.wall_ns() - self.began_ns) / _SECOND_NS

    async def at_rest(self) -> dict[str, int]:
        """Descriptors of each process, once the mesh has been at rest for a while: the fewest of some readings, since
        probes of engines open and close a few, and so do readings of metrics."""
        await asyncio.sleep(_REST_S)
        await self._read_gateways()
        fewest: dict[str, int] = {}
        for _ in range(_REST_READINGS):
            await asyncio.sleep(_REST_STEP_S)
            fewest |= {
                each.name: min(each.descriptors, fewest.get(each.name, each.descriptors)) for each in self._held()
            }
        return fewest

    async def follow(self, seconds: float, kills: list[PlannedKill]) -> None:
        """Sample and kill, from the first answer on, until so many seconds are over or AIPerf has ended: a process that
        was killed by then is still waited for."""
        while not any(ends[COMPLETED] for ends in self.lives.values()):
            if await self._ends_within(_POLL_S):
                return
            await self._read_gateways()
        self.began_ns = self._clock.wall_ns()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample(seconds))
            tasks.create_task(self._strike(seconds, kills))

    async def _ends_within(self, seconds: float) -> bool:
        """Wait for so long, or until AIPerf has ended; True if it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.load_ended.wait()
        return self.load_ended.is_set()

    async def _sample(self, seconds: float) -> None:
        while self._now_s < seconds:
            self.processes.extend(self._held())
            self.loads.append(os.getloadavg()[0])
            await self._read_gateways()
            if await self._ends_within(SAMPLE_S):
                return

    def _held(self) -> list[ProcessSample]:
        watched = {**self.mesh.gateways, CONTROLLER: self.mesh.controller}
        found = [
            read_process(self._now_s, name, each.child.pid) for name, each in watched.items() if name != self._down
        ]
        return [each for each in found if each is not None]

    async def _read_gateways(self) -> None:
        """Note by what ends each gateway's requests have ended."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
            for name, gateway in self.mesh.gateways.items():
                pid = gateway.child.pid
                try:
                    async with session.get(f"{gateway.admin}/metrics") as response:
                        ends = ends_in([await response.text()])
                except (aiohttp.ClientError, TimeoutError):  # the gateway is down, or was killed meanwhile
                    continue
                self.lives[name, pid] = ends - self.before.get((name, pid), Counter())

    async def _strike(self, seconds: float, planned: list[PlannedKill]) -> None:
        for each in planned:
            if await self._ends_within(max(0.0, each.at_s - self._now_s)) or self._now_s >= seconds:
                return
            await self._kill(each)

    async def _kill(self, planned: PlannedKill) -> None:
        name, process = planned.name, self.mesh.processes[planned.name]
        self._down, killed_ns = name, self._clock.wall_ns()
        await process.child.kill()
        dead_ns = self._clock.wall_ns()
        await asyncio.sleep(self.down_s)
        await process.start()
        is_ready = await _is_ready(process)
        ready_ns, self._down = self._clock.wall_ns(), ""
        is_whole = is_ready and await self.mesh.becomes_whole(process, _WHOLE_S)
        whole_ns = self._clock.wall_ns() if is_whole else None
        gateways = [*self.mesh.gateways]
        address = gateways.index(name) if name in gateways else None
        self.kills.append(SoakKill(name, killed_ns, dead_ns, ready_ns, whole_ns, address, is_ready))
        ready = f"{'ready' if is_ready else 'not ready'} after {(ready_ns - killed_ns) / _SECOND_NS:.1f} s"
        self.tell(f"{planned.at_s:.0f} s: {name} killed; {ready}")


async def _is_ready(process: RestartedProcess) -> bool:
    """Wait until the process is ready; False if it takes longer than a start may."""
    try:
        await process.until_ready()
    except DemoFailure:
        return False
    return True
