from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import dns.rcode
import pytest
from msgspec.structs import replace

from gateway.config.sections import DiscoveryConfig
from gateway.config.targets import Dialect, DnsRecord, DnsReplicasConfig, EngineTlsConfig, ReplicaConfig
from gateway.core.vocabulary import GatewayId, ReplicaRole
from gateway.discovery.dns import DnsSource, replicas_at
from gateway.discovery.templates import ReplicaLocation
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.fakes.dns import FakeDns
from tests.fakes.engine import Tally
from tests.support.background import in_background
from tests.support.core import MODEL, MS, US, replica_spec

NAME = "llama.engines.test"
TEMPLATE = ReplicaConfig(replica_spec("llama"), "", Dialect.VLLM, "secret")
QUICK = DiscoveryConfig(
    interval_min_ns=5 * MS, interval_max_ns=10 * MS, timeout_ns=300 * MS, replicas_max=3, misses_max=3
)


class Heard:
    def __init__(self, source: DnsSource, stream: io.StringIO) -> None:
        self.source = source
        self.sets: list[list[str]] = []
        self.tally = Tally()
        self._stream = stream

    def report(self, replicas: tuple[ReplicaConfig, ...]) -> None:
        self.sets.append([each.url for each in replicas])
        self.tally.add()

    async def until(self, *addresses: str) -> None:
        while not self.sets or self.sets[-1] != [f"http://{address}:8000" for address in addresses]:
            await self.tally.reaches(self.tally.count + 1)

    def logged(self) -> list[str]:
        return [json.loads(line)["event"] for line in self._stream.getvalue().splitlines()]


@asynccontextmanager
async def finding(server: FakeDns) -> AsyncIterator[Heard]:
    stream = io.StringIO()
    log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("g"), stream)
    config = DnsReplicasConfig(TEMPLATE, NAME, DnsRecord.ADDRESS, "http", 8000, (server.address,))
    heard = Heard(DnsSource(config, QUICK, log), stream)
    async with in_background(heard.source.run(heard.report)):
        yield heard


@pytest.fixture
async def server() -> AsyncIterator[FakeDns]:
    async with FakeDns().serving() as server:
        yield server


async def test_addresses_come_at_once(server: FakeDns) -> None:
    server.set(NAME, "A", "10.0.0.1")
    async with finding(server) as heard:
        await heard.source.first_look()
        assert heard.sets[0] == ["http://10.0.0.1:8000"]
        server.set(NAME, "A", "10.0.0.1", "10.0.0.2")
        await heard.until("10.0.0.1", "10.0.0.2")


async def test_addresses_go_after_several_answers_without_them(server: FakeDns) -> None:
    server.set(NAME, "A", "10.0.0.1", "10.0.0.2")
    async with finding(server) as heard:
        await heard.until("10.0.0.1", "10.0.0.2")
        server.set(NAME, "A", "10.0.0.2")
        before = len(heard.sets)
        await heard.until("10.0.0.2")
        both = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
        assert heard.sets[before:-1].count(both) >= QUICK.misses_max - 1


async def test_an_address_that_comes_back_in_time_never_went(server: FakeDns) -> None:
    """The server gives its records in turns."""
    server.set(NAME, "A", "10.0.0.1", "10.0.0.2")
    async with finding(server) as heard:
        await heard.until("10.0.0.1", "10.0.0.2")
        for number in range(8):
            server.set(NAME, "A", f"10.0.0.{number % 2 + 1}")
            await heard.tally.reaches(heard.tally.count + 1)
        assert all(len(each) == 2 for each in heard.sets)


async def test_a_failed_lookup_takes_nothing_away(server: FakeDns) -> None:
    server.set(NAME, "A", "10.0.0.1")
    async with finding(server) as heard:
        await heard.until("10.0.0.1")
        server.rcode = dns.rcode.SERVFAIL
        await server.asked.reaches(server.asked.count + 20)
        server.rcode = dns.rcode.NOERROR
        server.records.clear()  # an empty answer takes nothing away either
        await server.asked.reaches(server.asked.count + 20)
        server.set(NAME, "A", "10.0.0.3")
        await heard.until("10.0.0.1", "10.0.0.3")
        assert all("http://10.0.0.1:8000" in each for each in heard.sets)
        failures = [event for event in heard.logged() if event == "dns_discovery_failed"]
        assert len(failures) <= 3, "each trouble is told once"
        assert failures


