"""HTTP/1.1 client for engines on bare transports: each request is one write, bytes are handed on as they arrive, and
connections are kept for later requests.

It supports what engines use, and follows no redirect, cookie or proxy. Leaving an answer before its end closes its
connection, which makes the engine abort the work.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from gateway.http1.errors import EngineGone
from gateway.http1.vanished import give_up_vanished_engine
from gateway.request.header_values import from_bytes, to_bytes

Headers = tuple[tuple[str, str], ...]

_HEAD_BYTES_MAX = 64 * 1024
_BARE_BYTES_MAX = 2 * _HEAD_BYTES_MAX
"""Bytes without any of the body that may arrive in a row: interim answers, a head, or chunks' and trailers' lines."""
_HEADERS_MAX = 256
_RACE_S = 1.0
"""Seconds after sending within which a connection that was idle counts as closed before the request came."""
_LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_PLAIN = {"content-encoding": "identity", "transfer-encoding": "chunked"}
"""The only accepted value of each header that names a coding of the body."""
_WITHOUT_BODY = frozenset({204, 304})
"""Statuses without a body. No engine call is answered so; bytes that an engine sent behind one would be taken for
another answer."""


@dataclass(eq=False, slots=True)
class HttpOrigin:
    """Server whose connections are interchangeable: those of one object."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None = None
    """Name in the server's certificate, if it differs from the host."""


