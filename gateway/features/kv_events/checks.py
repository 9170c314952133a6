"""Checks of the settings of KV events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.core.config import CoreConfig
from mesh.faults import FileFault
from mesh.values import MEBIBYTE, SECOND_NS

BLOCKS_MAX: Final = 1_000_000
RATE_MAX: Final = 256 * MEBIBYTE
MESSAGE_MIN: Final = 64 * 2**10
MESSAGE_MAX: Final = 4 * MEBIBYTE
"""Largest message: tokens, which are skipped, hold the event loop for 60 ms, and the rest is read in parts."""
_DAY_NS: Final = 24 * 3600 * SECOND_NS


def kv_event_faults(core: CoreConfig) -> Iterator[FileFault]:
    """Faults of bounds on engines' events."""
    bounds = core.kv_events
    if not 1 <= bounds.blocks_max <= BLOCKS_MAX:
        yield FileFault("kv_events.blocks_max", f"is 1 to {BLOCKS_MAX:,}")
    if not MESSAGE_MIN <= bounds.message_max_bytes <= MESSAGE_MAX:
        yield FileFault("kv_events.message_max", f"is {MESSAGE_MIN:,} to {MESSAGE_MAX:,}")
    if not bounds.message_max_bytes <= 10 * bounds.rate_max_bytes <= 10 * RATE_MAX:
        yield FileFault(
            "kv_events.rate_max",
            f"is at least a tenth of message_max, and {RATE_MAX:,} at most",
            beside="kv_events.message_max",
        )
    if not SECOND_NS <= bounds.pause_ns <= _DAY_NS:
        yield FileFault("kv_events.pause", "is 1 s to 24 h")
