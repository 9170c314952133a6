"""Connection to one other gateway, configured so that a silent network is noticed. It sends nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Never, TypeVar

import grpc
import grpc.aio

from gateway.config.sections import PeeringConfig
from gateway.config.targets import PeerConfig
from gateway.peers.exchange.origin_stream import METHOD
from gateway.peers.exchange.stream_callbacks import UNWATCHED, StreamCallbacks
from gateway.peers.exchange.stream_selector import Start, StreamSelector
from gateway.peers.forward_messages import is_our_shortage
from mesh.channels import FollowedChannel, client_options
from mesh.clock import Clock
from mesh.task_group import TaskGroup
from mesh.transport import Transport
from protos.mesh.v1 import peer_pb2_grpc

_SECOND_NS = 1_000_000_000
_Answer = TypeVar("_Answer")


class ChannelClosed(Exception):
    """Closing by this gateway of a channel whose call had not ended."""


async def answer_of(call: Awaitable[_Answer]) -> _Answer:
    """Wait for a call, or for a message of it. Raises ChannelClosed where gRPC would cancel the task that waits, which
    would end a loop without a word."""
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ChannelClosed from None


class PeerLink:
    """Connection to a peer: heartbeats, pings and forwards share one HTTP/2 connection. Create it inside the running
    loop.

    While `follow_credentials` runs, new credentials open a new channel; running calls end on the channel that they
    began on. A peer tells connections to take no new calls once they are old: the next call opens another one, and
    `connection` says that the long calls should follow it.
    """

    def __init__(
        self,
        peer: PeerConfig,
        peering: PeeringConfig,
        transport: Transport,
        start: Start,
        *,
        clock: Clock | None = None,
        watch: StreamCallbacks = UNWATCHED,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`start` runs a coroutine to its end; it is used for the streams that forwards share. `on_turn` is called
        after each turn in which a forward's words were handed on."""
        self.turn_over = on_turn
        self.peer = peer
        self.peering = peering
        self._transport = transport
        self._start = start
        self._clock = clock or Clock()
        self._watch = watch
        self._old_lines: list[_Line] = []
        self.connection = 0
        """Number of the connection that new calls are made on."""
        self._lay_line()

    @property
    def stub(self) -> peer_pb2_grpc.PeerServiceAsyncStub:
        """Stub for one call. Get it anew for each call: the next one may have to use another channel."""
        return self._line.stub

    @property
    def carrier(self) -> StreamSelector:
        """Carrier for one forward. Get it anew for each forward, like the stub."""
        return self._line.carrier

    @property
    def is_connected(self) -> bool:
        """True if the connection is up, so that an error on it may come from the peer."""
        return self._line.is_ready

    @property
    def is_failing(self) -> bool:
        """True if the last attempt to connect failed."""
        return self._line.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def follow_credentials(self) -> Never:
        """Open a new channel at each change of credentials, for new calls; the old channel closes after its calls."""
        async with TaskGroup() as endings:
            while True:
                await self._transport.newer_than(self.version)
                self._old_lines.append(self._line)
                self._lay_line()
                grace_s = self.peering.connection_grace_ns / _SECOND_NS
                endings.create_task(self._end(self._old_lines[-1], grace_s))

    def dial_again(self) -> None:
        """End gRPC's pause after a failed attempt to connect. gRPC has no call for that, so a new channel replaces the
        one that pauses."""
        if self.is_failing:
            self._old_lines.append(self._line)
            self._lay_line()
            self._start(self._end(self._old_lines[-1], 0))

    async def retire(self, grace_s: float) -> None:
        """Take no new calls, and close once the running calls are over or `grace_s` seconds have passed."""
        try:
            async with TaskGroup() as endings:
                for line in [*self._old_lines, self._line]:
                    endings.create_task(self._end(line, grace_s))
        finally:
            await self.close()

    async def close(self) -> None:
        for line in [*self._old_lines, self._line]:
            await line.channel.close()

    async def _end(self, line: _Line, grace_s: float) -> None:
        line.carrier.retire()
        await line.until_silent(grace_s)
        await line.channel.close()
        if line in self._old_lines:
            self._old_lines.remove(line)

    def _lay_line(self) -> None:
        spec, address = self.peer.spec, str(self.peer.address)
        self.version = self._transport.version
        """Version of the credentials that new calls are made with."""
        self.connection += 1
        self._line = _Line(
            self._transport.open_channel(address, spec.gateway_id, spec.place, client_options(self.peering)),
            self,
        )

    def make_carrier(self, line: _Line) -> StreamSelector:
        """Make the carrier of a line. Its messages cross gRPC as bytes, so that malformed ones are detected here."""
        begin, gateway_id = line.stream_stream(METHOD), self.peer.spec.gateway_id
        return StreamSelector(
            begin,
            self.peering,
            self._clock,
            self._start,
            is_shortage=lambda error: is_our_shortage(error) and not line.is_ready,
            on_ignored=partial(self._watch.ignored, gateway_id),
            on_broken=partial(self._watch.broken, gateway_id),
            on_turn=self.turn_over,
        )


class _Line(FollowedChannel):
    """Channel with the stub for its calls and the carrier for its forwards."""

    def __init__(self, channel: grpc.aio.Channel, link: PeerLink) -> None:
        super().__init__(channel)
        self.stub: peer_pb2_grpc.PeerServiceAsyncStub = peer_pb2_grpc.PeerServiceStub(self)  # type: ignore[call-overload]
        self.carrier = link.make_carrier(self)
        self._link = link

    def on_connecting(self) -> None:
        self._link.connection += 1
        self.carrier.retire()

    @property
    def is_ready(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY
