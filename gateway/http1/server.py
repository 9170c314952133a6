"""HTTP/1.1 for clients: one protocol object per connection, on llhttp. Limits are enforced as bytes arrive.

It knows neither paths nor credentials: its handler gets each request as an `Exchange` once its headers are complete,
and answers through it. Requests of one connection are served in their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.client import responses
from typing import Protocol, cast

import httptools

from gateway.http1.vanished import ClientHost
from gateway.request.header_values import from_bytes
from mesh.waiter import Waiter

_BUFFERED_BYTES_MAX = 64 * 1024
"""Bytes unread by the client above which its answer's sender has to wait."""
_AHEAD_BYTES_MAX = 256 * 1024
"""Bytes of requests that may arrive before an earlier one of the same connection is answered. With more, the client's
leaving would go unnoticed, so the connection is cut."""
_AHEAD_MAX = 64
"""Requests that may wait for their turn on one connection."""
READ_BYTES = 64 * 1024
"""Bytes of a request's body above which reading pauses until its reader has taken them."""
_LINGER_S = 10.0
"""Seconds for which the rest of a refused request's body is read and dropped, so that its client reads the answer."""
_GOODBYE_S = 1.0
"""Seconds that a refused client has to read the reason."""
_GOODBYES_MAX = 256
"""Refused connections at the same time; any more are closed without an answer."""
_LOOKS_MAX_S = 1.0
_LOOKS_MIN_S = 0.005
_NAMES_MAX = 1024
_WITHOUT_BODY = frozenset({204, 304})
_LAST_CHUNK = b"0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_METHODS = {each: each.decode() for each in (b"GET", b"HEAD", b"POST", b"DELETE", b"OPTIONS", b"PUT", b"PATCH")}


class HttpFault(StrEnum):
    """Reason for refusing a connection or a request before its handler has seen it."""

    INVALID_REQUEST = "invalid_request"
    INVALID_HEADER = "invalid_header"
    INVALID_TRANSFER_ENCODING = "invalid_transfer_encoding"
    VERSION_NOT_SUPPORTED = "version_not_supported"
    HEADERS_TOO_LARGE = "headers_too_large"
    HEADERS_INCOMPLETE = "headers_incomplete"
    TOO_MANY_CONNECTIONS = "too_many_connections"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    connections_max: int
    headers_bytes_max: int
    header_line_bytes_max: int
    header_count_max: int
    headers_s: float
    """Seconds that the headers of a request may take to arrive, once they have begun."""
    idle_s: float
    """Seconds that a connection may be without a request."""
    stall_s: float
    """Seconds that a client may take to read what is ready for it."""
    silence_s: float
    """Seconds for which the host of a client whose request runs may give no sign of life."""


class Headers(dict[str, str]):
    """Headers of one request by name in small letters, each with its first value (see `header_values.py`)."""

    __slots__ = ("repeated",)

    def __init__(self) -> None:
        self.repeated: dict[str, list[str]] | None = None
        """All values of the headers that stand more than once."""

    def repeat(self, name: str, text: str) -> int:
        """Add a further value of a header. Returns how many it has now."""
        if self.repeated is None:
            self.repeated = {}
        values = self.repeated.setdefault(name, [self[name]])
        values.append(text)
        return len(values)

    def getall(self, name: str) -> list[str]:
        """All values of a header, in their order."""
        if self.repeated is not None and name in self.repeated:
            return self.repeated[name]
        return [self[name]] if name in self else []


class Handler(Protocol):
    def serve(self, exchange: Exchange) -> None:
        """Serve a request whose headers are complete; of its body, some or all may have arrived. Never raises."""
        ...

    def refuse(self, fault: HttpFault) -> bytes:
        """Whole answer for a client that is refused without a handler, after which the connection is closed."""
        ...


def _nothing() -> None:
    pass


