"""A client's resolver asks the mesh's own name servers, one after the other, and caches an answer for its TTL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import structlog

from loadgen.names import NameResolver
from mesh.clock import Clock
from mesh.naming.service import NameService
from mesh.values import Address
from tests.support.naming import EVERYBODY, US, US_ADDRESS, tree, with_further

NAME = "mesh.example."
IN_US, IN_AP = "198.51.100.0/24", "192.0.2.0/24"
NOWHERE = ("255.255.255.255", 53)
"""Address to which nothing may be sent."""


def resolver_of(servers: Sequence[tuple[str, int]], network: str, clock: Clock) -> NameResolver:
    """Resolver that gives servers the time of a busy machine."""
    return NameResolver(servers, network, clock, patience_s=60.0)


class Hands(Clock):
    """Clock moved by the test."""

    at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns


@pytest.fixture
async def names() -> AsyncIterator[NameService]:
    service = NameService(Clock(), structlog.get_logger())
    service.apply(tree())
    await service.start([Address("127.0.0.1", 0)])
    yield service
    await service.stop()


def servers(names: NameService) -> list[tuple[str, int]]:
    return [(each.host, each.port) for each in names.addresses]


async def test_it_is_told_what_clients_of_its_network_are_told(names: NameService) -> None:
    assert await resolver_of(servers(names), IN_US, Clock()).addresses(NAME) == (US_ADDRESS,)
    elsewhere = await resolver_of(servers(names), IN_AP, Clock()).addresses(NAME)
    assert set(elsewhere) == {each for each in EVERYBODY if ":" not in each}


async def test_name_servers_shuffle_the_addresses_of_each_answer(names: NameService) -> None:
    orders: set[tuple[str, ...]] = set()
    for _ in range(64):
        orders.add((await resolver_of(servers(names), IN_AP, Clock()).ask(NAME)).addresses)
        if len(orders) > 1:
            break
    assert len(orders) > 1
    assert {frozenset(each) for each in orders} == {frozenset(each for each in EVERYBODY if ":" not in each)}


async def test_further_addresses_come_last_on_the_wire(names: NameService) -> None:
    names.apply(with_further(tree(2, us=("192.0.2.9", US_ADDRESS)), US, "192.0.2.77"))
    told = [await resolver_of(servers(names), IN_US, Clock()).addresses(NAME) for _ in range(8)]
    assert {each[-1] for each in told} == {"192.0.2.77"}
    assert {each[0] for each in told} == {"192.0.2.9", US_ADDRESS}


async def test_an_answer_is_kept_for_as_long_as_it_says_and_no_longer(names: NameService) -> None:
    clock = Hands()
    resolver = resolver_of(servers(names), IN_US, clock)
    assert await resolver.addresses(NAME) == (US_ADDRESS,)
    names.apply(tree(2, us=("192.0.2.9",)))
    clock.at_ns = 4_999_999_999
    assert await resolver.addresses(NAME) == (US_ADDRESS,)
    assert (await resolver.ask(NAME)).addresses == ("192.0.2.9",)
    clock.at_ns = 5_000_000_000
    assert await resolver.addresses(NAME) == ("192.0.2.9",)


async def test_the_next_one_is_asked_where_one_fails(names: NameService) -> None:
    resolver = NameResolver([NOWHERE, *servers(names)], IN_US, Clock(), patience_s=5.0)  # a lost failure is a silence
    assert await resolver.addresses(NAME) == (US_ADDRESS,)


@pytest.mark.parametrize("server", [NOWHERE, ("127.0.0.1", 1)], ids=["fails", "is_silent"])
async def test_no_answer_is_an_error(server: tuple[str, int]) -> None:
    with pytest.raises(OSError, match="no name server answers"):
        await NameResolver([server], IN_US, Clock(), patience_s=0.1).addresses(NAME)


async def test_a_name_that_leads_nowhere_is_an_error(names: NameService) -> None:
    with pytest.raises(OSError, match=r"leads nowhere .*: NOERROR: no gateway lives"):
        await resolver_of(servers(names), IN_US, Clock()).addresses("ap-northeast-1.mesh.example.")


async def test_aiohttp_gets_it_with_the_port(names: NameService) -> None:
    (found,) = await resolver_of(servers(names), IN_US, Clock()).resolve(NAME, 8080)
    assert (found["host"], found["port"], found["hostname"]) == (US_ADDRESS, 8080, NAME)


async def test_one_who_has_no_records_yet_says_so() -> None:
    service = NameService(Clock(), structlog.get_logger())
    await service.start([Address("127.0.0.1", 0)])
    answer = await resolver_of(servers(service), IN_US, Clock()).ask(NAME)
    await service.stop()
    assert (answer.addresses, answer.why) == ((), "REFUSED")
