from __future__ import annotations

import asyncio
import random
import socket
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
from msgspec.structs import replace

from mesh.clock import Clock
from mesh.naming.answers import DnsAnswers
from mesh.naming.counters import DnsCounters
from mesh.naming.limits import ConnectionLimit, DatagramLimit, DnsLimits, TimeShare
from mesh.naming.server import Common, DnsServer
from mesh.naming.tree import NameServer, RecordTree
from tests.support.clock import StillClock
from tests.support.naming import US_ADDRESS, addresses, query, tree

LONG = tuple(NameServer(f"{letter * 60}.{letter * 60}.elsewhere.example.") for letter in "abcdefghijklm")
LOCAL = ip_address("127.0.1.1")


class SpentAfterOne(TimeShare):
    """Time share that the first answer uses up, for this long."""

    def __init__(self, rest_ns: int) -> None:
        super().__init__(1)
        self._rest_ns = rest_ns

    def rest_ns(self, now_ns: int) -> int:
        return self._rest_ns if self._spent_ns else 0


def common(
    limits: DnsLimits, clock: Clock, answers: DnsAnswers, told: list[object], time: TimeShare | None = None
) -> Common:
    return Common(
        answers,
        clock,
        limits,
        DnsCounters(),
        DatagramLimit(limits),
        time or TimeShare(limits.time_max_ns),
        ConnectionLimit(limits),
        told.append,
        told.append,
    )


class Serving:
    """A server with its counters."""

    def __init__(self, server: DnsServer, shared: Common, told: list[object]) -> None:
        self.server = server
        self.counters = shared.counters
        self.told = told
        self.address = (server.address.host, server.address.port)

    def counted(self) -> dict[tuple[str, ...], float]:
        """Questions, by type and answer."""
        return {
            tuple(sample.labels.values()): sample.value
            for family in self.counters.queries.collect()
            for sample in family.samples
        }

    def count(self, name: str) -> float:
        (family,) = getattr(self.counters, name).collect()
        return float(sum(sample.value for sample in family.samples))


@asynccontextmanager
async def serving(
    limits: DnsLimits | None = None,
    clock: Clock | None = None,
    given: RecordTree | None = None,
    *,
    answers: DnsAnswers | None = None,
    time: TimeShare | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Serving]:
    answers = answers or DnsAnswers()
    answers.apply(given or tree())
    told: list[object] = []
    shared = common(limits or DnsLimits(), clock or Clock(), answers, told, time)
    server = await DnsServer(shared).start(host, 0)
    try:
        yield Serving(server, shared, told)
    finally:
        await server.stop()


async def by_datagram(server: Serving, asked: dns.message.Message, source: str = "127.0.1.1") -> dns.message.Message:
    host, port = server.address
    return await dns.asyncquery.udp(asked, host, timeout=60, port=port, source=source)


async def by_connection(server: Serving, asked: dns.message.Message) -> dns.message.Message:
    host, port = server.address
    return await dns.asyncquery.tcp(asked, host, timeout=60, port=port, source="127.0.1.1")


