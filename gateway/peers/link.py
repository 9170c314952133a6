"""The connection to one other gateway, set up so that a silent network is noticed. It sends nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Never

import grpc.aio

from gateway.config.sections import PeeringConfig
from gateway.config.targets import PeerConfig
from gateway.peers.transport import Transport
from protos.mesh.v1 import peer_pb2_grpc

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000_000_000

ChannelOptions = list[tuple[str, int]]
_Begin = Callable[..., grpc.aio.Call]


class PeerLink:
    """Heartbeats, pings and forwards to a peer share one HTTP/2 connection. Made inside the running loop.

    While `follow_credentials` runs, new credentials make a new channel; calls end on the one that they began on.
    """

    def __init__(self, peer: PeerConfig, peering: PeeringConfig, transport: Transport) -> None:
        self.peer = peer
        self.peering = peering
        self._transport = transport
        self._old_lines: list[_Line] = []
        self._lay_line()

    @property
    def stub(self) -> peer_pb2_grpc.PeerServiceAsyncStub:
        """For one call each time: the next may have to go out on another channel."""
        return self._line.stub

    async def follow_credentials(self) -> Never:
        """New calls go over to a new channel at each change of credentials; the old one closes after its calls."""
        async with asyncio.TaskGroup() as endings:
            while True:
                await self._transport.newer_than(self.version)
                self._old_lines.append(self._line)
                self._lay_line()
                grace_s = self.peering.connection_grace_ns / _SECOND_NS
                endings.create_task(self._end(self._old_lines[-1], grace_s))

    async def retire(self, grace_s: float) -> None:
        """Take no new calls, and close once those that run are over."""
        try:
            async with asyncio.TaskGroup() as endings:
                for line in [*self._old_lines, self._line]:
                    endings.create_task(self._end(line, grace_s))
        finally:
            await self.close()

    async def close(self) -> None:
        for line in [*self._old_lines, self._line]:
            await line.channel.close()

    async def _end(self, line: _Line, grace_s: float) -> None:
        await line.until_silent(grace_s)
        await line.channel.close()
        if line in self._old_lines:
            self._old_lines.remove(line)

    def _lay_line(self) -> None:
        spec, address = self.peer.spec, str(self.peer.address)
        self.version = self._transport.version
        """Of the credentials that new calls go out with."""
        self._line = _Line(
            self._transport.open_channel(address, spec.gateway_id, spec.place.region, _client_options(self.peering))
        )


class _Line:
    """A channel that knows which calls are on it. gRPC's own closing with a grace cannot be given up half way."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._calls: set[object] = set()
        self._ended = asyncio.Event()
        self.stub: peer_pb2_grpc.PeerServiceAsyncStub = peer_pb2_grpc.PeerServiceStub(self)  # type: ignore[call-overload]

    def unary_unary(self, *arguments: Any, **options: Any) -> _Begin:
        """For the stub, like the channel's own."""
        return self._following(self.channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> _Begin:
        """For the stub, like the channel's own."""
        return self._following(self.channel.unary_stream(*arguments, **options))

    async def until_silent(self, wait_max_s: float) -> None:
        try:
            async with asyncio.timeout(wait_max_s):
                while self._calls:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            pass

    def _following(self, begin: _Begin) -> _Begin:
        def begin_and_follow(*arguments: Any, **options: Any) -> grpc.aio.Call:
            call = begin(*arguments, **options)
            self._calls.add(call)
            call.add_done_callback(self._forget)
            return call

        return begin_and_follow

    def _forget(self, call: object) -> None:
        self._calls.discard(call)
        self._ended.set()


def shared_options(peering: PeeringConfig) -> ChannelOptions:
    """What both ends of a connection agree on: message sizes, and checking a silent connection for life.

    A keep-alive waits for a ping that is already on its way, for flow control say, and so for that ping's own timeout.
    """
    return [
        ("grpc.max_receive_message_length", peering.message_max_bytes),
        ("grpc.max_send_message_length", peering.message_max_bytes),
        ("grpc.keepalive_time_ms", peering.keepalive_interval_ns // _MILLISECOND_NS),
        ("grpc.keepalive_timeout_ms", peering.keepalive_timeout_ns // _MILLISECOND_NS),
        ("grpc.http2.ping_timeout_ms", peering.keepalive_timeout_ns // _MILLISECOND_NS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _client_options(peering: PeeringConfig) -> ChannelOptions:
    return [
        *shared_options(peering),
        ("grpc.enable_http_proxy", 0),  # a proxy named in the environment is for other traffic
        # Whether a request is tried again is the core's decision, so there is no policy for it here. What is left on
        # are calls that met a connection just as it took no more, and that the peer has not seen.
        ("grpc.enable_retries", 1),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.per_rpc_retry_buffer_size", peering.message_max_bytes),
        ("grpc.use_local_subchannel_pool", 1),  # gateways of one process keep connections of their own
        ("grpc.initial_reconnect_backoff_ms", peering.reconnect_min_ns // _MILLISECOND_NS),
        ("grpc.min_reconnect_backoff_ms", peering.connect_timeout_ns // _MILLISECOND_NS),  # of one attempt
        ("grpc.max_reconnect_backoff_ms", peering.reconnect_max_ns // _MILLISECOND_NS),
    ]
