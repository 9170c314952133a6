"""One connection to one other gateway, set up so that a silent network is noticed. It sends nothing by itself."""

from __future__ import annotations

import grpc.aio

from gateway.config import PeerConfig, PeeringConfig
from protos.mesh.v1 import peer_pb2_grpc

_MILLISECOND_NS = 1_000_000

ChannelOptions = list[tuple[str, int]]


class PeerLink:
    """Heartbeats, pings and forwards to a peer share this one HTTP/2 connection. Made inside the running loop."""

    def __init__(self, peer: PeerConfig, peering: PeeringConfig) -> None:
        self.peer = peer
        self.peering = peering
        self._channel = grpc.aio.insecure_channel(str(peer.address), options=_client_options(peering))
        self.stub = peer_pb2_grpc.PeerServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()


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
        ("grpc.enable_retries", 0),  # whether a request is tried again is the core's decision
        ("grpc.use_local_subchannel_pool", 1),  # gateways of one process keep connections of their own
        ("grpc.initial_reconnect_backoff_ms", peering.reconnect_min_ns // _MILLISECOND_NS),
        ("grpc.min_reconnect_backoff_ms", peering.connect_timeout_ns // _MILLISECOND_NS),  # of one attempt
        ("grpc.max_reconnect_backoff_ms", peering.reconnect_max_ns // _MILLISECOND_NS),
    ]
