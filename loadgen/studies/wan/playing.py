"""Plays each fault against a running mesh on hosts of its own, and gathers what clients, gateways and the watch have
recorded. It judges nothing by itself.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import yaml

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import GatewayId, RegionName
from gateway.policy.file import load_policy
from gateway.records.audit import AuditLine, AuditRecord
from loadgen.demo.mesh import Mesh, running_mesh
from loadgen.demo.processes import OUR_MODULES, Child, DemoFailure, running_child
from loadgen.demo.region_files import write_table
from loadgen.demo.scenario import TABLE, DemoScenario, RegionScenario
from loadgen.hosts.namespaces import HostsUnavailable
from loadgen.hosts.supervised import RESTART_S, RESTARTED
from loadgen.hosts.wire_process import WireCounts
from loadgen.interrupts import ends_by_signal, leaves
from loadgen.round_trips import read_round_trips
from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.wan.client_process import STARTED, SdkClientSettings
from loadgen.studies.wan.effects import RegionTraces, missing_traces, unfelt
from loadgen.studies.wan.excuses import FaultTimes, excuse_of
from loadgen.studies.wan.faults import REGIONS, STANDBY, Loss, WanFault, base_links, clients_of
from loadgen.studies.wan.histories import first_answer_s, led_away, overlaps, ran_twice, taken_in, violations
from loadgen.studies.wan.hosts import DRAIN_S, OWN_FOLDER, WanHosts, running_hosts
from loadgen.studies.wan.outcomes import (
    NAME_ATTEMPTS,
    NAME_TIMEOUT_S,
    OVERLAP_S,
    PROMPT_BYTES,
    RECONNECT_S,
    SLOTS,
    TIMEOUT_S,
    UNWRITTEN_S,
    USERS,
    WARM_S,
    FaultOutcome,
    PhaseSeen,
    PlayedFaults,
)
from loadgen.studies.wan.records import read_audit, read_calls
from loadgen.studies.wan.watch import MeshSeen, MeshWatch, first_seen, is_home, is_whole, longest, losses_after
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_START_S = 60.0
_RETURN_S = 45.0
"""Longest wait for the mesh to be whole again once links are sound."""
_AFTER_S = 6.0
"""Time for which clients continue after that."""
_LOOKS_S = 3.0
"""Time for looks at each gateway after the last moment that is judged."""
_PAUSE_S = 0.1
_ANSWER_TOKENS = 24
_ENGINES = (1, 2, 2)


async def play_fault(fault: WanFault, kept: Path | None) -> FaultOutcome:
    """Play a fault once. Its files are in the new folder `kept`, if there is one. Raises DemoFailure and
    HostsUnavailable, also in groups."""
    with tempfile.TemporaryDirectory(prefix="nightside-wan-") as temporary:
        folder = Path(temporary) / "run" if kept is None else kept
        folder.mkdir(parents=True)
        recorded = _RecordedFault(fault, folder)
        scenario = _scenario(folder)
        sound = base_links(read_round_trips(scenario.round_trips_file))
        async with asyncio.TaskGroup() as tasks, running_hosts(fault, sound, folder, tasks) as hosts:
            write_table(scenario.regions, {region: hosts.network.network(str(region)) for region in REGIONS})
            further = int(fault.stops_gateway)
            async with running_mesh(
                scenario, OverflowMode.ON, folder, tasks, further_gateways=further, hosts=hosts.hosts
            ) as mesh:
                hosts.lead_to(mesh)
                await recorded.play(mesh, hosts, scenario, tasks)
        return recorded.outcome(scenario)


_Play = Callable[[WanFault, Path | None], Awaitable[FaultOutcome]]


def play_faults(
    faults: Sequence[WanFault],
    rounds: int,
    tell: Callable[[str], None],
    keep: Path | None = None,
    play: _Play = play_fault,
) -> PlayedFaults:
    """Play all faults, until a signal ends the run. One that could not be played, such as on a machine too busy to
    start a mesh in time, is played again, and then holds up no other. With `keep`, the files of each run are in a new
    folder there."""
    clock, played = Clock(), PlayedFaults()
    for number in range(1, rounds + 1):
        for fault in faults:
            began_ns = clock.now_ns()
            try:
                folders = [_folder_in(keep, fault, run) for run in (f"{number}", f"{number}-again")]
                played.is_interrupted = _played(partial(play, fault), folders, tell, played.outcomes)
            except DemoFailure as failure:
                played.unplayed.append(f"{fault.name} could not be played: {failure}")
                tell(f"round {number} of {rounds}: {played.unplayed[-1]}")
                continue
            if played.is_interrupted:
                return played
            took_s = (clock.now_ns() - began_ns) / _SECOND_NS
            outcome = played.outcomes[-1]
            during = outcome.phases["during"]
            tell(
                f"round {number} of {rounds}: {fault.name}: {took_s:.0f} s, {len(during.failures)} of"
                f" {during.requests} failed, {len(outcome.violations)} violations"
            )
    return played


def _played(
    play: Callable[[Path | None], Awaitable[FaultOutcome]],
    folders: Sequence[Path | None],
    tell: Callable[[str], None],
    outcomes: list[FaultOutcome],
) -> bool:
    """Play a fault in the first folder that it can be played in, and append its outcome; returns True if a signal ended
    it first. Raises DemoFailure."""
    *earlier, last = folders
    for folder in earlier:
        try:
            return _played_once(play(folder), outcomes)
        except DemoFailure as failure:
            tell(f"a fault could not be played, and is played again: {failure}")
    return _played_once(play(last), outcomes)


def _folder_in(keep: Path | None, fault: WanFault, run: str) -> Path | None:
    """Folder of one run of a fault: its files are never among those of another."""
    return None if keep is None else keep / f"{fault.name.replace(' ', '-')}-{run}"


def _played_once(playing: Awaitable[FaultOutcome], outcomes: list[FaultOutcome]) -> bool:
    """Play a fault, and append its outcome; returns True if a signal ended it first. Raises DemoFailure."""

    async def play() -> None:
        outcomes.append(await playing)

    try:
        return asyncio.run(ends_by_signal(play()))
    except* (DemoFailure, HostsUnavailable) as failures:
        reasons = [str(each) for each in leaves(failures)]
    raise DemoFailure("; ".join(reasons))


class _RecordedFault:
    """One fault, and all that was recorded while it was played."""

    def __init__(self, fault: WanFault, folder: Path) -> None:
        self._fault = fault
        self._folder = folder
        self._clock = Clock()
        self._began_ns = self._struck_ns = self._healed_ns = 0
        self._wall_s = self._clock.wall_ns() / _SECOND_NS
        self._home: Mapping[GatewayId, frozenset[str]] = {}
        self._seen: list[MeshSeen] = []
        self._whole_s: float | None = None
        self._counts: WireCounts | None = None
        self._gateways: dict[GatewayId, RegionName] = {}

    async def play(self, mesh: Mesh, hosts: WanHosts, scenario: DemoScenario, tasks: asyncio.TaskGroup) -> None:
        self._gateways = {name: each.region for name, each in mesh.members.items()}
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(hosts.network.session())
            watch = MeshWatch(mesh, session, self._clock, REGIONS[0], STANDBY, self._seen)
            watching = tasks.create_task(watch.run())
            stack.callback(watching.cancel)
            clients = [
                await stack.enter_async_context(self._clients(mesh, hosts, scenario, number, tasks))
                for number in range(len(REGIONS))
            ]
            await self._until_started(clients)
            await asyncio.sleep(WARM_S)
            home = self._home = await self._until_home()
            self._began_ns = self._clock.now_ns()
            struck = await hosts.strike(self._fault, mesh, self._file_of)
            self._struck_ns = self._clock.now_ns()
            await asyncio.sleep(self._fault.seconds)
            healed = await hosts.heal(self._fault)
            self._healed_ns = self._clock.now_ns()
            if reasons := [*unfelt(self._fault, hosts.sound, struck, healed)]:
                raise DemoFailure(f"its links were not as they should be: {'; '.join(reasons)}")
            await self._until_whole(home)
            await asyncio.sleep(_AFTER_S)
            await self._until_judged()
            self._counts = await hosts.network.counts()
            for each in clients:
                await each.stop(TIMEOUT_S + 5.0)

    async def _until_started(self, clients: Sequence[Child]) -> None:
        """Wait until all clients ask. Raises DemoFailure on time-out."""
        try:
            async with asyncio.timeout(_START_S):
                for each in clients:
                    while STARTED.encode() not in each.log.read_bytes():  # noqa: ASYNC110 - other processes
                        await asyncio.sleep(0.1)
        except TimeoutError:
            raise DemoFailure(f"the clients did not start within {_START_S:.0f} s") from None

    async def _until_home(self) -> Mapping[GatewayId, frozenset[str]]:
        """Wait until the mesh is whole and the first controller alone leads, and return what each gateway serves then.
        Raises DemoFailure on time-out."""

        def is_ready(seen: MeshSeen) -> bool:
            return is_home(seen, self._gateways) and seen.leaders == {REGIONS[0]}

        try:
            async with asyncio.timeout(_START_S):
                while not is_ready(self._seen[-1]):  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise DemoFailure(f"the mesh was not whole within {_START_S:.0f} s before it began") from None
        return self._seen[-1].replicas

    @property
    def _sound_ns(self) -> int:
        """Time from which on owners are held against the stated overlap."""
        return self._healed_ns + round(RECONNECT_S * _SECOND_NS)

    async def _until_judged(self) -> None:
        """Wait until an overlap of owners would have been too long, and each gateway was seen after that."""
        until_ns = self._sound_ns + round((OVERLAP_S + _LOOKS_S) * _SECOND_NS)
        while self._clock.now_ns() < until_ns:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.1)

    async def _until_whole(self, home: Mapping[GatewayId, frozenset[str]]) -> None:
        def holds(seen: MeshSeen) -> bool:
            return is_whole(seen, home)

        try:
            async with asyncio.timeout(_RETURN_S):
                while first_seen(self._seen[-1:], self._healed_ns + _SECOND_NS, holds) is None:  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return
        self._whole_s = _last_change(self._seen, self._healed_ns, holds)

    def _clients(
        self, mesh: Mesh, hosts: WanHosts, scenario: DemoScenario, number: int, tasks: asyncio.TaskGroup
    ) -> AbstractAsyncContextManager[Child]:
        assert mesh.name is not None, "there is a controller"
        region = REGIONS[number]
        runner = (*hosts.network.command(clients_of(region)), *OUR_MODULES)
        settings = SdkClientSettings(
            region, mesh.name.url, str(scenario.model), self._name_servers(mesh, hosts, region),
            NAME_TIMEOUT_S, mesh.name.networks[region], USERS[number], _ANSWER_TOKENS, TIMEOUT_S, _PAUSE_S,
            PROMPT_BYTES, TIMEOUT_S, str(self._log(region)),
        )  # fmt: skip
        file = self._folder / f"clients-{region}.json"
        file.write_bytes(msgspec.json.encode(settings))
        return running_child(
            f"the clients of {region}", ["loadgen.studies.wan.client_process", str(file)],
            self._folder / f"clients-{region}.log", tasks, runner=runner,
        )  # fmt: skip

    def _name_servers(self, mesh: Mesh, hosts: WanHosts, region: RegionName) -> tuple[tuple[str, int], ...]:
        """Name servers that the region's clients ask: the region's own, or the mesh's where the name has two addresses,
        whose order theirs would not keep."""
        if not self._fault.stops_gateway:
            return (hosts.name_server(region),) * NAME_ATTEMPTS
        assert mesh.name is not None, "there are controllers"
        own = mesh.first_of(region).host
        return tuple(sorted(mesh.name.servers, key=lambda server: server[0] != own))

    def _file_of(self, region: RegionName) -> Path:
        """Configuration file of the region's gateway."""
        return self._folder / f"{region}.yaml"

    def _log(self, region: RegionName) -> Path:
        return self._folder / f"calls-{region}.jsonl"

    def outcome(self, scenario: DemoScenario) -> FaultOutcome:
        """Sum of the records, once all processes have ended."""
        calls, found = read_calls({region: self._log(region) for region in REGIONS})
        policies = {str(each.name): load_policy(each.policy_file) for each in scenario.regions}
        records, faults = read_audit(self._folder / "hosts", policies)
        owners = [each.owners for each in self._seen]
        self._check_traces(calls, records)
        found += faults
        unwritten_ns = self._began_ns - round(UNWRITTEN_S * _SECOND_NS), self._struck_ns + round(RESTART_S * _SECOND_NS)
        found += violations(
            calls, records, owners, gateways=self._gateways, sound_ns=self._sound_ns,
            overlap_max_ns=round(OVERLAP_S * _SECOND_NS), killed=self._own_gateways() if self._fault.kills else (),
            unwritten_ns=unwritten_ns,
        )  # fmt: skip
        struck = self._fault.struck
        began_ns, healed_ns = self._began_ns, self._healed_ns
        assert self._counts is not None, "it was played"
        return FaultOutcome(
            self._fault.name,
            {
                "before": _phase(each for each in calls if each.left_ns < began_ns),
                "during": self._during(calls),
                "after": _phase(each for each in calls if each.left_ns >= healed_ns),
            },
            self._during([each for each in calls if each.region == struck]),
            led_away(calls, struck, self._gateways, began_ns, healed_ns),
            first_answer_s(calls, struck, {name for name, each in self._gateways.items() if each != struck}, began_ns),
            first_answer_s(calls, struck, {name for name, each in self._gateways.items() if each == struck}, healed_ns),
            {_words(loss): at_s for loss, at_s in losses_after(self._seen, began_ns, healed_ns).items()},
            self._down(),
            first_seen(self._seen, began_ns, lambda each: bool(each.leaders - {REGIONS[0]})),
            longest(self._seen, began_ns, lambda each: len(each.leaders) > 1),
            self._reassigned(),
            self._certificates_refused(),
            self._restarts(),
            sum(self._is_excused(each) for each in calls),
            self._whole_s,
            max((each / _SECOND_NS for each, _ in overlaps(owners, healed_ns).values()), default=0.0),
            ran_twice(records),
            tuple(map(str, found)),
            len(records),
            taken_in(records),
            sum(each.carried for each in self._counts.directions),
            sum(each.lost for each in self._counts.directions),
            self._counts.late,
            self._counts.late_max_ms,
        )

    def _during(self, calls: Sequence[SdkCall]) -> PhaseSeen:
        return _phase(each for each in calls if self._began_ns <= each.left_ns < self._healed_ns)

    def _is_excused(self, call: SdkCall) -> bool:
        times = FaultTimes(self._began_ns, self._struck_ns, self._healed_ns)
        has_failed = bool(call.fault) or call.ended_ns is None
        return has_failed and excuse_of(call, self._fault, times, self._own_gateways()) is not None

    def _own_gateways(self) -> set[GatewayId]:
        return {name for name, each in self._gateways.items() if each == self._fault.struck}

    def _reassigned(self) -> int:
        """Looks at which a gateway that answered served other replicas than before."""
        return sum(
            any(replicas != self._home[name] for name, replicas in each.replicas.items())
            for each in self._seen
            if self._began_ns <= each.at_ns < self._healed_ns
        )

    def _restarts(self) -> int:
        kinds = ["gateway-*.log", "engines-*.log"]
        kinds += [] if self._fault.restarts_controllers else ["controller*.log"]
        return sum(self._logged(RESTARTED, kind) for kind in kinds)

    def _certificates_refused(self) -> int:
        return self._logged('"event":"peer_certificate_refused"', "gateway-*.log")

    def _logged(self, words: str, logs: str) -> int:
        """Times that the words are in these logs."""
        return sum(log.read_bytes().count(words.encode()) for log in self._folder.glob(logs))

    def _check_traces(self, calls: Sequence[SdkCall], records: Sequence[AuditRecord]) -> None:
        """Raises DemoFailure if the region struck has recorded nothing of the fault."""
        region, log = self._fault.struck, f"gateway-{self._fault.struck}.log"
        times = [
            abs(datetime.fromisoformat(each.time).timestamp() - self._wall_s)
            for each in records
            if isinstance(each, AuditLine) and each.gateway in self._own_gateways()
        ]
        ready = [line for line in (self._folder / log).read_text().splitlines() if '"event":"ready"' in line]
        waiting = [
            each
            for each in calls
            if each.region == region
            and each.left_ns < self._began_ns
            and (each.ended_ns is None or each.ended_ns > self._began_ns)
        ]
        traces = RegionTraces(
            max(times, default=0.0),
            self._logged('"event":"peer_certificate_refused"', log),
            self._logged(RESTARTED, log),
            len({msgspec.json.decode(line)["clients"] for line in ready}),
            sum(each.gateway in self._own_gateways() or not each.gateway for each in waiting),
        )
        if reasons := [*missing_traces(self._fault, traces)]:
            raise DemoFailure(f"{region} did not feel it: {'; '.join(reasons)}")

    def _down(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for each in self._seen:
            if self._began_ns <= each.at_ns < self._healed_ns:
                for region in each.down or ():
                    found.setdefault(str(region), (each.at_ns - self._began_ns) / _SECOND_NS)
        return found


def _last_change(seen: Sequence[MeshSeen], since_ns: int, holds: Callable[[MeshSeen], bool]) -> float:
    """Seconds from `since_ns` until the condition has held up to the last look."""
    since = since_ns
    for each in reversed(seen):
        if each.at_ns < since_ns or not holds(each):
            break
        since = each.at_ns
    return (since - since_ns) / _SECOND_NS


def _words(loss: Loss) -> str:
    return f"{loss[0]} of {loss[1]}"


def _phase(calls: Iterator[SdkCall]) -> PhaseSeen:
    found = list(calls)
    waits = sorted((each.first_ns - each.left_ns) / _SECOND_NS for each in found if each.first_ns is not None)
    failures = tuple(each.fault for each in found if each.fault and each.ended_ns is not None)
    return PhaseSeen(len(found), failures, sum(each.ended_ns is None for each in found), tuple(waits))


def _scenario(folder: Path) -> DemoScenario:
    """The demo's regions, policies and round trips, with few engines, and an audit log for each gateway."""
    demo = DemoScenario()
    policies = folder / "policies"
    policies.mkdir(exist_ok=True)
    regions = []
    for number, each in enumerate(demo.regions):
        document = yaml.safe_load(each.policy_file.read_text())
        (policies / each.policy_file.name).write_text(yaml.safe_dump({**document, "regions": TABLE}))
        regions.append(
            RegionScenario(
                each.place,
                USERS[number],
                engines=_ENGINES[number],
                slots=SLOTS,
                policies=policies,
                location=each.location,
            )
        )
    sections = {
        "insecure": True, "audit": {"folder": str(OWN_FOLDER / "audit")}, "limits": {"drain": f"{DRAIN_S:g}s"},
    }  # fmt: skip
    return DemoScenario(regions=tuple(regions), sections=sections)
