"""What of aiohttp the HTTP edge leans on without a promise of aiohttp's: private members, and who calls whom inside.

No other file names any of it, and here nothing is decided. What is expected of each is said by the tests of this file;
`pyproject.toml` allows the version that they were run with, and no other.
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

from gateway.ground.task_group import forget_cancellation

http_date = rfc822_formatted_time
"""The time of day as HTTP writes it, formatted once a second."""


class Runner(web.AppRunner):
    """Runs an app behind another server than its own."""

    __slots__ = ()

    def stand_in(self, plain: web.Server) -> web.Server:
        """The server that takes the place of the app's own."""
        raise NotImplementedError

    async def _make_server(self) -> web.Server:
        return self.stand_in(await super()._make_server())


class Server(web.Server):
    """Does what another server would have done, with its options."""

    def __init__(self, plain: web.Server, handler: Any) -> None:
        super().__init__(
            handler,
            request_factory=self._make,
            handler_cancellation=plain.handler_cancellation,
            **plain._kwargs,  # noqa: SLF001 - nobody else tells them
        )
        self._make_plain = plain.request_factory
        self.is_leaving = False
        """Each further answer is the last one on its connection, and says so."""
        self.one_task_loop = cast(asyncio.AbstractEventLoop, _OneTaskLoop(self._loop))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def connection_options(self) -> dict[str, Any]:
        return self._kwargs

    @property
    def open_connections(self) -> int:
        """With those whose last request still runs."""
        return len(self._connections)

    def _make(self, message: Any, *rest: Any) -> web.BaseRequest:
        return self._make_plain(message._replace(should_close=True) if self.is_leaving else message, *rest)


class Connection(web.RequestHandler):
    """One client's connection, as far as aiohttp looks after it."""

    __slots__ = ()

    def take_no_task_per_request(self, server: Server) -> None:
        """To be called once the connection is made: its own task has been, too, and has not begun.

        Before Python 3.12 aiohttp makes a task for each request, so that none sees another's context variables, of
        which our handlers set none. It costs two turns of the loop: before the engine is asked, and after the client is
        answered. Later versions of Python run a task's beginning at once.
        """
        if sys.version_info < (3, 12):
            self._loop = server.one_task_loop

    def leave_no_cycles(self) -> None:
        """To be called once the connection is made. Its task is cancelled where the client leaves."""
        assert self._task_handler is not None, "the connection is made"
        self._task_handler.add_done_callback(forget_cancellation)

    def forget_unread(self) -> None:
        """To be called once the connection is lost. What the parser objected to has been through the frame that it is
        kept in."""
        for message, _ in self._messages:
            if isinstance(message, _ErrInfo):
                message.exc.__traceback__ = None

    @property
    def waits_for_request(self) -> bool:
        """Has it answered all requests that came in whole? Data may come before its task has begun, and so before it
        waits for any."""
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
        """Has reading stopped over requests that wait for their turn? Then nobody would notice the client leave."""
        unanswered = len(self._messages) + (self._current_request is not None)
        return self._buffer_paused or (self._reading_paused and unanswered > 1)


class _OneTaskLoop:
    """All that a connection wants of the event loop; but a request runs in its connection's task and in no other."""

    __slots__ = ("call_at", "call_later", "create_future", "time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_at = loop.call_at
        self.call_later = loop.call_later
        self.create_future = loop.create_future
        self.time = loop.time

    @staticmethod
    def create_task(handler: Coroutine[Any, Any, object]) -> Coroutine[Any, Any, object]:
        """Awaited at once, as the task would be."""
        return handler


class SentAnswer:
    """What aiohttp gets to see of an answer that went out beneath it: there is nothing left to do."""

    __slots__ = ("keep_alive",)
    prepared = True

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, _: web.BaseRequest) -> None:
        pass

    async def write_eof(self) -> None:
        pass


def sent_answer(*, keep_alive: bool) -> web.StreamResponse:
    """For a handler to return."""
    return cast(web.StreamResponse, SentAnswer(keep_alive=keep_alive))


class Site(web.TCPSite):
    """A listening address that may be told more of the event loop's options than aiohttp's own."""

    __slots__ = ()

    @property
    def has_tls(self) -> bool:
        return self._ssl_context is not None

    @property
    def server(self) -> asyncio.AbstractServer | None:
        """The event loop's own, while it listens."""
        return self._server

    async def listen(self, sock: socket.socket | None = None, **options: Any) -> None:
        """In place of `start`. With a socket, on that one, which listens already."""
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
    """Did the parser find a header's value with a character that has no place in one? It has no exception for that
    alone, and quotes what it found in the message."""
    return isinstance(error, HttpProcessingError) and error.message.startswith("Invalid header value char")


def is_about_size(error: BaseException | None) -> bool:
    """Did the parser find headers too large or too many? For the second it has no exception of its own."""
    is_too_many = isinstance(error, HttpProcessingError) and error.message.startswith("Too many headers")
    return is_too_many or isinstance(error, LineTooLong)
