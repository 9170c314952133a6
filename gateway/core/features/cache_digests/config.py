"""Settings of cache digests."""

from __future__ import annotations

from msgspec import Struct

_SECOND_NS = 1_000_000_000


class CacheDigestsConfig(Struct, frozen=True):
    """Digests by which gateways tell each other which prompt prefixes their replicas hold."""

    enabled: bool = False
    """Send peers a digest of the replicas' caches, and use theirs in placement."""
    send_rate_max_bytes: int = 65_536
    """Rate of the digest to each peer; what exceeds it is sent later."""
    fingerprints_max: int = 131_072
    """Limit on the fingerprints kept of the own replicas' caches, and of each peer's."""
    age_max_ns: int = 10 * _SECOND_NS
    """Age of a peer's last word about its caches at which its digest is dropped."""
