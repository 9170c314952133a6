"""Settings of replicas that leave."""

from __future__ import annotations

from msgspec import Struct

_SECOND_NS = 1_000_000_000


class LeavingConfig(Struct, frozen=True):
    """Handling of a replica that is announced to leave by a known time."""

    margin_ns: int = 5 * _SECOND_NS
    """Time before the announced end at which interactive requests that still run there are moved; those of other
    classes are moved at once. A shorter notice moves all at once."""
