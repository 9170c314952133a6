"""Takes in one request's body: counted as it comes, decoded where it is compressed, given up where it is too slow.

No body's size depends on what a client says of it, and nothing of it is ever logged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp import web
from aiohttp.http import HttpVersion11

from gateway.http import errors
from gateway.http.encodings import Inflater, encoding_of
from gateway.http.errors import ClientFault
from gateway.http.fields import FIELDS_MAX, LARGE_BYTES, has_too_many_fields
from gateway.http.room import Held
from gateway.http.settings import HttpSettings

STEP_BYTES_MAX = 256 * 1024
"""Inflated at a time, by a thread of its own."""
STEPS_MAX = 2
"""Under way: one that is taken and one that is next. What they give is counted once the event loop comes to it, so that
however many bodies come in at once, no more than this is in memory uncounted."""
PROMPT_BYTES_MAX = 4 * 1024
"""Up to this much is inflated at once, without waking a thread,"""
PROMPT_STEP_BYTES_MAX = 32 * 1024
"""as far as this."""
TURN_BYTES = 64 * 1024
"""A body larger than this takes longer to understand than all else that is done about a request."""
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"

_Take = Callable[[bytes], Awaitable[None]]


def check_announced(request: web.Request, body_bytes_max: int) -> None:
    """Raises ClientFault for what no waiting would help. Nothing of the body has been read or asked for then."""
    if (announced_bytes(request) or 0) > body_bytes_max:
        raise ClientFault(errors.BODY_TOO_LARGE)
    if "expect" in request.headers and request.headers["expect"].lower() != "100-continue":
        raise ClientFault(errors.EXPECTATION_FAILED)


def announced_bytes(request: web.Request) -> int | None:
    """None where it comes in chunks, and nobody knows yet."""
    return request.content_length if request.body_exists else 0


class Uploads:
    """Reads bodies. Whatever about them takes long is done in one thread, one after another and in small steps; and
    however many are whole at once, the event loop goes round between any two."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="uploads")
        self._steps = asyncio.Semaphore(STEPS_MAX)
        self._turns = _Turns()

    def close(self) -> None:
        self._aside.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: web.Request, held: Held) -> bytes:
        """Raises ClientFault, and ConnectionResetError where the client has gone. Whoever gets a large body has the
        event loop's turn, until the next time that it waits."""
        length = announced_bytes(request)
        encoding = None if length == 0 else encoding_of(request.headers)
        if encoding is None and length is not None and request.content.is_eof():
            body = request.content.read_nowait()  # it came in with its headers
            held.grow(len(body))
        else:
            held.check(length or 0)
            body = await self._read_slowly(request, held, encoding)
        if len(body) > LARGE_BYTES:
            await self._check_fields(body)
        if len(body) > TURN_BYTES:
            await self._turns.take()
        held.settle()
        return body

    async def _check_fields(self, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._aside, has_too_many_fields, body):
            raise ClientFault(errors.INVALID_FIELD, f"a body has at most {FIELDS_MAX} fields")

    async def _read_slowly(self, request: web.Request, held: Held, encoding: str | None) -> bytes:
        if _expects_to_go_on(request) and not request.content.is_eof():
            await request.writer.write(_GO_ON)
            request.writer.output_size = 0  # the answer has not begun
        body = _Body(held, self._settings.body_bytes_max)
        if encoding is None:
            await self._receive(request, body.add)
        else:
            inflater = Inflater(encoding)
            await self._receive(request, partial(self._inflate, inflater, body))
            inflater.close()
        pieces = body.pieces()
        if body.size <= TURN_BYTES:
            return b"".join(pieces)
        return await asyncio.get_running_loop().run_in_executor(self._aside, _joined, pieces)

    async def _receive(self, request: web.Request, take: _Take) -> None:
        """Hand on what comes, as long as it comes fast enough."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        received = 0
        try:
            async with asyncio.timeout(min(settings.stall_s, settings.body_grace_s)) as patience:
                while piece := await request.content.readany():
                    received += len(piece)
                    if received > settings.body_bytes_max:
                        raise ClientFault(errors.BODY_TOO_LARGE)
                    await take(piece)
                    wait_s = settings.body_grace_s + received / settings.body_rate_min
                    patience.reschedule(started_s + min(settings.stall_s, wait_s))
        except TimeoutError as error:
            raise ClientFault(errors.BODY_INCOMPLETE) from error
        except web.RequestPayloadError as error:
            error.__traceback__ = None  # its stream keeps it, and is known to each of its frames
            raise ClientFault(errors.INVALID_REQUEST) from error

    async def _inflate(self, inflater: Inflater, body: _Body, piece: bytes) -> None:
        """A small piece may be bigger inside than it looks: what does not come out at once is left to the thread."""
        inflater.feed(piece)
        if not inflater.is_dry and len(piece) <= PROMPT_BYTES_MAX:
            await body.add(inflater.step(PROMPT_STEP_BYTES_MAX))
        loop = asyncio.get_running_loop()
        while not inflater.is_dry:
            async with self._steps:
                body.check()
                await body.add(await loop.run_in_executor(self._aside, inflater.step, STEP_BYTES_MAX))


class _Body:
    """What there is of a body. Each byte is counted before it is kept."""

    def __init__(self, held: Held, bytes_max: int) -> None:
        self.size = 0
        self._held = held
        self._bytes_max = bytes_max
        self._pieces: list[bytearray] = []
        """Small ones are put together: a client that sends two bytes at a time would have an object for each. Large
        ones are not: an array of megabytes is copied whenever it has to grow."""

    def check(self) -> None:
        """Raises ClientFault where there is no room for anything more."""
        self._held.check(1)

    async def add(self, piece: bytes) -> None:
        if self.size + len(piece) > self._bytes_max:
            raise ClientFault(errors.BODY_TOO_LARGE)
        self._held.grow(len(piece))
        self.size += len(piece)
        if self._pieces and len(self._pieces[-1]) + len(piece) <= STEP_BYTES_MAX:
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def pieces(self) -> list[bytearray]:
        """Once only: whoever takes them lets go of them."""
        pieces, self._pieces = self._pieces, []
        return pieces


class _Turns:
    """Lets one of those who wait go on in each turn of the event loop, in the order in which they came. Between two of
    them everybody else is looked at."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._next, loop)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # whoever waited for it may have left
            turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)


def _joined(pieces: list[bytearray]) -> bytes:
    body = b"".join(pieces)
    pieces.clear()  # here, in the thread: it takes as long as joining them
    return body


def _expects_to_go_on(request: web.Request) -> bool:
    """`check_announced` has refused every other expectation."""
    return "expect" in request.headers and request.version >= HttpVersion11
