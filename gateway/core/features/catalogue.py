"""Features that the core is built with. Whatever is not listed here is not there."""

from __future__ import annotations

from gateway.core.features.disaggregated.feature import Disaggregated
from gateway.core.features.lengths.feature import PoolsByLength
from gateway.core.features.limits.feature import Limits
from gateway.core.features.lockdown import Lockdown
from gateway.core.features.prices.feature import PricesInForce
from gateway.core.features.prices.policy import Price
from gateway.core.features.resume import Resume
from gateway.core.features.shadow import Shadow
from gateway.core.features.sharing.feature import Sharing
from gateway.core.features.stored_responses.feature import StoredResponses
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.placement.catalogue import BUILT_IN
from gateway.core.placement.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    PlacementPolicy.PRICE: Price,
}
"""Placement policies that come with a feature, by their config name."""


def features_of(core: Kernel) -> list[Feature]:
    """Make the optional features of a core, in the order in which their hooks are called."""
    return [
        PoolsByLength(core),
        Resume(core),
        Limits(core),
        Sharing(core),
        Shadow(core),
        Disaggregated(core),
        StoredResponses(core),
        Lockdown(core),
        PricesInForce(core),
    ]


def policy_by_name(name: str) -> type[Policy] | None:
    """Placement policy that comes with the gateway; None if it has none of that name."""
    return BUILT_IN.get(name) or POLICIES.get(name)