async def test_the_first_look_may_find_nothing(server: FakeDns) -> None:
    async with finding(server) as heard:
        await heard.source.first_look()
        assert heard.sets == []


async def test_the_number_of_replicas_is_bounded_and_known_ones_stay(server: FakeDns) -> None:
    server.set(NAME, "A", "10.0.0.5")
    async with finding(server) as heard:
        await heard.until("10.0.0.5")
        server.set(NAME, "A", *(f"10.0.0.{number}" for number in range(1, 9)))
        await heard.until("10.0.0.5", "10.0.0.1", "10.0.0.2")
        assert "discovered_replicas_over_limit" in heard.logged()


class TestReplicas:
    def config(
        self, record: DnsRecord = DnsRecord.ADDRESS, *, scheme: str = "http", template: ReplicaConfig = TEMPLATE
    ) -> DnsReplicasConfig:
        return DnsReplicasConfig(template, NAME, record, scheme, 8000)

    def at(self, address: str, config: DnsReplicasConfig) -> list[tuple[str, str]]:
        found = replicas_at(config, [ReplicaLocation(ip_address(address), 8000, "a.test")])
        return [(each.spec.replica_id, each.url) for each in found]

    def test_they_are_called_after_their_address(self) -> None:
        assert self.at("10.0.0.1", self.config()) == [("llama-10.0.0.1", "http://10.0.0.1:8000")]
        assert self.at("2001:db8::1", self.config()) == [("llama-2001-db8--1", "http://[2001:db8::1]:8000")]
        assert self.at("10.0.0.1", self.config(DnsRecord.SRV)) == [("llama-10.0.0.1-8000", "http://10.0.0.1:8000")]

    def test_ranks_are_counted_at_each_address(self) -> None:
        ranked = ReplicaConfig(replica_spec("llama"), "", Dialect.VLLM, ranks=2)
        found = self.at("10.0.0.1", self.config(template=ranked))
        assert [name for name, _ in found] == ["llama-10.0.0.1@0", "llama-10.0.0.1@1"]

    def test_all_else_comes_from_the_template(self) -> None:
        (found,) = replicas_at(self.config(), [ReplicaLocation(ip_address("10.0.0.1"), 8000, "a.test")])
        assert (found.spec.models, found.spec.place, found.api_key, found.tls) == ((MODEL,), US, "secret", None)

    @pytest.mark.parametrize(("named", "groups"), [("", ["d-10.0.0.1", "d-10.0.0.2"]), ("d", ["d", "d"])])
    def test_whoever_names_no_group_steps_alone(self, named: str, groups: list[str]) -> None:
        spec = replace(replica_spec("d"), role=ReplicaRole.DECODE, group=named)
        template = ReplicaConfig(spec, "", Dialect.VLLM, ranks=2)
        locations = [ReplicaLocation(ip_address(f"10.0.0.{number}"), 8000, "a.test") for number in (1, 2)]
        found = replicas_at(self.config(template=template), locations)
        assert [each.spec.group for each in found] == [group for group in groups for _ in range(2)]

    def test_certificates_are_held_against_the_name_that_was_asked_for(self) -> None:
        (found,) = replicas_at(self.config(scheme="https"), [ReplicaLocation(ip_address("10.0.0.1"), 8000, "a.test")])
        assert found.tls == EngineTlsConfig(server_name="a.test")
        named = ReplicaConfig(replica_spec("llama"), "", Dialect.VLLM, tls=EngineTlsConfig(server_name="b.test"))
        config = self.config(scheme="https", template=named)
        (found,) = replicas_at(config, [ReplicaLocation(ip_address("10.0.0.1"), 8000, "a.test")])
        assert found.tls == EngineTlsConfig(server_name="b.test")
