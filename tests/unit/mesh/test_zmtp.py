"""ZMTP between two sides of this module, and against bytes of libzmq."""

from __future__ import annotations

import asyncio

import pytest

from mesh.zmtp import SocketType, ZmtpFault, message_bytes, read_message, shake_hands, subscription_bytes

LIBZMQ_PUB = (
    bytes.fromhex("ff00000000000000017f")
    + b"\x03\x01"
    + b"NULL".ljust(20, b"\0")
    + bytes(32)
    + bytes.fromhex("0419")
    + b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
)
"""Greeting and handshake of a publisher of libzmq 4.3."""


def reader_of(sent: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    reader.feed_eof()
    return reader


async def hears(sent: bytes, own: SocketType = SocketType.SUB) -> None:
    await shake_hands(reader_of(sent), lambda _: None, own)


async def read(sent: bytes, bytes_max: int = 1_000) -> list[bytes]:
    return (await read_message(reader_of(sent), bytes_max))[0]


@pytest.mark.parametrize(("one", "other"), [(SocketType.SUB, SocketType.PUB), (SocketType.DEALER, SocketType.ROUTER)])
async def test_two_sides_meet_and_speak(one: SocketType, other: SocketType) -> None:
    here, there = asyncio.StreamReader(), asyncio.StreamReader()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(shake_hands(here, there.feed_data, one))
        tasks.create_task(shake_hands(there, here.feed_data, other))
    there.feed_data(subscription_bytes(b"kv"))
    assert await read_message(there, 100) == ([b"\x01kv"], 5)
    parts = [b"", b"a" * 255, b"b" * 256, b"c" * 70_000]
    here.feed_data(message_bytes(parts))
    heads = 2 + 2 + 9 + 9
    assert await read_message(here, 100_000) == (parts, sum(map(len, parts)) + heads)


async def test_a_publisher_of_libzmq_is_met() -> None:
    await hears(LIBZMQ_PUB)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n".ljust(64), "does not speak ZMTP"),
        (LIBZMQ_PUB.replace(b"\x03\x01", b"\x01\x00", 1), "speaks ZMTP 1"),
        (LIBZMQ_PUB.replace(b"NULL\0", b"CURVE"), "security mechanism CURVE"),
        (LIBZMQ_PUB.replace(b"PUB", b"REP"), "socket of type REP"),
        (LIBZMQ_PUB.replace(b"READY", b"ERROR"), "does not say that it is ready"),
        (LIBZMQ_PUB.replace(b"\x00\x03PUB", b"\x00\x09PUB"), "cut short"),
        (LIBZMQ_PUB[:64] + b"\x06" + (10_000).to_bytes(8, "big"), "more than 4,096 bytes"),
    ],
)
async def test_a_stranger_is_refused(sent: bytes, why: str) -> None:
    with pytest.raises(ZmtpFault, match=why):
        await hears(sent)


async def test_a_side_that_closes_is_noticed() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await hears(LIBZMQ_PUB[:70])


async def test_commands_between_parts_are_ignored() -> None:
    sent = b"\x01\x01a" + b"\x04\x05\x04PING" + b"\x00\x01b"
    assert await read_message(reader_of(sent), 1_000) == ([b"a", b"b"], len(sent))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\x80\x00", "unknown flags 0x80"),
        (b"\x02" + (2**63).to_bytes(8, "big"), "more than"),
        (message_bytes([b"a" * 600, b"b" * 600]), "more than"),
        (message_bytes([b""] * 17), "more than 16 parts"),
        (b"\x04\x00" * 65 + b"\x00\x01a", "more than 64 commands"),
        ((b"\x06" + (600).to_bytes(8, "big") + bytes(600)) * 2 + b"\x00\x01a", "more than"),
    ],
)
async def test_no_message_exceeds_its_bounds(sent: bytes, why: str) -> None:
    with pytest.raises(ZmtpFault, match=why):
        await read(sent)
