"""Opens legs at engines over HTTP. Leaving a leg before its end closes the connection, which is how engines abort work.

It relays what engines say and judges nothing but whether they could be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Self

import aiohttp

from gateway.clock import Clock
from gateway.core.effects import StartLeg
from gateway.core.vocabulary import AttemptResult, ReplicaId
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.legs import Leg, LegFailure, LegHead, OutboundRequest, RanAt

_SECOND_NS = 1_000_000_000
_ONE_WRITE_BYTES_MAX = 1 << 20
"""A larger body is written in pieces, so that sending it does not hold up the other requests."""
_FAULTS = (aiohttp.ClientError, OSError, ValueError)
"""Whatever a connection, or a peer that does not speak HTTP, can do to us. TimeoutError is an OSError."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    connect_s: float = 5.0
    idle_connection_s: float = 3.0
    """Kept shorter than the engines' own (5 s): a connection must not be closed there while we send on it."""


class EngineClient:
    """The leg opener for replicas. One session, and so one pool of connections, for the whole gateway."""

    def __init__(self, endpoints: ReplicaEndpoints, clock: Clock, settings: ClientSettings) -> None:
        """Inside a running loop."""
        self._endpoints = endpoints
        self._clock = clock
        self._session = new_session(settings.idle_connection_s)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @asynccontextmanager
    async def open(
        self, order: StartLeg, request: OutboundRequest, *, on_accepted: Callable[[], None]
    ) -> AsyncIterator[Leg]:
        endpoint = self._endpoints.get(ReplicaId(order.target.id))
        if endpoint is None:
            raise LegFailure(AttemptResult.FAILED, "no such replica is assigned to this gateway")
        response = await self._send(endpoint, order, request)
        try:
            if response.status < 400:
                on_accepted()
            yield EngineLeg(response, endpoint)
        finally:
            response.close()  # one that was read to its end has given its connection back already

    async def _send(
        self, endpoint: ReplicaEndpoint, order: StartLeg, request: OutboundRequest
    ) -> aiohttp.ClientResponse:
        wait_s = (order.deadline_ns - self._clock.now_ns()) / _SECOND_NS
        try:
            async with asyncio.timeout(wait_s):
                return await self._session.request(
                    request.method,
                    endpoint.url + request.path,
                    data=_written(request.body),
                    headers=_headers(endpoint, order, request),
                    timeout=self._timeout,
                    allow_redirects=False,
                )
        except _FAULTS as error:
            raise LegFailure(AttemptResult.FAILED, f"no answer: {_in_words(error)}") from error


class EngineLeg:
    """An engine that has begun to answer."""

    __slots__ = ("_response", "head")

    def __init__(self, response: aiohttp.ClientResponse, endpoint: ReplicaEndpoint) -> None:
        headers = tuple(response.headers.items())
        self.head = LegHead(response.status, headers, RanAt(endpoint.replica_id, endpoint.place))
        self._response = response

    def chunks(self) -> AsyncIterator[bytes]:
        return _Chunks(self._response.content)


class _Chunks:
    """The body as it comes out of the socket, joined only as far as it has gathered there."""

    __slots__ = ("_read",)

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._read = content.readany

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await self._read()
        except _FAULTS as error:
            raise LegFailure(AttemptResult.FAILED, f"the answer broke off: {_in_words(error)}") from error
        if not data:
            raise StopAsyncIteration
        return data


def new_session(idle_connection_s: float) -> aiohttp.ClientSession:
    """Without cookies, proxies or anything else that one request could leave behind for another.

    The number of connections has no limit of its own: there is at most one per request held, and those are limited.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=idle_connection_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("user-agent", "accept-encoding"),
    )


def _written(body: bytes) -> bytes | BytesIO | None:
    return (body or None) if len(body) <= _ONE_WRITE_BYTES_MAX else BytesIO(body)


def _headers(endpoint: ReplicaEndpoint, order: StartLeg, request: OutboundRequest) -> dict[str, str]:
    """Later attempts get an id of their own: an engine may still be busy forgetting the first."""
    headers = {**dict(request.headers), "accept-encoding": "identity", **endpoint.authorization()}
    if order.attempt > 1 and "x-request-id" in headers:
        headers["x-request-id"] = f"{order.request_id}-{order.attempt}"
    return headers


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
