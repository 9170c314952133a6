"""Settings of tenants, which several features share: limits, weights, priorities and default service classes."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.core.features.limits.config import LimitScope
from gateway.core.vocabulary import ServiceClass, TenantName

PRIORITY_MAX: Final = 9
DEFAULT_TENANT: Final = TenantName("default")


class TenantConfig(Struct, frozen=True):
    """Settings of one tenant, or, under the name `default`, of every tenant without an entry."""

    concurrency_max: int | None = None
    """Requests in flight at once, waiting ones included."""
    requests_per_minute: int | None = None
    """Requests per minute."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and outputs together."""
    limit_scope: LimitScope = LimitScope.MESH
    """Gateways that share the limits on concurrency, requests and tokens."""
    weight: float = 1.0
    """Weight under fair queuing: tenants that compete for the same engines are served tokens in proportion to it."""
    priority: int = 0
    """Priority of its requests; higher ones go first, until a lower one has waited `sharing.aging` for each step
    between."""
    service_class: ServiceClass | None = None
    """Service class of its requests that name none; None: the model's class, else interactive."""

    @property
    def has_limits(self) -> bool:
        return not (
            self.concurrency_max is None and self.requests_per_minute is None and self.tokens_per_minute is None
        )


def tenant_in(tenants: dict[TenantName, TenantConfig], name: TenantName) -> TenantConfig:
    """Settings that apply to the tenant: its own entry, else the default entry, else the built-in defaults."""
    return tenants.get(name) or tenants.get(DEFAULT_TENANT) or _BUILT_IN


_BUILT_IN: Final = TenantConfig()
