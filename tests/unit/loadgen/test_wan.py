"""The stand-in network: bytes arrive whole, in order and not too early, and cuts hold them back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway.core.vocabulary import RegionName
from loadgen.round_trips import RoundTripTable
from loadgen.wan import Wan
from tests.support.listening import knock, listening, until_dropped

US = RegionName("us-east-1")
EU = RegionName("eu-west-1")
AP = RegionName("ap-northeast-1")
ROUND_TRIP_S = 0.04
IN_FLIGHT_BYTES_MAX = 2**18

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Network:
    """A WAN, an echo server in the EU, and connections to it from the US."""

    def __init__(self, wan: Wan, port: int, route: int, stack: contextlib.AsyncExitStack) -> None:
        self.wan = wan
        self.port = port
        self.route = route
        self._stack = stack

    async def dial(self, port: int | None = None) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.route)
        self._stack.push_async_callback(_close, writer)
        return reader, writer


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _is_silent(reader: asyncio.StreamReader) -> bool:
    """Return whether no byte arrives within several round trips."""
    try:
        async with asyncio.timeout(5 * ROUND_TRIP_S):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    table = RoundTripTable({frozenset((US, EU)): ROUND_TRIP_S, frozenset((US, AP)): 0.0})
    async with asyncio.timeout(10), contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(_echo))
        async with Wan(table, in_flight_bytes_max=IN_FLIGHT_BYTES_MAX) as wan:
            yield Network(wan, port, await wan.route(US, EU, port), stack)


async def test_a_connection_pays_for_the_handshake_and_each_way(network: Network) -> None:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    reader, writer = await network.dial()
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    connected_s = loop.time()
    assert connected_s - started_s >= 2 * ROUND_TRIP_S
    writer.write(b"again")
    assert await reader.readexactly(5) == b"again"
    assert loop.time() - connected_s >= ROUND_TRIP_S


async def test_bytes_arrive_whole_and_in_order_beyond_the_window(network: Network) -> None:
    reader, writer = await network.dial()
    sent = b"".join(index.to_bytes(4, "big") for index in range(IN_FLIGHT_BYTES_MAX))  # four times as many bytes

    async def send() -> None:
        writer.write(sent)
        await writer.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        assert await reader.readexactly(len(sent)) == sent


async def test_a_close_travels_to_the_other_end_behind_the_data(network: Network) -> None:
    closed = asyncio.Event()
    received = bytearray()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        closed.set()

    async with listening(swallow) as port:
        _, writer = await network.dial(await network.wan.route(US, EU, port))
        writer.write(b"last words")
        writer.close()
        await closed.wait()
    assert received == b"last words"


async def test_a_cut_holds_bytes_back_until_it_heals(network: Network) -> None:
    reader, writer = await network.dial()
    writer.write(b"a")
    await reader.readexactly(1)
    network.wan.cut(US, EU)
    writer.write(b"b")
    assert await _is_silent(reader)
    network.wan.heal(EU, US)
    assert await reader.readexactly(1) == b"b"


async def test_a_one_way_cut_still_carries_the_other_way(network: Network) -> None:
    heard = asyncio.Event()

    async def hear_and_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1):
            heard.set()
            writer.write(b"!")

    async with listening(hear_and_answer) as port:
        reader, writer = await network.dial(await network.wan.route(US, EU, port))
        writer.write(b"?")
        await reader.readexactly(1)
        heard.clear()
        network.wan.cut_one_way(EU, US)
        writer.write(b"?")
        await heard.wait()
        assert await _is_silent(reader)
        network.wan.heal(US, EU)
        assert await reader.readexactly(1) == b"!"


async def test_a_new_connection_waits_for_the_cut_to_heal(network: Network) -> None:
    network.wan.cut(US, EU)
    reader, writer = await network.dial()
    writer.write(b"x")
    assert await _is_silent(reader)
    network.wan.heal(US, EU)
    assert await reader.readexactly(1) == b"x"


async def test_a_cut_touches_only_its_pair(network: Network) -> None:
    network.wan.cut(US, EU)
    reader, writer = await network.dial(await network.wan.route(US, AP, network.port))
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"


async def test_a_refused_port_ends_the_callers_connection(network: Network) -> None:
    async with listening(_echo) as port:
        pass
    reader, _ = await network.dial(await network.wan.route(US, EU, port))
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def test_an_unknown_pair_is_an_error(network: Network) -> None:
    with pytest.raises(KeyError):
        await network.wan.route(EU, AP, network.port)


async def test_leaving_drops_every_connection_also_one_that_is_just_being_made() -> None:
    async with asyncio.timeout(10):
        async with listening(_echo) as port, Wan(RoundTripTable({frozenset((US, EU)): ROUND_TRIP_S})) as wan:
            route = await wan.route(US, EU, port)
            settled = await asyncio.open_connection("127.0.0.1", route)
            settled[1].write(b"x")
            await settled[0].readexactly(1)
            wan.cut(US, EU)
            waiting = await asyncio.open_connection("127.0.0.1", route)
        for reader, writer in (settled, waiting):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await _close(writer)


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_arrives_while_we_leave_is_dropped(turns: int) -> None:
    """The connection arrives at each step between its acceptance and its report to the WAN."""
    async with asyncio.timeout(10):
        async with Wan(RoundTripTable({frozenset((US, EU)): ROUND_TRIP_S})) as wan:
            caller = await knock(await wan.route(US, EU, port=9), turns)
        await until_dropped(caller)
