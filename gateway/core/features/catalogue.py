"""Features that the core is built with. Whatever is not listed here is not there."""

from __future__ import annotations

from gateway.core.features.disaggregated import Disaggregated
from gateway.core.features.feature import Feature, Kernel
from gateway.core.features.lockdown import Lockdown
from gateway.core.features.prices import PricesInForce


def features_of(core: Kernel) -> list[Feature]:
    return [Disaggregated(core), Lockdown(core), PricesInForce(core)]
