"""Outer halves of the features that a gateway is built with. Whatever is not listed here is not there."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.registry import Collector

from gateway.core.gateway_core import GatewayCore
from gateway.features.lengths.part import LengthsPart
from gateway.features.limits.part import LimitsPart
from gateway.features.part import Part, Surroundings, TenantLabel
from gateway.ground.series import Label

PARTS = (
    LengthsPart,
    LimitsPart,
)


def parts_of(surroundings: Surroundings) -> list[Part]:
    """Make the outer halves of one gateway's features."""
    return [part(surroundings) for part in PARTS]


def levels_of(core: GatewayCore, tenant_label: TenantLabel) -> Iterator[Collector]:
    """Collectors of the features' own series."""
    for part in PARTS:
        yield from part.levels(core, tenant_label)


def labels() -> dict[str, Label]:
    """Meaning of the labels of the features' own series."""
    return {name: label for part in PARTS for name, label in part.labels().items()}
