"""Connections that many callers open to an admin address at the same time to keep it busy: one case per line.

Meanwhile clients must be served and open pages updated, no more than 32 pages may watch, and all resources must be
released once the connections end or their time is up, whatever the other end does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Then(Enum):
    """Behaviour of each caller after it has sent its bytes."""

    READ = auto()
    """Read all that comes."""
    HOLD = auto()
    """Stay without reading."""
    HALF_CLOSE = auto()
    """Close the sending side, and stay."""
    RESET = auto()
    """Break the connection at once, and connect again."""


@dataclass(frozen=True, slots=True)
class StormCase:
    name: str
    says: bytes
    then: Then
    count: int = 60
    times: int = 1
    is_given_up: bool = False
    """True if no complete request is sent: such a connection must be closed after a time-out."""


WATCHERS_MAX, CONNECTIONS_MAX = 32, 256
HOST = b"host: localhost\r\n"
EVENTS = b"GET /admin/events HTTP/1.1\r\n" + HOST + b"\r\n"
_OVERVIEW = b"GET /admin/overview HTTP/1.1\r\n" + HOST + b"\r\n"
_MANY = CONNECTIONS_MAX + 44


def _events(*headers: bytes) -> bytes:
    return EVENTS[:-2] + b"".join(each + b"\r\n" for each in headers) + b"\r\n"


# fmt: off
STORM_CASES = (
    StormCase("pages that are open", EVENTS, Then.READ),
    StormCase("more pages than connections", EVENTS, Then.READ, count=_MANY),
    StormCase("pages that read nothing", EVENTS, Then.HOLD, count=_MANY),
    StormCase("pages that are half closed", EVENTS, Then.HALF_CLOSE),
    StormCase("pages that break off and come again", EVENTS, Then.RESET, count=40, times=25),
    StormCase("connections that say nothing", b"", Then.HOLD, count=_MANY, is_given_up=True),
    StormCase("connections that come and go", b"", Then.RESET, count=40, times=25),
    StormCase("connections that say one letter", b"G", Then.HOLD, count=_MANY, is_given_up=True),
    StormCase("half a line", EVENTS[:12], Then.HOLD, count=_MANY, is_given_up=True),
    StormCase("all but the last letter", EVENTS[:-1], Then.HOLD, count=_MANY, is_given_up=True),
    StormCase("an end of headers that is none", b"GET / HTTP/1.1\r\n" + HOST + b"x: \r\n", Then.HOLD, count=_MANY, is_given_up=True),
    StormCase("half a line, half closed", EVENTS[:12], Then.HALF_CLOSE),
    StormCase("a header of 64 KiB", _events(b"x: " + b"a" * 65_536), Then.HOLD),
    StormCase("a thousand headers", _events(*[b"x: y"] * 1000), Then.HOLD),
    StormCase("a path of 64 KiB", b"GET /admin/events?" + b"a" * 65_536 + b" HTTP/1.1\r\n" + HOST + b"\r\n", Then.HOLD),
    StormCase("a place to go on from", _events(b"last-event-id: " + b"9" * 4000), Then.READ),
    StormCase("fifty pages on each connection", EVENTS * 50, Then.READ, count=20),
    StormCase("fifty pages on each connection, unread", EVENTS * 50, Then.HOLD, count=20),
    StormCase("all there is, a hundred times each, unread", _OVERVIEW * 100, Then.HOLD),
    StormCase("all there is, again and again", _OVERVIEW, Then.RESET, count=40, times=10),
    StormCase("a page that brings a body", _events(b"content-length: 1000000"), Then.HOLD),
    StormCase("a page that brings a body without an end", _events(b"transfer-encoding: chunked") + b"5\r\nhello\r\n", Then.HOLD),
    StormCase("a page that waits to be told to go on", _events(b"content-length: 5", b"expect: 100-continue"), Then.HOLD),
    StormCase("a page that would be a socket", _events(b"connection: upgrade", b"upgrade: websocket"), Then.HOLD),
    StormCase("a page of HTTP/1.0", EVENTS.replace(b"HTTP/1.1", b"HTTP/1.0"), Then.READ),
    StormCase("pages of another origin", _events(b"origin: https://evil.example.net"), Then.HOLD),
    StormCase("pages by another name", EVENTS.replace(b"localhost", b"evil.example.net"), Then.HOLD),
    StormCase("only the head of a page", EVENTS.replace(b"GET", b"HEAD"), Then.HOLD),
    StormCase("a hello of TLS", bytes.fromhex("16030100050100000100") + b"\0" * 200, Then.HOLD),
    StormCase("a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Then.HOLD),
)
# fmt: on
