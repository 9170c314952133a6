"""Plays hours of a recorded day, sixty times as fast, against running regions in which faults come at random, and
samples what their processes hold. It judges nothing.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.core.vocabulary import RegionName
from loadgen.demo.members import RestartedProcess
from loadgen.demo.mesh import NamedMesh
from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import CONTROLLER
from loadgen.demo.scenario import DemoScenario, RegionScenario
from loadgen.demo.story import closed_regions
from loadgen.interrupts import leaves
from loadgen.live_client import EndpointDialect
from loadgen.live_runner import LiveRunner, LoadPlan
from loadgen.load.plan import Keys, LiveLimits, plan_of
from loadgen.names import NameResolver
from loadgen.report import RequestReport
from loadgen.simulator.scenario import Scenario, parse_scenario
from loadgen.studies.batches.day import SHIFT_HOURS
from loadgen.studies.long.faults import LongFaultKind, LongFaultPlayed, PlannedFault, plan_faults, targets_of
from loadgen.studies.long.flatness import ProcessSample, StoredSample
from loadgen.studies.long.fleet import LongMesh, running_fleet
from loadgen.studies.long.sampling import RequestLines, largest_bytes, read_process, stored_bytes
from loadgen.traces.files import TraceError
from mesh.clock import Clock
from mesh.faults import ConfigError

SPEED = 60
HOURS = 8
FROM_HOURS = 96.0 + 8.0
"""Begin of the hours in the recording: a Tuesday at eight o'clock."""
CURVE = "azure2024_digitised/code_hourly.csv"
MEAN_PER_S = 0.75
"""Conversations that begin in a second in each region, on average over the recording."""
ENGINES = 2
SLOTS = 24
SEED = 1
DRAIN_S = 30.0
SAMPLE_S = 2.0
BOUNDS: Mapping[str, Mapping[str, object]] = {
    "decisions": {"requests_max": 200},
    "placement": {"prefix_index_max": "1MiB"},
}
"""Bounds of what a gateway remembers, set so that they are reached within a quarter of the run."""
JOURNAL = {"file_max": "256KiB", "files_max": 8}
WARM_UP_S = 30.0
"""Time of load before the run, after which processes are compared: one that has never served holds less."""
REST_S = 15.0
"""Time before the first request and after the last, in which connections that are idle are closed."""
WHOLE_S = 45.0
"""Longest wait after a fault until all is whole again."""
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LongRecord:
    """All that one run has left."""

    seconds: float
    records: list[RequestReport]
    faults: list[LongFaultPlayed] = field(default_factory=list)
    processes: list[ProcessSample] = field(default_factory=list)
    stored: list[StoredSample] = field(default_factory=list)
    before: list[ProcessSample] = field(default_factory=list)
    """Processes at rest after the warm-up, before the first request of the run."""
    after: list[ProcessSample] = field(default_factory=list)
    """Processes at rest after the last."""
    planned: int = 0
    """Number of faults that were to be played."""
    took_s: float = 1.0
    """Time from the start of the first process to the end of the last."""
    cpu_s: float = 0.0
    """CPU time of all processes of the run, its load included."""
    spared: Sequence[str] = ()
    """Processes that no fault kills."""


def play_long(seconds: float, curve: Path, tell: Callable[[str], None], keep: Path | None = None) -> LongRecord:
    """Play the load for some seconds of real time, after a warm-up. Files of all processes are in `keep`, if it is
    given, and go with the run otherwise. Raises DemoFailure, and ConfigError if the curve cannot be read."""
    load, warm_up = _load(seconds, curve), _load(WARM_UP_S, curve)
    clock = Clock()
    began_ns, began_s = clock.now_ns(), _cpu_s()

    async def play() -> LongRecord:
        with tempfile.TemporaryDirectory(prefix="nightside-long-") as temporary:
            where = Path(temporary) if keep is None else keep
            where.mkdir(parents=True, exist_ok=True)
            scenario = _scenario(where)
            async with asyncio.TaskGroup() as tasks, running_fleet(scenario, where, tasks) as mesh:
                alone = _regions_of_one(scenario)
                return await _Played(mesh, where, seconds, load, tell, regions_of_one=alone).record(warm_up)

    try:
        record = asyncio.run(play())
        return replace(record, took_s=(clock.now_ns() - began_ns) / _SECOND_NS, cpu_s=_cpu_s() - began_s)
    except* (DemoFailure, ConfigError, TraceError, OSError) as failures:
        reasons = [str(each) for each in leaves(failures)]
    raise DemoFailure("\n".join(reasons))


