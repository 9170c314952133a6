"""Labels of tenants in metrics. A tenant gets series of its own if the policy lets logs name it and fewer than a
maximum of tenants came before it.

All other tenants share one label, so that no client can fill the metrics page by inventing tenant names.
"""

from __future__ import annotations

from gateway.core.vocabulary import TenantName

OTHER = "other"
TENANTS_MAX = 200


class TenantLabels:
    """Labels of tenants, given in the order in which tenants appear."""

    def __init__(self) -> None:
        self._labels: set[TenantName] = set()

    def of(self, tenant: TenantName, *, may_be_named: bool) -> str:
        """Label of a tenant. `may_be_named`: the policy in force lets logs name it."""
        if not may_be_named:
            return OTHER
        if tenant not in self._labels:
            if len(self._labels) >= TENANTS_MAX:
                return OTHER
            self._labels.add(tenant)
        return tenant
