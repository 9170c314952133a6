"""Reads request bodies: counts them as they arrive, inflates them where compressed, and gives up on slow ones.

No limit relies on what a client says of its body's size, and no body is ever logged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gateway.door import errors
from gateway.door.body_memory import BodyReservation
from gateway.door.encodings import Inflater, encoding_of
from gateway.door.errors import ClientFault
from gateway.door.fields import FIELDS_MAX, LARGE_BYTES, has_too_many_fields
from gateway.door.settings import HttpSettings
from gateway.http1.server import Exchange
from mesh.waiter import Waiter

STEP_BYTES_MAX = 256 * 1024
"""Bytes that are inflated in one step, by a thread."""
STEPS_MAX = 2
"""Steps at the same time: one that runs and one that is next. Their output is counted once the event loop gets to it,
so that no more than this is in memory uncounted, however many bodies arrive at once."""
PROMPT_BYTES_MAX = 4 * 1024
"""Size of a compressed piece up to which it is inflated in the event loop, without waking a thread."""
PROMPT_STEP_BYTES_MAX = 32 * 1024
"""Bytes of output that are inflated in the event loop; the thread inflates the rest."""
TURN_BYTES = 64 * 1024
"""Size of a body above which parsing it takes longer than all other work on its request."""

TakePiece = Callable[[bytes], Awaitable[None]]


def check_announced(exchange: Exchange, body_bytes_max: int) -> None:
    """Raise ClientFault for a request that must be refused whatever room there is, before its body is read or asked
    for."""
    headers = exchange.headers
    length = headers.get("content-length")
    if length is not None and int(length) > body_bytes_max:
        raise ClientFault(errors.BODY_TOO_LARGE)
    if "expect" in headers and headers["expect"].lower() != "100-continue":
        raise ClientFault(errors.EXPECTATION_FAILED)


def announced_bytes(exchange: Exchange) -> int | None:
    """Announced length of the body; None for a chunked body, whose length is not known."""
    length = exchange.headers.get("content-length")
    if length is not None:
        return int(length)
    return None if "transfer-encoding" in exchange.headers else 0


async def receive_body(
    exchange: Exchange, settings: HttpSettings, take: TakePiece, bytes_max: int, *, whole_s: float | None = None
) -> None:
    """Hand on pieces of a body that arrive fast enough, the whole of it within `whole_s`; None:
    within the time that a client may stall. Raises ClientFault otherwise."""
    whole_s = settings.stall_s if whole_s is None else whole_s
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    received = 0
    news = Waiter()
    exchange.on_body = news.wake
    try:
        async with asyncio.timeout(min(settings.stall_s, settings.body_grace_s)) as patience:
            while not exchange.is_complete or exchange.body_bytes:
                if exchange.is_malformed:
                    raise ClientFault(errors.INVALID_REQUEST)
                piece = exchange.take_body()
                if not piece:
                    await news.wait()
                    continue
                received += len(piece)
                if received > bytes_max:
                    raise ClientFault(errors.BODY_TOO_LARGE)
                await take(piece)
                wait_s = settings.body_grace_s + received / settings.body_rate_min
                silent_s = loop.time() - started_s + settings.stall_s
                patience.reschedule(started_s + min(whole_s, silent_s, wait_s))
    except TimeoutError as error:
        raise ClientFault(errors.BODY_INCOMPLETE) from error


class Uploads:
    """Reads bodies. Slow work on them is done in one thread, one body after another and in small steps; and however
    many bodies are complete at once, the event loop turns between any two."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="uploads")
        self._steps = asyncio.Semaphore(STEPS_MAX)
        self._turns = _Turns()

    def close(self) -> None:
        self._aside.shutdown(wait=False, cancel_futures=True)

    async def read(self, exchange: Exchange, held: BodyReservation) -> bytes:
        """Read the whole body. Raises ClientFault. After a large body, the caller has the event loop's turn to itself
        until it waits again."""
        length = announced_bytes(exchange)
        encoding = None if length == 0 else encoding_of(exchange.headers)
        if encoding is None and length is not None and exchange.is_complete:
            body = exchange.take_body()  # the body has arrived with the headers
            held.grow(len(body))
        else:
            held.check(length or 0)
            body = await self._read_slowly(exchange, held, encoding)
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

    async def _read_slowly(self, exchange: Exchange, held: BodyReservation, encoding: str | None) -> bytes:
        exchange.go_on()
        body = _Body(held, self._settings.body_bytes_max)
        if encoding is None:
            await receive_body(exchange, self._settings, body.add, self._settings.body_bytes_max)
        else:
            inflater = Inflater(encoding)
            take = partial(self._inflate, inflater, body)
            await receive_body(exchange, self._settings, take, self._settings.body_bytes_max)
            inflater.close()
        pieces = body.pieces()
        if body.size <= TURN_BYTES:
            return b"".join(pieces)
        return await asyncio.get_running_loop().run_in_executor(self._aside, _joined, pieces)

    async def _inflate(self, inflater: Inflater, body: _Body, piece: bytes) -> None:
        """Inflate a piece. A small piece may have a large output: what does not come out at once is left to the
        thread."""
        inflater.feed(piece)
        if not inflater.is_dry and len(piece) <= PROMPT_BYTES_MAX:
            await body.add(inflater.step(PROMPT_STEP_BYTES_MAX))
        loop = asyncio.get_running_loop()
        while not inflater.is_dry:
            async with self._steps:
                body.check()
                await body.add(await loop.run_in_executor(self._aside, inflater.step, STEP_BYTES_MAX))


class _Body:
    """Received part of a body. Each byte is counted before it is kept."""

    def __init__(self, held: BodyReservation, bytes_max: int) -> None:
        self.size = 0
        self._held = held
        self._bytes_max = bytes_max
        self._pieces: list[bytearray] = []
        """Pieces of the body. Small ones are joined: a client that sends two bytes at a time would cost an object for
        each. Large ones are not: an array of megabytes is copied whenever it has to grow."""

    def check(self) -> None:
        """Raise ClientFault if there is no room for any more."""
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
        """Hand over the pieces, which are kept no longer here. Call this once only."""
        pieces, self._pieces = self._pieces, []
        return pieces


class _Turns:
    """Lets one waiting task continue in each turn of the event loop, in order of arrival, so that all other tasks run
    between any two."""

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
        if not turn.done():  # the waiting task may have been cancelled
            turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._next, loop)


def _joined(pieces: list[bytearray]) -> bytes:
    body = b"".join(pieces)
    pieces.clear()  # clearing takes as long as joining, so the thread does it
    return body