def _cpu_s() -> float:
    """CPU time of this process and of its children that have ended, in seconds."""
    own, system, children, children_system, _ = os.times()
    return own + system + children + children_system


class _Played:
    def __init__(
        self,
        mesh: LongMesh,
        folder: Path,
        seconds: float,
        load: Scenario,
        tell: Callable[[str], None],
        *,
        regions_of_one: Container[str],
    ) -> None:
        self._mesh = mesh
        self._folder = folder
        self._tell = tell
        self._clock = Clock()
        self._runner = LiveRunner(_plan(load, mesh.name, self._clock), clock=self._clock)
        self._record = LongRecord(seconds, self._runner.records)
        self._began_ns = self._clock.now_ns()
        self._regions_of_one = regions_of_one
        self._starting = ""
        """Process that is not up, or not yet ready."""

    async def record(self, warm_up: Scenario) -> LongRecord:
        mesh, record = self._mesh, self._record
        regions = [str(each) for each in mesh.name.networks]
        gateways = [*mesh.gateways]
        spared = gateways[0]
        targets = targets_of(gateways, [*mesh.engines], CONTROLLER, regions, spared)
        planned = plan_faults(record.seconds, SEED, targets)
        await LiveRunner(_plan(warm_up, mesh.name, self._clock), clock=self._clock).run()
        await asyncio.sleep(REST_S)
        record.before.extend(self._processes())
        async with asyncio.TaskGroup() as tasks:
            self._began_ns = self._clock.now_ns()
            tasks.create_task(self._runner.run())
            tasks.create_task(self._sample())
            tasks.create_task(self._strike(planned))
        await asyncio.sleep(REST_S)
        record.after.extend(self._processes())
        return replace(record, planned=len(planned), spared=(spared, CONTROLLER))

    @property
    def _now_s(self) -> float:
        return (self._clock.now_ns() - self._began_ns) / _SECOND_NS

    async def _sample(self) -> None:
        folder, lines = self._folder, {name: RequestLines() for name in self._mesh.gateways}
        kinds = {
            "state's databases": (folder / "state", "*.sqlite"),
            "controller's database": (folder / "controller", "*.db"),
            "journals": (folder / "journal", "**/*"),
            "audit logs": (folder / "audit", "*"),
            "gateways' logs": (folder, "gateway-*.log"),
        }
        logs = {
            "state's largest write-ahead log": (folder / "state", "*-wal"),
            "controller's write-ahead log": (folder / "controller", "*-wal"),
        }
        while self._now_s < self._record.seconds:
            self._record.processes.extend(self._processes())
            requests = {name: each.count(folder.glob(f"gateway-{name}.log")) for name, each in lines.items()}
            stored = {**stored_bytes(kinds), **largest_bytes(logs)}
            self._record.stored.append(StoredSample(self._now_s, stored, sum(requests.values()), requests))
            await asyncio.sleep(SAMPLE_S)

    def _processes(self) -> list[ProcessSample]:
        watched = {**self._mesh.gateways, CONTROLLER: self._mesh.controller}
        found = [
            read_process(self._now_s, name, each.child.pid) for name, each in watched.items() if name != self._starting
        ]
        return [each for each in found if each is not None]

    async def _strike(self, planned: list[PlannedFault]) -> None:
        for fault in planned:
            await asyncio.sleep(max(0.0, fault.at_s - self._now_s))
            began_s = self._now_s
            if began_s >= self._record.seconds:
                return
            process = self._mesh.processes.get(fault.target)
            if process is None:
                await self._cut(fault)
            else:
                await self._end_or_halt(fault, process)
            is_whole = await self._mesh.becomes_whole(process, WHOLE_S)
            self._starting = ""
            region = self._region(fault)
            address = next((each.host for each in self._mesh.gateways.values() if each.region == region), "")
            is_only_one = region in self._regions_of_one
            played = LongFaultPlayed(fault, began_s, self._now_s, region, is_only_one, is_whole, address)
            self._record.faults.append(played)
            whole = f"whole after {played.over_s - began_s:.1f} s" if is_whole else f"not whole after {WHOLE_S:.0f} s"
            self._tell(f"{began_s:.0f} s: {fault.kind}: {fault.target}; {whole}")

    def _region(self, fault: PlannedFault) -> str:
        """Region of the gateway or of the links that the fault strikes; empty for any other."""
        gateway = self._mesh.gateways.get(fault.target)
        if gateway is not None:
            return str(gateway.region)
        return fault.target if fault.kind is LongFaultKind.CUT else ""

    async def _end_or_halt(self, fault: PlannedFault, process: RestartedProcess) -> None:
        if not fault.kind.is_kill:
            process.child.halt()
            await asyncio.sleep(fault.lasts_s)
            process.child.go_on()
            return
        self._starting = fault.target
        await process.child.kill()
        await asyncio.sleep(fault.lasts_s)
        await process.start()

    async def _cut(self, fault: PlannedFault) -> None:
        target = RegionName(fault.target)
        others = [each for each in self._mesh.name.networks if each != target]
        for each in others:
            self._mesh.wan.cut(target, each)
        await asyncio.sleep(fault.lasts_s)
        for each in others:
            self._mesh.wan.heal(target, each)


