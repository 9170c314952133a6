"""HTTP/1.1 to engines on bare transports: one write out, bytes in as they come, connections kept for the next request.

It speaks just what engines speak, and follows no redirect, cookie or proxy. Closing a response before its end closes
its connection, which is how engines abort work.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

from gateway.engines.tls import EngineTls
from gateway.ground.waiter import Waiter
from gateway.request.header_values import from_bytes, to_bytes

Headers = tuple[tuple[str, str], ...]

_BUFFERED_BYTES_MAX = 256 * 1024
"""Above this much unread by us, reading from the engine stops until it is read."""
_HEAD_BYTES_MAX = 64 * 1024
_HEADERS_MAX = 256
_LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_SCHEMES = {"http": 80, "https": 443}
_PLAIN = {"content-encoding": "identity", "transfer-encoding": "chunked"}
"""The one way in which a body may be coded, where these say that it is."""
_WITHOUT_BODY = frozenset({204, 304})
"""Nobody answers a call like this. What an engine sends behind it all the same would be taken for another answer."""


class EngineGone(ConnectionError):
    """The connection broke off, or what came over it is not HTTP."""


@dataclass(eq=False, slots=True)
class Origin:
    """Where connections are interchangeable. `origin_of` gives the same object for the same engine."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None = None
    """For TLS, when the certificate names something else than the host."""


