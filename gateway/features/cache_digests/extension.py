"""Cache digests, outside the core: parts of them in heartbeats, and their series."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry

from gateway.config.sections import GatewayConfig
from gateway.core.features.cache_digests.events import DigestHeard
from gateway.core.features.cache_digests.feature import digests_of
from gateway.core.features.cache_digests.telling import Telling
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import PeerSpec
from gateway.features.cache_digests.codec import add_digest, read_digest
from gateway.features.cache_digests.metrics import DigestLevels
from gateway.features.extension import Extension, Host
from gateway.peers.heartbeats import ReadHeartbeat, TakeIn, WriteHeartbeat
from protos.mesh.v1 import peer_pb2 as pb

_OWN_BYTES = 640
"""Memory of a fingerprint of the own replicas, with one that has gone and is still to be told."""
_TOLD_BYTES = 90
"""Memory of a fingerprint that a peer has told, as `nightside bench cache_digests` measures it."""


class CacheDigestsExtension(Extension):
    """Carries digests between the core and the peers."""

    name = "cache_digests"
    is_live = True

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:  # noqa: ARG002
        self._host = host
        self._digests = digests_of(host.core)
        host.metrics.registry.register(DigestLevels(self._digests, host.clock.now_ns))

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:
        registry.register(DigestLevels(digests_of(core), lambda: 0))

    @staticmethod
    def placement_bytes_max(config: GatewayConfig, /) -> int:
        digests = config.core.cache_digests
        if not digests.enabled:
            return 0
        return digests.fingerprints_max * (_OWN_BYTES + _TOLD_BYTES * len(config.peers))

    def heartbeat_writer(self) -> WriteHeartbeat | None:
        return partial(self._write, Telling())

    def heartbeat_reader(self, peer: PeerSpec, /) -> ReadHeartbeat | None:
        return partial(self._read, peer)

    def _write(self, telling: Telling, message: pb.SubscribeResponse, peer: PeerSpec) -> None:
        part = self._digests.next_part(telling, peer, self._host.clock.now_ns())
        if part is not None:
            add_digest(message, part)

    def _read(self, peer: PeerSpec, message: pb.SubscribeResponse) -> TakeIn:
        part = read_digest(message) if self._digests.is_on() else None
        return _nothing if part is None else partial(self._hear, DigestHeard(peer.gateway_id, part))

    def _hear(self, heard: DigestHeard) -> bool:
        self._host.submit(heard)
        return self._digests.is_to_be_asked(heard.gateway_id, self._host.clock.now_ns())


def _nothing() -> bool:
    return False
