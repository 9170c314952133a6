"""Opens legs at engines over HTTP. Leaving a leg before its end closes the connection, which makes the engine abort the
work.

It relays what engines answer, errors in the one shape that clients' SDKs read, and judges only whether the engine could
be reached, and whether an error is about the request at all.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

import msgspec
from msgspec.structs import replace

from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import Extra, LegResult, LegRole, ModelName, ReplicaId
from gateway.engines.answers import EngineError, Meaning, read_error
from gateway.engines.asked_extras import asked_of, asked_of_decode
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.handoff.attempt_ids import attempt_ids, leg_headers
from gateway.engines.handoff.bodies import LegBody, decode_body, prefill_body
from gateway.engines.handoff.bootstrap import Bootstrap
from gateway.engines.origins import origin_of
from gateway.engines.tokenizing import TokenizerLacks, in_words_of
from gateway.http1.client import ClientExchange, ConnectionPool
from gateway.request.body_edits import CACHE_SALT, BodySetting, set_members
from gateway.request.engine_api import TOKENIZE_PATH
from gateway.request.engine_errors import in_openai_shape
from gateway.request.legs import (
    STOPPED,
    Headers,
    LegFailure,
    LegHandle,
    LegHead,
    LegListener,
    OutboundRequest,
    PartInput,
)
from gateway.request.side_channels import NOWHERE, SideChannel
from mesh.clock import Clock
from mesh.shortage import is_our_shortage

_SECOND_NS = 1_000_000_000
_ERROR_BYTES_MAX = 512 * 1024
"""Bytes of an engine's error body that are read. A relay may hold twice as much, since the shape for the client can be
longer."""
_ERROR_WAIT_S = 5.0
"""Seconds that the body of an error may take to arrive after its head."""
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

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        settings: ClientSettings,
        *,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """Create this inside a running loop. `on_turn` is called after each turn in which a leg's listener was
        called."""
        self.endpoints = endpoints
        self._clock = clock
        self._closing_ns = round(settings.closing_s * _SECOND_NS)
        self._pool = ConnectionPool(connect_s=settings.connect_s, idle_s=settings.idle_connection_s, on_turn=on_turn)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    def open(self, order: StartLeg, request: OutboundRequest, listener: LegListener) -> LegHandle:
        """Send the request of a leg. Raises LegFailure. The core keeps the deadline: it stops the leg."""
        endpoint = self.endpoints.get(ReplicaId(order.target.id))
        if endpoint is None:
            raise LegFailure(LegResult.BUSY, "the replica is no longer assigned to this gateway")
        if request.path == TOKENIZE_PATH:
            try:
                request = in_words_of(endpoint.dialect, request)
            except TokenizerLacks as problem:
                return RefusedLeg(self, order, endpoint, listener, problem)
        origin, prefix = origin_of(endpoint.url, endpoint.tls)
        extras: tuple[Extra, ...] = ()
        if request.part is None:
            headers = _headers(endpoint, order, request)
            (lead, body), extras = _body(endpoint, order, request)
        else:
            settings, extras = asked_of_decode(endpoint, order, request)
            headers, (lead, body) = self._part(endpoint, order, request, request.part, settings)
        leg = EngineLeg(self, endpoint, order, extras, listener, model=request.profile.model)
        leg.exchange = self._pool.request(
            request.method, origin, prefix + request.path, headers, body, taker=leg, lead=lead
        )
        return leg

    def closes(self, endpoint: ReplicaEndpoint) -> None:
        """Note that an engine is shutting down."""
        self.endpoints.closes(endpoint.url, self._clock.now_ns() + self._closing_ns)

    def turn_over(self) -> None:
        self._pool.on_turn()

    def _part(
        self,
        endpoint: ReplicaEndpoint,
        order: StartLeg,
        request: OutboundRequest,
        part: PartInput,
        extras: Sequence[BodySetting],
    ) -> tuple[list[tuple[str, str]], LegBody]:
        """Headers and body for one of the two engines that share a request, with settings that ask for extras."""
        assert order.connector is not None, "a part is handed over by something"
        met = attempt_ids(part.nonce, order.attempt)
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
                extras=extras,
            )
        return headers, body

    def _bootstrap(self, endpoint: ReplicaEndpoint, order: StartLeg) -> Bootstrap:
        """Bootstrap of the prefill worker, where the two engines meet. Raises LegFailure if it is not known."""
        prefill = endpoint if order.prefill is None else self.endpoints.get(ReplicaId(order.prefill.id))
        if prefill is None:
            raise LegFailure(LegResult.BUSY, "the prefill worker is no longer assigned to this gateway")
        bootstrap = self.endpoints.bootstrap_of(prefill)
        if bootstrap is None:
            raise LegFailure(LegResult.BUSY, "the prefill worker has not said yet where it is met")
        return bootstrap


class EngineLeg:
    """Leg at an engine. The body of an error is read here, whole and in the shape for the client."""

    __slots__ = (
        "_client",
        "_endpoint",
        "_error",
        "_extras",
        "_has_head",
        "_identity",
        "_is_over",
        "_listener",
        "_order",
        "_timer",
        "exchange",
    )

    def __init__(
        self,
        client: EngineClient,
        endpoint: ReplicaEndpoint,
        order: StartLeg,
        extras: tuple[Extra, ...],
        listener: LegListener,
        *,
        model: ModelName,
    ) -> None:
        self.exchange: ClientExchange | None = None
        self._client = client
        self._endpoint = endpoint
        self._order = order
        self._identity = order.answers_as if order.role is LegRole.DECODE else endpoint.identities.get(model, "")
        self._extras = extras
        """Members of the answer that this gateway asks the engine for."""
        self._listener = listener
        self._error: _ErrorBody | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_head = self._is_over = False

    # Handle of the request

    def stop(self) -> None:
        if self._is_over:
            return
        self._stop_reading()
        self._finish()
        self._listener.on_failed(STOPPED)

    def pause(self) -> None:
        if self.exchange is not None:
            self.exchange.pause()

    def resume(self) -> None:
        if self.exchange is not None:
            self.exchange.resume()

    # Taker of the connection's answer

    def on_head(self, exchange: ClientExchange, status: int, headers: Headers, peer: str) -> None:
        if status >= 400:
            self._error = _ErrorBody(status, headers)
            self._timer = asyncio.get_running_loop().call_later(_ERROR_WAIT_S, self._error_is_late)
            return
        self._has_head = True
        order, endpoint = self._order, self._endpoint
        side_channel = _side_channel(endpoint, peer) if order.role is LegRole.PREFILL else NOWHERE
        exchange.take = self._listener.on_data
        self._listener.on_head(
            LegHead(
                status, headers, endpoint.ran_at, order.attempt, order.leg, self._extras, side_channel, self._identity
            )
        )

    def on_data(self, data: bytes) -> None:
        """Take in a piece of an error. One above _ERROR_BYTES_MAX is read as empty, so that only its status counts:
        engines quote what they refuse, so that a long error is as likely the request's fault as a short one."""
        error = self._error
        assert error is not None, "an answer's body goes to the request"
        if not error.add(data):
            self._stop_reading()
            self._tell_error(error)

    def on_end(self) -> None:
        if self._error is None:
            self._finish()
            self._listener.on_end(None)
        else:
            self._tell_error(self._error)

    def on_broken(self, error: Exception) -> None:
        if self._is_over:
            return
        told = self._error
        if told is not None:
            self._error_broke_off(told, error)
            return
        self._finish()
        if not isinstance(error, OSError):
            self._listener.on_fault(error)
        elif self._has_head:
            self._listener.on_failed(_broke_off(error))
        else:
            has_reached = error.errno != errno.ECONNREFUSED
            detail = f"no answer: {_in_words(error)}"
            self._listener.on_failed(LegFailure(_result_of(error), detail, has_reached=has_reached))

    # Errors

    def _error_is_late(self) -> None:
        self._timer = None
        error = self._error
        assert error is not None, "an error is awaited"
        self._stop_reading()
        self._error_broke_off(error, TimeoutError())
        self._client.turn_over()

    def _error_broke_off(self, error: _ErrorBody, why: Exception) -> None:
        """End with an error whose body breaks off or arrives late. A 4xx status other than 429 counts as a failure of
        the engine then; of others, the part that has arrived counts."""
        if 400 <= error.status < 500 and error.status != 429:
            self._finish()
            self._listener.on_failed(_broke_off(why))
        else:
            self._tell_error(error)

    def _tell_error(self, error: _ErrorBody) -> None:
        """Pass the error on, unless the engine is shutting down or broken, whatever the status."""
        self._finish()
        try:
            self._listener_gets(read_error(error.status, error.body, is_pinned=self._endpoint.rank is not None), error)
        except Exception as fault:  # noqa: BLE001 - any error here is this gateway's own
            self._listener.on_fault(fault)

    def _listener_gets(self, read: EngineError, error: _ErrorBody) -> None:
        listener = self._listener
        if read.meaning is Meaning.CLOSING:
            self._client.closes(self._endpoint)
            listener.on_failed(LegFailure(LegResult.BUSY, "the engine is shutting down"))
        elif read.meaning is Meaning.BROKEN:
            listener.on_failed(LegFailure(LegResult.FAILED, f"status {error.status}"))
        else:
            tell_error(listener, self._order, self._endpoint, read, error.headers)

    def _stop_reading(self) -> None:
        if self.exchange is not None:
            self.exchange.stop()

    def _finish(self) -> None:
        self._is_over = True
        self.exchange = None  # breaks a reference cycle
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ErrorBody:
    """Error of an engine as it arrives."""

    __slots__ = ("_pieces", "_size", "headers", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> bool:
        """Add a piece. False: it is too long, and counts as empty."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _ERROR_BYTES_MAX:
            self._pieces.clear()
            return False
        return True

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)


class RefusedLeg:
    """Leg of a request that the engine would misunderstand without reporting it. It is answered here."""

    __slots__ = ("_client", "_endpoint", "_handle", "_listener", "_order", "_problem")

    def __init__(
        self,
        client: EngineClient,
        order: StartLeg,
        endpoint: ReplicaEndpoint,
        listener: LegListener,
        problem: TokenizerLacks,
    ) -> None:
        self._client = client
        self._order = order
        self._endpoint = endpoint
        self._listener = listener
        self._problem = problem
        self._handle: asyncio.Handle | None = asyncio.get_running_loop().call_soon(self._answer)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._listener.on_failed(STOPPED)

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def _answer(self) -> None:
        self._handle = None
        body = in_openai_shape(msgspec.json.encode({"message": str(self._problem)}), 400)
        tell_error(self._listener, self._order, self._endpoint, EngineError(Meaning.REQUEST, 400, body), ())
        self._client.turn_over()


def tell_error(
    listener: LegListener, order: StartLeg, endpoint: ReplicaEndpoint, error: EngineError, headers: Headers
) -> None:
    """Give an error that is about the client's request to the leg's listener."""
    kept = tuple(pair for pair in headers if pair[0].lower() not in _NOT_OF_AN_ERROR)
    own = (*kept, ("content-type", "application/json"), ("content-length", str(len(error.body))))
    listener.on_head(LegHead(error.status, own, endpoint.ran_at, order.attempt, order.leg))
    listener.on_data(error.body)
    listener.on_end(None)


def _side_channel(endpoint: ReplicaEndpoint, peer: str) -> SideChannel:
    """Configured side channel of the worker, plus the address that answered: an engine behind a DNS name reports its
    own address."""
    named = endpoint.side_channel
    found = {str(ip_address(peer))} if peer else set()
    hosts = named.hosts | found
    if any(_is_loopback(each) for each in hosts):
        hosts |= _LOOPBACK
    return replace(named, hosts=hosts)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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
    settings: list[BodySetting] = []
    extras: tuple[Extra, ...] = ()
    if order.extras and request.profile.stream:
        settings, extras = asked_of(endpoint, order.extras, request)
    salt = request.cache_salt
    if salt is not None and endpoint.takes_cache_salt:
        settings.append(BodySetting(CACHE_SALT, b'"%b"' % salt.text.encode(), salt.replaces_own))
    if not settings:
        return (b"", request.body), extras
    if len(settings) == 1:
        (only,) = settings
        return only.member.set(request.body, only.text, is_named=only.is_named), extras
    return set_members(request.body, settings), extras


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
