"""Service classes, outside the core: the class of requests that name none."""

from __future__ import annotations

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension, Host
from gateway.request.promises import Promises


class ClassesExtension(Extension):
    """Tells the class of requests that name none, by their tenant or model."""

    name = "classes"

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:  # noqa: ARG002
        self.promises = self._promises = Promises()

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:  # noqa: ARG002
        self._promises.apply(orders.core.tenants, orders.core.classes.by_model())