class Exchange:
    """One request of a client and its answer."""

    __slots__ = (
        "_body",
        "_connection",
        "_head",
        "_is_chunked",
        "_keeps_alive",
        "_waits_for_continue",
        "body_bytes",
        "has_begun",
        "has_news",
        "head_bytes",
        "headers",
        "is_complete",
        "is_malformed",
        "is_newest",
        "is_over",
        "method",
        "on_body",
        "on_left",
        "on_writable",
        "target",
    )

    def __init__(self, connection: ServerConnection | None) -> None:
        self.method = ""
        self.target = b""
        """Target of the request line, as the client wrote it."""
        self.headers = Headers()
        self.is_newest = True
        """True for HTTP/1.1, false for HTTP/1.0."""
        self.head_bytes = 0
        """Bytes of the headers."""
        self.is_complete = False
        """True once the whole body has arrived."""
        self.is_malformed = False
        """True if what came of the body is malformed, so that it will never be complete."""
        self.body_bytes = 0
        """Bytes of the body that have arrived and were not taken."""
        self.has_news = False
        """True if more of the body, or its end, has arrived and `on_body` was not called for it."""
        self.has_begun = False
        """True once status and headers of the answer were given."""
        self.is_over = False
        """True once the answer is complete, or the client has left."""
        self.on_body: Callable[[], None] = _nothing
        """Called when more of the body has arrived, or its end."""
        self.on_left: Callable[[], None] = _nothing
        """Called once if the client leaves before its answer is complete."""
        self.on_writable: Callable[[], None] = _nothing
        """Called when a write buffer that was full has room again."""
        self._connection = connection
        self._body: list[bytes] = []
        self._head = b""
        """Head that is sent together with the first bytes of the body."""
        self._is_chunked = False
        self._keeps_alive = True
        self._waits_for_continue = False

    # Request

    @property
    def peer_address(self) -> str | None:
        """Address of the client; None where the transport does not tell."""
        return None if self._connection is None else self._connection.peer_address

    def take_body(self) -> bytes:
        """Take what has arrived of the body since the last call."""
        pieces = self._body
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.body_bytes = 0
        if self._connection is not None:
            self._connection.read_on()
        return data

    def go_on(self) -> None:
        """Tell a client that waits for `100 Continue` to send the body."""
        if self._waits_for_continue and self._connection is not None:
            self._waits_for_continue = False
            self._connection.write(_CONTINUE)

    # Answer

    @property
    def is_closing(self) -> bool:
        """True if nothing can be sent any more."""
        return self._connection is None or self._connection.is_closing

    def forget(self) -> None:
        """Drop all callbacks: the request is over but for its last bytes."""
        self.on_body = self.on_left = self.on_writable = _nothing

    def must_close(self) -> None:
        """Close the connection after this answer, which says so."""
        self._keeps_alive = False

    def start(self, status: int, lines: str, *, has_length: bool) -> None:
        """Give status and headers, which are sent with the first bytes of the body. `lines`: header lines, each with
        its line break, without those of the connection. `has_length`: they tell the body's length."""
        assert not self.has_begun, "an answer begins once"
        self.has_begun = True
        is_newest = self.is_newest
        has_length = has_length or status in _WITHOUT_BODY
        self._is_chunked = is_newest and not has_length
        connection = self._connection
        is_leaving = connection is not None and connection.server.is_leaving
        keeps_alive = self._keeps_alive = (
            self._keeps_alive and not is_leaving and (is_newest or has_length) and not self._waits_for_continue
        )
        framing = "transfer-encoding: chunked\r\n" if self._is_chunked else ""
        if keeps_alive != is_newest:
            framing += "connection: keep-alive\r\n" if keeps_alive else "connection: close\r\n"
        phrase = responses.get(status, "")
        head = f"HTTP/1.1 {status} {phrase}\r\n{lines}{framing}\r\n"
        self._head = head.encode("latin-1", "replace")

    def write(self, data: bytes) -> bool:
        """Send body bytes. False: the buffer is full, and `on_writable` is called when it has room again."""
        connection = self._connection
        if connection is None:
            return True
        if self._is_chunked and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        transport = connection.transport
        if transport is not None and not transport.is_closing():
            transport.write(data)
        return not connection.is_full

    def finish(self) -> None:
        """End the answer. Unread bytes of it may take their time."""
        if self.is_over:
            return
        last = _LAST_CHUNK if self._is_chunked else b""
        self._is_chunked = False
        if last or self._head:
            self.write(last)
        self.is_over = True
        connection = self._connection
        if connection is not None:
            connection.answered(self, keeps_alive=self._keeps_alive, will_go_on=not self._waits_for_continue)

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Give a whole answer. A HEAD request gets its headers only."""
        lines = "".join([f"{name}: {text}\r\n" for name, text in headers.items()])
        has_body = status not in _WITHOUT_BODY
        if has_body:
            lines += f"content-length: {len(body)}\r\n"
        self.start(status, lines, has_length=True)
        if self.method != "HEAD" and has_body:
            self.write(body)
        self.finish()

    def abort(self) -> None:
        """Cut the connection, so that half an answer does not look like a whole one."""
        self.is_over = True
        if self._connection is not None:
            self._connection.abort()

    # Called by the connection

    def add(self, data: bytes) -> None:
        self._waits_for_continue = False
        self._body.append(data)
        self.body_bytes += len(data)
        self.has_news = True

    def head_is_over(self, *, keeps_alive: bool) -> None:
        self._keeps_alive = keeps_alive
        self._waits_for_continue = self.is_newest and "expect" in self.headers

    def body_is_over(self) -> None:
        self._waits_for_continue = False
        self.is_complete = self.has_news = True

    def malformed(self) -> None:
        self.is_malformed = self.has_news = True
        self._keeps_alive = False

    def left(self) -> None:
        self._connection = None
        self._body.clear()
        self.body_bytes = 0
        if not self.is_over:
            self.is_over = True
            self.on_left()


class ServerConnection:
    """One client's connection. The parser's callbacks only note what they are given; everything else happens once the
    parser has returned."""

    __slots__ = (
        "_ahead_bytes",
        "_closes_after_lingering",
        "_current",
        "_fault",
        "_full_since_s",
        "_has_progressed",
        "_headers_bytes",
        "_host",
        "_is_advancing",
        "_is_head_over",
        "_is_reading_paused",
        "_is_refused",
        "_keeps_alive",
        "_lingering",
        "_parser",
        "_parsing",
        "_queue",
        "_since_s",
        "_unfinished_bytes",
        "_upgrading",
        "is_full",
        "peer_address",
        "server",
        "transport",
    )

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.peer_address: str | None = None
        """Address of the client; None where the transport does not tell."""
        self.transport: asyncio.Transport | None = None
        self._host: ClientHost | None = None
        """Host of the client; None where the transport has no socket."""
        self._parser: httptools.HttpRequestParser | None = None
        self._parsing: Exchange | None = None
        """Request whose message the parser is in."""
        self._upgrading: Exchange | None = None
        """Request that asks for another protocol, whose body the parser has not begun."""
        self._is_head_over = True
        """False while the parser is in a head."""
        self._keeps_alive = True
        """False if the client sends no further request, by the latest head."""
        self._headers_bytes = 0
        """Bytes of the headers that were parsed of the present head."""
        self._unfinished_bytes = 0
        """Bytes that have arrived of a head that is not complete, or since the latest byte of a body."""
        self._has_progressed = False
        """True if more of a body, or the end of a head or of a request, has arrived in this turn."""
        self._queue: deque[Exchange] = deque()
        """Requests whose turn has not come."""
        self._ahead_bytes = 0
        """Bytes that have arrived of them."""
        self._current: Exchange | None = None
        """Request that is being served."""
        self._lingering: Exchange | None = None
        """Request that was answered before all of its body had arrived."""
        self._closes_after_lingering = False
        self._fault: HttpFault | None = None
        self._is_refused = False
        """True once the reason for closing was sent."""
        self._since_s = 0.0
        """Time since which the connection is idle, a head is arriving, a body is dropped, or a reason can be read."""
        self._full_since_s = 0.0
        self._is_advancing = False
        self._is_reading_paused = False
        self.is_full = False
        """True while the client has more to read than the buffer should hold."""

    @property
    def is_closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self.transport.set_write_buffer_limits(high=_BUFFERED_BYTES_MAX)
        self._parser = httptools.HttpRequestParser(self)
        self._since_s = self.server.time()
        name = transport.get_extra_info("peername")
        self.peer_address = name[0] if isinstance(name, tuple) and name and isinstance(name[0], str) else None
        own = transport.get_extra_info("socket")
        if own is not None:
            limits = self.server.limits
            self._host = ClientHost(own, stall_s=limits.stall_s, silence_s=limits.silence_s)
        self.server.made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._feed(data)
        if self._fault is not None:
            self._queue.clear()  # requests before a fault are served only if already begun
            if self._current is not None and self._current is self._parsing:
                self._current.malformed()
        self._advance()
        self.server.on_turn()

    def eof_received(self) -> None:
        """A client that closes its side has left: almost none would read on."""

    def pause_writing(self) -> None:
        self.is_full = True
        self._full_since_s = self.server.time()

    def resume_writing(self) -> None:
        self.is_full = False
        if self._current is not None:
            self._current.on_writable()
        self._advance()
        self.server.on_turn()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the event loop's own signature
        self.transport = self._host = None
        self._parser = None  # breaks a reference cycle
        self.server.lost(self)
        current, self._current = self._current, None
        self._queue.clear()
        self._parsing = self._lingering = None
        if current is not None:
            current.left()
        self.server.on_turn()

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        self._headers_bytes = 0
        if self._upgrading is not None:
            self._parsing, self._upgrading = self._upgrading, None
            return
        self._parsing = Exchange(self)
        self._is_head_over = False

    def on_url(self, url: bytes) -> None:
        exchange = self._parsing
        if exchange is not None and self._fault is None and not self._is_head_over:
            exchange.target += url
            if len(exchange.target) > self.server.limits.header_line_bytes_max:
                self._fault = HttpFault.HEADERS_TOO_LARGE

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._parsing
        if exchange is None or self._is_head_over or self._fault is not None:
            return  # a trailer, which is not used, or what no longer matters
        limits, headers = self.server.limits, exchange.headers
        size = len(name) + len(value)
        self._headers_bytes += size
        if size > limits.header_line_bytes_max or self._headers_bytes > limits.headers_bytes_max:
            self._fault = HttpFault.HEADERS_TOO_LARGE
            return
        key = _NAMES.get(name) or _name_of(name)
        text = from_bytes(value)
        if key not in headers:
            headers[key] = text
            is_too_many = len(headers) > limits.header_count_max
        else:
            is_too_many = headers.repeat(key, text) > limits.header_count_max
        if is_too_many:
            self._fault = HttpFault.HEADERS_TOO_LARGE

    def on_headers_complete(self) -> None:
        parser, exchange = self._parser, self._parsing
        if self._is_head_over or parser is None or exchange is None:
            return
        self._is_head_over = self._has_progressed = True
        if self._fault is not None:
            return
        version, method = parser.get_http_version(), parser.get_method()
        exchange.is_newest = version == "1.1"
        exchange.method = _METHODS.get(method) or from_bytes(method)
        self._keeps_alive = parser.should_keep_alive()
        exchange.head_is_over(keeps_alive=self._keeps_alive)
        self._fault = _objection(version, exchange.headers)
        self._queue.append(exchange)
        exchange.head_bytes = self._headers_bytes
        self._ahead_bytes += self._headers_bytes
        if parser.should_upgrade() and method != b"CONNECT":
            self._upgrading = exchange

    def on_body(self, data: bytes) -> None:
        exchange = self._parsing
        self._has_progressed = True
        if exchange is None or self._fault is not None or exchange.is_over:
            return
        exchange.add(data)
        if exchange is not self._current:
            self._ahead_bytes += len(data)

    def on_message_complete(self) -> None:
        exchange, self._parsing = self._parsing, None
        if exchange is not None and exchange is self._upgrading:
            return  # the body is still to come
        self._has_progressed = True
        if exchange is not None and self._fault is None:
            exchange.body_is_over()

    # Used by the exchange

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def read_on(self) -> None:
        """Read further, once what had arrived of a body is taken."""
        if self._is_reading_paused and self.transport is not None:
            self._is_reading_paused = False
            self.transport.resume_reading()

    def answered(self, exchange: Exchange, *, keeps_alive: bool, will_go_on: bool) -> None:
        """Take in that the current request is answered: serve the next one, or close. `will_go_on`: the client sends
        the rest of a body that is not complete, which is read and dropped, so that the client reads the answer."""
        if exchange is not self._current:
            return
        self._current = None
        self._since_s = self.server.time()
        if self._is_reading_paused:  # the body may still be unread
            self.read_on()
        if exchange.is_malformed:
            self.close()
            return
        if exchange.is_complete or not will_go_on:
            if not keeps_alive:
                self._queue.clear()
                self.close()
                return
        else:
            exchange.take_body()
            self._lingering = exchange
            self._closes_after_lingering = not keeps_alive
        self._advance()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close once what was written is sent."""
        if self.transport is not None:
            self.transport.close()

    # Used by the server

    def look(self, now_s: float) -> None:
        """Act on a limit of time that has passed."""
        limits = self.server.limits
        waited_s = now_s - self._since_s
        if self.is_full and now_s - self._full_since_s >= limits.stall_s:
            self.abort()
        elif self._is_refused:
            if waited_s >= _GOODBYE_S:
                self.abort()
        elif self._current is not None:
            if self._host is not None and not self.is_closing and self._host.has_vanished():
                self.abort()
        elif self._lingering is not None:
            if waited_s >= _LINGER_S:
                self.close()
        elif self._unfinished_bytes:
            if waited_s >= limits.headers_s:
                self._refuse(HttpFault.HEADERS_INCOMPLETE)
        elif waited_s >= limits.idle_s:
            self.close()
        elif self._host is not None and not self.is_closing:
            self._host.leave_alone()

    # Internal

    def _feed(self, data: bytes) -> None:
        rest: bytes | None = data
        self._has_progressed = False
        while rest and self._parser is not None and self._fault is None:
            rest = self._parse(self._parser, rest)
        if self._has_progressed or self._parsing is None:
            self._unfinished_bytes = 0
        if self._parsing is None:
            return
        if not self._is_head_over and not self._unfinished_bytes:
            self._since_s = self.server.time()
        self._unfinished_bytes += 1 if self._has_progressed else len(data)
        if self._unfinished_bytes > self.server.limits.headers_bytes_max:
            self._fault = self._fault or HttpFault.HEADERS_TOO_LARGE

    def _parse(self, parser: httptools.HttpRequestParser, data: bytes) -> bytes | None:
        """Feed the parser. Returns the bytes behind the head of a request for another protocol, which is not spoken
        here: its body, if it has one, or the next request. The parser leaves both to that protocol."""
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            if self._upgrading is not None and self._fault is None:
                self._parser.feed_data(_framing_of(self._upgrading.headers))
            return data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            is_behind_last = not self._keeps_alive and self._is_head_over and self._parsing is None
            if self._queue or not is_behind_last:
                self._fault = self._fault or _fault_of(error)
        return None

    def _advance(self) -> None:
        """Do what can be done: hand on the body of the request that is served, or begin the next one."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._step():
                pass
        finally:
            self._is_advancing = False

    def _step(self) -> bool:
        """Take one step. False: nothing is left to do until more arrives or the present answer is complete."""
        transport = self.transport
        if transport is None or self._is_refused or transport.is_closing():
            return False
        if (lingering := self._lingering) is not None:
            return self._linger(lingering)
        current = self._current
        if current is not None:
            return self._hand_on(current)
        if self.is_full:
            self._bound_queue()  # the next answer waits until the client has read
            return False
        if self._queue:
            self._current = exchange = self._queue.popleft()
            self._ahead_bytes -= exchange.head_bytes + exchange.body_bytes
            exchange.has_news = False
            self.server.handler.serve(exchange)
            return True
        if self._fault is not None:
            self._refuse(self._fault)
        return False

    def _bound_queue(self) -> bool:
        """Cut the connection if more requests wait than may. True: it was cut."""
        is_too_much = len(self._queue) > _AHEAD_MAX or self._ahead_bytes > _AHEAD_BYTES_MAX
        if is_too_much:
            self.abort()
        return is_too_much

    def _hand_on(self, current: Exchange) -> bool:
        if self._bound_queue() or not current.has_news:
            return False
        current.has_news = False
        current.on_body()
        if current.body_bytes > READ_BYTES and not self._is_reading_paused and self.transport is not None:
            self._is_reading_paused = True
            self.transport.pause_reading()
        return self._current is not current

    def _linger(self, lingering: Exchange) -> bool:
        if not lingering.is_complete:
            return False
        self._lingering = None
        self._since_s = self.server.time()
        if self._closes_after_lingering:
            self._queue.clear()
            self.close()
            return False
        return True

    def _refuse(self, fault: HttpFault) -> None:
        """Send the reason, let the client read it, and close."""
        transport = self.transport
        if transport is None or self._is_refused:
            return
        self._is_refused = True
        self._since_s = self.server.time()
        self._queue.clear()
        transport.write(self.server.handler.refuse(fault))
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()


class _Goodbye:
    """Refuses one connection: sends the reason, lets the client read it, and closes."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)
        if len(self._server.goodbyes) >= _GOODBYES_MAX:
            stream.abort()
            return
        self._server.goodbyes.add(self)
        self._timer = asyncio.get_running_loop().call_later(_GOODBYE_S, self.cut)
        stream.write(self._server.handler.refuse(HttpFault.TOO_MANY_CONNECTIONS))
        if stream.can_write_eof():
            stream.write_eof()
        else:
            stream.close()

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the event loop's own signature
        self._server.goodbyes.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class HttpServer:
    """Makes a protocol object for each connection of one port, up to a number of them."""

    def __init__(self, handler: Handler, limits: ServerLimits, *, on_turn: Callable[[], None] = _nothing) -> None:
        """`on_turn` is called at the end of each turn in which the handler was called."""
        self.handler = handler
        self.limits = limits
        self.on_turn = on_turn
        self.is_leaving = False
        """True once each further answer is the last one on its connection, and says so."""
        self.connections: set[ServerConnection] = set()
        self.goodbyes: set[_Goodbye] = set()
        self.time: Callable[[], float] = asyncio.get_running_loop().time
        self._empty = Waiter()
        self._unmade = 0
        """Connections whose TLS handshake is not over, or has failed."""
        self._looks: asyncio.TimerHandle | None = None
        shortest_s = min(limits.headers_s, limits.idle_s, limits.stall_s)
        self._look_s = max(_LOOKS_MIN_S, min(_LOOKS_MAX_S, shortest_s / 4))

    def __call__(self) -> asyncio.Protocol:
        """Protocol of a new connection."""
        self._unmade += 1
        is_full = len(self.connections) >= self.limits.connections_max
        protocol = _Goodbye(self) if is_full else ServerConnection(self)
        self._unmade -= is_full
        return cast(asyncio.Protocol, protocol)  # structural: all methods, without the base class

    @property
    def open_connections(self) -> int:
        """Open connections, including those whose last request still runs."""
        return len(self.connections)

    @property
    def has_unmade(self) -> bool:
        """True while a TLS handshake may be under way; failed handshakes cannot be told from it."""
        return self._unmade > 0

    def made(self, connection: ServerConnection) -> None:
        self._unmade -= 1
        self.connections.add(connection)
        if self._looks is None:
            self._looks = asyncio.get_running_loop().call_later(self._look_s, self._look)

    def lost(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.wake()

    async def until_empty(self) -> None:
        """Wait until no connection is open. Only one task may wait at a time."""
        while self.connections:
            await self._empty.wait()

    def close(self, *, at_once: bool) -> None:
        """Close all connections: those without a request, or all of them."""
        if self._looks is not None:
            self._looks.cancel()
            self._looks = None
        for each in tuple(self.goodbyes):
            each.cut()
        for connection in tuple(self.connections):
            if at_once:
                connection.abort()
            else:
                connection.close()

    def _look(self) -> None:
        """Act on limits of time; one timer serves all connections."""
        self._looks = None
        now_s = self.time()
        for connection in tuple(self.connections):
            connection.look(now_s)
        if self.connections:
            self._looks = asyncio.get_running_loop().call_later(self._look_s, self._look)


_NAMES: dict[bytes, str] = {}
"""Names of headers as they were written, with the name in small letters."""


def _name_of(name: bytes) -> str:
    key = from_bytes(name).lower()
    if len(_NAMES) < _NAMES_MAX:
        _NAMES[name] = key
    return key


def _framing_of(headers: Headers) -> bytes:
    """Head of a request with a body of the same length."""
    framing = "".join(
        f"{name}: {headers[name]}\r\n" for name in ("content-length", "transfer-encoding") if name in headers
    )
    return f"POST / HTTP/1.1\r\n{framing}\r\n".encode("latin-1")


def _objection(version: str, headers: Headers) -> HttpFault | None:
    """Fault of a request's framing. A body that another server could take for a further request would allow request
    smuggling. A request line without an HTTP version is not HTTP, and would be answered without headers."""
    if version not in ("1.1", "1.0"):
        return HttpFault.INVALID_REQUEST if version < "1.0" else HttpFault.VERSION_NOT_SUPPORTED
    is_newest = version == "1.1"
    if "host" not in headers:
        if is_newest:
            return HttpFault.INVALID_REQUEST
    elif headers.repeated is not None and "host" in headers.repeated:
        return HttpFault.INVALID_REQUEST
    coding = headers.get("transfer-encoding")
    if coding is None:
        return None
    is_single = headers.repeated is None or "transfer-encoding" not in headers.repeated
    is_plain = is_newest and is_single and coding.strip().lower() == "chunked"
    return None if is_plain else HttpFault.INVALID_TRANSFER_ENCODING


def _fault_of(error: httptools.HttpParserError) -> HttpFault:
    """Kind of a parser's error. There is no exception for an invalid value alone, only a message."""
    return HttpFault.INVALID_HEADER if "Invalid header value char" in str(error) else HttpFault.INVALID_REQUEST
