"""Settings by which gateways divide tenants' limits among themselves."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

_SECOND_NS = 1_000_000_000


class LimitScope(StrEnum):
    """Gateways that share one limit of a tenant."""

    MESH = "mesh"
    """All gateways that know each other."""
    REGION = "region"
    """Gateways of one region; each region has the limit to itself."""
    GATEWAY = "gateway"
    """Each gateway has the limit to itself."""


class SharesConfig(Struct, frozen=True):
    """Parameters by which gateways divide tenants' limits among themselves. They must be the same at all gateways."""

    floor_share: float = 0.2
    """Share of a limit that is divided equally: each gateway may use its part at once, whatever the others use."""
    demand_window_ns: int = 5 * _SECOND_NS
    """Length of a window of demand. Demand at a gateway counts in its own window and in the next one."""
    reserved_ns: int = 15 * _SECOND_NS
    """Time for which the last reported use of a silent gateway stays reserved for it; then the others divide it."""
    tenants_max: int = 4096
    """Tenants with limits that are counted; over it, the one idle for longest is forgotten, and its buckets are full
    again."""
    told_max: int = 256
    """Tenants in one heartbeat, those under most pressure on their limits first; peers take the others for idle."""
    output_tokens_reserved: int = 1024
    """Output tokens reserved per request without a maximum, until it has ended."""
