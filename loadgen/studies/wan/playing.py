"""Plays each fault against a running mesh on hosts of its own, and gathers what clients, gateways and the watch have
recorded. It judges nothing by itself.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import msgspec
import yaml

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import GatewayId, RegionName
from gateway.policy.file import load_policy
from gateway.records.audit import AuditRecord
from gateway.records.audit_cli import DECODER, Summary
from gateway.records.audit_files import SUFFIX, FileHeader
from gateway.records.audit_heads import SignedHead
from loadgen.demo.layout import RegionHost
from loadgen.demo.mesh import Hosts, Mesh, running_mesh
from loadgen.demo.processes import OUR_MODULES, Child, DemoFailure, running_child
from loadgen.demo.region_files import write_table
from loadgen.demo.scenario import TABLE, DemoScenario, RegionScenario
from loadgen.hosts.network import HostNetwork, host_network
from loadgen.hosts.shapes import LinkTable
from loadgen.hosts.wire_process import WireCounts
from loadgen.interrupts import ends_by_signal, leaves
from loadgen.round_trips import read_round_trips
from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.wan.client_process import STARTED, SdkClientSettings, read_calls
from loadgen.studies.wan.faults import REGIONS, Loss, WanFault, base_links, clients_of, sites
from loadgen.studies.wan.histories import HistoryViolation, overlaps, ran_twice, violations
from loadgen.studies.wan.outcomes import (
    OVERLAP_S,
    PROMPT_BYTES,
    RECONNECT_S,
    SLOTS,
    TIMEOUT_S,
    USERS,
    FaultOutcome,
    PhaseSeen,
)
from loadgen.studies.wan.watch import MeshSeen, MeshWatch, first_seen, is_whole, losses_after
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_WARM_S = 10.0
"""Time before a fault, in which each link learns how late the other end's signs of life are."""
_START_S = 60.0
_RETURN_S = 45.0
"""Longest wait for the mesh to be whole again once links are sound."""
_AFTER_S = 6.0
"""Time for which clients continue after that."""
_PAUSE_S = 0.1
_ANSWER_TOKENS = 24
_ENGINES = (1, 2, 2)


def play_faults(
    faults: Sequence[WanFault], rounds: int, tell: Callable[[str], None], keep: Path | None = None
) -> list[FaultOutcome]:
    """Play all faults. One that could not be played, such as on a machine too busy to start a mesh in time, is played
    again. Raises DemoFailure where that is in vain as well, and HostsUnavailable."""
    clock = Clock()
    outcomes: list[FaultOutcome] = []
    for number in range(rounds):
        for fault in faults:
            began_ns = clock.now_ns()
            try:
                outcome = _played(fault, keep)
            except DemoFailure as failure:
                tell(f"{failure}\nIt is played again.")
                outcome = _played(fault, keep)
            outcomes.append(outcome)
            took_s = (clock.now_ns() - began_ns) / _SECOND_NS
            during = outcomes[-1].phases["during"]
            tell(
                f"round {number + 1} of {rounds}: {fault.name}: {took_s:.0f} s, {len(during.failures)} of"
                f" {during.requests} failed, {len(outcomes[-1].violations)} violations"
            )
    return outcomes


def _played(fault: WanFault, keep: Path | None) -> FaultOutcome:
    try:
        return asyncio.run(_play_until_signal(fault, keep))
    except* DemoFailure as failures:
        reasons = [str(each) for each in leaves(failures)]
    raise DemoFailure("\n".join([f"{fault.name} could not be played:", *reasons]))


async def _play_until_signal(fault: WanFault, keep: Path | None) -> FaultOutcome:
    """Play the fault. A signal ends it, with all processes and hosts removed, by KeyboardInterrupt."""
    outcomes: list[FaultOutcome] = []

    async def play() -> None:
        outcomes.append(await _play(fault, keep))

    if await ends_by_signal(play()):
        raise KeyboardInterrupt
    return outcomes[0]


async def _play(fault: WanFault, keep: Path | None) -> FaultOutcome:
    with tempfile.TemporaryDirectory(prefix="nightside-wan-") as temporary:
        folder = Path(temporary) if keep is None else _folder_in(keep, fault.name)
        recorded = _RecordedFault(fault, folder)
        scenario = _scenario(folder)
        sound = base_links(read_round_trips(scenario.round_trips_file))
        async with host_network(sites(), sound) as network:
            write_table(scenario.regions, {region: network.network(str(region)) for region in REGIONS})
            hosts = Hosts({region: _host(network, region) for region in REGIONS}, network.session)
            async with asyncio.TaskGroup() as tasks:
                async with running_mesh(
                    scenario, OverflowMode.ON, folder, tasks, further_gateway=False, hosts=hosts
                ) as mesh:
                    await recorded.play(mesh, network, scenario, sound, tasks)
        return recorded.outcome(scenario)


def _folder_in(keep: Path, name: str) -> Path:
    """New folder for one run of a fault."""
    keep.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name.replace(' ', '-')}-", dir=keep))


def _host(network: HostNetwork, region: RegionName) -> RegionHost:
    site = str(region)
    clients = network.network(clients_of(region))
    return RegionHost(network.address(site), network.admin_address(site), clients, network.command(site))


