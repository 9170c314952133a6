"""Checks of the settings of cache digests that one key alone cannot decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.core.config import CoreConfig
from mesh.faults import FileFault
from mesh.values import SECOND_NS

SEND_RATE_MIN: Final = 1024
SEND_RATE_MAX: Final = 256 * 1024
"""Most bytes of one part: a heartbeat after a second of silence holds what the second allows."""
FINGERPRINTS_MAX: Final = 250_000
"""Most fingerprints: a change of many of them holds the event loop for less than a second."""
_HOUR_NS: Final = 3600 * SECOND_NS


def cache_digest_faults(core: CoreConfig) -> Iterator[FileFault]:
    """Faults between settings that decisions depend on."""
    digests, observation = core.cache_digests, core.observation
    if not SEND_RATE_MIN <= digests.send_rate_max_bytes <= SEND_RATE_MAX:
        yield FileFault("cache_digests.send_rate_max", f"is {SEND_RATE_MIN:,} to {SEND_RATE_MAX:,}")
    if not 1 <= digests.fingerprints_max <= FINGERPRINTS_MAX:
        yield FileFault("cache_digests.fingerprints_max", f"is 1 to {FINGERPRINTS_MAX:,}")
    if digests.enabled and not 3 * observation.keep_alive_ns <= digests.age_max_ns <= _HOUR_NS:
        yield FileFault(
            "cache_digests.age_max",
            "is at least three times observation.keep_alive, and an hour at most",
            beside="observation.keep_alive",
        )
