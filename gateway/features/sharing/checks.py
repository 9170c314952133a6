"""Checks of tenants' and sharing's settings that one key alone cannot decide."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.config import CoreConfig
from gateway.core.tenant_config import PRIORITY_MAX
from mesh.faults import FileFault

TENANTS_MAX = 10_000


def sharing_faults(core: CoreConfig) -> Iterator[FileFault]:
    """Faults between settings that decisions depend on."""
    yield from (FileFault(key, what) for key, what in _tenant_faults(core))


def _tenant_faults(core: CoreConfig) -> Iterator[tuple[str, str]]:
    if len(core.tenants) > TENANTS_MAX:
        yield "tenants", f"names more than {TENANTS_MAX:,}"
    for name, tenant in core.tenants.items():
        if not 0.001 <= tenant.weight <= 1000:
            yield f"tenants.{name}.weight", f"{tenant.weight}: it is 0.001 to 1,000"
        if tenant.priority > PRIORITY_MAX:
            yield f"tenants.{name}.priority", f"{tenant.priority}: it is 0 to {PRIORITY_MAX}"
    above = core.sharing.yields_above
    if above is not None and not 1 <= above <= 1000:
        yield "sharing.yields_above", f"{above}: it is 1 to 1,000 times a tenant's share"
