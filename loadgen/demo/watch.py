"""Observes the effects of a gateway's death and return, at the remaining gateways and at a name server.

It polls from outside, as an operator could. It must never take part: no observed process changes its decisions by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from gateway.core.vocabulary import GatewayId
from loadgen.demo.members import Member
from loadgen.demo.mesh import Mesh, NamedMesh
from loadgen.demo.region_files import ZONE
from loadgen.names import NameResolver
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_LOOK_S = 0.05
TTL_S = 5
"""TTL of the name's DNS answers, by the controller's defaults."""
_LATE_S = 1.0
"""Time that polling, resolving and connecting may add to the TTL."""


@dataclass(frozen=True, slots=True)
class Sightings:
    """Time at which each event was first seen, by the clock; None: not within the time allowed."""

    unforwarded_ns: int | None
    """Every remaining gateway has found the connection to the dead one broken, and forwards nothing to it."""
    reassigned_ns: int | None
    """Remaining gateways have all of the dead one's replicas."""
    renamed_ns: int | None
    """The name leads the dead gateway's region's clients to another gateway."""


@dataclass(frozen=True, slots=True)
class ReplicasReturned:
    home_ns: int | None
    """The returned gateway has its replicas again, and no other gateway has them."""
    renamed_ns: int | None
    """The name leads its region's clients to it again."""


class Cause(StrEnum):
    """Cause of a failed request, as far as a gateway's death explains it."""

    IN_FLIGHT = "in_flight"
    """The request was in flight on the dead process."""
    CACHED = "cached_answer"
    """The request was sent to the dead gateway's address because of a cached DNS answer."""
    OTHER = "unexplained"


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a gateway, by the clock of the client that sent the requests."""

    hosts: frozenset[str]
    killed_ns: int
    dead_ns: int
    """Time by which the process had ended; the kill was between `killed_ns` and this."""
    renamed_ns: int | None

    def cause_of(self, left_ns: int, ended_ns: int, detail: str) -> Cause:
        """Cause of a failure, from the time at which its request was sent and the client's error text."""
        if left_ns <= self.dead_ns and ended_ns >= self.killed_ns:
            return Cause.IN_FLIGHT
        is_refused = any(f"'{host}'" in detail for host in self.hosts)
        if is_refused and self.renamed_ns is not None and self.killed_ns <= left_ns:
            known_ns = self.renamed_ns + round((TTL_S + _LATE_S) * _SECOND_NS)
            return Cause.CACHED if left_ns <= known_ns else Cause.OTHER
        return Cause.OTHER


class Watch:
    """Observer of one running mesh that has a name."""

    def __init__(self, mesh: Mesh, session: aiohttp.ClientSession, clock: Clock) -> None:
        assert mesh.name is not None, "what the name says is watched"
        self._members = mesh.members
        self._name: NamedMesh = mesh.name
        self._session = session
        self._clock = clock

    async def replicas_of(self, members: Iterable[Member]) -> dict[GatewayId, frozenset[str]]:
        """Replicas that each gateway serves at this moment."""
        return {each.gateway_id: await self._served(each) for each in members}

    async def death(self, lost: Mapping[GatewayId, frozenset[str]], within_s: float) -> Sightings:
        """Times of a death's effects. `lost` holds the replicas that each dead gateway served."""
        left = [each for name, each in self._members.items() if name not in lost]
        dead = [self._members[name] for name in lost]
        wanted = frozenset().union(*lost.values())
        async with asyncio.TaskGroup() as tasks:
            seen = [
                tasks.create_task(self._first(holds, within_s))
                for holds in (
                    lambda: self._all_lost(left, lost),
                    lambda: self._all_served(left, wanted),
                    lambda: self._all_renamed(dead),
                )
            ]
        return Sightings(*(each.result() for each in seen))

    async def homecoming(self, member: Member, lost: frozenset[str], within_s: float) -> ReplicasReturned:
        others = [each for each in self._members.values() if each is not member]

        async def is_home() -> bool:
            if not lost <= await self._served(member):
                return False
            return not any([lost & await self._served(each) for each in others])

        async def is_named() -> bool:
            return member.host in await self._told(member)

        async with asyncio.TaskGroup() as tasks:
            home = tasks.create_task(self._first(is_home, within_s))
            named = tasks.create_task(self._first(is_named, within_s))
        return ReplicasReturned(home.result(), named.result())

    async def _first(self, holds: Callable[[], Awaitable[bool]], within_s: float) -> int | None:
        try:
            async with asyncio.timeout(within_s):
                while not await holds():  # noqa: ASYNC110 - other processes, which send no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return None
        return self._clock.now_ns()

    async def _all_lost(self, left: Iterable[Member], dead: Collection[GatewayId]) -> bool:
        for each in left:
            state = await each.state(self._session)
            if state is None or not all(peer["lost"] for peer in state["peers"] if peer["id"] in dead):
                return False
        return True

    async def _all_served(self, left: Iterable[Member], wanted: frozenset[str]) -> bool:
        served = [await self._served(each) for each in left]
        return wanted <= frozenset().union(*served)

    async def _served(self, member: Member) -> frozenset[str]:
        state = await member.state(self._session)
        return frozenset() if state is None else frozenset(each["id"] for each in state["replicas"])

    async def _all_renamed(self, dead: Iterable[Member]) -> bool:
        gone = {each.host for each in dead}
        for each in dead:
            told = await self._told(each)
            if not told or gone & set(told):
                return False
        return True

    async def _told(self, member: Member) -> tuple[str, ...]:
        """Addresses that the controller returns at this moment to clients of the gateway's region."""
        resolver = NameResolver(self._name.servers[:1], self._name.networks[member.region], self._clock)
        try:
            return (await resolver.ask(ZONE)).addresses
        except OSError:
            return ()
