"""Resolution of the mesh's DNS name by clients: caches that keep an answer for its TTL, and name servers that each
answer from their latest record tree, or do not answer.

An answer is looked up for a region, as name servers identify one by its networks. This module does not know which
request a lookup is for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.vocabulary import GatewayId, RegionName
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.control_sections import NamesSection
from loadgen.simulator.network import Network
from mesh.naming.tree import RecordTree

_SECOND_NS = 1_000_000_000


class SimNameServer(Protocol):
    """Name server of the zone: a controller or a gateway."""

    @property
    def region(self) -> RegionName: ...

    @property
    def records(self) -> RecordTree | None:
        """Record tree it answers from; None while it is down or has none yet."""
        ...


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """Answer to the clients of one region."""

    gateways: tuple[GatewayId, ...]
    until_ns: int
    """Time at which a cache has to ask again."""


OnAnswer = Callable[[DnsAnswer | None], None]
"""Callback for an answer; called with None if no name server answered."""


def answer_in(tree: RecordTree, region: RegionName) -> tuple[GatewayId, ...]:
    """Gateways that a name server returns to a client in this region: those of its area, which may be none, or
    `anywhere` if the region has no area."""
    for area in tree.areas:
        if area.region == region:
            return tuple(map(GatewayId, area.addresses))
    return tuple(map(GatewayId, tree.anywhere))


@dataclass(frozen=True, slots=True)
class ServedZone:
    """Name servers of the zone, with the agenda, network and settings to reach them."""

    servers: tuple[SimNameServer, ...]
    agenda: Agenda
    network: Network
    section: NamesSection
    rng: random.Random


class Cache:
    """One resolver of a region, shared by many clients."""

    def __init__(self, region: RegionName, zone: ServedZone) -> None:
        self._region = region
        self._servers = zone.servers
        self._agenda = zone.agenda
        self._network = zone.network
        self._names = zone.section
        self._rng = zone.rng
        self._answer: DnsAnswer | None = None
        self._waiting: list[OnAnswer] = []
        """Callbacks that wait for the query in progress; only one query is sent at a time."""

    def look_up(self, on_answer: OnAnswer) -> None:
        self._agenda.after(self._names.lookup, self._asked, on_answer)

    def _asked(self, on_answer: OnAnswer) -> None:
        if self._answer is not None and self._agenda.now_ns < self._answer.until_ns:
            on_answer(self._answer)
            return
        self._waiting.append(on_answer)
        if len(self._waiting) == 1:
            order = list(self._servers)
            self._rng.shuffle(order)
            self._ask(order)

    def _ask(self, left: list[SimNameServer]) -> None:
        """Ask one name server after the other."""
        if not left:
            self._tell(None)
            return
        server, *rest = left
        is_over: list[bool] = []
        self._network.datagram(self._region, server.region, self._at_server, server, is_over)
        self._agenda.after(self._names.server_timeout, self._give_up, rest, is_over)

    def _at_server(self, server: SimNameServer, is_over: list[bool]) -> None:
        tree = server.records
        if tree is not None:
            self._network.datagram(server.region, self._region, self._answered, tree, is_over)

    def _answered(self, tree: RecordTree, is_over: list[bool]) -> None:
        if not is_over:
            is_over.append(True)
            until_ns = self._agenda.now_ns + tree.ttl_s * _SECOND_NS
            self._answer = DnsAnswer(answer_in(tree, self._region), until_ns)
            self._tell(self._answer)

    def _give_up(self, rest: list[SimNameServer], is_over: list[bool]) -> None:
        if not is_over:
            is_over.append(True)
            self._ask(rest)

    def _tell(self, answer: DnsAnswer | None) -> None:
        waiting, self._waiting = self._waiting, []
        for on_answer in waiting:
            on_answer(answer)


class Names:
    """Caches of all regions."""

    def __init__(self, regions: Sequence[RegionName], zone: ServedZone) -> None:
        self.rng = zone.rng
        self.section = zone.section
        self._servers = zone.servers
        self._caches = {region: [Cache(region, zone) for _ in range(zone.section.resolvers)] for region in regions}

    def look_up(self, region: RegionName, on_answer: OnAnswer) -> None:
        self.rng.choice(self._caches[region]).look_up(on_answer)

    def says_now(self, region: RegionName, gateway_id: GatewayId) -> bool:
        """True if the newest record tree of all name servers sends this region's clients to the gateway."""
        trees = [each.records for each in self._servers if each.records is not None]
        newest = max(trees, key=lambda tree: tree.version, default=None)
        return newest is not None and gateway_id in answer_in(newest, region)
