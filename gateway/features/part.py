"""Outer half of an optional feature: what the rest of the gateway asks of it, outside the pure core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import GatewayConfig
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.limits_config import Room
from gateway.core.vocabulary import TenantName
from gateway.ground.series import Label
from gateway.ground.supervisor import Tenure

TenantLabel = Callable[[TenantName], str]
"""Label of a tenant on the metrics page."""
Rooms = Callable[[TenantName, int], list[Room]]
"""Remainders of a tenant's limits at a time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a feature may use outside the core."""

    config: GatewayConfig
    core: GatewayCore
    submit: Callable[[Event], object]
    """Hands an event to the core."""
    log: FilteringBoundLogger


class Part:
    """Outer half of a feature. Every hook does nothing unless a part overrides it."""

    rooms: Rooms | None = None
    """Tells what is left of a tenant's limits, for response headers; None: this feature does not."""

    @staticmethod
    def labels() -> Mapping[str, Label]:
        """Meaning of the labels of its own series."""
        return {}

    @staticmethod
    def levels(core: GatewayCore, tenant_label: TenantLabel, /) -> Iterable[Collector]:  # noqa: ARG004
        """Collectors of its own series."""
        return ()

    def run(self, tenure: Tenure, /) -> None:
        """Run background work, while this process owns the gateway's stores."""
