"""ZMTP 3.0, the wire protocol of ZeroMQ, as far as subscribers and requesters of events and their servers need it: over
TCP, without security (mechanism NULL). Specification: https://rfc.zeromq.org/spec/23/.

Each side says what socket it is, and then sends messages of one part or more. Nothing is read beyond a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_GREETING: Final = _SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_HANDSHAKE_BYTES_MAX: Final = 4096
_PARTS_MAX: Final = 16
_COMMANDS_MAX: Final = 64
"""Most commands before a message and between its parts."""
_SUBSCRIBE: Final = b"\x01"


class ZmtpFault(Exception):
    """The other side breaks the protocol, or exceeds a bound. The connection is of no further use."""


class SocketType(StrEnum):
    """Kind of a ZeroMQ socket."""

    PUB = "PUB"
    SUB = "SUB"
    ROUTER = "ROUTER"
    DEALER = "DEALER"


_MAY_MEET: Final = {
    SocketType.PUB: ("SUB", "XSUB"),
    SocketType.SUB: ("PUB", "XPUB"),
    SocketType.ROUTER: ("REQ", "DEALER", "ROUTER"),
    SocketType.DEALER: ("REP", "DEALER", "ROUTER"),
}


def message_bytes(parts: Sequence[bytes]) -> bytes:
    """Return a message of these parts as it is sent."""
    assert parts, "a message has a part"
    last = len(parts) - 1
    return b"".join([_frame(part, _MORE if at < last else 0) for at, part in enumerate(parts)])


def subscription_bytes(topic: bytes = b"") -> bytes:
    """Return a subscription to all topics with this beginning, as a subscriber sends it."""
    return message_bytes([_SUBSCRIBE + topic])


async def shake_hands(reader: asyncio.StreamReader, write: Callable[[bytes], object], own: SocketType) -> None:
    """Open a connection on either side. Raises ZmtpFault if the other side is no ZeroMQ socket, or a wrong one, and
    IncompleteReadError if it closes."""
    named = own.encode()
    ready = b"\x05READY" + _property(b"Socket-Type", named) + _property(b"Identity", b"")
    write(_GREETING + _frame(ready, _COMMAND))
    greeting = await reader.readexactly(len(_GREETING))
    if greeting[0] != _SIGNATURE[0] or greeting[9] != _SIGNATURE[-1]:
        raise ZmtpFault("it does not speak ZMTP")
    if greeting[10] < 3:
        raise ZmtpFault(f"it speaks ZMTP {greeting[10]}, and 3 is needed")
    mechanism = greeting[12:32].rstrip(b"\0")
    if mechanism != b"NULL":
        raise ZmtpFault(f"it asks for the security mechanism {mechanism.decode('ascii', 'replace')}")
    flags, body = await _read_frame(reader, _HANDSHAKE_BYTES_MAX, _HANDSHAKE_BYTES_MAX)
    if not flags & _COMMAND or not body.startswith(b"\x05READY"):
        raise ZmtpFault("it does not say that it is ready")
    kind = _properties(body[6:]).get(b"socket-type", b"").decode("ascii", "replace")
    if kind not in _MAY_MEET[own]:
        raise ZmtpFault(f"it is a socket of type {kind or 'unknown'}, and {own} cannot speak with that")


async def read_message(reader: asyncio.StreamReader, bytes_max: int) -> tuple[list[bytes], int]:
    """Read the parts of the next message, and count the bytes that were read for it. The parts, and the commands among
    them, which are ignored, have `bytes_max` together at most. Raises ZmtpFault, and IncompleteReadError if the other
    side closes."""
    parts: list[bytes] = []
    commands = bodies = heads = 0
    while True:
        flags, body = await _read_frame(reader, bytes_max - bodies, bytes_max)
        bodies += len(body)
        heads += 9 if flags & _LONG else 2
        if flags & _COMMAND:
            commands += 1
            if commands > _COMMANDS_MAX:
                raise ZmtpFault(f"a message comes with more than {_COMMANDS_MAX} commands")
            continue
        parts.append(body)
        if not flags & _MORE:
            return parts, bodies + heads
        if len(parts) == _PARTS_MAX:
            raise ZmtpFault(f"a message has more than {_PARTS_MAX} parts")


def _frame(body: bytes, flags: int) -> bytes:
    if len(body) > 255:
        return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


async def _read_frame(reader: asyncio.StreamReader, left: int, bytes_max: int) -> tuple[int, bytes]:
    """Read flags and body of a frame, of at most the bytes `left` of `bytes_max`."""
    flags = (await reader.readexactly(1))[0]
    if flags & ~(_MORE | _LONG | _COMMAND):
        raise ZmtpFault(f"a frame has the unknown flags {flags:#x}")
    size = int.from_bytes(await reader.readexactly(8 if flags & _LONG else 1), "big")
    if size > left:
        raise ZmtpFault(f"a message has more than {bytes_max:,} bytes")
    return flags, await reader.readexactly(size)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _properties(packed: bytes) -> dict[bytes, bytes]:
    """Properties of a connection, by name in lower case."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(packed):
        name_end = at + 1 + packed[at]
        value_start = name_end + 4
        value_end = value_start + int.from_bytes(packed[name_end:value_start], "big")
        if value_end > len(packed):
            raise ZmtpFault("its properties are cut short")
        found[packed[at + 1 : name_end].lower()] = packed[value_start:value_end]
        at = value_end
    return found
