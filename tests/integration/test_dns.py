"""Names that gateways answer, queried by common resolvers: dig, dnspython and c-ares."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import dns.asyncquery
import dns.asyncresolver
import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.resolver
import pycares
import pytest
import yaml
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from mesh.naming.tree import NameServer, RecordTree
from mesh.values import Address
from tests.support.core import EU as EU_PLACE
from tests.support.core import US as US_PLACE
from tests.support.gateways import counted, region_document, serving_file
from tests.support.naming import EU, EVERYBODY, NS1, US_ADDRESS, addresses, query, tree, with_further

LONG = tuple(NameServer(f"{letter * 60}.{letter * 60}.elsewhere.example.") for letter in "abcdefghijklm")
IN_EU, IN_US, NOWHERE = "203.0.113.0/24", "198.51.100.0/24", "192.0.2.0/24"
IPV4 = sorted(each for each in EVERYBODY if ":" not in each)


@asynccontextmanager
async def answering(folder: Path, *listen: str, **more: object) -> AsyncIterator[GatewayHandle]:
    """A gateway whose region file makes it answer DNS queries."""
    document = region_document(folder, "us-1", US_PLACE, dns={"listen": list(listen or ["127.0.0.1:0"]), **more})
    path = folder / "us.yaml"
    path.write_text(yaml.safe_dump(document))
    async with serving_file(path) as gateway:
        yield gateway


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[GatewayHandle]:
    async with answering(tmp_path, "127.0.0.1:0", "[::1]:0") as gateway:
        gateway.names.apply(tree())
        yield gateway


@dataclass(frozen=True, slots=True)
class Dug:
    """Output of dig."""

    text: str

    @property
    def answers(self) -> list[str]:
        """Records of the answer, each as `TYPE DATA`."""
        lines = self.section("ANSWER").splitlines()
        return sorted(" ".join(line.split()[3:]) for line in lines)

    def section(self, name: str) -> str:
        _, found, rest = self.text.partition(f";; {name} SECTION:\n")
        return rest.partition("\n\n")[0] if found else ""

    @property
    def status(self) -> str:
        return self.text.partition("status: ")[2].partition(",")[0]


async def dig(server: Address, *arguments: str) -> Dug:
    command = ("dig", f"@{server.host}", "-p", str(server.port), "+time=60", "+tries=1", "+norecurse", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return Dug(out.decode())


class CAres:
    """c-ares, the resolver in programs that resolve names by themselves."""

    def __init__(self, server: Address, *, flags: int = 0, source: str | None = None) -> None:
        self._channel = pycares.Channel(
            servers=[str(server)], timeout=60, tries=1, local_ip=source, flags=flags, lookups="b"
        )

    async def ask(self, kind: int, name: str = "mesh.example") -> pycares.DNSResult:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[pycares.DNSResult] = loop.create_future()

        def on_told(result: pycares.DNSResult, fault: int | None) -> None:
            if fault is None:
                loop.call_soon_threadsafe(told.set_result, result)
            else:
                loop.call_soon_threadsafe(told.set_exception, OSError(fault, pycares.errno.strerror(fault)))

        self._channel.query(name, kind, callback=on_told)
        return await told

    def close(self) -> None:
        self._channel.close()


def addresses_in(told: pycares.DNSResult) -> list[str]:
    kinds = (pycares.ARecordData, pycares.AAAARecordData)
    return sorted(each.data.addr for each in told.answer if isinstance(each.data, kinds))


@asynccontextmanager
async def c_ares(server: Address, *, flags: int = 0, source: str | None = None) -> AsyncIterator[CAres]:
    client = CAres(server, flags=flags, source=source)
    try:
        yield client
    finally:
        client.close()


class TestDig:
    @pytest.mark.parametrize("over", ["+notcp", "+tcp"])
    @pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
    async def test_every_kind_of_record(self, gateway: GatewayHandle, family: int, over: str) -> None:
        at, subnet = gateway.names.addresses[family], f"+subnet={IN_EU}"
        for kind, expected in (
            ("A", ["A 192.0.2.2"]),
            ("AAAA", ["AAAA 2001:db8::2"]),
            ("HTTPS", ['HTTPS 1 . alpn="http/1.1" ipv4hint=192.0.2.2 ipv6hint=2001:db8::2']),
            ("NS", [f"NS {NS1}", "NS ns2.elsewhere.example."]),
            ("SOA", [f"SOA {NS1} hostmaster.mesh.example. 1 60 30 86400 5"]),
        ):
            dug = await dig(at, "mesh.example", kind, over, subnet)
            assert (dug.status, dug.answers) == ("NOERROR", expected)
            assert "flags: qr aa;" in dug.text
        dug = await dig(at, "_https._tcp.mesh.example", "SRV", over, subnet)
        assert dug.answers == ["SRV 0 0 443 mesh.example."]

    async def test_https_records_lead_to_the_nearest_gateways_first(self, gateway: GatewayHandle) -> None:
        (at, _), subnet = gateway.names.addresses, f"+subnet={IN_EU}"
        gateway.names.apply(with_further(tree(2), EU, "192.0.2.31"))
        dug = await dig(at, "mesh.example", "HTTPS", subnet)
        assert dug.answers == [
            'HTTPS 1 nearest.eu-west-1.mesh.example. alpn="http/1.1" ipv4hint=192.0.2.2 ipv6hint=2001:db8::2',
            'HTTPS 2 further.eu-west-1.mesh.example. alpn="http/1.1" ipv4hint=192.0.2.31',
        ]
        for label, address in (("nearest", "192.0.2.2"), ("further", "192.0.2.31")):
            assert (await dig(at, f"{label}.eu-west-1.mesh.example", "A", subnet)).answers == [f"A {address}"]
        async with c_ares(at, source="127.0.2.1") as client:
            told = await client.ask(pycares.QUERY_TYPE_HTTPS)
            found = [each.data for each in told.answer if isinstance(each.data, pycares.HTTPSRecordData)]
            assert sorted((each.priority, each.target) for each in found) == [
                (1, "nearest.eu-west-1.mesh.example"),
                (2, "further.eu-west-1.mesh.example"),
            ]

    async def test_by_the_network_of_the_client_that_a_resolver_tells(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        for subnet, expected, scope in (
            (IN_EU, ["A 192.0.2.2"], "203.0.113.0/24/24"),
            (IN_US, [f"A {US_ADDRESS}"], "198.51.100.0/24/24"),
            ("2001:db8:e:7::/64", ["A 192.0.2.2"], "2001:db8:e:7::/64/48"),
            (NOWHERE, [f"A {each}" for each in IPV4], "192.0.2.0/24/6"),
        ):
            dug = await dig(at, "mesh.example", "A", f"+subnet={subnet}")
            assert dug.answers == expected
            assert f"CLIENT-SUBNET: {scope}" in dug.text

    async def test_without_one_by_where_the_question_comes_from(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        assert (await dig(at, "mesh.example", "A", "-b", "127.0.2.7")).answers == ["A 192.0.2.2"]
        assert (await dig(at, "mesh.example", "A", "-b", "127.0.2.7", "+noedns")).answers == ["A 192.0.2.2"]
        for hidden in ("0.0.0.0/0", "0", "::/0"):
            dug = await dig(at, "mesh.example", "A", "-b", "127.0.2.7", f"+subnet={hidden}")
            assert dug.answers == ["A 192.0.2.2"]

    async def test_no_name_no_data_and_no_business_of_ours_are_told_apart(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        for name, kind, status in (
            ("no.mesh.example", "A", "NXDOMAIN"),
            ("mesh.example", "MX", "NOERROR"),
            ("_tcp.mesh.example", "A", "NOERROR"),
            ("example", "A", "REFUSED"),
            ("www.example.org", "A", "REFUSED"),
        ):
            dug = await dig(at, name, kind)
            assert (dug.status, dug.answers) == (status, [])
            assert ("SOA" in dug.section("AUTHORITY")) == (status != "REFUSED")
        assert (await dig(at, "version.bind", "TXT", "CH")).status == "REFUSED"
        assert (await dig(at, "mesh.example", "A", "+opcode=3")).status == "NOTIMP"
        assert (await dig(at, "mesh.example", "A", "+edns=9", "+noednsnegotiation")).status == "BADVERS"
        assert "Transfer failed." in (await dig(at, "mesh.example", "AXFR")).text

    async def test_nobody_is_looked_up_for_anybody(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        dug = await dig(at, "mesh.example", "A", "+recurse")
        assert "recursion requested but not available" in dug.text

    async def test_what_is_too_long_comes_by_tcp(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        gateway.names.apply(replace(tree(2), name_servers=LONG))
        short = await dig(at, "mesh.example", "NS", "+ignore", "+noedns")
        assert "flags: qr aa tc;" in short.text
        whole = await dig(at, "mesh.example", "NS", "+noedns")
        assert len(whole.answers) == len(LONG)

    async def test_why_nobody_can_be_told_of_is_told(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        gateway.names.apply(tree(2, eu=(), closed=frozenset({EU})))
        dug = await dig(at, "mesh.example", "A", f"+subnet={IN_EU}")
        assert (dug.status, dug.answers) == ("NOERROR", [])
        assert "EDE: 0 (Other): (no gateway lives that clients in EU may be sent to)" in dug.text


class TestDnspython:
    @pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
    @pytest.mark.parametrize("ask", [dns.asyncquery.udp, dns.asyncquery.tcp], ids=["udp", "tcp"])
    async def test_with_a_clients_network_and_without(self, gateway: GatewayHandle, family: int, ask: object) -> None:
        assert callable(ask)
        at = gateway.names.addresses[family]
        told: dns.message.Message = await ask(query(subnet=IN_EU), at.host, timeout=60, port=at.port)
        assert addresses(told) == ["192.0.2.2"]
        plain = dns.message.make_query("mesh.example.", "A", use_edns=-1)
        told = await ask(plain, at.host, timeout=60, port=at.port)
        assert addresses(told) == IPV4

    async def test_its_resolver_finds_them(self, gateway: GatewayHandle) -> None:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.lifetime = 60
        (at, _) = gateway.names.addresses
        resolver.nameservers, resolver.port = [at.host], at.port
        answer = await resolver.resolve("mesh.example.", "A", source="127.0.2.1")
        assert ([each.to_text() for each in answer], answer.rrset.ttl if answer.rrset else 0) == (["192.0.2.2"], 5)
        with pytest.raises(dns.resolver.NXDOMAIN):
            await resolver.resolve("no.mesh.example.", "A")
        with pytest.raises(dns.resolver.NoAnswer):
            await resolver.resolve("ap-northeast-1.mesh.example.", "A")


class TestCAres:
    @pytest.mark.parametrize("flags", [0, pycares.ARES_FLAG_EDNS, pycares.ARES_FLAG_USEVC], ids=["udp", "edns", "tcp"])
    async def test_addresses_and_services(self, gateway: GatewayHandle, flags: int) -> None:
        (at, _) = gateway.names.addresses
        async with c_ares(at, flags=flags, source="127.0.2.1") as client:
            told = await client.ask(pycares.QUERY_TYPE_A)
            assert addresses_in(told) == ["192.0.2.2"]
            told = await client.ask(pycares.QUERY_TYPE_AAAA)
            assert addresses_in(told) == ["2001:db8::2"]
            told = await client.ask(pycares.QUERY_TYPE_SRV, "_https._tcp.mesh.example")
            (service,) = [each.data for each in told.answer if isinstance(each.data, pycares.SRVRecordData)]
            assert (service.target, service.port) == ("mesh.example", 443)
            told = await client.ask(pycares.QUERY_TYPE_HTTPS)
            assert [type(each.data) for each in told.answer] == [pycares.HTTPSRecordData]

    async def test_over_ipv6(self, gateway: GatewayHandle) -> None:
        (_, at) = gateway.names.addresses
        async with c_ares(at) as client:
            told = await client.ask(pycares.QUERY_TYPE_A)
            assert addresses_in(told) == IPV4

    async def test_what_is_too_long_comes_by_tcp(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        gateway.names.apply(replace(tree(2), name_servers=LONG))
        async with c_ares(at) as client:
            told = await client.ask(pycares.QUERY_TYPE_NS)
            assert len(told.answer) == len(LONG)
        assert counted(gateway, "dns_truncated_total") == 1

    async def test_no_name_and_no_data_are_told_apart(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        async with c_ares(at) as client:
            for name, fault in (
                ("no.mesh.example", pycares.errno.ARES_ENOTFOUND),
                ("_tcp.mesh.example", pycares.errno.ARES_ENODATA),
            ):
                with pytest.raises(OSError) as told:
                    await client.ask(pycares.QUERY_TYPE_A, name)
                assert told.value.errno == fault


class TestGateways:
    async def test_without_a_controller_every_gateway_that_took_the_tree_answers_alike(self, tmp_path: Path) -> None:
        async with AsyncExitStack() as stack:
            gateways = []
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                gateway = await stack.enter_async_context(answering(tmp_path / name))
                gateway.names.apply(tree(4, closed=frozenset({EU})))
                gateways.append(gateway.names.addresses[0])
            for name in ("mesh.example.", "eu-west-1.mesh.example.", "no.mesh.example.", "_https._tcp.mesh.example."):
                for kind in ("A", "AAAA", "HTTPS", "SRV", "NS", "SOA"):
                    for subnet in ("", IN_EU, IN_US, "203.0.112.0/23"):
                        asked = query(name, kind, subnet=subnet)
                        told = [
                            await dns.asyncquery.udp(asked, each.host, timeout=60, port=each.port) for each in gateways
                        ]
                        assert told[0] == told[1]
                        assert told[0].options == told[1].options

    async def test_with_one_name_server_dead_resolvers_ask_the_other(self, tmp_path: Path) -> None:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.lifetime = 60
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        async with answering(tmp_path / "two") as left:
            left.names.apply(tree())
            async with answering(tmp_path / "one") as dead:
                dead.names.apply(tree())
                at = [dead.names.addresses[0], left.names.addresses[0]]
            resolver.nameservers = [dns.nameserver.Do53Nameserver(each.host, each.port) for each in at]
            answer = await resolver.resolve("mesh.example.", "A")
            assert sorted(each.to_text() for each in answer) == IPV4

    async def test_one_that_was_not_told_to_answers_nobody_and_still_judges_trees(self, tmp_path: Path) -> None:
        path = tmp_path / "eu.yaml"
        path.write_text(yaml.safe_dump(region_document(tmp_path, "eu-1", EU_PLACE)))
        async with serving_file(path) as gateway:
            assert gateway.names.addresses == ()
            gateway.names.apply(tree())
            with pytest.raises(ValueError, match="nowhere"):
                gateway.names.apply(replace(tree(2), anywhere=("nowhere",)))
            assert counted(gateway, "dns_records_version") == 1

    async def test_without_records_it_refuses_and_calls_for_somebody(self, tmp_path: Path) -> None:
        async with answering(tmp_path) as gateway:
            (at,) = gateway.names.addresses
            assert (await dig(at, "mesh.example")).status == "REFUSED"
            assert counted(gateway, "dns_without_records") == 1
            gateway.names.apply(RecordTree(1, 5, (), ()))
            assert counted(gateway, "dns_without_records") == 1
            gateway.names.apply(tree(2))
            assert (await dig(at, "mesh.example")).status == "NOERROR"
            assert counted(gateway, "dns_without_records") == 0

    async def test_what_was_asked_is_on_the_page_of_metrics(self, gateway: GatewayHandle) -> None:
        (at, _) = gateway.names.addresses
        await dig(at, "mesh.example", "A")
        await dig(at, "no.mesh.example", "TXT")
        async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/metrics") as response:
            page = await response.text()
        assert 'nightside_dns_queries_total{answer="answered",type="A"} 1.0' in page
        assert 'nightside_dns_queries_total{answer="nxdomain",type="other"} 1.0' in page
        assert "nightside_dns_records_version 1.0" in page

    async def test_an_address_that_is_taken_ends_the_start(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(OSError, match=f"names cannot be answered at {at}"):
                async with answering(tmp_path, at):
                    pass
