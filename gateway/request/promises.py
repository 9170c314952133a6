"""Of which service class a request is that names none, as the region file says at this moment. It refuses nobody."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.config import CoreConfig
from gateway.core.sharing_config import tenant_in
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName


class Promises:
    """What tenants and models were promised."""

    def __init__(self, config: Callable[[], CoreConfig]) -> None:
        """It is asked for anew each time: it changes while requests come."""
        self._config = config

    def of_tenant(self, tenant: TenantName) -> ServiceClass | None:
        tenants = self._config().tenants
        return tenant_in(tenants, tenant).service_class if tenants else None

    def of_model(self, model: ModelName) -> ServiceClass | None:
        return self._config().classes.class_of(model)


NO_PROMISES = Promises(CoreConfig)
