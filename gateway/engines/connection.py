"""HTTP/1.1 client for engines on bare transports: each request is one write, bytes are read as they arrive, and
connections are kept for later requests.

It supports what engines use, and follows no redirect, cookie or proxy. Closing a response before its end closes its
connection, which makes the engine abort the work.
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
from gateway.request.header_values import from_bytes, to_bytes
from mesh.waiter import Waiter

Headers = tuple[tuple[str, str], ...]

_BUFFERED_BYTES_MAX = 256 * 1024
"""Unread bytes of an answer above which reading from the socket pauses."""
_HEAD_BYTES_MAX = 64 * 1024
_HEADERS_MAX = 256
_LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_SCHEMES = {"http": 80, "https": 443}
_PLAIN = {"content-encoding": "identity", "transfer-encoding": "chunked"}
"""The only accepted value of each header that names a coding of the body."""
_WITHOUT_BODY = frozenset({204, 304})
"""Statuses without a body. No engine call is answered so; bytes that an engine sent behind one would be taken for
another answer."""


class EngineGone(ConnectionError):
    """The connection broke off, or what came over it is not HTTP."""


@dataclass(eq=False, slots=True)
class Origin:
    """Server whose connections are interchangeable. `origin_of` returns the same object for the same engine."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None = None
    """Name in the server's certificate, if it differs from the host."""


class Connection(asyncio.Protocol):
    """One connection, with one exchange on it at a time."""

    def __init__(self) -> None:
        self.status = 0
        self.idle_since_s = 0.0
        self._headers: list[tuple[str, str]] = []
        self._options: list[str] = []
        """Header names that the current answer's `connection` header lists."""
        self._head_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        """Set from the first request until the connection is lost, since parser and connection refer to each other."""
        self._body: deque[bytes] = deque()
        self._body_bytes = 0
        self._is_paused = False
        self._take: Callable[[bytes], bool] | None = None
        """Function that the body is poured into; None once it wants no more."""
        self._arrivals: select.poll | None = None
        self._waiter = Waiter()
        self._writable: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._has_head = False
        self._has_length = False
        self._keeps_alive = False
        self.is_complete = True
        self.has_answered = False
        """True once any byte of the current answer has arrived."""

    # Used by the pool and the response

    @property
    def peer(self) -> str:
        return "" if self._transport is None else _host_of(self._transport.get_extra_info("peername"))

    @property
    def is_usable(self) -> bool:
        """True if the connection is idle and alive, without an unread answer or unsolicited bytes."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and self._error is None and self.is_complete and self._keeps_alive and not self._body

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that the event loop has not reported yet. Unsolicited bytes would be taken for the
        answer to the next request."""
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
        """Wait until the engine has taken in a large request."""
        if self._writable is not None:
            await self._writable

    async def read_head(self) -> None:
        """Wait for the head of the answer. Raises EngineGone."""
        while not self._has_head:
            self._raise_error()
            await self._waiter.wait()

    async def read(self) -> bytes:
        """Read what has arrived of the body; empty at its end. Raises EngineGone if the answer breaks off."""
        while not self._body:
            if self.is_complete:
                return b""
            self._raise_error()
            await self._waiter.wait()
        return self._gathered()

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Call `take` with each piece of the body as it arrives, until it answers False. Returns True at the end of the
        body. Raises EngineGone if the answer breaks off, and whatever `take` raises."""
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

    # Callbacks of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
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
        """End a body without a length, which ends with its connection; any other answer has broken off."""
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

    # Callbacks of httptools

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
            self._options.clear()  # an interim answer (1xx); the final one follows

    # Internal

    def _check_encoding(self) -> None:
        """Raise EngineGone for an encoded body: bodies are relayed unchanged and read here too, so every request asks
        for identity."""
        for name, value in self._headers:
            plain = _PLAIN.get(name.lower())
            if plain is not None and value.lower() != plain:
                raise EngineGone(f"its answer is in {value}, which it was asked not to use")

    def _drop_what_connection_names(self) -> None:
        """Drop the headers that `connection` names: they are for this connection alone (RFC 9110, section 7.6.1)."""
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
        """Hand what has arrived to `take`, without waking the waiting task unless the body or the pouring is over."""
        pieces, self._body_bytes = self._body, 0  # reading is not paused while the body is poured
        data = pieces.pop() if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        try:
            if data and not take(data):
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
        """Raise EngineGone for a fault of the engine or the network; raise an internal error as it is."""
        if isinstance(self._error, OSError):
            raise EngineGone(str(self._error)) from self._error
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = EngineGone("an error of ours broke it off")  # the traceback refers to this connection


def _host_of(peername: object) -> str:
    """Address of the other end; empty if the transport does not tell."""
    is_internet = isinstance(peername, tuple) and bool(peername) and isinstance(peername[0], str)
    return peername[0].partition("%")[0] if is_internet else ""  # type: ignore[index]


class Response:
    """One answer. `close` returns the connection to the pool if the answer was read to its end, and closes it
    otherwise."""

    __slots__ = ("_connection", "_origin", "_pool", "headers", "peer", "status")

    def __init__(self, pool: ConnectionPool, origin: Origin, connection: Connection) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self.peer = connection.peer
        """Address of the engine that answers."""
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
    """Idle connections by origin, the latest used first; each is closed after `idle_s` seconds.

    Connections in use have no limit of their own: there is at most one per running request, and those are limited.
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
        """Send a request whose body begins with `lead`, and wait for the status and headers. Raises EngineGone, and
        OSError (such as TimeoutError) while connecting, for whatever an engine or the network can do; any other
        exception is an internal error.

        If an idle connection turns out to be closed, the request is sent once more on a new one: no byte of an answer
        had come, so the engine did nothing.
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
        """Close idle connections; those in use are closed when they are returned."""
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
        """Close connections that have been idle for too long, with one timer for all: each origin's oldest are at the
        left."""
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
    """The origin of an engine's base URL, and the path prefix of all its routes. Raises ValueError."""
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
    """Serialise a request's head. Header values are text as of `header_values.py`, so that the client's bytes are
    restored. Raises ValueError for a name or value that contains a line break."""
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
    """Cause of a parser error: an exception raised inside a callback, or EngineGone for bytes that are not HTTP."""
    reason = error.__context__
    if isinstance(reason, EngineGone):
        reason.__traceback__ = None  # the traceback refers to the connection, and the connection to the exception
    return reason if isinstance(reason, Exception) else EngineGone(f"what it sent is not HTTP: {error}")
