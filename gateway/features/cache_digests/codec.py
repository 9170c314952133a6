"""Converts parts of digests between protobuf messages and values. They travel with heartbeats.

No value from the wire is used unchecked: a message that breaks a bound raises WireError, which ends the call.
"""

from __future__ import annotations

from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.features.cache_digests.fingerprints import FINGERPRINT_BYTES
from gateway.features.cache_digests.checks import SEND_RATE_MAX
from mesh.wire import require
from protos.mesh.v1 import peer_pb2 as pb


def add_digest(message: pb.SubscribeResponse, part: DigestPart) -> None:
    """Add a part to a heartbeat about to be sent."""
    message.cache_digest.CopyFrom(
        pb.CacheDigest(
            is_first=part.is_first,
            from_version=part.from_version,
            to_version=part.to_version,
            added=part.added,
            removed=part.removed,
        )
    )


def read_digest(message: pb.SubscribeResponse) -> DigestPart | None:
    """Part of the peer's digest; None if it tells none."""
    if not message.HasField("cache_digest"):
        return None
    told = message.cache_digest
    sizes = len(told.added), len(told.removed)
    require(sum(sizes) <= SEND_RATE_MAX, "no part of a cache digest is so large")
    require(not any(size % FINGERPRINT_BYTES for size in sizes), "cache_digest has a part of a fingerprint")
    require(told.from_version <= told.to_version, "cache_digest goes backwards")
    return DigestPart(told.is_first, told.from_version, told.to_version, told.added, told.removed)
