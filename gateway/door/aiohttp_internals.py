"""Undocumented parts of aiohttp that the HTTP edge depends on: private members, and the order of internal calls.

No other file uses any of them, and no decision is made here. The tests of this file state what is expected of each;
`pyproject.toml` allows only the version of aiohttp that they were run with.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import sys
from collections.abc import Coroutine
from typing import Any, cast

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import _ErrInfo

from mesh.task_group import forget_cancellation

http_date = rfc822_formatted_time
"""Current time in HTTP's date format, formatted once a second."""


class Runner(web.AppRunner):
    """Runs an app behind another server than its own."""

    __slots__ = ()

    def stand_in(self, plain: web.Server) -> web.Server:
        """Server that replaces the app's own."""
        raise NotImplementedError

    async def _make_server(self) -> web.Server:
        return self.stand_in(await super()._make_server())


class Server(web.Server):
    """Server with the options of the one that it replaces."""

    def __init__(self, plain: web.Server, handler: Any) -> None:
        super().__init__(
            handler,
            request_factory=self._make,
            handler_cancellation=plain.handler_cancellation,
            **plain._kwargs,  # noqa: SLF001 - no public member has them
        )
        self._make_plain = plain.request_factory
        self.is_leaving = False
        """True once each further answer is the last one on its connection, and says so."""
        self.one_task_loop = cast(asyncio.AbstractEventLoop, _OneTaskLoop(self._loop))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def connection_options(self) -> dict[str, Any]:
        return self._kwargs

    @property
    def open_connections(self) -> int:
        """Open connections, including those whose last request still runs."""
        return len(self._connections)

    def _make(self, message: Any, *rest: Any) -> web.BaseRequest:
        return self._make_plain(message._replace(should_close=True) if self.is_leaving else message, *rest)


class Connection(web.RequestHandler):
    """One client's connection, as far as aiohttp handles it."""

    __slots__ = ()

    def take_no_task_per_request(self, server: Server) -> None:
        """Run requests in the connection's own task. Call this once the connection is made: its task exists then, and
        has not begun.

        Before Python 3.12 aiohttp creates a task for each request, so that none sees another's context variables, of
        which the handlers here set none. The task costs two turns of the event loop: one before the engine is asked,
        one after the client is answered. Later versions of Python run the first step of a task at once.
        """
        if sys.version_info < (3, 12):
            self._loop = server.one_task_loop

    def leave_no_cycles(self) -> None:
        """Break the reference cycle that a cancelled task leaves; call this once the connection is made. Its task is
        cancelled when the client leaves."""
        assert self._task_handler is not None, "the connection is made"
        self._task_handler.add_done_callback(forget_cancellation)

    def forget_unread(self) -> None:
        """Drop the tracebacks of parser errors; call this once the connection is lost. Such a traceback refers to the
        frame that holds the error."""
        for message, _ in self._messages:
            if isinstance(message, _ErrInfo):
                message.exc.__traceback__ = None

    @property
    def waits_for_request(self) -> bool:
        """True if all requests that have arrived completely are answered. Data may arrive before the connection's task
        has begun, and so before it waits for a request."""
        if self._waiter is not None:
            return not self._waiter.done()
        return not self._messages and self._is_yet_to_begin

    @property
    def _is_yet_to_begin(self) -> bool:
        task = self._task_handler
        if task is None:
            return False
        coroutine = task.get_coro()
        return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED

    @property
    def is_too_far_ahead(self) -> bool:
        """True if reading has stopped because of requests that wait for their turn: the client's leaving would go
        unnoticed."""
        unanswered = len(self._messages) + (self._current_request is not None)
        return self._buffer_paused or (self._reading_paused and unanswered > 1)


class _OneTaskLoop:
    """Parts of the event loop that a connection uses, with a `create_task` that runs the request in the connection's
    own task."""

    __slots__ = ("call_at", "call_later", "create_future", "time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_at = loop.call_at
        self.call_later = loop.call_later
        self.create_future = loop.create_future
        self.time = loop.time

    @staticmethod
    def create_task(handler: Coroutine[Any, Any, object]) -> Coroutine[Any, Any, object]:
        """Return the coroutine, which is awaited at once, as the task would be."""
        return handler


class SentAnswer:
    """Stand-in for aiohttp of an answer that was written directly to the transport: no work is left."""

    __slots__ = ("keep_alive",)
    prepared = True

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, _: web.BaseRequest) -> None:
        pass

    async def write_eof(self) -> None:
        pass


def sent_answer(*, keep_alive: bool) -> web.StreamResponse:
    """Answer for a handler to return after it has written to the transport itself."""
    return cast(web.StreamResponse, SentAnswer(keep_alive=keep_alive))


class Site(web.TCPSite):
    """Listening address that accepts more options of the event loop than aiohttp's own."""

    __slots__ = ()

    @property
    def has_tls(self) -> bool:
        return self._ssl_context is not None

    @property
    def server(self) -> asyncio.AbstractServer | None:
        """Server of the event loop, while it listens."""
        return self._server

    async def listen(self, sock: socket.socket | None = None, **options: Any) -> None:
        """Listen, in place of `start`. A given socket must be listening already, and is used instead of the address."""
        await web.BaseSite.start(self)
        assert self._runner.server is not None, "the runner was set up"
        where = {"host": self._host, "port": self._port, "reuse_port": self._reuse_port}
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server,
            ssl=self._ssl_context,
            backlog=self._backlog,
            **(where if sock is None else {"sock": sock}),
            **options,
        )


def is_about_header_value(error: BaseException | None) -> bool:
    """True for a header value with a forbidden character. The parser has no exception for that alone, only a message
    that quotes the value."""
    return isinstance(error, HttpProcessingError) and error.message.startswith("Invalid header value char")


def is_about_size(error: BaseException | None) -> bool:
    """True for headers that are too large or too many. The parser has no exception for the second alone."""
    is_too_many = isinstance(error, HttpProcessingError) and error.message.startswith("Too many headers")
    return is_too_many or isinstance(error, LineTooLong)
