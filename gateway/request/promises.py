"""Default service class of a request that names none, from the settings in force. It never refuses a request."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.tenant_config import TenantConfig, tenant_in
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName


class Promises:
    """Service classes of tenants and models."""

    def __init__(self) -> None:
        self._tenants: dict[TenantName, TenantConfig] = {}
        self._models: Mapping[ModelName, ServiceClass] = {}

    def apply(self, tenants: dict[TenantName, TenantConfig], models: Mapping[ModelName, ServiceClass]) -> None:
        """Follow new settings."""
        self._tenants, self._models = tenants, models

    def of_tenant(self, tenant: TenantName) -> ServiceClass | None:
        return tenant_in(self._tenants, tenant).service_class if self._tenants else None

    def of_model(self, model: ModelName) -> ServiceClass | None:
        return self._models.get(model)


NO_PROMISES = Promises()
