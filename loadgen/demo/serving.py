"""Keeps the demo's gateways up for `nightside demo --serve`: reports each death and its effects, and restarts the
gateway.

It sends no load. It must never hide that a restart failed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Never, Protocol

from gateway.core.vocabulary import GatewayId
from loadgen.demo.failover import HOME_WITHIN_S, SEEN_WITHIN_S
from loadgen.demo.members import Member
from loadgen.demo.watch import ReplicasReturned, Sightings
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
DOWN_S = 5.0
"""Minimum time that a gateway stays dead, so that the others can be tried meanwhile."""


class Observations(Protocol):
    """Observations of a `Watch`."""

    async def death(self, lost: Mapping[GatewayId, frozenset[str]], within_s: float) -> Sightings: ...
    async def homecoming(self, member: Member, lost: frozenset[str], within_s: float) -> ReplicasReturned: ...


class GatewayRestarter:
    """Restarts the dead gateways of one mesh."""

    def __init__(
        self,
        served: Mapping[GatewayId, frozenset[str]],
        sees: Observations | None,
        clock: Clock,
        say: Callable[[str], None],
        *,
        down_s: float = DOWN_S,
    ) -> None:
        """`served` lists the replicas of each gateway while all are up; `sees` is None where there is no name to
        watch."""
        self._served = served
        self._sees = sees
        self._clock = clock
        self._say = say
        self._down_s = down_s

    async def keep(self, member: Member) -> Never:
        """Restart the gateway each time it dies. Raises DemoFailure if it does not become ready again."""
        while True:
            status = await member.child.ended()
            died_ns = self._clock.now_ns()
            self._say(f"{member.gateway_id}: process {member.child.pid} {how_it_ended(status)}.")
            await self._show_death(member, died_ns)
            await asyncio.sleep(max(0.0, self._down_s - (self._clock.now_ns() - died_ns) / _SECOND_NS))
            begun_ns = self._clock.now_ns()
            await member.start()
            await member.until_ready()
            self._say(f"{member.gateway_id}: begun again, as process {member.child.pid}.")
            await self._show_return(member, begun_ns)

    async def _show_death(self, member: Member, died_ns: int) -> None:
        if self._sees is None:
            return
        seen = await self._sees.death({member.gateway_id: self._served[member.gateway_id]}, SEEN_WITHIN_S)
        self._show("no other gateway forwards to it", died_ns, seen.unforwarded_ns)
        self._show("its replicas are served by others", died_ns, seen.reassigned_ns)
        self._show("the name leads its clients elsewhere", died_ns, seen.renamed_ns)

    async def _show_return(self, member: Member, begun_ns: int) -> None:
        if self._sees is None:
            return
        home = await self._sees.homecoming(member, self._served[member.gateway_id], HOME_WITHIN_S)
        self._show("its replicas are home", begun_ns, home.home_ns)
        self._show("the name leads its clients to it", begun_ns, home.renamed_ns)

    def _show(self, words: str, began_ns: int, seen_ns: int | None) -> None:
        when = "not seen" if seen_ns is None else f"after {(seen_ns - began_ns) / _SECOND_NS:.1f} s"
        self._say(f"  {words}: {when}")


def how_it_ended(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
