"""Takes in one request's body: counted as it comes, decoded where it is compressed, given up where it is too slow.

No body's size depends on what a client says of it, and nothing of it is ever logged.
"""

from __future__ import annotations

import asyncio
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
PROMPT_BYTES_MAX = 4 * 1024
"""Up to this much is inflated at once, without waking a thread,"""
PROMPT_STEP_BYTES_MAX = 32 * 1024
"""as far as this."""
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
    """Reads bodies. Whatever about them takes long is done in one thread, one after another and in small steps."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="uploads")

    def close(self) -> None:
        self._aside.shutdown(wait=False, cancel_futures=True)

    async def read(self, request: web.Request, held: Held) -> bytes:
        """Raises ClientFault, and ConnectionResetError where the client has gone."""
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
        return body.whole()

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
            raise ClientFault(errors.INVALID_REQUEST) from error

    async def _inflate(self, inflater: Inflater, body: _Body, piece: bytes) -> None:
        """A small piece may be bigger inside than it looks: what does not come out at once is left to the thread."""
        inflater.feed(piece)
        if not inflater.is_dry and len(piece) <= PROMPT_BYTES_MAX:
            await body.add(inflater.step(PROMPT_STEP_BYTES_MAX))
        loop = asyncio.get_running_loop()
        while not inflater.is_dry:
            await body.add(await loop.run_in_executor(self._aside, inflater.step, STEP_BYTES_MAX))


class _Body:
    """What there is of a body. Each byte is counted before it is kept."""

    def __init__(self, held: Held, bytes_max: int) -> None:
        self._held = held
        self._bytes_max = bytes_max
        self._pieces = bytearray()
        """Not a list: a client that sends two bytes at a time would have an object for each."""

    async def add(self, piece: bytes) -> None:
        if len(self._pieces) + len(piece) > self._bytes_max:
            raise ClientFault(errors.BODY_TOO_LARGE)
        self._held.grow(len(piece))
        self._pieces += piece

    def whole(self) -> bytes:
        return bytes(self._pieces)


def _expects_to_go_on(request: web.Request) -> bool:
    """`check_announced` has refused every other expectation."""
    return "expect" in request.headers and request.version >= HttpVersion11
