"""Service classes, outside the core: the class of each model."""

from __future__ import annotations

from gateway.config.sections import GatewayConfig
from gateway.core.config import all_of
from gateway.core.vocabulary import ModelName, ServiceClass
from gateway.features.extension import Extension, Host


class ClassesExtension(Extension):
    """Tells the class of requests that name none, by their model."""

    name = "classes"

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:  # noqa: ARG002
        def class_of_model(model: ModelName) -> ServiceClass | None:
            return all_of(host.core.config).classes.class_of(model)

        self.class_of_model = class_of_model
