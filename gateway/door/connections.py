"""Limits clients' connections before there is a request: their number, and the size and duration of their headers.

Its own answers look like any other error of the gateway, and no client data is logged.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11

from gateway.door import errors
from gateway.door.aiohttp_internals import (
    Connection,
    Runner,
    Server,
    is_about_header_value,
    is_about_size,
    sent_answer,
)
from gateway.door.errors import ErrorKind, error_headers
from gateway.door.parse import fresh_request_id
from gateway.door.settings import HttpSettings
from gateway.door.shapes import error_body, shape_of
from gateway.door.sink import error_response
from gateway.records.refusals import OnRefused, Refusal

OnFault = Callable[[BaseException], None]
"""Called with every exception that is an internal error."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SHORTCUTS = web.AppKey("shortcuts", Mapping[str, Handler])
"""Handlers of POST requests by path, called without the app's router and middlewares."""

_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""Socket option of Linux; None on other systems."""
READ_BYTES = 64 * 1024
"""Read buffer size: reading from a connection pauses once twice this much of a body is unread, after the last piece."""
_GOODBYE_S = 1.0
"""Seconds that a refused client has to read the reason."""
_GOODBYES_MAX = 256
"""Refused connections at the same time; any more are closed without an answer."""


class GuardedRunner(Runner):
    """Runs an app behind a guarded server."""

    __slots__ = ("_on_fault", "_on_refused", "_settings", "_shortcuts")

    def __init__(
        self, app: web.Application, settings: HttpSettings, on_fault: OnFault, on_refused: OnRefused, **options: Any
    ) -> None:
        super().__init__(
            app,
            max_line_size=settings.header_line_bytes_max,
            max_field_size=settings.header_line_bytes_max,
            max_headers=settings.header_count_max,
            keepalive_timeout=settings.idle_connection_s,
            read_bufsize=READ_BYTES,
            auto_decompress=False,  # aiohttp would inflate bodies without checking for room
            access_log=None,
            **options,
        )
        self._settings = settings
        self._on_fault = on_fault
        self._on_refused = on_refused
        self._shortcuts = app.get(SHORTCUTS, {})

    def stand_in(self, plain: web.Server) -> web.Server:
        return GuardedServer(plain, self._settings, self._on_fault, self._on_refused, self._shortcuts)

    @property
    def guarded(self) -> GuardedServer:
        assert isinstance(self.server, GuardedServer), "the runner was set up"
        return self.server


class GuardedServer(Server):
    """Creates a protocol for each connection."""

    def __init__(
        self,
        plain: web.Server,
        settings: HttpSettings,
        on_fault: OnFault,
        on_refused: OnRefused,
        shortcuts: Mapping[str, Handler],
    ) -> None:
        super().__init__(plain, _with_shortcuts(plain.request_handler, shortcuts))
        self.settings = settings
        self.on_fault = on_fault
        self._on_refused = on_refused
        self._goodbyes: set[_Goodbye] = set()
        self._unmade = 0

    @property
    def has_unmade(self) -> bool:
        """True while an accepted connection has not been made yet; also if it was lost in its handshake."""
        return self._unmade > 0

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        self._unmade -= 1
        super().connection_made(handler, transport)

    def __call__(self) -> web.RequestHandler:
        if self.open_connections < self.settings.connections_max:
            self._unmade += 1
            return _Connection(self, loop=self.loop, **self.connection_options)
        self.refused(errors.TOO_MANY_CONNECTIONS)
        return cast(web.RequestHandler, _Goodbye(self._goodbyes, self.loop))

    def refused(self, kind: ErrorKind) -> None:
        """Report a refusal before there was a request, so that the client is not known."""
        self._on_refused(Refusal(kind.code, kind.status, kind.message))

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's own signature
        for goodbye in tuple(self._goodbyes):
            goodbye.cut()
        await super().shutdown(timeout)


class _Connection(Connection):
    """One client's connection, with a limit on the size of its headers and on the time they take."""

    __slots__ = ("_headers_bytes", "_headers_timer", "_on_fault", "_server", "_settings")

    def __init__(self, server: GuardedServer, *, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(server, loop=loop, **options)
        self._server = server
        self._settings = server.settings
        self._on_fault = server.on_fault
        self._headers_bytes = 0
        self._headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.take_no_task_per_request(self._server)
        self.leave_no_cycles()
        _give_up_unread(transport, self._settings.stall_s)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.waits_for_request:
            if self._headers_bytes:
                self._headers_are_over()
        elif data:
            self._headers_continue(len(data))
        if self.is_too_far_ahead and self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._headers_are_over()
        self.forget_unread()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's own signature
    ) -> web.StreamResponse:
        """Replace aiohttp's method, which logs what the client sent and answers in plain text."""
        if status >= 500 and exc is not None:
            self._on_fault(exc)
        elif exc is not None:
            exc.__traceback__ = None  # the traceback refers to the parser's frame, which holds the error
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; there is no room for another")
        kind, shape = _kind_of(status, exc), shape_of(request.path, request.headers)
        if status < 500:
            self._server.refused(kind)
        response = error_response(kind, fresh_request_id(), self._settings, shape=shape)
        response.force_close()
        return response

    def log_exception(self, *_: Any, **options: Any) -> None:
        error = options.get("exc_info")
        self._on_fault(error if isinstance(error, BaseException) else AssertionError("a handler returned no response"))

    def _headers_continue(self, received: int) -> None:
        """Count bytes of an incomplete request."""
        self._headers_bytes += received
        if self._headers_bytes > self._settings.headers_bytes_max:
            self.turn_away(errors.HEADERS_TOO_LARGE)
        elif self._headers_timer is None:
            wait_s = self._settings.headers_s
            self._headers_timer = self._server.loop.call_later(wait_s, self.turn_away, errors.HEADERS_INCOMPLETE)

    def _headers_are_over(self) -> None:
        self._headers_bytes = 0
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def turn_away(self, kind: ErrorKind) -> None:
        """Send the reason, and close the connection."""
        self._headers_are_over()
        self._server.refused(kind)
        if self.transport is not None:
            self.transport.write(raw_answer(kind))
        self.force_close()


