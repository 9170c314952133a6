from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import dns.rcode
import pytest

from gateway.config.targets import Dialect, DnsRecord, DnsReplicasConfig, ReplicaConfig
from gateway.discovery.names import LookupAnswer, LookupFailed, NameLookup
from tests.fakes.dns import FakeDns
from tests.support.core import MS, SECOND, replica_spec

NAME = "llama.engines.test"
TEMPLATE = ReplicaConfig(replica_spec("llama"), "", Dialect.VLLM)


@pytest.fixture
async def server() -> AsyncIterator[FakeDns]:
    async with FakeDns().serving() as server:
        yield server


async def ask(server: FakeDns, record: DnsRecord = DnsRecord.ADDRESS, *, timeout_ns: int = 30 * SECOND) -> LookupAnswer:
    port = 8000 if record is DnsRecord.ADDRESS else None
    config = DnsReplicasConfig(TEMPLATE, NAME, record, "http", port, (server.address,))
    return await NameLookup(config, timeout_ns).ask()


def where(answer: LookupAnswer) -> list[tuple[str, int]]:
    return [(str(each.address), each.port) for each in answer.locations]


async def test_addresses_of_both_kinds_in_one_order(server: FakeDns) -> None:
    server.ttl_s = 7
    server.set(NAME, "A", "10.0.0.9", "10.0.0.10")
    server.set(NAME, "AAAA", "2001:db8::1")
    answer = await ask(server)
    assert where(answer) == [("10.0.0.9", 8000), ("10.0.0.10", 8000), ("2001:db8::1", 8000)]
    assert answer.ttl_ns == 7 * SECOND


async def test_one_kind_may_be_missing(server: FakeDns) -> None:
    server.set(NAME, "A", "10.0.0.9")
    assert where(await ask(server)) == [("10.0.0.9", 8000)]


async def test_services_name_their_ports(server: FakeDns) -> None:
    server.set(NAME, "SRV", "0 5 8001 a.engines.test.", "9 5 8002 a.engines.test.", "0 0 8001 b.engines.test.")
    server.set("a.engines.test", "A", "10.0.0.1")
    server.set("b.engines.test", "A", "10.0.0.2")
    answer = await ask(server, DnsRecord.SRV)
    assert where(answer) == [("10.0.0.1", 8001), ("10.0.0.1", 8002), ("10.0.0.2", 8001)]
    assert [each.name for each in answer.locations] == ["a.engines.test", "a.engines.test", "b.engines.test"]


async def test_one_place_by_two_names_is_one_replica(server: FakeDns) -> None:
    server.set(NAME, "SRV", "0 5 8001 a.engines.test.", "0 5 8001 b.engines.test.")
    server.set("a.engines.test", "A", "10.0.0.1")
    server.set("b.engines.test", "A", "10.0.0.1")
    assert where(await ask(server, DnsRecord.SRV)) == [("10.0.0.1", 8001)]


@pytest.mark.parametrize("record", list(DnsRecord))
async def test_a_name_that_leads_nowhere_is_an_answer(server: FakeDns, record: DnsRecord) -> None:
    assert (await ask(server, record)).locations == ()
    server.set(NAME, "TXT", '"x"')
    assert (await ask(server, record)).locations == ()


async def test_addresses_that_are_no_server_s_are_left_out(server: FakeDns) -> None:
    server.set(NAME, "A", "224.0.0.1", "0.0.0.0", "10.0.0.1", "255.255.255.255")
    assert where(await ask(server)) == [("10.0.0.1", 8000)]


async def test_what_does_not_fit_is_asked_for_over_tcp(server: FakeDns) -> None:
    server.truncates = True
    server.set(NAME, "A", *(f"10.0.{number // 250}.{number % 250 + 1}" for number in range(600)))
    assert len((await ask(server)).locations) == 600


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED])
async def test_a_server_that_cannot_say_is_no_answer(server: FakeDns, rcode: dns.rcode.Rcode) -> None:
    server.set(NAME, "A", "10.0.0.1")
    server.rcode = rcode
    with pytest.raises(LookupFailed):
        await ask(server)


@pytest.mark.parametrize("record", list(DnsRecord))
async def test_a_silent_server_is_no_answer(server: FakeDns, record: DnsRecord) -> None:
    server.is_silent = True
    with pytest.raises(LookupFailed, match=NAME):
        await ask(server, record, timeout_ns=300 * MS)


async def test_half_an_answer_is_none(server: FakeDns) -> None:
    server.set(NAME, "A", "10.0.0.1")
    server.failing = {(NAME, "AAAA")}
    with pytest.raises(LookupFailed, match="AAAA"):
        await ask(server)
    server.set(NAME, "SRV", "0 5 8001 a.engines.test.", "0 5 8001 b.engines.test.")
    server.set("a.engines.test", "A", "10.0.0.1")
    server.set("b.engines.test", "A", "10.0.0.2")
    server.failing = {("b.engines.test", "A")}
    with pytest.raises(LookupFailed, match=r"b\.engines\.test"):
        await ask(server, DnsRecord.SRV)


@pytest.mark.parametrize("record", list(DnsRecord))
async def test_a_cancelled_lookup_ends_whatever_arrives_just_then(server: FakeDns, record: DnsRecord) -> None:
    server.set(NAME, "SRV", "0 5 8001 a.engines.test.")
    for name in (NAME, "a.engines.test"):
        server.set(name, "A", "10.0.0.1")

    async def again_and_again() -> None:
        while True:
            await ask(server, record)

    for turns in range(60):
        asking = asyncio.get_running_loop().create_task(again_and_again())
        await server.asked.reaches(server.asked.count + 1)
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        done, _ = await asyncio.wait([asking], timeout=5)
        asking.cancel()
        assert done, f"it went on after {turns} turns"


async def test_an_answer_may_lead_to_only_so_many_names(server: FakeDns) -> None:
    server.set(NAME, "SRV", *(f"0 5 {port} x{port}.test." for port in range(1, 301)))
    with pytest.raises(LookupFailed, match="names 300 servers"):
        await ask(server, DnsRecord.SRV)