class _RecordedFault:
    """One fault, and all that was recorded while it was played."""

    def __init__(self, fault: WanFault, folder: Path) -> None:
        self._fault = fault
        self._folder = folder
        self._clock = Clock()
        self._began_ns = self._healed_ns = 0
        self._seen: list[MeshSeen] = []
        self._whole_s: float | None = None
        self._counts: WireCounts | None = None

    async def play(
        self, mesh: Mesh, network: HostNetwork, scenario: DemoScenario, sound: LinkTable,
        tasks: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(network.session())
            watch = MeshWatch(mesh, session, self._clock, self._seen)
            watching = tasks.create_task(watch.run())
            stack.callback(watching.cancel)
            clients = [
                await stack.enter_async_context(self._clients(mesh, network, scenario, number, tasks))
                for number in range(len(REGIONS))
            ]
            await self._until_started(clients)
            await asyncio.sleep(_WARM_S)
            home = self._seen[-1].replicas
            await self._strike(network, sound)
            await asyncio.sleep(self._fault.seconds)
            await self._heal(network, sound)
            await self._until_whole(home)
            await asyncio.sleep(_AFTER_S)
            self._counts = await network.counts()
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

    async def _strike(self, network: HostNetwork, sound: LinkTable) -> None:
        fault = self._fault
        self._began_ns = self._clock.now_ns()
        if fault.frozen is not None:
            network.freeze(str(fault.frozen))
        await network.shape(fault.shaped(sound))
        if fault.forgets:
            await network.forget_connections(fault.forgets)

    async def _heal(self, network: HostNetwork, sound: LinkTable) -> None:
        if self._fault.frozen is not None:
            network.wake(str(self._fault.frozen))
        await network.shape(sound)
        self._healed_ns = self._clock.now_ns()

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
        self, mesh: Mesh, network: HostNetwork, scenario: DemoScenario, number: int, tasks: asyncio.TaskGroup
    ) -> AbstractAsyncContextManager[Child]:
        assert mesh.name is not None, "there is a controller"
        region = REGIONS[number]
        controller, *gateways = mesh.name.servers
        settings = SdkClientSettings(
            region, mesh.name.url, str(scenario.model), (gateways[number], *gateways, controller),
            mesh.name.networks[region], USERS[number], _ANSWER_TOKENS, TIMEOUT_S, _PAUSE_S, PROMPT_BYTES, TIMEOUT_S,
            str(self._log(region)),
        )  # fmt: skip
        file = self._folder / f"clients-{region}.json"
        file.write_bytes(msgspec.json.encode(settings))
        return running_child(
            f"the clients of {region}", ["loadgen.studies.wan.client_process", str(file)],
            self._folder / f"clients-{region}.log", tasks, runner=(*network.command(clients_of(region)), *OUR_MODULES),
        )  # fmt: skip

    def _log(self, region: RegionName) -> Path:
        return self._folder / f"calls-{region}.jsonl"

    def outcome(self, scenario: DemoScenario) -> FaultOutcome:
        """Sum of the records, once all processes have ended."""
        calls = {region: read_calls(self._log(region)) for region in REGIONS}
        every = [each for region in REGIONS for each in calls[region]]
        records, contradictions = _read_audit(self._folder / "audit", scenario)
        owners = [each.owners for each in self._seen]
        sound_ns = self._healed_ns + round(RECONNECT_S * _SECOND_NS)
        found = violations(every, records, owners, sound_ns=sound_ns, overlap_max_ns=round(OVERLAP_S * _SECOND_NS))
        found += [HistoryViolation("nothing outside policy", "a request", each) for each in contradictions]
        struck = self._fault.frozen or REGIONS[-1]
        during = self._during(every), self._during(calls[struck])
        began_ns = self._began_ns
        assert self._counts is not None, "it was played"
        return FaultOutcome(
            self._fault.name,
            {
                "before": _phase(each for each in every if each.left_ns < began_ns),
                "during": during[0],
                "after": _phase(each for each in every if each.left_ns >= self._healed_ns),
            },
            during[1],
            {_words(loss): at_s for loss, at_s in losses_after(self._seen, began_ns, self._healed_ns).items()},
            self._down(),
            self._whole_s,
            max((each / _SECOND_NS for each, _ in overlaps(owners, self._healed_ns).values()), default=0.0),
            ran_twice(records),
            tuple(map(str, found)),
            len(records),
            sum(bool(getattr(each, "origin_gateway", "")) for each in records),
            sum(each.carried for each in self._counts.directions),
            sum(each.lost for each in self._counts.directions),
            self._counts.late_max_ms,
        )

    def _during(self, calls: Sequence[SdkCall]) -> PhaseSeen:
        return _phase(each for each in calls if self._began_ns <= each.left_ns < self._healed_ns)

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


def _read_audit(folder: Path, scenario: DemoScenario) -> tuple[list[AuditRecord], list[str]]:
    """Records of all gateways, and where they contradict the regions' policies. Raises OSError, and DecodeError for a
    line that is not whole."""
    summary = Summary({str(each.name): load_policy(each.policy_file) for each in scenario.regions}, judges=True)
    records: list[AuditRecord] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        summary.read(path)
        for line in path.read_bytes().splitlines():
            record = DECODER.decode(line)
            if not isinstance(record, FileHeader | SignedHead):
                records.append(record)
    problems = [
        f"{each.request}: {each.problem}" for each in summary.shown if "said that it ran in" not in each.problem
    ]
    return records, problems


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
    sections = {"insecure": True, "audit": {"folder": str(folder / "audit")}}
    return DemoScenario(regions=tuple(regions), sections=sections)
