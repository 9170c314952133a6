"""Fair sharing and service classes, outside the core: their labels."""

from __future__ import annotations

from typing import ClassVar

from gateway.config.sections import GatewayConfig
from gateway.core.kernel.goodput import Promise
from gateway.core.vocabulary import ServiceClass
from gateway.features.extension import Extension, Host
from mesh.series import EVERY_SERIES, Label


class SharingExtension(Extension):
    """Describes what requests are served as."""

    name = "sharing"
    labels: ClassVar = {
        (EVERY_SERIES, "service_class"): Label("Service class of the request.", tuple(ServiceClass)),
        (EVERY_SERIES, "promise"): Label("Result for the objective of the class.", tuple(Promise)),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing."""
