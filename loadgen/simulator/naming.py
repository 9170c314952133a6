"""The mesh's one name, as clients look it up: caches that keep an answer for its TTL, and name servers that each answer
from the last record tree that they have, or are not there.

An answer is looked up for a region, as name servers know one by its networks. Nothing here knows who asks for what.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.vocabulary import GatewayId, RegionName
from gateway.ground.naming.tree import RecordTree
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.control_sections import NamesSection
from loadgen.simulator.network import Network

_SECOND_NS = 1_000_000_000


class NameServer(Protocol):
    """Whoever answers for the zone: the controller, or a gateway."""

    @property
    def region(self) -> RegionName: ...

    @property
    def records(self) -> RecordTree | None:
        """What it answers from; None where it is down or knows nothing yet."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What the name says to clients of one region."""

    gateways: tuple[GatewayId, ...]
    until_ns: int
    """When whoever keeps it has to ask again."""


OnAnswer = Callable[[Answer | None], None]
"""Told None where no name server answered."""


def answer_in(tree: RecordTree, region: RegionName) -> tuple[GatewayId, ...]:
    """What a name server says to a client in this region: its area's gateways, and none where its area has none."""
    for area in tree.areas:
        if area.region == region:
            return tuple(map(GatewayId, area.addresses))
    return tuple(map(GatewayId, tree.anywhere))


@dataclass(frozen=True, slots=True)
class ServedZone:
    """Who answers for the name, and what lies between them and whoever asks."""

    servers: tuple[NameServer, ...]
    agenda: Agenda
    network: Network
    section: NamesSection
    rng: random.Random


class Cache:
    """One resolver of a region, which many clients share."""

    def __init__(self, region: RegionName, zone: ServedZone) -> None:
        self._region = region
        self._servers = zone.servers
        self._agenda = zone.agenda
        self._network = zone.network
        self._names = zone.section
        self._rng = zone.rng
        self._answer: Answer | None = None
        self._waiting: list[OnAnswer] = []
        """Those who asked while a question is under way: it is asked once."""

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

    def _ask(self, left: list[NameServer]) -> None:
        """One name server after the other."""
        if not left:
            self._tell(None)
            return
        server, *rest = left
        is_over: list[bool] = []
        self._network.datagram(self._region, server.region, self._at_server, server, is_over)
        self._agenda.after(self._names.server_timeout, self._give_up, rest, is_over)

    def _at_server(self, server: NameServer, is_over: list[bool]) -> None:
        tree = server.records
        if tree is not None:
            self._network.datagram(server.region, self._region, self._answered, tree, is_over)

    def _answered(self, tree: RecordTree, is_over: list[bool]) -> None:
        if not is_over:
            is_over.append(True)
            until_ns = self._agenda.now_ns + tree.ttl_s * _SECOND_NS
            self._answer = Answer(answer_in(tree, self._region), until_ns)
            self._tell(self._answer)

    def _give_up(self, rest: list[NameServer], is_over: list[bool]) -> None:
        if not is_over:
            is_over.append(True)
            self._ask(rest)

    def _tell(self, answer: Answer | None) -> None:
        waiting, self._waiting = self._waiting, []
        for on_answer in waiting:
            on_answer(answer)


class Names:
    """All caches of all regions."""

    def __init__(self, regions: Sequence[RegionName], zone: ServedZone) -> None:
        self.rng = zone.rng
        self.section = zone.section
        self._servers = zone.servers
        self._caches = {region: [Cache(region, zone) for _ in range(zone.section.resolvers)] for region in regions}

    def look_up(self, region: RegionName, on_answer: OnAnswer) -> None:
        self.rng.choice(self._caches[region]).look_up(on_answer)

    def says_now(self, region: RegionName, gateway_id: GatewayId) -> bool:
        """Would whoever asks the newest of all name servers be sent there?"""
        trees = [each.records for each in self._servers if each.records is not None]
        newest = max(trees, key=lambda tree: tree.version, default=None)
        return newest is not None and gateway_id in answer_in(newest, region)
