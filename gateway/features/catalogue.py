"""Features that a gateway is built with. Whatever is not listed here is not there; a feature with a section of the
region file is listed in `sections`, too."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.sections import GatewayConfig
from gateway.features.lengths.part import LengthsPart
from gateway.features.limits.part import LimitsPart
from gateway.features.part import Host, Part
from gateway.features.prices.part import PricesPart
from gateway.features.scaling.part import ScalingPart

KINDS: Sequence[type[Part]] = [
    LengthsPart,
    LimitsPart,
    PricesPart,
    ScalingPart,
]


def parts_of(config: GatewayConfig, host: Host) -> list[Part]:
    """Make the parts of a gateway, in the order in which their hooks are called."""
    return [kind(config, host) for kind in KINDS]
