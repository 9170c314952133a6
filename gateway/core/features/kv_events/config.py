"""Settings of KV events."""

from __future__ import annotations

from msgspec import Struct

_SECOND_NS = 1_000_000_000
_MEBIBYTE = 2**20


class KvEventsConfig(Struct, frozen=True):
    """Bounds on the events by which engines tell what their KV caches hold. An engine that exceeds one is not listened
    to for a time, and the gateway's own estimate counts for its replica."""

    blocks_max: int = 65_536
    """Limit on the KV cache blocks kept of each replica."""
    rate_max_bytes: int = 8 * _MEBIBYTE
    """Largest average of bytes per second that an engine may send, over ten seconds. Each message counts 1,024 bytes,
    each event 256 and each hash 64 beside its own."""
    message_max_bytes: int = _MEBIBYTE
    """Largest message of an engine."""
    pause_ns: int = 60 * _SECOND_NS
    """Time for which an engine that exceeded a bound is not listened to."""
