"""Defines and plays the failover cases: which gateways of which mesh die, and the measurements. One case at a time,
live."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import aiohttp

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName
from loadgen.demo.members import Member
from loadgen.demo.mesh import Mesh, running_mesh
from loadgen.demo.region_files import write_open_policies
from loadgen.demo.scenario import DemoScenario, RegionScenario
from loadgen.demo.watch import TTL_S, Cause, Death, Sightings, Watch
from loadgen.names import NameResolver
from loadgen.studies.failover.clients import Clients, SdkCall
from mesh.clock import Clock

_USERS = 3
"""Users in each region."""
_WARM_S = 10.0
"""Time before a death, in which each link learns how late the other end's signs of life are."""
_WITHIN_S = 45.0
_AFTER_S = TTL_S + 1.5
"""Time for which clients continue after the DNS change, until every cached answer has expired."""
_DRAIN_S = 20.0
_SECOND_NS = 1_000_000_000
_ON_ITS_WAY_NS = _SECOND_NS // 2
"""Margin after the death: answers that the process sent before have arrived by then, and no adopter serves so soon."""


@dataclass(frozen=True, slots=True)
class FailoverCase:
    name: str
    gateways: int
    """Gateways, one in each region, besides a sibling."""
    dead: int
    has_sibling: bool = False
    """The dying gateway has a sibling in its region."""
    is_silent: bool = False
    """The process is halted instead of killed: its host still accepts connections, and no event announces its death."""
    further_gateways: int = 1
    """Regions beyond the nearest that the name leads to."""


CASES = (
    FailoverCase("1 of 4 killed", 4, 1),
    FailoverCase("2 of 4 killed", 4, 2),
    FailoverCase("3 of 4 killed (N − 1)", 4, 3),
    FailoverCase("3 of 4 killed, the name leads to all four", 4, 3, further_gateways=3),
    FailoverCase("1 killed beside a sibling", 2, 1, has_sibling=True),
    FailoverCase("1 of 4 falls silent", 4, 1, is_silent=True),
)


@dataclass(frozen=True, slots=True)
class EarlyCall:
    """Call whose answer began before the death, while a gateway listened at every address of the name. Those of the
    first second are none: all clients send them at once, to processes that have just started."""

    is_further: bool
    """A gateway of another region answered, since its address was the first."""
    is_forwarded: bool
    """An engine outside the answering gateway's region ran it, as the head says: one sent before that was known says
    nothing."""
    first_token_ns: int
    """Time from the call to the first part of the answer, with lookup and connection."""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """Measurements of one case, played once. Times are seconds after the kill; None: not observed within the time
    limit."""

    case: str
    has_sibling: bool
    is_silent: bool
    unforwarded_s: float | None
    renamed_s: float | None
    reassigned_s: float | None
    served_s: float | None
    """Time of the first request that an adopter ran on a replica of the dead gateway."""
    requests: int
    failures: tuple[tuple[Cause, bool, str], ...]
    """Cause, whether the answer had begun, and the client's error text."""
    hung: int
    """Requests that had not ended when the case was over."""
    further_gateways: int = 1
    """Regions beyond the nearest that the name leads to."""
    early: tuple[EarlyCall, ...] = ()


async def play(case: FailoverCase) -> CaseOutcome:
    """Play the case. Raises DemoFailure where a process does not start, or dies without having been killed."""
    with tempfile.TemporaryDirectory(prefix="nightside-failover-") as folder:
        scenario = _scenario(case, Path(folder))
        async with asyncio.TaskGroup() as tasks:
            running = running_mesh(
                scenario, OverflowMode.ON, Path(folder), tasks, further_gateways=case.further_gateways
            )
            async with running as mesh:
                return await _Played(case, scenario, mesh).outcome()


