"""Notes for operators on replicas whose tenants share the engine's prefix cache although tenants are to be isolated."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.sections import GatewayConfig


def shared_cache_notes(config: GatewayConfig) -> Iterator[str]:
    """Notes for each replica. There are none where the gateway has a single tenant, or where tenants share on
    purpose."""
    has_tenants = config.keys_file is not None or config.trust_tenant_header
    if not config.engine_cache.isolate_tenants or not has_tenants:
        return
    replicas = (*config.replicas, *config.templates)
    for each in replicas:
        if not each.takes_cache_salt:
            yield f"{each.spec.replica_id}: its engine ({each.dialect}) takes no cache_salt, so tenants share its cache"
    salted = [each.spec.replica_id for each in replicas if each.takes_cache_salt]
    if salted:
        yield f"{', '.join(salted)}: engines read no cache_salt on /v1/messages, so there tenants share their cache"