def _scenario(folder: Path) -> DemoScenario:
    """The demo's regions with few engines, an audit log and a journal, and small bounds."""
    demo = DemoScenario()
    regions = tuple(
        RegionScenario(
            each.place, clients=0, engines=ENGINES, slots=SLOTS, location=each.location,
            sections={"journal": {"folder": str(folder / "journal" / each.name), **JOURNAL}},
        )
        for each in demo.regions
    )  # fmt: skip
    return DemoScenario(regions=regions, seed=SEED, sections={"audit": {"folder": str(folder / "audit")}, **BOUNDS})


def _regions_of_one(scenario: DemoScenario) -> frozenset[RegionName]:
    """Regions with one gateway whose policy admits none elsewhere for their clients."""
    closed = closed_regions(scenario)
    return frozenset(each.name for each in scenario.regions if each.gateways == 1 and each.name in closed)


def _load(seconds: float, curve: Path) -> Scenario:
    """Conversations at the recorded rates, in every region of the demo. Raises ConfigError if the curve cannot be
    read."""
    regions = [each.name for each in DemoScenario().regions]
    rates = {region: {"recorded": _rates(region, curve)} for region in regions}
    document: dict[str, Any] = {
        "name": "long",
        "seed": SEED,
        "duration": f"{seconds:g}s",
        "drain": f"{DRAIN_S:g}s",
        "round_trips": "../../demo/round_trips.csv",
        "regions": {str(region): {"jurisdiction": "-"} for region in regions},
        "workloads": {"people": {"conversations": {}}},
        "clients": [{"region": region, "workload": "people", "arrivals": each} for region, each in rates.items()],
    }
    return parse_scenario(document, Path(__file__).with_suffix(".yaml"))


def _plan(load: Scenario, name: NamedMesh, clock: Clock) -> LoadPlan:
    """The load, which every region's clients send to the mesh's one name."""
    urls = dict.fromkeys(name.networks, (name.url,))
    plan = plan_of(load, urls, Keys(), EndpointDialect(DemoScenario().model), LiveLimits(10_000))
    resolvers = {region: NameResolver(name.servers, network, clock) for region, network in name.networks.items()}
    return replace(plan, groups=tuple(replace(each, resolver=resolvers[each.region]) for each in plan.groups))


def _rates(region: RegionName, curve: Path) -> dict[str, object]:
    day_s = 24 * 3600 / SPEED
    shift = {"from_hours": FROM_HOURS, "shift_hours": SHIFT_HOURS[region]}
    return {"file": str(curve.resolve()), "day": f"{day_s:g}s", "mean": MEAN_PER_S, **shift}
