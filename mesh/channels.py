"""Sets up gRPC channels and servers for all links between Nightside's programs: a dead network is noticed, and the end
of the calls can be awaited.

It neither connects nor listens by itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from structlog.typing import FilteringBoundLogger

from mesh.clock import Clock
from mesh.logs import LogRateLimit

_MILLISECOND_NS = 1_000_000
_STOP_MAX_S = 2.0
_Begin = Callable[..., grpc.aio.Call]
_TOLD_TO_RENEW = re.compile(r" ?\(?GOAWAY received; Error code: 0; Debug Text: max_age\)?")
"""Text with which a server ends a connection that is old enough to be replaced. gRPC repeats it with whatever ends such
a connection later, though it never is the reason."""
_WRITTEN_AT_ITS_END = "Internal error from Core"


class LinkSettings(Protocol):
    """Settings of a link, as in a file's section."""

    @property
    def message_max_bytes(self) -> int: ...
    @property
    def keepalive_interval_ns(self) -> int: ...
    @property
    def keepalive_timeout_ns(self) -> int: ...


class DialledSettings(LinkSettings, Protocol):
    @property
    def connect_timeout_ns(self) -> int: ...
    @property
    def reconnect_min_ns(self) -> int: ...
    @property
    def reconnect_max_ns(self) -> int: ...


class ServedSettings(LinkSettings, Protocol):
    @property
    def connection_age_ns(self) -> int: ...
    @property
    def connection_grace_ns(self) -> int: ...


class FollowedChannel:
    """Channel that knows its running calls, and when a call is about to open a connection. gRPC's own closing with a
    grace period cannot be abandoned half way."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._calls: set[object] = set()
        self._ended = asyncio.Event()

    def unary_unary(self, *arguments: Any, **options: Any) -> _Begin:
        """Return a function for a stub that begins calls, like the channel's own."""
        return self._following(self.channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> _Begin:
        """Return a function for a stub that begins calls, like the channel's own."""
        return self._following(self.channel.unary_stream(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> _Begin:
        """Return a function for a stub that begins calls, like the channel's own."""
        return self._following(self.channel.stream_stream(*arguments, **options))

    async def until_silent(self, wait_max_s: float) -> None:
        try:
            async with asyncio.timeout(wait_max_s):
                while self._calls:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            pass

    def on_connecting(self) -> None:
        """Take note that the next call opens a connection: the one that earlier calls run on takes no new ones."""

    def _following(self, begin: _Begin) -> _Begin:
        def begin_and_follow(*arguments: Any, **options: Any) -> grpc.aio.Call:
            if self.channel.get_state() is grpc.ChannelConnectivity.IDLE:
                self.on_connecting()
            call = begin(*arguments, **options)
            self._calls.add(call)
            call.add_done_callback(self._forget)
            return call

        return begin_and_follow

    def _forget(self, call: object) -> None:
        self._calls.discard(call)
        self._ended.set()


class MalformedCalls(grpc.aio.ServerInterceptor):
    """Interceptor that answers a malformed unary request with INVALID_ARGUMENT. gRPC would take it for an error of the
    handler, which never ran, and log a traceback each time."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger) -> None:
        self._log = log
        self._seldom = LogRateLimit(clock)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler  # a handler that reads a stream notices by reading
        read, behaviour = handler.request_deserializer, handler.unary_stream or handler.unary_unary

        def read_or_none(message: bytes) -> object | None:
            try:
                return read(message)  # type: ignore[no-any-return]
            except DecodeError:
                return None

        async def answer(request: object | None, context: Any) -> Any:
            if request is None:
                self._tell(handler_call_details.method, context.peer())
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no message")
            return await behaviour(request, context)

        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(answer, read_or_none, handler.response_serializer)

    def _tell(self, method: object, caller: str) -> None:
        passed_over = self._seldom.turn(str(method))
        if passed_over is not None:
            self._log.error("malformed_call", method=str(method), caller=caller, suppressed=passed_over)


def shared_options(link: LinkSettings) -> list[tuple[str, int]]:
    """Options that both ends of a connection share: message sizes, keep-alive pings on a silent connection, and with
    them TCP's user time-out (RFC 5482), which gRPC sets to `keepalive_timeout`.

    A keep-alive waits for a ping that is already under way, such as one for flow control, and so for that ping's own
    time-out.
    """
    return [
        ("grpc.max_receive_message_length", link.message_max_bytes),
        ("grpc.max_send_message_length", link.message_max_bytes),
        ("grpc.keepalive_time_ms", link.keepalive_interval_ns // _MILLISECOND_NS),
        ("grpc.keepalive_timeout_ms", link.keepalive_timeout_ns // _MILLISECOND_NS),
        ("grpc.http2.ping_timeout_ms", link.keepalive_timeout_ns // _MILLISECOND_NS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(link: ServedSettings, *, shares_port: bool = False) -> list[tuple[str, int]]:
    """Options of a server. Without `shares_port` a second server on the same port fails; with it, the caller first
    checks that the port is free."""
    return [
        *shared_options(link),
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # clients ping silent connections
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_connection_age_ms", link.connection_age_ns // _MILLISECOND_NS),
        ("grpc.max_connection_age_grace_ms", link.connection_grace_ns // _MILLISECOND_NS),
    ]


def client_options(link: DialledSettings) -> list[tuple[str, int]]:
    return [
        *shared_options(link),
        ("grpc.enable_http_proxy", 0),  # a proxy in the environment is meant for other traffic
        # There is no retry policy, as this layer does not decide on retries. gRPC still repeats calls that met a
        # connection as it closed and that the other end has not seen.
        ("grpc.enable_retries", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.per_rpc_retry_buffer_size", link.message_max_bytes),
        ("grpc.use_local_subchannel_pool", 1),  # gateways in one process share no connections
        ("grpc.initial_reconnect_backoff_ms", link.reconnect_min_ns // _MILLISECOND_NS),
        ("grpc.min_reconnect_backoff_ms", link.connect_timeout_ns // _MILLISECOND_NS),  # time-out of one attempt
        ("grpc.max_reconnect_backoff_ms", link.reconnect_max_ns // _MILLISECOND_NS),
    ]


def status_in_words(code: grpc.StatusCode, details: str | None) -> str:
    """Reason why a call ended, for operators. Where the other end closes a stream while it is written to, gRPC for
    Python loses the other end's reason and gives one of its own."""
    if code is grpc.StatusCode.INTERNAL and (details or "").startswith(_WRITTEN_AT_ITS_END):
        return "it closed the stream while something was written to it, and its reason is lost"
    return f"{code.name}: {_TOLD_TO_RENEW.sub('', details or '')}"


async def stop_at_once(server: grpc.aio.Server) -> None:
    """Stop a server and break every call off. A call that comes in at that moment may stay open, and gRPC's own stop
    would wait for it for ever: after `_STOP_MAX_S` seconds such a call is left to the end of the process."""
    stopping = asyncio.create_task(server.stop(0))  # noqa: TID251 - waited for here, and not to be cancelled half way
    await asyncio.wait({stopping}, timeout=_STOP_MAX_S)
