"""Default service class of a request that names none, from the region file in force. It never refuses a request."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.tenant_config import TenantConfig, tenant_in
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName

ClassOfModel = Callable[[ModelName], ServiceClass | None]
"""Returns a model's service class; None: the model has none."""


class Promises:
    """Service classes of tenants and models."""

    def __init__(self, tenants: Callable[[], dict[TenantName, TenantConfig]], of_model: ClassOfModel) -> None:
        """Set up the lookup. Both are called anew for each request, because settings may change at any time."""
        self._tenants = tenants
        self.of_model = of_model

    def of_tenant(self, tenant: TenantName) -> ServiceClass | None:
        tenants = self._tenants()
        return tenant_in(tenants, tenant).service_class if tenants else None


def no_class(_model: ModelName) -> None:
    """Stand for the classes of a gateway that knows none by model."""


NO_PROMISES = Promises(dict, no_class)