class _Goodbye(asyncio.Protocol):
    """Refuses one connection: sends the reason, lets the client read it, and closes."""

    def __init__(self, all_of_them: set[_Goodbye], loop: asyncio.AbstractEventLoop) -> None:
        self._all = all_of_them
        self._loop = loop
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        if len(self._all) >= _GOODBYES_MAX:
            transport.abort()
            return
        self._all.add(self)
        self._timer = self._loop.call_later(_GOODBYE_S, self.cut)
        transport.write(raw_answer(errors.TOO_MANY_CONNECTIONS))
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own signature
        if self in self._all:
            self._all.discard(self)
            self._timer.cancel()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _with_shortcuts(handler: Any, shortcuts: Mapping[str, Handler]) -> Any:
    """Wrap the handler of an aiohttp server; aiohttp's types know only the requests of bare servers, not an app's."""

    def handle(request: web.Request) -> Awaitable[web.StreamResponse]:
        """Refuse ambiguous framing before the request is handled."""
        objection = _objection(request)
        if objection is not None:
            return _turn_away(request, objection)
        direct = shortcuts.get(request.path) if request.method == "POST" else None
        answer: Awaitable[web.StreamResponse] = handler(request) if direct is None else direct(request)
        return answer

    return handle


def _objection(request: web.Request) -> ErrorKind | None:
    """Fault of the request's framing, checked before its content is used. A body that another server could take for a
    further request would allow request smuggling. A request line without an HTTP version is not HTTP, and would be
    answered without headers."""
    version = request.version
    if version not in (HttpVersion11, HttpVersion10):
        return errors.INVALID_REQUEST if version < HttpVersion10 else errors.VERSION_NOT_SUPPORTED
    encodings = request.headers.getall("transfer-encoding", None)
    if encodings is None:
        return None
    is_plain = version == HttpVersion11 and len(encodings) == 1 and encodings[0].strip().lower() == "chunked"
    return None if is_plain else errors.INVALID_TRANSFER_ENCODING


async def _turn_away(request: web.Request, kind: ErrorKind) -> web.StreamResponse:
    assert isinstance(request.protocol, _Connection), "nobody else makes requests here"
    request.protocol.turn_away(kind)
    return sent_answer(keep_alive=False)


def _give_up_unread(transport: asyncio.BaseTransport, stall_s: float) -> None:
    """Set TCP_USER_TIMEOUT, so that the system closes a connection whose other end reads nothing for `stall_s` seconds
    or has silently gone, whatever this process waits for."""
    sock = transport.get_extra_info("socket")
    if sock is not None and _USER_TIMEOUT is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, round(stall_s * 1000))


def tell_loop(error: BaseException) -> None:
    """Report an error to the event loop, where no log is at hand."""
    asyncio.get_running_loop().call_exception_handler({"message": "answering a client failed", "exception": error})


def raw_answer(kind: ErrorKind) -> bytes:
    """Complete HTTP/1.1 answer, for use without a request."""
    body = error_body(kind)
    headers = {**error_headers(kind), "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {kind.status} {HTTPStatus(kind.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _kind_of(status: int, error: BaseException | None) -> ErrorKind:
    if status >= 500:
        return errors.INTERNAL
    if is_about_header_value(error):
        return errors.INVALID_HEADER
    return errors.HEADERS_TOO_LARGE if is_about_size(error) else errors.INVALID_REQUEST
