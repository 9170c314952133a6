from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import pytest

from gateway.ground.clock import Clock
from gateway.ground.naming.answers import Zone
from gateway.ground.naming.server import Allowance, DnsLimits, DnsServer
from tests.support.clock import StillClock
from tests.support.naming import NETWORKS, SETTINGS, US_ADDRESS, addresses, query, tree

MANY = tuple(f"192.0.2.{number}" for number in range(200))
SECOND_NS = 1_000_000_000


@asynccontextmanager
async def serving(
    limits: DnsLimits | None = None, clock: Clock | None = None, **areas: tuple[str, ...]
) -> AsyncIterator[DnsServer]:
    zone = Zone(SETTINGS, NETWORKS)
    zone.apply(tree(**areas))
    server = DnsServer(zone, clock or Clock(), limits)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


async def by_datagram(server: DnsServer, asked: dns.message.Message, source: str = "127.0.1.1") -> dns.message.Message:
    host, port = server.address
    return await dns.asyncquery.udp(asked, host, timeout=5, port=port, source=source)


async def by_connection(server: DnsServer, asked: dns.message.Message) -> dns.message.Message:
    host, port = server.address
    return await dns.asyncquery.tcp(asked, host, timeout=5, port=port, source="127.0.1.1")


async def raw(server: DnsServer, data: bytes) -> bytes | None:
    """One datagram, and what comes back before a good question is answered."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[bytes] = asyncio.Queue()

    class Client(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            answers.put_nowait(data)

    transport, _ = await loop.create_datagram_endpoint(Client, remote_addr=server.address)
    try:
        transport.sendto(data)
        transport.sendto(query().to_wire())
        first = await answers.get()
        return None if dns.message.from_wire(first).answer else first
    finally:
        transport.close()


class TestAnswers:
    async def test_by_datagram_and_by_connection_the_same(self) -> None:
        async with serving() as server:
            for ask in (by_datagram, by_connection):
                assert addresses(await ask(server, query())) == [US_ADDRESS]
            assert server.answered == 2

    async def test_where_a_datagram_came_from_decides(self) -> None:
        async with serving() as server:
            assert addresses(await by_datagram(server, query(), "127.0.2.9")) == ["192.0.2.2"]

    async def test_what_does_not_fit_is_truncated_and_whole_by_connection(self) -> None:
        async with serving(us=MANY) as server:
            short = await by_datagram(server, query())
            assert short.flags & dns.flags.TC
            assert len(short.to_wire()) <= 1232
            assert len(addresses(await by_connection(server, query()))) == len(MANY)

    async def test_a_connection_may_ask_again_and_again(self) -> None:
        async with serving() as server:
            reader, writer = await asyncio.open_connection(*server.address)
            wire = query().to_wire()
            writer.write((struct.pack("!H", len(wire)) + wire) * 5)
            for _ in range(5):
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                assert dns.message.from_wire(await reader.readexactly(length)).answer
            writer.close()
            await writer.wait_closed()


class TestBounds:
    async def test_a_network_that_asks_too_often_is_told_to_come_by_connection_and_others_are_not(self) -> None:
        async with serving(DnsLimits(answers_per_s=3), StillClock()) as server:
            for _ in range(3):
                assert addresses(await by_datagram(server, query()))
            told = await by_datagram(server, query())
            assert told.flags & dns.flags.TC
            assert not told.answer
            assert addresses(await by_datagram(server, query(), "127.0.2.1"))
            assert addresses(await by_connection(server, query()))
            assert server.limited == 1

    def test_what_is_left_grows_again_with_time(self) -> None:
        allowance = Allowance(DnsLimits(answers_per_s=2))
        client = ip_address("192.0.2.1")
        assert [allowance.take(client, 0) for _ in range(3)] == [True, True, False]
        assert [allowance.take(client, SECOND_NS) for _ in range(3)] == [True, True, False]

    def test_so_many_networks_are_remembered_and_no_more(self) -> None:
        allowance = Allowance(DnsLimits(networks_max=10))
        for number in range(100):
            allowance.take(ip_address(f"10.0.{number}.1"), 0)
        assert len(allowance) == 10

    async def test_no_answer_is_much_longer_than_its_question(self) -> None:
        async with serving() as server:
            for kind in ("ANY", "A", "SOA", "NS", "TXT"):
                asked = query(kind=kind)
                answer = await by_datagram(server, asked)
                assert len(answer.to_wire()) < 4 * len(asked.to_wire())

    async def test_more_connections_than_there_are_places_for_are_turned_away(self) -> None:
        async with serving(DnsLimits(connections_max=1)) as server:
            _, first = await asyncio.open_connection(*server.address)
            await by_datagram(server, query())
            with pytest.raises((OSError, EOFError)):
                await by_connection(server, query())
            first.close()
            await first.wait_closed()

    async def test_a_connection_that_says_nothing_is_let_go(self) -> None:
        async with serving(DnsLimits(idle_s=0.01)) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    async def test_stopping_waits_for_nobody(self) -> None:
        async with serving() as server:
            reader, writer = await asyncio.open_connection(*server.address)
            await by_datagram(server, query())
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open(self) -> None:
        async with serving() as server:
            other = DnsServer(Zone(SETTINGS, NETWORKS), Clock())
            with pytest.raises(OSError, match="in use"):
                await other.start(*server.address)


class TestMalformed:
    async def test_an_answer_is_never_answered(self) -> None:
        async with serving() as server:
            response = dns.message.make_response(query())
            assert await raw(server, response.to_wire()) is None
            assert server.malformed == 1

    async def test_what_cannot_be_read_is_told_so_in_its_own_header_alone(self) -> None:
        async with serving() as server:
            answer = await raw(server, query().to_wire()[:-3])
            assert answer is not None
            assert len(answer) == 12
            assert dns.message.from_wire(answer).rcode() == dns.rcode.FORMERR

    async def test_nothing_that_comes_stops_it(self) -> None:
        rng = random.Random(5)
        good = query(subnet="203.0.113.0/24").to_wire()
        async with serving(DnsLimits(answers_per_s=10_000)) as server:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=server.address)
            for _ in range(2_000):
                data = bytearray(good)
                for _ in range(rng.randrange(1, 6)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                transport.sendto(bytes(data[: rng.randrange(len(data) + 1)]))
            assert addresses(await by_datagram(server, query())) == [US_ADDRESS]
            transport.close()

    async def test_nor_by_connection(self) -> None:
        async with serving() as server:
            for data in (b"", b"\x00", b"\xff\xff", b"\x00\x05hello", b"\x00\x00", bytes(64)):
                reader, writer = await asyncio.open_connection(*server.address)
                writer.write(data)
                writer.write_eof()
                await reader.read()
                writer.close()
                await writer.wait_closed()
            assert addresses(await by_connection(server, query())) == [US_ADDRESS]
