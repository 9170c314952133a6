"""What tenants may have, and how gateways divide it: plain numbers, as the region file says them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_SECOND_NS = 1_000_000_000


class LimitScope(StrEnum):
    """Which gateways keep a tenant's limits together."""

    MESH = "mesh"
    """All that know each other."""
    REGION = "region"
    """Those of one region; each region has the limit for itself."""
    GATEWAY = "gateway"
    """Each has it for itself."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may have at once and a minute; None where nothing bounds it but the gateways' own limits."""

    concurrency_max: int | None = None
    """Requests that are under way at once, waiting ones among them."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output together."""
    limit_scope: LimitScope = LimitScope.MESH
    """Of these three."""

    @property
    def has_limits(self) -> bool:
        return not (
            self.concurrency_max is None and self.requests_per_minute is None and self.tokens_per_minute is None
        )


@dataclass(frozen=True, slots=True)
class SharesConfig:
    """How gateways divide tenants' limits among themselves. The same at all of them."""

    floor_share: float = 0.2
    """Of a limit, what is divided equally: each gateway may use its part of this at once, whatever others use."""
    demand_window_ns: int = 5 * _SECOND_NS
    """What a tenant asked for at a gateway counts for this long, and for once as long."""
    reserved_ns: int = 15 * _SECOND_NS
    """What a gateway that fell silent had said stays reserved for it for so long; then the others divide it."""
    tenants_max: int = 4096
    """Tenants with limits that are counted; over it, the one that was idle for longest is forgotten, and its buckets
    are full again."""
    told_max: int = 256
    """Tenants in one heartbeat, those that ask for most of their limits first; the others are idle for whoever hears
    it."""
    output_tokens_reserved: int = 1024
    """Of a tenant's tokens per minute, for a request without a maximum, until it has ended."""
