"""Keys that features add to the region file: sections, and files that the region file names. A key that is not listed
here is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import fields

from gateway.core.config import CoreConfig
from gateway.core.features.prices.policy import Price
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.placement.policy import Policy
from gateway.core.vocabulary import Connector
from gateway.features.classes.checks import class_faults
from gateway.features.disaggregated.config import PredictionConfig, decode_faults, why_unfit
from gateway.features.expert_locality.config import ExpertLocalityConfig
from gateway.features.lengths.checks import length_faults
from gateway.features.limits.checks import limits_faults
from gateway.features.prices.key import PricesPath
from gateway.features.scaling.config import ScalingConfig
from gateway.features.section import FeatureSection
from gateway.features.sharing.checks import sharing_faults
from mesh.faults import FileFault

POLICIES: dict[str, type[Policy]] = {
    PlacementPolicy.PRICE: Price,
}
"""Placement policies that come with a feature, by the name that the region file has for them."""
CORE_CHECKS: Sequence[Callable[[CoreConfig], Iterator[FileFault]]] = [
    class_faults,
    decode_faults,
    length_faults,
    limits_faults,
    sharing_faults,
]
"""Checks of settings that a feature's decisions depend on, from a region file or from a snapshot."""

POOL_CHECKS: Sequence[Callable[[CoreConfig, Connector], str]] = [
    why_unfit,
]
"""Checks of settings against the connector of a disaggregated pool: each returns what does not fit, or an empty
text."""


class FeatureSections(Struct, frozen=True, kw_only=True):
    """Keys of features."""

    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    locality: ExpertLocalityConfig = field(default_factory=ExpertLocalityConfig)
    prices: PricesPath = None
    """Prices of replicas and egress, by time of day. None: only the controller's prices, if it sends any."""
    scaling: ScalingConfig = field(default_factory=ScalingConfig)

    def of_features(self) -> Iterator[FeatureSection]:
        """All sections of features."""
        for each in fields(FeatureSections):
            section = getattr(self, each.name)
            if isinstance(section, FeatureSection):
                yield section
