"""Limits of tenants, and how gateways divide them: plain numbers, as the region file states them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from gateway.core.vocabulary import Word

_SECOND_NS = 1_000_000_000
TRY_AGAIN_NS: Final = _SECOND_NS
"""Retry-after where the end of another request may make room, at a time that is not known."""


class LimitScope(StrEnum):
    """Gateways that share one limit of a tenant."""

    MESH = "mesh"
    """All gateways that know each other."""
    REGION = "region"
    """Gateways of one region; each region has the limit to itself."""
    GATEWAY = "gateway"
    """Each gateway has the limit to itself."""


class TenantLimits(Struct, frozen=True):
    """Limits of one tenant on concurrency and per minute; None: not limited, but for the gateways' own limits."""

    concurrency_max: int | None = None
    """Requests in flight at once, waiting ones included."""
    requests_per_minute: int | None = None
    """Requests per minute."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and outputs together."""
    limit_scope: LimitScope = LimitScope.MESH
    """Gateways that share the limits on concurrency, requests and tokens."""

    @property
    def has_limits(self) -> bool:
        return not (
            self.concurrency_max is None and self.requests_per_minute is None and self.tokens_per_minute is None
        )


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


class LimitKind(Word):
    CONCURRENCY = "concurrency"
    REQUESTS = "requests"
    TOKENS = "tokens"


class Room(Struct):
    """Remainder of a limit per minute at this gateway."""

    kind: LimitKind
    limit: int
    """Limit of all gateways together."""
    remaining: int
    reset_ns: int
    """Time until this gateway's share of the limit is full again."""
