"""Opens legs at engines over HTTP. Leaving a leg before its end closes the connection, which makes the engine abort the
work.

It relays what engines answer, errors in the one shape that clients' SDKs read, and judges only whether the engine could
be reached, and whether an error is about the request at all.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Self

import msgspec

from gateway.config.targets import Dialect
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import Extra, LegResult, LegRole, ReplicaId
from gateway.engines.answers import EngineError, Meaning, read_error
from gateway.engines.connection import ConnectionPool, EngineGone, Response, origin_of
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.handoff.bodies import LegBody, decode_body, prefill_body
from gateway.engines.handoff.bootstrap import Bootstrap
from gateway.engines.handoff.meeting import leg_headers, meeting
from gateway.engines.tokenizing import TokenizerLacks, in_words_of
from gateway.request.body_edits import CACHE_SALT, Setting, set_members
from gateway.request.engine_api import TOKENIZE_PATH
from gateway.request.engine_errors import in_openai_shape
from gateway.request.extras import ask_for
from gateway.request.legs import Headers, Leg, LegFailure, LegHead, OutboundRequest, PartInput
from gateway.request.side_channels import NOWHERE, SideChannel
from mesh.clock import Clock
from mesh.shortage import is_our_shortage

_SECOND_NS = 1_000_000_000
_ERROR_BYTES_MAX = 512 * 1024
"""Bytes of an engine's error body that are read. A relay may hold twice as much, since the shape for the client can be
longer."""
_ERROR_WAIT_S = 5.0
"""Seconds that the body of an error may take to arrive after its head."""
_TOLD_BY = {
    Extra.USAGE: frozenset({Dialect.VLLM, Dialect.SGLANG, Dialect.LLAMACPP}),
    Extra.TOKEN_IDS: frozenset({Dialect.VLLM}),
}
"""Dialects whose engines report an extra when asked, with no other effect than is known. Other dialects are not
asked."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names by which a worker on this machine may call itself."""
_NOT_OF_AN_ERROR = frozenset({"content-type", "content-length", "content-encoding", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class ClientSettings:
    connect_s: float = 5.0
    idle_connection_s: float = 3.0
    """Idle time after which a connection is closed, in seconds; shorter than the engines' own (5 s), so that an engine
    does not close it while a request is being sent."""
    closing_s: float = 5.0
    """Time for which an engine that announced its shutdown gets no request, unless it is found gone earlier; in
    seconds."""


class EngineClient:
    """Opens legs at replicas, with one connection pool for the whole gateway."""

    def __init__(self, endpoints: ReplicaEndpoints, clock: Clock, settings: ClientSettings) -> None:
        """Create this inside a running loop."""
        self._endpoints = endpoints
        self._clock = clock
        self._closing_ns = round(settings.closing_s * _SECOND_NS)
        self._pool = ConnectionPool(connect_s=settings.connect_s, idle_s=settings.idle_connection_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    def open(self, order: StartLeg, request: OutboundRequest, *, on_accepted: Callable[[], None]) -> _Opening:
        return _Opening(self, order, request, on_accepted)

    async def send(
        self, order: StartLeg, request: OutboundRequest
    ) -> tuple[ReplicaEndpoint, Response, tuple[Extra, ...]]:
        """Send the request of a leg. Returns the endpoint, its response, and the extras that were asked for. Raises
        LegFailure and TokenizerLacks. The core keeps the deadline: it stops the leg."""
        endpoint = self._endpoints.get(ReplicaId(order.target.id))
        if endpoint is None:
            raise LegFailure(LegResult.BUSY, "the replica is no longer assigned to this gateway")
        if request.path == TOKENIZE_PATH:
            request = in_words_of(endpoint.dialect, request)
        origin, prefix = origin_of(endpoint.url, endpoint.tls)
        extras: tuple[Extra, ...] = ()
        if request.part is None:
            headers = _headers(endpoint, order, request)
            (lead, body), extras = _body(endpoint, order, request)
        else:
            headers, (lead, body) = self._part(endpoint, order, request, request.part)
        try:
            response = await self._pool.request(request.method, origin, prefix + request.path, headers, body, lead=lead)
        except OSError as error:
            has_reached = error.errno != errno.ECONNREFUSED
            told = f"no answer: {_in_words(error)}"
            raise LegFailure(_result_of(error), told, has_reached=has_reached) from error
        return endpoint, response, extras

    def _part(
        self, endpoint: ReplicaEndpoint, order: StartLeg, request: OutboundRequest, part: PartInput
    ) -> tuple[list[tuple[str, str]], LegBody]:
        """Headers and body for one of the two engines that share a request."""
        assert order.connector is not None, "a part is handed over by something"
        met = meeting(part.nonce, order.attempt)
        own = endpoint.own_headers
        headers = [pair for pair in leg_headers(request.headers, met) if pair[0] not in own]
        headers += own.items()
        salt = request.cache_salt if endpoint.takes_cache_salt else None
        bootstrap = None if order.connector.is_sequential else self._bootstrap(endpoint, order)
        if order.role is LegRole.PREFILL:
            body = prefill_body(order.connector, request.path, request.body, met, bootstrap=bootstrap, salt=salt)
        else:
            body = decode_body(
                order.connector,
                request.body,
                met,
                told=part.told,
                bootstrap=bootstrap,
                salt=salt,
                assembled=part.assembled,
            )
        return headers, body

    def _bootstrap(self, endpoint: ReplicaEndpoint, order: StartLeg) -> Bootstrap:
        """Bootstrap of the prefill worker, where the two engines meet. Raises LegFailure if it is not known."""
        prefill = endpoint if order.prefill is None else self._endpoints.get(ReplicaId(order.prefill.id))
        if prefill is None:
            raise LegFailure(LegResult.BUSY, "the prefill worker is no longer assigned to this gateway")
        bootstrap = self._endpoints.bootstrap_of(prefill)
        if bootstrap is None:
            raise LegFailure(LegResult.BUSY, "the prefill worker has not said yet where it is met")
        return bootstrap

    async def read_error(self, endpoint: ReplicaEndpoint, response: Response, order: StartLeg) -> ErrorLeg:
        """Read an error response. Raises LegFailure if the engine is shutting down or broken, whatever the status."""
        error = read_error(response.status, await _error_body(response), is_pinned=endpoint.rank is not None)
        if error.meaning is Meaning.CLOSING:
            self._endpoints.closes(endpoint.url, self._clock.now_ns() + self._closing_ns)
            raise LegFailure(LegResult.BUSY, "the engine is shutting down")
        if error.meaning is Meaning.BROKEN:
            raise LegFailure(LegResult.FAILED, f"status {response.status}")
        return ErrorLeg(response.headers, endpoint, error, order)

    def refuse(self, order: StartLeg, problem: TokenizerLacks) -> ErrorLeg:
        """Answer for a request that the engine would misunderstand without reporting it."""
        endpoint = self._endpoints.get(ReplicaId(order.target.id))
        assert endpoint is not None, "it was there a moment ago"
        body = in_openai_shape(msgspec.json.encode({"message": str(problem)}), 400)
        return ErrorLeg((), endpoint, EngineError(Meaning.REQUEST, 400, body), order)


class _Opening:
    """Context of one leg: entering sends the request and waits for the head, leaving closes the response."""

    __slots__ = ("_client", "_on_accepted", "_order", "_request", "_response")

    def __init__(
        self, client: EngineClient, order: StartLeg, request: OutboundRequest, on_accepted: Callable[[], None]
    ) -> None:
        self._client = client
        self._order = order
        self._request = request
        self._on_accepted = on_accepted
        self._response: Response | None = None

    async def __aenter__(self) -> Leg:
        try:
            endpoint, response, extras = await self._client.send(self._order, self._request)
        except TokenizerLacks as problem:
            return self._client.refuse(self._order, problem)
        self._response = response
        if response.status < 400:
            self._on_accepted()
            return EngineLeg(response, endpoint, self._order, extras)
        try:
            return await self._client.read_error(endpoint, response, self._order)
        except BaseException:
            response.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        if self._response is not None:
            self._response.close()  # a response that was read to its end has given its connection back already


class EngineLeg:
    """Leg at an engine that has begun to answer."""

    __slots__ = ("_response", "head")
    counted = None

    def __init__(
        self, response: Response, endpoint: ReplicaEndpoint, order: StartLeg, extras: tuple[Extra, ...]
    ) -> None:
        self.head = LegHead(
            response.status,
            response.headers,
            endpoint.ran_at,
            order.attempt,
            order.leg,
            extras,
            _side_channel(endpoint, response) if order.role is LegRole.PREFILL else NOWHERE,
        )
        self._response = response

    def chunks(self) -> AsyncIterator[bytes]:
        return _Chunks(self._response)

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        try:
            return await self._response.pour(take)
        except EngineGone as error:
            raise _broke_off(error) from error


def _side_channel(endpoint: ReplicaEndpoint, response: Response) -> SideChannel:
    """Configured side channel of the worker, plus the address that answered: an engine behind a DNS name reports its
    own address."""
    named = endpoint.side_channel
    found = {str(ip_address(response.peer))} if response.peer else set()
    hosts = named.hosts | found
    if any(_is_loopback(each) for each in hosts):
        hosts |= _LOOPBACK
    return replace(named, hosts=hosts)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class ErrorLeg:
    """Leg at an engine that has answered with an error, read whole and in the shape for the client."""

    counted = None
    __slots__ = ("_body", "head")

    def __init__(self, headers: Headers, endpoint: ReplicaEndpoint, error: EngineError, order: StartLeg) -> None:
        kept = tuple(pair for pair in headers if pair[0].lower() not in _NOT_OF_AN_ERROR)
        own = (*kept, ("content-type", "application/json"), ("content-length", str(len(error.body))))
        self.head = LegHead(error.status, own, endpoint.ran_at, order.attempt, order.leg)
        self._body = error.body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        take(self._body)
        return True


class _Chunks:
    """Body as it arrives from the socket; only pieces that have piled up there are joined."""

    __slots__ = ("_read",)

    def __init__(self, response: Response) -> None:
        self._read = response.read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await self._read()
        except EngineGone as error:
            raise _broke_off(error) from error
        if not data:
            raise StopAsyncIteration
        return data


async def _error_body(response: Response) -> bytes:
    """Read the body of an error response. A body above _ERROR_BYTES_MAX is read as empty, so that only its status
    counts: engines quote what they refuse, so that a long error is as likely the request's fault as a short one.

    A body that breaks off or arrives late raises LegFailure for a 4xx status other than 429; for other statuses the
    part that has arrived is returned.
    """
    body: list[bytes] = []
    try:
        async with asyncio.timeout(_ERROR_WAIT_S):
            while data := await response.read():
                body.append(data)
                if sum(map(len, body)) > _ERROR_BYTES_MAX:
                    return b""
    except (EngineGone, TimeoutError) as error:
        if 400 <= response.status < 500 and response.status != 429:
            raise _broke_off(error) from error
    return b"".join(body)


def _result_of(error: OSError) -> LegResult:
    """Classify a failure to send. A gateway without free ports towards one address (EADDRNOTAVAIL) may still reach
    another engine."""
    if error.errno == errno.EADDRNOTAVAIL:
        return LegResult.BUSY
    return LegResult.INTERNAL if is_our_shortage(error) else LegResult.FAILED


def _broke_off(error: Exception) -> LegFailure:
    return LegFailure(LegResult.FAILED, f"the answer broke off: {_in_words(error)}")


def _headers(endpoint: ReplicaEndpoint, order: StartLeg, request: OutboundRequest) -> list[tuple[str, str]]:
    """Headers for the engine. A later leg gets a request id of its own: the engine may still run or be aborting the
    first."""
    own = endpoint.own_headers
    headers = [pair for pair in request.headers if pair[0] not in own]
    if order.attempt > 1 or order.leg > 1:
        leg = f"-{order.leg}" if order.leg > 1 else ""
        fresh = ("x-request-id", f"{order.request_id}-{order.attempt}{leg}")
        headers = [fresh if pair[0] == "x-request-id" else pair for pair in headers]
    headers += own.items()
    return headers


def _body(endpoint: ReplicaEndpoint, order: StartLeg, request: OutboundRequest) -> tuple[LegBody, tuple[Extra, ...]]:
    """Body for the engine, in two parts so that a large one is not copied, and the extras asked for beyond the client's
    request."""
    settings: list[Setting] = []
    extras: tuple[Extra, ...] = ()
    if order.extras and request.profile.stream:
        wanted = [extra for extra in order.extras if endpoint.dialect in _TOLD_BY[extra]]
        settings, extras = ask_for(wanted, request.path, request.body)
    salt = request.cache_salt
    if salt is not None and endpoint.takes_cache_salt:
        settings.append(Setting(CACHE_SALT, b'"%b"' % salt.text.encode(), salt.replaces_own))
    if not settings:
        return (b"", request.body), extras
    if len(settings) == 1:
        (only,) = settings
        return only.member.set(request.body, only.text, is_named=only.is_named), extras
    return set_members(request.body, settings), extras


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
