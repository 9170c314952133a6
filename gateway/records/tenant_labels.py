"""Which tenants get series of their own: those whose names logs may show, up to a number, the first to come.

Whoever comes later shares one label, so that no client can fill the page by calling itself names.
"""

from __future__ import annotations

from gateway.core.vocabulary import TenantName

OTHER = "other"
TENANTS_MAX = 200


class TenantLabels:
    """The label of each tenant."""

    def __init__(self) -> None:
        self._labels: set[TenantName] = set()

    def of(self, tenant: TenantName, *, may_be_named: bool) -> str:
        """`may_be_named`: what the policy in force says of logs."""
        if not may_be_named:
            return OTHER
        if tenant not in self._labels:
            if len(self._labels) >= TENANTS_MAX:
                return OTHER
            self._labels.add(tenant)
        return tenant