async def raw(server: Serving, data: bytes) -> bytes | None:
    """Send one datagram; return its answer, or None if a good question sent after it is answered first."""
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
            assert server.counted() == {("A", "answered"): 2}

    async def test_where_a_datagram_came_from_decides(self) -> None:
        async with serving() as server:
            assert addresses(await by_datagram(server, query(), "127.0.2.9")) == ["192.0.2.2"]

    async def test_what_does_not_fit_is_truncated_and_whole_by_connection(self) -> None:
        async with serving(given=replace(tree(), name_servers=LONG)) as server:
            short = await by_datagram(server, query(kind="NS", payload=512))
            assert short.flags & dns.flags.TC
            assert len(short.to_wire()) <= 512
            (whole,) = (await by_connection(server, query(kind="NS", payload=512))).answer
            assert len(whole) == len(LONG)
            assert server.count("truncated") == 1

    async def test_what_need_not_be_said_is_left_out_before_anything_is_truncated(self) -> None:
        inside = tuple(NameServer(f"{letter * 60}.mesh.example.", ("192.0.2.53",)) for letter in "abcdef")
        async with serving(given=replace(tree(), name_servers=inside)) as server:
            short = await by_datagram(server, query(kind="NS", payload=512))
            assert not short.flags & dns.flags.TC
            assert not short.additional
            assert len(short.answer[0]) == len(inside)

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

    @pytest.mark.parametrize(("host", "asked"), [("0.0.0.0", "127.0.0.77"), ("::", "::1"), ("::1", "::1")])
    async def test_an_answer_comes_from_where_the_question_went(self, host: str, asked: str) -> None:
        async with serving(host=host) as server:
            answer = await dns.asyncquery.udp(query(), asked, timeout=60, port=server.address[1])
            assert len(addresses(answer)) == 2

    async def test_a_question_that_meets_an_error_of_ours_fails_alone(self) -> None:
        class Broken(DnsAnswers):
            def answer(self, query: dns.message.Message, client: object) -> dns.message.Message:
                raise KeyError("ours")

        async with serving(answers=Broken()) as server:
            for ask in (by_datagram, by_connection):
                assert (await ask(server, query())).rcode() == dns.rcode.SERVFAIL
            assert server.counted() == {("A", "failed"): 2}
            assert [str(each) for each in server.told] == ["'ours'", "'ours'"]


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
            assert server.count("limited") == 1
            assert [str(each) for each in server.told] == ["127.0.1.1"]

    async def test_no_answer_is_much_longer_than_its_question(self) -> None:
        many = tuple(f"192.0.2.{number}" for number in range(200)) + tuple(f"2001:db8::{n:x}" for n in range(200))
        async with serving(given=tree(us=many)) as server:
            for kind in ("ANY", "A", "AAAA", "HTTPS", "SOA", "NS", "TXT"):
                asked = query(kind=kind)
                answer = await by_datagram(server, asked)
                assert len(answer.to_wire()) < 7 * len(asked.to_wire())

    async def test_a_second_whose_share_is_used_up_answers_nobody_until_the_next(self) -> None:
        time = SpentAfterOne(rest_ns=3600 * 1_000_000_000)
        async with serving(time=time) as server:
            assert addresses(await by_datagram(server, query()))
            assert server.server._rest is not None
            with pytest.raises(dns.exception.Timeout):
                await dns.asyncquery.udp(query(), server.address[0], timeout=0.05, port=server.address[1])

    async def test_in_the_next_they_are_answered_whichever_way_they_come(self) -> None:
        async with serving(time=SpentAfterOne(rest_ns=1)) as server:
            for ask in (by_datagram, by_connection, by_datagram):
                assert addresses(await ask(server, query()))

    async def test_when_all_places_are_taken_whoever_was_silent_for_longest_leaves(self) -> None:
        async with serving(DnsLimits(connections_max=2)) as server:
            first, second = [await asyncio.open_connection(*server.address) for _ in range(2)]
            wire = query().to_wire()
            for reader, writer in (second, first):
                writer.write(struct.pack("!H", len(wire)) + wire)
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                await reader.readexactly(length)
            assert addresses(await by_connection(server, query()))
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await second[0].readexactly(1)
            assert server.count("turned_away") == 1
            for _, writer in (first, second):
                writer.close()

    async def test_one_network_has_so_many_and_one_more_goes_for_its_own_most_silent(self) -> None:
        async with serving(DnsLimits(network_connections_max=2)) as server:
            beside = ("127.0.1.9", 0)
            silent = [await asyncio.open_connection(*server.address, local_addr=beside) for _ in range(2)]
            other = await asyncio.open_connection(*server.address, local_addr=("127.0.2.1", 0))
            for _ in range(3):
                assert addresses(await by_connection(server, query())), "silence shuts nobody out"
            with pytest.raises((OSError, EOFError)):
                await silent[0][0].readexactly(1)
            assert server.count("turned_away") == 1, "those who have asked and gone have left their place"
            wire = query().to_wire()
            for reader, writer in (other, silent[1]):
                writer.write(struct.pack("!H", len(wire)) + wire)
                assert await reader.readexactly(2)
            for _, writer in (*silent, other):
                writer.close()

    async def test_a_connection_that_says_nothing_is_let_go(self) -> None:
        async with serving(DnsLimits(idle_s=0.01)) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    async def test_after_so_many_questions_a_connection_is_closed(self) -> None:
        async with serving(DnsLimits(queries_per_connection=1)) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            wire = query().to_wire()
            writer.write(struct.pack("!H", len(wire)) + wire)
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            await reader.readexactly(length)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    async def test_stopping_lets_everybody_go(self) -> None:
        async with serving() as server:
            reader, writer = await asyncio.open_connection(*server.address)
            await by_datagram(server, query())
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    @pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
    async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open(self, kind: socket.SocketKind) -> None:
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                taken.listen()
            other = DnsServer(common(DnsLimits(), Clock(), DnsAnswers(), []))
            with pytest.raises(OSError, match="in use"):
                await other.start(*taken.getsockname())


class TestMalformed:
    async def test_an_answer_is_never_answered(self) -> None:
        async with serving() as server:
            response = dns.message.make_response(query())
            assert await raw(server, response.to_wire()) is None
            assert server.count("malformed") == 1

    async def test_nor_one_that_comes_too_often(self) -> None:
        async with serving(DnsLimits(answers_per_s=1), StillClock()) as server:
            await by_datagram(server, query())
            assert server.server._answer_datagram(dns.message.make_response(query()).to_wire(), LOCAL) is None
            assert server.server._answer_datagram(query().to_wire(), LOCAL) is None
            assert server.server._answer_datagram(query().to_wire(), LOCAL) is not None

    async def test_what_cannot_be_read_is_told_so_in_its_own_header_alone(self) -> None:
        async with serving() as server:
            answer = await raw(server, query().to_wire()[:-3])
            assert answer is not None
            assert len(answer) == 12
            assert dns.message.from_wire(answer).rcode() == dns.rcode.FORMERR

    async def test_nothing_that_comes_stops_it(self) -> None:
        rng = random.Random(5)
        good = query(subnet="203.0.113.0/24").to_wire()
        async with serving(DnsLimits(answers_per_s=10_000, time_max_ns=60_000_000_000)) as server:
            for _ in range(2_000):
                data = bytearray(good)
                for _ in range(rng.randrange(1, 6)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                server.server._answer_datagram(bytes(data[: rng.randrange(len(data) + 1)]), LOCAL)
            assert server.told == []
            assert server.count("malformed") > 100
            assert addresses(await by_datagram(server, query())) == [US_ADDRESS]

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