class Connection(asyncio.Protocol):
    """One connection, with one exchange on it at a time."""

    def __init__(self) -> None:
        self.status = 0
        self.idle_since_s = 0.0
        self._headers: list[tuple[str, str]] = []
        self._options: list[str] = []
        """What the current answer's `connection` header names."""
        self._head_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        """From the first request until the connection is lost: each of the two knows the other."""
        self._body: deque[bytes] = deque()
        self._body_bytes = 0
        self._is_paused = False
        self._take: Callable[[bytes], bool] | None = None
        """Whoever has the body poured out to, while it wants more."""
        self._arrivals: select.poll | None = None
        self._waiter = Waiter()
        self._writable: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._has_head = False
        self._has_length = False
        self._keeps_alive = False
        self.is_complete = True
        self.has_answered = False
        """Any byte of the current answer has come in."""

    # What the pool and the response use

    @property
    def peer(self) -> str:
        return "" if self._transport is None else _host_of(self._transport.get_extra_info("peername"))

    @property
    def is_usable(self) -> bool:
        """Idle, alive, and with nothing in it: neither an unread answer nor anything unasked-for."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and self._error is None and self.is_complete and self._keeps_alive and not self._body

    @property
    def has_unread(self) -> bool:
        """Has something come over it that the event loop has not told of yet? What comes unasked-for would be taken for
        the next request's answer."""
        return self._arrivals is not None and bool(self._arrivals.poll(0))

    @property
    def headers(self) -> Headers:
        return tuple(self._headers)

    def send(self, head: bytes, body: bytes | memoryview) -> None:
        """Begin an exchange. The whole request goes out in one write."""
        assert self.is_complete, "one exchange at a time"
        assert not self._body, "an answer is unread"
        assert self._transport is not None
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._begin_answer()
        self._transport.writelines((head, body) if body else (head,))

    async def sent(self) -> None:
        """Wait while the engine takes in a large request slowly."""
        if self._writable is not None:
            await self._writable

    async def read_head(self) -> None:
        """Raises EngineGone."""
        while not self._has_head:
            self._raise_error()
            await self._waiter.wait()

    async def read(self) -> bytes:
        """What has gathered of the body; empty at its end. Raises EngineGone when it breaks off."""
        while not self._body:
            if self.is_complete:
                return b""
            self._raise_error()
            await self._waiter.wait()
        return self._gathered()

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Call `take` with what comes of the body, right as it comes in, until it answers False. True when the body is
        over. Raises EngineGone when it breaks off, and whatever `take` raises.
        """
        while True:
            if self._body and not take(self._gathered()):
                return False
            if self.is_complete:
                return True
            self._raise_error()
            self._take = take
            try:
                await self._waiter.wait()
            finally:
                has_room, self._take = self._take is not None, None
            if not has_room:
                return False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        own = transport.get_extra_info("socket")
        if own is not None:
            self._arrivals = select.poll()
            self._arrivals.register(own.fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self.is_complete:
            self._fail(EngineGone("it sent something unasked-for"))
            return
        self.has_answered = True
        assert self._parser is not None, "it was asked"
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(_why_unread(error))
            return
        if self._take is not None:
            self._hand_on(self._take)
            return
        if self._body_bytes > _BUFFERED_BYTES_MAX and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._waiter.wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """A body without a length ends with its connection; all else breaks off."""
        self._transport = self._arrivals = None
        self._parser = None
        if not self.is_complete:
            if self._has_head and not self._has_length and error is None:
                self.is_complete = True
            else:
                self._fail(error or EngineGone("it closed the connection"))
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._waiter.wake()

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # httptools

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise EngineGone("it answered twice")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _HEAD_BYTES_MAX or len(self._headers) >= _HEADERS_MAX:
            raise EngineGone("its headers are too large")
        lower = name.lower()
        if lower in _LENGTH_HEADERS:
            self._has_length = True
        elif lower == b"connection":
            self._options += from_bytes(value).lower().split(",")
        self._headers.append((from_bytes(name), from_bytes(value)))

    def on_headers_complete(self) -> None:
        assert self._parser is not None, "it parses"
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._check_encoding()
            if self._options:
                self._drop_what_connection_names()
            self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._body_bytes += len(data)

    def on_message_complete(self) -> None:
        if self._has_head:
            self.is_complete = True
            assert self._parser is not None, "it parses"
            self._keeps_alive = self._parser.should_keep_alive() and self.status not in _WITHOUT_BODY
        else:
            self._headers.clear()
            self._options.clear()  # an interim answer (1xx); the real one follows

    # Inside

    def _check_encoding(self) -> None:
        """What passes through unchanged must be readable here too; every request asks for it plain."""
        for name, value in self._headers:
            plain = _PLAIN.get(name.lower())
            if plain is not None and value.lower() != plain:
                raise EngineGone(f"its answer is in {value}, which it was asked not to use")

    def _drop_what_connection_names(self) -> None:
        """It is for this connection alone (RFC 9110, section 7.6.1)."""
        named = {"connection", *map(str.strip, self._options)}
        self._headers = [pair for pair in self._headers if pair[0].lower() not in named]

    def _gathered(self) -> bytes:
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._body_bytes = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def _hand_on(self, take: Callable[[bytes], bool]) -> None:
        """Without waking anybody, unless there is an end to it."""
        try:
            if self._body and not take(self._gathered()):
                self._take = None
        except Exception as error:  # noqa: BLE001 - it is the waiting task's, which raises it
            self._take = None
            self._waiter.fail(error)
            return
        if self._take is None or self.is_complete:
            self._waiter.wake()

    def _begin_answer(self) -> None:
        self.status = 0
        self._headers = []
        self._options = []
        self._head_bytes = 0
        self._has_head = self._has_length = self._keeps_alive = self.has_answered = False
        self.is_complete = False

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._waiter.wake()
        self.abort()

    def _raise_error(self) -> None:
        """EngineGone for what the engine or the network did; an error of ours as it is."""
        if isinstance(self._error, OSError):
            raise EngineGone(str(self._error)) from self._error
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = EngineGone("an error of ours broke it off")  # the traceback knows this connection


def _host_of(peername: object) -> str:
    """The address of whoever is at the other end; empty where the transport does not say."""
    is_internet = isinstance(peername, tuple) and bool(peername) and isinstance(peername[0], str)
    return peername[0].partition("%")[0] if is_internet else ""  # type: ignore[index]


class Response:
    """One answer. `close` gives the connection back if it was read to its end, and closes it otherwise."""

    __slots__ = ("_connection", "_origin", "_pool", "headers", "peer", "status")

    def __init__(self, pool: ConnectionPool, origin: Origin, connection: Connection) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self.peer = connection.peer
        """The address that answers."""
        self._pool = pool
        self._origin = origin
        self._connection: Connection | None = connection

    def read(self) -> Awaitable[bytes]:
        """See `Connection.read`."""
        assert self._connection is not None, "read after close"
        return self._connection.read()

    def pour(self, take: Callable[[bytes], bool]) -> Awaitable[bool]:
        """See `Connection.pour`."""
        assert self._connection is not None, "poured after close"
        return self._connection.pour(take)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.take_back(self._origin, connection)


class ConnectionPool:
    """Idle connections by origin, the latest used first, each closed when it has been idle for too long.

    The number in use has no limit of its own: there is at most one per request held, and those are limited.
    """

    def __init__(self, *, connect_s: float, idle_s: float) -> None:
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._idle: dict[Origin, deque[Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def request(
        self,
        method: str,
        origin: Origin,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | memoryview,
        *,
        lead: bytes = b"",
    ) -> Response:
        """Send, with `lead` as what the body begins with, and wait for status and headers. Raises EngineGone, and
        OSError (TimeoutError is one) while connecting: all that an engine or the network can do. Whatever else it
        raises is an error of ours.

        An idle connection that turns out to be closed costs a second try on a fresh one: nothing of the request was
        answered, so nothing was done.
        """
        head = _request_head(method, origin, path, headers, len(lead) + len(body)) + lead
        connection = self._take_idle(origin)
        if connection is not None:
            try:
                return await self._exchange(connection, origin, head, body)
            except EngineGone:
                if connection.has_answered:
                    raise
        return await self._exchange(await self._connect(origin), origin, head, body)

    def take_back(self, origin: Origin, connection: Connection) -> None:
        if not connection.is_usable or self._is_closed:
            connection.abort()
            return
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.setdefault(origin, deque()).append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_s, self._close_long_idle)

    def close(self) -> None:
        """Close what is idle; what is in use is closed as it is given back."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()

    async def _exchange(
        self, connection: Connection, origin: Origin, head: bytes, body: bytes | memoryview
    ) -> Response:
        try:
            connection.send(head, body)
            await connection.sent()
            await connection.read_head()
        except BaseException:
            connection.abort()
            raise
        return Response(self, origin, connection)

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        server_name = origin.server_name if origin.tls is not None else None
        async with asyncio.timeout(self._connect_s):
            _, connection = await loop.create_connection(
                Connection, origin.host, origin.port, ssl=origin.tls, server_hostname=server_name
            )
        return connection

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_usable and not connection.has_unread:
                return connection
            connection.abort()
        self._idle.pop(origin, None)
        return None

    def _close_long_idle(self) -> None:
        """One timer for all: each origin's oldest are at the left."""
        self._sweep = None
        until_s = asyncio.get_running_loop().time() - self._idle_s
        for origin, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s <= until_s:
                idle.popleft().abort()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_s / 2, self._close_long_idle)