class _Played:
    def __init__(self, case: FailoverCase, scenario: DemoScenario, mesh: Mesh) -> None:
        assert mesh.name is not None, "there is a name"
        self._case = case
        self._mesh = mesh
        self._clock = Clock()
        self._dead = _victims(case, scenario, mesh)
        self._clients = [
            Clients(
                region.name,
                mesh.name.url,
                scenario.model,
                NameResolver(mesh.name.servers, mesh.name.networks[region.name], self._clock),
                self._clock,
            )
            for region in scenario.regions
        ]

    async def outcome(self) -> CaseOutcome:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each.run(_USERS)) for each in self._clients]
            await asyncio.sleep(_WARM_S)
            watch = Watch(self._mesh, session, self._clock)
            lost = await watch.replicas_of(self._dead)
            killed_ns = self._clock.now_ns()
            await self._end()
            dead_ns = self._clock.now_ns()
            seen = await watch.death(lost, _WITHIN_S)
            await asyncio.sleep(_AFTER_S)
            for clients in self._clients:
                clients.is_over = True
            await asyncio.wait(running, timeout=1.0 if self._case.is_silent else _DRAIN_S)
            for task in running:
                task.cancel()
        for each in self._dead:
            each.child.go_on()
        death = Death(frozenset(each.host for each in self._dead), killed_ns, dead_ns, seen.renamed_ns)
        return self._told(death, seen)

    async def _end(self) -> None:
        if self._case.is_silent:
            for each in self._dead:
                each.child.halt()
            return
        async with asyncio.TaskGroup() as tasks:
            for each in self._dead:
                tasks.create_task(each.child.kill())

    def _told(self, death: Death, seen: Sightings) -> CaseOutcome:
        def after(moment_ns: int | None) -> float | None:
            return None if moment_ns is None else (moment_ns - death.killed_ns) / _SECOND_NS

        asked = [each for clients in self._clients for each in clients.asked]
        since_ns = death.dead_ns + _ON_ITS_WAY_NS
        if self._case.is_silent and seen.reassigned_ns is not None:
            since_ns = seen.reassigned_ns  # answers sent by a halted process before its halt are still arriving
        served = [self._first_served(each.region, since_ns) for each in self._dead]
        return CaseOutcome(
            self._case.name,
            self._case.has_sibling,
            self._case.is_silent,
            after(seen.unforwarded_ns),
            after(seen.renamed_ns),
            after(seen.reassigned_ns),
            None
            if None in served or self._case.has_sibling
            else after(max(each for each in served if each is not None)),
            len(asked),
            tuple(_failure(each, death) for each in asked if each.fault and each.ended_ns is not None),
            sum(each.ended_ns is None for each in asked),
            self._case.further_gateways,
            early_calls(asked, {each.gateway_id: each.region for each in self._mesh.members.values()}, death.killed_ns),
        )

    def _first_served(self, region: RegionName, since_ns: int) -> int | None:
        """Time of the first request served by an adopter: only an adopter, or a sibling, has replicas of that region
        then."""
        found = [each.answers.first(region, since_ns) for each in self._clients]
        return min((each for each in found if each is not None), default=None)


def early_calls(
    asked: Sequence[SdkCall], region_of: Mapping[GatewayId, RegionName], killed_ns: int
) -> tuple[EarlyCall, ...]:
    """Calls after the first second whose answer began before the kill. `region_of`: each gateway's region."""
    since_ns = min((each.left_ns for each in asked), default=0) + _SECOND_NS
    return tuple(
        EarlyCall(region != each.region, each.ran_in not in ("", region), each.first_ns - each.left_ns)
        for each in asked
        if each.left_ns >= since_ns and each.first_ns is not None and each.first_ns < killed_ns
        for region in (region_of[GatewayId(each.gateway)],)
    )


def _failure(asked: SdkCall, death: Death) -> tuple[Cause, bool, str]:
    assert asked.ended_ns is not None, "it has ended"
    if asked.is_refused:  # the gateway that answered is alive, so the death does not explain the failure
        return Cause.OTHER, asked.has_begun, asked.fault
    return death.cause_of(asked.left_ns, asked.ended_ns, asked.fault), asked.has_begun, asked.fault


def _victims(case: FailoverCase, scenario: DemoScenario, mesh: Mesh) -> Sequence[Member]:
    """First gateway of each region, from the last region on: the first region's survives."""
    regions = [region.name for region in scenario.regions][-case.dead :]
    first: dict[RegionName, Member] = {}
    for member in mesh.members.values():
        first.setdefault(member.region, member)
    return [first[region] for region in regions]


_WHERE = ((39.0, -77.5), (53.3, -6.3), (35.7, 139.7), (50.1, 8.7))
_NAMES = ("us-east-1", "eu-west-1", "ap-northeast-1", "eu-central-1")
_ROUND_TRIP_MS = 20


def _scenario(case: FailoverCase, folder: Path) -> DemoScenario:
    """Scenario with slow engines, open policies and short distances: the failover is measured, not the load, and the
    machine is to have CPU left."""
    regions = tuple(
        RegionScenario(
            Place(RegionName(name), Jurisdiction("XX")),
            clients=_USERS,
            engines=4 if case.has_sibling else 2,
            slots=8,
            policies=folder / "policies",
            gateways=2 if case.has_sibling and number == case.gateways - 1 else 1,
            location=_WHERE[number],
        )
        for number, name in enumerate(_NAMES[: case.gateways])
    )
    write_open_policies(regions, folder / "policies")
    round_trips = folder / "round_trips.csv"
    pairs = combinations([each.name for each in regions], 2)
    round_trips.write_text("".join(f"{one},{other},{_ROUND_TRIP_MS}\n" for one, other in pairs))
    return DemoScenario(regions=regions, preset="llama-3.1-8b-l4", round_trips_file=round_trips)
