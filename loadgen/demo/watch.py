"""Sees what follows from a gateway's death and from its return: at the gateways that are left, and at a name server.

It looks again and again from outside, as an operator could. It must never take part: whoever it asks decides nothing by
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from gateway.core.vocabulary import GatewayId
from gateway.ground.clock import Clock
from loadgen.demo.members import Member
from loadgen.demo.mesh import Mesh, Named
from loadgen.demo.region_files import ZONE
from loadgen.names import NameResolver

_SECOND_NS = 1_000_000_000
_LOOK_S = 0.05
TTL_S = 5
"""Of the name's answers, by the controller's defaults."""
_LATE_S = 1.0
"""What looking, resolving and connecting may add to that."""


@dataclass(frozen=True, slots=True)
class Sightings:
    """When each thing was first seen, by the clock; None: not within the time there was."""

    unforwarded_ns: int | None
    """Every gateway that is left has found the connection broken, and forwards nothing there."""
    reassigned_ns: int | None
    """Gateways that are left have all of its replicas."""
    renamed_ns: int | None
    """The name leads its region's clients to somebody else."""


@dataclass(frozen=True, slots=True)
class Homecoming:
    home_ns: int | None
    """It has its replicas again, and nobody else has."""
    renamed_ns: int | None
    """The name leads its region's clients to it again."""


class Cause(StrEnum):
    """Why a request failed, as far as a death explains it."""

    IN_FLIGHT = "in_flight"
    """On the dead process."""
    CACHED = "cached_answer"
    """Sent to the dead one's address, by what the name had said."""
    OTHER = "unexplained"


@dataclass(frozen=True, slots=True)
class Death:
    """What is known of one, by the clock of whoever sent requests."""

    hosts: frozenset[str]
    killed_ns: int
    dead_ns: int
    """It has ended by now; the kill was between these two."""
    renamed_ns: int | None

    def cause_of(self, left_ns: int, ended_ns: int, detail: str) -> Cause:
        """Of a failure, by when its request left and what its client says of it."""
        if left_ns <= self.dead_ns and ended_ns >= self.killed_ns:
            return Cause.IN_FLIGHT
        is_refused = any(f"'{host}'" in detail for host in self.hosts)
        if is_refused and self.renamed_ns is not None and self.killed_ns <= left_ns:
            known_ns = self.renamed_ns + round((TTL_S + _LATE_S) * _SECOND_NS)
            return Cause.CACHED if left_ns <= known_ns else Cause.OTHER
        return Cause.OTHER


class Watch:
    """Of one running mesh that has a name."""

    def __init__(self, mesh: Mesh, session: aiohttp.ClientSession, clock: Clock) -> None:
        assert mesh.name is not None, "what the name says is watched"
        self._members = mesh.members
        self._name: Named = mesh.name
        self._session = session
        self._clock = clock

    async def replicas_of(self, members: Iterable[Member]) -> dict[GatewayId, frozenset[str]]:
        """What each serves now."""
        return {each.gateway_id: await self._served(each) for each in members}

    async def death(self, lost: Mapping[GatewayId, frozenset[str]], within_s: float) -> Sightings:
        """`lost` is what each of the dead has served."""
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

    async def homecoming(self, member: Member, lost: frozenset[str], within_s: float) -> Homecoming:
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
        return Homecoming(home.result(), named.result())

    async def _first(self, holds: Callable[[], Awaitable[bool]], within_s: float) -> int | None:
        try:
            async with asyncio.timeout(within_s):
                while not await holds():  # noqa: ASYNC110 - other processes, which tell us nothing
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
        """What clients of its region are told at this moment, by the controller."""
        resolver = NameResolver(self._name.servers[:1], self._name.networks[member.region], self._clock)
        try:
            return (await resolver.ask(ZONE)).addresses
        except OSError:
            return ()