@lru_cache(maxsize=4096)
def origin_of(url: str, tls: EngineTls | None = None) -> tuple[Origin, str]:
    """The origin of an engine's base URL, and the path that all its routes begin with. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"{url} is no http or https URL with a host")
    prefix = parts.path.rstrip("/")
    if parts.scheme == "http":
        return Origin(parts.hostname, _port_of(parts), None), prefix
    context = ssl.create_default_context() if tls is None else tls.context
    return Origin(parts.hostname, _port_of(parts), context, None if tls is None else tls.server_name), prefix


def _port_of(parts: SplitResult) -> int:
    return parts.port or _SCHEMES[parts.scheme]


def _request_head(method: str, origin: Origin, path: str, headers: Iterable[tuple[str, str]], length: int) -> bytes:
    """Values as `header_values.py` has them, so that they go out as they came. Raises ValueError where a name or value
    would break out of its line."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    lines = [f"{method} {path} HTTP/1.1\r\nhost: {host}:{origin.port}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers]
    if length or method not in {"GET", "HEAD", "DELETE"}:
        lines.append(f"content-length: {length}\r\n")
    text = "".join(lines)
    if text.count("\r") != len(lines) + 1 or text.count("\n") != len(lines) + 1:
        raise ValueError("a header would break out of its line")
    return to_bytes(f"{text}\r\n")


def _why_unread(error: Exception) -> Exception:
    """What the parser has met: an objection or an error of ours, raised inside a callback, or what is no HTTP."""
    reason = error.__context__
    if isinstance(reason, EngineGone):
        reason.__traceback__ = None  # it knows the connection, which keeps it
    return reason if isinstance(reason, Exception) else EngineGone(f"what it sent is not HTTP: {error}")
