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
        (EVERY_SERIES, "service_class"): Label("What a request's client was promised.", tuple(ServiceClass)),
        (EVERY_SERIES, "promise"): Label("What became of that.", tuple(Promise)),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        """Keep nothing."""
