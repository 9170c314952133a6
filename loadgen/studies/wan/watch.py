"""Watches the mesh from each host's own operators' address, and works out when a fault was noticed and when its effects
were over. It never takes part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gateway.core.vocabulary import GatewayId, RegionName
from loadgen.demo.members import state_at
from loadgen.demo.mesh import Mesh
from loadgen.studies.wan.faults import Loss
from loadgen.studies.wan.histories import OwnersSeen
from mesh.clock import Clock

_LOOK_S = 0.1
_FRESH_NS = 1_000_000_000
"""Age beyond which a state says nothing about now."""
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class MeshSeen:
    """State of the mesh at one moment, as its own processes report it."""

    at_ns: int
    lost: Mapping[RegionName, frozenset[RegionName]]
    """Peers that each gateway has lost; a gateway that does not answer is missing."""
    replicas: Mapping[GatewayId, frozenset[str]]
    """Replicas that each gateway serves."""
    down: frozenset[RegionName] | None
    """Regions whose gateway is down, as a controller that leads says; None: none answers."""
    attached: frozenset[RegionName] = frozenset()
    """Regions whose gateway is up and attached, as every controller that leads says."""
    leaders: frozenset[RegionName] = frozenset()
    """Regions whose controller leads, as it says."""

    @property
    def owners(self) -> OwnersSeen:
        return OwnersSeen(self.at_ns, self.replicas)


@dataclass(slots=True)
class MeshWatch:
    """Looks at all processes ten times a second, each by itself: one that does not answer holds up no other. `seen`
    grows until `run` is cancelled."""

    mesh: Mesh
    session: aiohttp.ClientSession
    clock: Clock
    first: RegionName
    """Region of the controller that leads at first."""
    second: RegionName
    """Region of the other one."""
    seen: list[MeshSeen] = field(default_factory=list)
    _told: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """Last state of each process, by its operators' address, and the time at which it was asked for."""

    async def run(self) -> None:
        addresses = [each.admin for each in self.mesh.members.values()]
        async with asyncio.TaskGroup() as tasks:
            for address in (*addresses, *self._controllers()):
                tasks.create_task(self._ask(address))
            while True:
                await asyncio.sleep(_LOOK_S)
                self.seen.append(self._look())

    async def _ask(self, address: str) -> None:
        while True:
            asked_ns = self.clock.now_ns()
            state = await state_at(self.session, address)
            if state is not None:
                self._told[address] = asked_ns, state
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> MeshSeen:
        now_ns = self.clock.now_ns()
        fresh = {address: state for address, (at_ns, state) in self._told.items() if now_ns - at_ns < _FRESH_NS}
        regions = {each.gateway_id: each.region for each in self.mesh.members.values()}
        lost, replicas = {}, {}
        for each in self.mesh.members.values():
            state = fresh.get(each.admin)
            if state is not None:
                lost[each.region] = frozenset(regions[peer["id"]] for peer in state["peers"] if peer["lost"])
                replicas[each.gateway_id] = frozenset(str(replica["id"]) for replica in state["replicas"])
        leaders = {region: fresh[admin] for admin, region in self._controllers().items() if admin in fresh}
        told = [{each["id"]: each for each in state["gateways"]} for state in leaders.values()]
        down = {region for each in told for name, region in regions.items() if _is(each.get(name), "down")}
        attached = {
            region for name, region in regions.items() if told and all(_is(each.get(name), "up") for each in told)
        }
        return MeshSeen(
            now_ns, lost, replicas, frozenset(down) if told else None, frozenset(attached), frozenset(leaders)
        )

    def _controllers(self) -> dict[str, RegionName]:
        """Operators' address of each controller, which tells its state only while it leads, with its region."""
        found = {self.mesh.controller_admin: self.first, self.mesh.standby_admin: self.second}
        return {admin: region for admin, region in found.items() if admin}


def _is(gateway: dict[str, Any] | None, condition: str) -> bool:
    """True if a controller tells this condition of a gateway, and that one that is up is attached."""
    return gateway is not None and gateway["condition"] == condition and (condition != "up" or gateway["attached"])


def first_seen(seen: Iterable[MeshSeen], since_ns: int, holds: Callable[[MeshSeen], bool]) -> float | None:
    """Seconds from `since_ns` until the condition was first seen; None: never."""
    at_ns = next((each.at_ns for each in seen if each.at_ns >= since_ns and holds(each)), None)
    return None if at_ns is None else (at_ns - since_ns) / _SECOND_NS


def longest(seen: Iterable[MeshSeen], since_ns: int, holds: Callable[[MeshSeen], bool]) -> float:
    """Longest time in seconds for which the condition was seen to hold, from `since_ns` on."""
    most_ns, began_ns = 0, None
    for each in seen:
        if each.at_ns < since_ns or not holds(each):
            began_ns = None
            continue
        began_ns = each.at_ns if began_ns is None else began_ns
        most_ns = max(most_ns, each.at_ns - began_ns)
    return most_ns / _SECOND_NS


def losses_after(seen: Sequence[MeshSeen], since_ns: int, until_ns: int) -> dict[Loss, float]:
    """Losses of peers between two times, each with the seconds after which it was first seen."""
    found: dict[Loss, float] = {}
    for each in seen:
        if since_ns <= each.at_ns < until_ns:
            for observer, peers in each.lost.items():
                for peer in peers:
                    found.setdefault((observer, peer), (each.at_ns - since_ns) / _SECOND_NS)
    return found


def is_home(seen: MeshSeen, gateways: Collection[GatewayId]) -> bool:
    """True if each of the gateways answers and serves replicas, and the mesh is whole with what they serve now."""
    return seen.replicas.keys() == {*gateways} and all(seen.replicas.values()) and is_whole(seen, seen.replicas)


def is_whole(seen: MeshSeen, home: Mapping[GatewayId, frozenset[str]]) -> bool:
    """True if all gateways answer and have lost no peer, the controller has all of them, and each serves what it served
    before."""
    return (
        len(seen.attached) == len(seen.lost) == len(home)
        and not any(seen.lost.values())
        and all(seen.replicas.get(name) == replicas for name, replicas in home.items())
    )
