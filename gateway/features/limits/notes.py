"""Notes on tenants' limits that do not hold in all gateways of the mesh together."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.sections import GatewayConfig
from gateway.core.features.limits.config import LimitScope
from gateway.core.kernel.residency import ResidencyPolicy, may_enter, may_process
from gateway.core.tenant_config import DEFAULT_TENANT
from gateway.core.vocabulary import TenantName


def apart_notes(config: GatewayConfig, policy: ResidencyPolicy) -> Iterator[str]:
    """Notes on limits of the mesh that hold in some regions separately: the policy keeps the tenant from them, so its
    use is told to none of their gateways. The other regions' policies are not known here."""
    places = list(dict.fromkeys(each.spec.place for each in config.peers))
    for key, tenant in _with_limits_of_the_mesh(config, policy):
        if may_enter(policy, tenant).allowed:
            apart = [each.region for each in places if not may_process(policy, tenant, each).allowed]
            if apart:
                yield (
                    f"{key}: the limit_scope is mesh, but gateways in {', '.join(apart)} are not told of the tenant, "
                    "whose requests may not run there: they have the limit for themselves"
                )


def _with_limits_of_the_mesh(config: GatewayConfig, policy: ResidencyPolicy) -> Iterator[tuple[str, TenantName]]:
    """Keys of the entries that limit a tenant over the mesh, with the tenant. The entry `default` stands for each
    tenant that only the policy names, and for those that neither names."""
    tenants = {name: each for name, each in config.core.tenants.items() if name != DEFAULT_TENANT}
    for name, each in tenants.items():
        if each.has_limits and each.limit_scope is LimitScope.MESH:
            yield f"tenants.{name}", name
    default = config.core.tenants.get(DEFAULT_TENANT)
    if default is not None and default.has_limits and default.limit_scope is LimitScope.MESH:
        yield f"tenants.{DEFAULT_TENANT}", TenantName("")
        yield from ((f"tenants.{DEFAULT_TENANT} for {name}", name) for name in policy.tenants if name not in tenants)
