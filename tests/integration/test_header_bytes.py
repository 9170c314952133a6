"""A client's header values are bytes: they reach engines here and in other regions unchanged, and fail no request."""

from __future__ import annotations

import asyncio

import pytest

from gateway.app.gateway import GatewayHandle
from gateway.core.kernel.attempts import BreakerState
from tests.fakes.engine import GOOD_STREAM, Exchange, Script
from tests.support.core import US
from tests.support.gateways import counted
from tests.support.regions import Mesh, Region, busy_us_and_free_eu
from tests.support.wire import posted, wire

CARRIED = ("accept", "traceparent", "tracestate", "user-agent", "x-session-id")
VALUES = {
    "Japanese": "セッション".encode(),
    "a euro": "€".encode(),
    "Latin-1": b"caf\xe9",
    "no UTF-8": b"\xff\xfe\x80",
    "next line, in UTF-8": "\x85".encode(),
    "a tab": b"a\tb",
}
ASKED = 12
"""More than it takes to open a breaker."""


async def send(gateway: GatewayHandle, value: bytes) -> bytes:
    """Send a request with this value in every header that is passed on; return the answer."""
    head, _, body = posted("connection: close").partition(b"\r\n\r\n")
    lines = b"".join(b"\r\n%b: (%b)" % (name.encode(), value) for name in CARRIED)
    async with wire(gateway) as client:
        client.send(head + lines + b"\r\n\r\n" + body)
        return await client.until_closed()


def assert_it_has(region: Region, value: bytes) -> None:
    told = f"({value.decode('utf-8', 'surrogateescape')})"
    for received in region.engine.received:
        assert [received.headers[name] for name in CARRIED] == [told] * len(CARRIED)


def assert_nobody_has_failed(*regions: Region) -> None:
    for region in regions:
        for state in (*region.gateway.core.replicas, *region.gateway.core.peers):
            assert state.breaker.state is BreakerState.CLOSED
        for target in ("replica", "peer"):
            assert counted(region.gateway, "attempts_total", target=target, result="failed") == 0
            assert counted(region.gateway, "attempts_total", target=target, result="internal") == 0


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
async def test_they_reach_an_engine_as_they_came(mesh: Mesh, value: bytes) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    for _ in range(ASKED):
        assert (await send(us.gateway, value)).startswith(b"HTTP/1.1 200")
    assert len(us.engine.received) == ASKED
    assert_it_has(us, value)
    assert_nobody_has_failed(us)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
async def test_they_reach_an_engine_abroad_as_they_came(mesh: Mesh, value: bytes) -> None:
    us, eu = await busy_us_and_free_eu(mesh)
    assert (await send(us.gateway, value)).startswith(b"HTTP/1.1 200")
    assert (len(us.engine.received), len(eu.engine.received)) == (0, 1)
    assert_it_has(eu, value)
    assert_nobody_has_failed(us, eu)


@pytest.mark.parametrize("value", [b"\x00", b"\x01", b"\x0b", b"\x1b", b"\x7f"])
async def test_control_characters_are_refused_before_anybody_is_asked(mesh: Mesh, value: bytes) -> None:
    us = await mesh.region("us-1", US)
    await mesh.start(us)
    answer = await send(us.gateway, value)
    assert answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    assert b'"code":"invalid_header"' in answer
    assert us.engine.received == []
    assert_nobody_has_failed(us)


def telling(line: bytes) -> Script:
    async def script(exchange: Exchange) -> None:
        body = b"".join(GOOD_STREAM)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%b\r\ncontent-length: %d\r\n\r\n"
        await exchange.raw(head % (line, len(body)) + body)
        await asyncio.Event().wait()

    return script


async def test_an_engine_s_own_bytes_come_back_as_they_were(mesh: Mesh) -> None:
    """Holds for answers of this region and of another."""
    us, eu = await busy_us_and_free_eu(mesh)
    raw = b"\xe9 \xe2\x82\xac"
    for region in (us, eu):
        region.engine.plays(telling(b"x-told: " + raw))
    assert b"x-told: " + raw + b"\r\n" in await send(us.gateway, b"from abroad")
    await us.become_free()
    assert b"x-told: " + raw + b"\r\n" in await send(us.gateway, b"from here")
    assert (len(us.engine.received), len(eu.engine.received)) == (1, 1)