class AnswerTaker(Protocol):
    """Receiver of one answer. After `on_end` or `on_broken` nothing more is called."""

    def on_head(self, exchange: ClientExchange, status: int, headers: Headers, peer: str) -> None:
        """Take in status and headers. `peer` is the address of the server that answers."""
        ...

    def on_data(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_broken(self, error: Exception) -> None:
        """Take in that the answer breaks off: EngineGone, or OSError (such as TimeoutError) while connecting, for
        whatever a server or the network can do. Any other exception is an internal error."""
        ...


class ClientConnection:
    """One connection, with one exchange on it at a time. Bytes are handed on as they arrive, after the parser has
    returned: no exception crosses one of its callbacks."""

    __slots__ = (
        "_arrivals",
        "_bare_bytes",
        "_body",
        "_exchange",
        "_fault",
        "_has_head",
        "_has_length",
        "_head_bytes",
        "_headers",
        "_is_complete",
        "_is_head_told",
        "_keeps_alive",
        "_on_turn",
        "_options",
        "_parser",
        "_status",
        "_transport",
        "has_answered",
        "idle_since_s",
        "peer",
    )

    def __init__(self, on_turn: Callable[[], None]) -> None:
        """`on_turn` is called at the end of each turn in which the connection has handed something on."""
        self.idle_since_s = 0.0
        self.peer = ""
        """Address of the other end; empty until it is connected, or where the transport does not tell."""
        self.has_answered = False
        """True once any byte of the current answer has arrived."""
        self._on_turn = on_turn
        self._exchange: ClientExchange | None = None
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._options: list[str] = []
        """Header names that the current answer's `connection` header lists."""
        self._head_bytes = 0
        self._bare_bytes = 0
        """Bytes that have arrived since the request was sent, or since the latest byte of the body."""
        self._body: list[bytes] = []
        """Pieces of the body that the parser has found in this turn."""
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        """Set from the first request until the connection is lost, since parser and connection refer to each other."""
        self._arrivals: select.poll | None = None
        self._fault: Exception | None = None
        self._has_head = self._is_head_told = self._has_length = self._keeps_alive = False
        self._is_complete = True

    @property
    def is_usable(self) -> bool:
        """True if the connection is idle and alive."""
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and self._fault is None and self._is_complete and self._keeps_alive

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that the event loop has not reported yet. Unsolicited bytes would be taken for the
        answer to the next request."""
        return self._arrivals is not None and bool(self._arrivals.poll(0))

    def send(self, exchange: ClientExchange, head: bytes, body: bytes | memoryview) -> None:
        """Begin an exchange. The whole request goes out in one write."""
        assert self._is_complete, "one exchange at a time"
        assert self._transport is not None
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._exchange = exchange
        self._status = 0
        self._headers = []
        self._options = []
        self._head_bytes = self._bare_bytes = 0
        self._has_head = self._is_head_told = self._has_length = self._keeps_alive = self.has_answered = False
        self._is_complete = False
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)

    def leave(self) -> None:
        """Close in the middle of an answer; nothing more of it is handed on."""
        self._exchange = None
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self.peer = _host_of(transport.get_extra_info("peername"))
        own = transport.get_extra_info("socket")
        if own is not None:
            self._arrivals = select.poll()
            self._arrivals.register(own.fileno(), select.POLLIN)
            give_up_vanished_engine(own)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self._fault = EngineGone("it sent something unasked-for")
            self.abort()
            return
        self.has_answered = True
        assert self._parser is not None, "it was asked"
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._fault is None:
                self._fault = _own_error_in(error) or EngineGone(f"what it sent is not HTTP: {error}")
        self._bare_bytes = 0 if self._body else self._bare_bytes + len(data)
        if self._bare_bytes > _BARE_BYTES_MAX and not self._is_complete and self._fault is None:
            self._fault = EngineGone("its headers are too large")
        self._hand_on(exchange)
        self._on_turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End a body without a length, which ends with its connection; any other answer has broken off."""
        self._transport = self._arrivals = None
        self._parser = None
        exchange = self._exchange
        if exchange is None:
            return
        if self._has_head and not self._has_length and error is None and self._fault is None:
            self._is_complete = True
        elif self._fault is None:
            self._fault = EngineGone(str(error) if error is not None else "it closed the connection")
        self._hand_on(exchange)
        self._on_turn()

    def pause_writing(self) -> None:
        """Leave a large request in the transport's buffer: it is in memory either way."""

    def resume_writing(self) -> None:
        pass

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._fault = EngineGone("it answered twice")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._fault is not None or self._has_head:
            return  # a trailer, which is not relayed, or what no longer matters
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _HEAD_BYTES_MAX or len(self._headers) >= _HEADERS_MAX:
            self._fault = EngineGone("its headers are too large")
            return
        lower = name.lower()
        if lower in _LENGTH_HEADERS:
            self._has_length = True
        elif lower == b"connection":
            self._options += from_bytes(value).lower().split(",")
        self._headers.append((from_bytes(name), from_bytes(value)))

    def on_headers_complete(self) -> None:
        assert self._parser is not None, "it parses"
        if self._fault is not None:
            return
        self._status = self._parser.get_status_code()
        if self._status >= 200:
            self._check_encoding()
            if self._options:
                self._drop_what_connection_names()
            self._has_head = self._fault is None

    def on_body(self, data: bytes) -> None:
        if self._fault is None:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._fault is not None:
            return
        if self._has_head:
            self._is_complete = True
            assert self._parser is not None, "it parses"
            self._keeps_alive = self._parser.should_keep_alive() and self._status not in _WITHOUT_BODY
        else:  # an interim answer (1xx); the final one follows
            self._headers.clear()
            self._options.clear()
            self._head_bytes = 0
            self._has_length = False

    # Internal

    def _hand_on(self, exchange: ClientExchange) -> None:
        """Hand on what was parsed in this turn. The receiver may leave at each step."""
        if self._has_head and not self._is_head_told:
            self._is_head_told = True
            exchange.taker.on_head(exchange, self._status, tuple(self._headers), self.peer)
        if self._body:
            data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            if self._is_head_told and self._exchange is exchange and data:
                exchange.take(data)
        if self._exchange is not exchange:
            return
        if self._is_complete:
            self._exchange = None
            exchange.ended()
        elif self._fault is not None:
            self._exchange = None
            self.abort()
            exchange.broken(self._fault)

    def _check_encoding(self) -> None:
        """Note a fault for an encoded body: bodies are relayed unchanged and read here too, so every request asks for
        identity."""
        for name, value in self._headers:
            plain = _PLAIN.get(name.lower())
            if plain is not None and value.lower() != plain:
                self._fault = EngineGone(f"its answer is in {value}, which it was asked not to use")

    def _drop_what_connection_names(self) -> None:
        """Drop the headers that `connection` names: they are for this connection alone (RFC 9110, section 7.6.1)."""
        named = {"connection", *map(str.strip, self._options)}
        self._headers = [pair for pair in self._headers if pair[0].lower() not in named]


def _own_error_in(error: Exception) -> Exception | None:
    """Error that a callback has raised, which the parser wraps; None for malformed bytes."""
    is_ours = isinstance(error, httptools.HttpParserCallbackError)
    return error.__context__ if is_ours and isinstance(error.__context__, Exception) else None


def _host_of(peername: object) -> str:
    """Address of the other end; empty if the transport does not tell."""
    is_internet = isinstance(peername, tuple) and bool(peername) and isinstance(peername[0], str)
    return peername[0].partition("%")[0] if is_internet else ""  # type: ignore[index]


class ClientExchange:
    """One request to a server and its answer.

    If an idle connection turns out to be closed, the request is sent once more on a new one: no byte of an answer had
    come, so the server did nothing.
    """

    __slots__ = (
        "_body",
        "_connecting",
        "_connection",
        "_head",
        "_is_on_idle",
        "_is_over",
        "_is_paused",
        "_origin",
        "_pool",
        "_sent_s",
        "take",
        "taker",
    )

    def __init__(
        self, pool: ConnectionPool, origin: HttpOrigin, head: bytes, body: bytes | memoryview, taker: AnswerTaker
    ) -> None:
        self.taker = taker
        self.take = taker.on_data
        """Takes the body's bytes; the receiver may replace it once it has the head."""
        self._pool = pool
        self._origin = origin
        self._head = head
        self._body = body
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_on_idle = False
        self._is_over = False
        self._is_paused = False
        self._sent_s = 0.0

    def begin(self, idle: ClientConnection | None) -> None:
        """Send on an idle connection, or connect first."""
        if idle is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            self._is_on_idle = True
            self._send_on(idle)

    def stop(self) -> None:
        """Give up the answer; nothing more is handed on. A second call, and one after the end, does nothing."""
        if self._is_over:
            return
        self._is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave()

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            if self._connection is not None:
                self._connection.pause_reading()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self._connection is not None:
                self._connection.resume_reading()

    # Called by the connection

    def ended(self) -> None:
        connection, self._connection = self._connection, None
        self._is_over = True
        if connection is not None:
            if self._is_paused:
                connection.resume_reading()
            self._pool.take_back(self._origin, connection)
        self.taker.on_end()

    def broken(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        is_race = asyncio.get_running_loop().time() < self._sent_s + _RACE_S
        if self._is_on_idle and is_race and connection is not None and not connection.has_answered:
            self._is_on_idle = False
            self.begin(None)
            return
        self._is_over = True
        self.taker.on_broken(error)

    # Internal

    def _send_on(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._sent_s = asyncio.get_running_loop().time()
        connection.send(self, self._head, self._body)
        if self._is_paused:
            connection.pause_reading()

    async def _connect(self) -> None:
        try:
            connection = await self._pool.connect(self._origin)
        except asyncio.CancelledError:
            pass  # stopped; a task that kept the error would be held by its traceback's frames
        except Exception as error:  # noqa: BLE001 - the receiver tells the network's errors from this gateway's own
            self._connecting = None
            self._is_over = True
            self.taker.on_broken(error)
            self._pool.on_turn()
        else:
            self._connecting = None
            self._send_on(connection)


class ConnectionPool:
    """Idle connections by origin, the latest used first; each is closed after `idle_s` seconds.

    Connections in use have no limit of their own: there is at most one per running request, and those are limited.
    """

    def __init__(self, *, connect_s: float, idle_s: float, on_turn: Callable[[], None] = lambda: None) -> None:
        """`on_turn` is called after each turn in which an answer was handed on."""
        self.on_turn = on_turn
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._idle: dict[HttpOrigin, deque[ClientConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def request(
        self,
        method: str,
        origin: HttpOrigin,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | memoryview,
        *,
        taker: AnswerTaker,
        lead: bytes = b"",
    ) -> ClientExchange:
        """Send a request whose body begins with `lead`; the answer goes to `taker`, never before this returns."""
        head = request_head(method, origin, path, headers, len(lead) + len(body)) + lead
        exchange = ClientExchange(self, origin, head, body, taker)
        exchange.begin(self._take_idle(origin))
        return exchange

    async def fetch(
        self,
        method: str,
        origin: HttpOrigin,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        *,
        bytes_max: int,
    ) -> Fetched:
        """Send a request and wait for its whole answer. Raises OSError; one of them is EngineGone, for a body of more
        than `bytes_max` bytes, too."""
        fetching = _Fetching(bytes_max)
        exchange = self.request(method, origin, path, headers, body, taker=fetching)
        try:
            return await fetching.answer
        finally:
            exchange.stop()

    def take_back(self, origin: HttpOrigin, connection: ClientConnection) -> None:
        if not connection.is_usable or self._is_closed:
            connection.abort()
            return
        connection.idle_since_s = asyncio.get_running_loop().time()
        idle = self._idle.get(origin)
        if idle is None:
            idle = self._idle[origin] = deque()
        idle.append(connection)
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

    async def connect(self, origin: HttpOrigin) -> ClientConnection:
        """Open a connection to the first address of an origin's host that takes one. Raises OSError.

        The host is looked up here, not in `create_connection`: uvloop's leaves a failed lookup's error unread where
        the wait ends before the lookup does.
        """
        async with asyncio.timeout(self._connect_s):
            found = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
            addresses = [str(address[0]) for *_, address in found]
            if not addresses:
                raise OSError(f"no address is known for {origin.host}")
            for address in addresses[:-1]:
                with suppress(OSError):
                    return await self._connect_at(address, origin)
            return await self._connect_at(addresses[-1], origin)

    async def _connect_at(self, address: str, origin: HttpOrigin) -> ClientConnection:
        connection = ClientConnection(self.on_turn)
        protocol = cast(asyncio.Protocol, connection)  # structural: all methods, without the base class
        server_name = None if origin.tls is None else origin.server_name or origin.host
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: protocol, address, origin.port, ssl=origin.tls, server_hostname=server_name
            )
        except BaseException:
            connection.abort()  # a connection made in the turn in which the wait ended
            raise
        return connection

    def _take_idle(self, origin: HttpOrigin) -> ClientConnection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_usable and not connection.has_unread:
                return connection
            connection.abort()
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


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole answer to a question of this gateway's own."""

    status: int
    headers: Headers
    body: bytes


class _Fetching:
    """Receiver of an answer that is read whole."""

    def __init__(self, bytes_max: int) -> None:
        self.answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._bytes_max = bytes_max
        self._status = 0
        self._headers: Headers = ()
        self._pieces: list[bytes] = []
        self._size = 0

    def on_head(self, exchange: ClientExchange, status: int, headers: Headers, peer: str) -> None:  # noqa: ARG002
        self._status, self._headers = status, headers

    def on_data(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > self._bytes_max:
            self.on_broken(EngineGone(f"its answer is larger than {self._bytes_max} bytes"))

    def on_end(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Fetched(self._status, self._headers, b"".join(self._pieces)))

    def on_broken(self, error: Exception) -> None:
        self._pieces.clear()
        if not self.answer.done():
            self.answer.set_exception(error)


def request_head(method: str, origin: HttpOrigin, path: str, headers: Iterable[tuple[str, str]], length: int) -> bytes:
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
