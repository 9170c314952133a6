"""Caches keep an answer for its TTL, query once for all waiting clients, and pass over a silent name server."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gateway.core.vocabulary import GatewayId, Jurisdiction, RegionName
from loadgen.simulator.agenda import Agenda
from loadgen.simulator.control_sections import NamesSection
from loadgen.simulator.naming import Cache, DnsAnswer, Names, ServedZone, answer_in
from loadgen.simulator.network import Network, NetworkConfig
from mesh.naming.tree import Area, RecordTree

US = RegionName("us")
SECOND = 1_000_000_000


@dataclass
class Server:
    records: RecordTree | None
    region: RegionName = US


def tree(version: int, *gateways: str, ttl_s: int = 5) -> RecordTree:
    area = Area(US, Jurisdiction("US"), tuple(map(GatewayId, gateways)), gateways)
    return RecordTree(version, ttl_s, (area,), ("anywhere",))


class Asking:
    def __init__(self, *servers: Server) -> None:
        self.agenda = Agenda()
        network = Network(self.agenda, {}, NetworkConfig(), random.Random(1))
        self.zone = ServedZone(servers, self.agenda, network, NamesSection(), random.Random(1))
        self.cache = Cache(US, self.zone)
        self.answers: list[DnsAnswer | None] = []

    def ask(self, *, then_wait_s: float = 3) -> DnsAnswer | None:
        self.cache.look_up(self.answers.append)
        self.agenda.run_until(self.agenda.now_ns + round(then_wait_s * SECOND))
        return self.answers[-1]


def test_an_answer_is_that_of_the_clients_region_and_elsewhere_of_all() -> None:
    assert answer_in(tree(1, "us/gw"), US) == ("us/gw",)
    assert answer_in(tree(1, "us/gw"), RegionName("eu")) == ("anywhere",)
    assert answer_in(tree(1), US) == ()


def test_an_answer_is_kept_for_its_ttl_and_no_longer() -> None:
    server = Server(tree(1, "us/gw0"))
    asking = Asking(server)
    asking.ask()
    server.records = tree(2, "us/gw1")
    before, after = asking.ask(), asking.ask()
    assert before is not None
    assert after is not None
    assert (before.gateways, after.gateways) == (("us/gw0",), ("us/gw1",))


def test_who_asks_meanwhile_gets_the_same_answer() -> None:
    asking = Asking(Server(tree(1, "us/gw", ttl_s=1)))
    asking.cache.look_up(asking.answers.append)
    asking.ask()
    assert asking.answers[0] is not None
    assert asking.answers[0] is asking.answers[1]


def test_a_server_that_says_nothing_is_passed_over() -> None:
    for seed in range(4):
        asking = Asking(Server(None), Server(tree(1, "us/gw")))
        asking.zone.rng.seed(seed)
        answer = asking.ask()
        assert answer is not None
        assert answer.gateways == ("us/gw",)


def test_with_none_that_answers_there_is_no_answer() -> None:
    assert Asking(Server(None), Server(None)).ask() is None


def test_what_the_name_says_now_is_what_the_newest_says() -> None:
    zone = Asking(Server(tree(1, "us/gw0")), Server(tree(2, "us/gw1")), Server(None)).zone
    names = Names([US], zone)
    assert names.says_now(US, GatewayId("us/gw1"))
    assert not names.says_now(US, GatewayId("us/gw0"))
