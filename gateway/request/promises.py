"""Default service class of a request that names none, from the region file in force. It never refuses a request."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.config import CoreConfig
from gateway.core.tenant_config import tenant_in
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName


class Promises:
    """Service classes of tenants and models."""

    def __init__(self, config: Callable[[], CoreConfig]) -> None:
        """Set up the lookup. `config` is called anew for each request, because settings may change at any time."""
        self._config = config

    def of_tenant(self, tenant: TenantName) -> ServiceClass | None:
        tenants = self._config().tenants
        return tenant_in(tenants, tenant).service_class if tenants else None

    def of_model(self, model: ModelName) -> ServiceClass | None:
        return self._config().classes.class_of(model)


NO_PROMISES = Promises(CoreConfig)
