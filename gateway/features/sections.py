"""Keys that features add to the region file: sections, and files that the region file names. A key that is not listed
here is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from gateway.features.prices.key import PricesPath
from gateway.features.scaling.config import ScalingConfig
from gateway.features.section import FeatureSection


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSections:
    """Keys of features, each with the feature's name."""

    prices: PricesPath = None
    scaling: ScalingConfig = field(default_factory=ScalingConfig)

    def of_features(self) -> Iterator[FeatureSection]:
        """All sections of features."""
        for each in fields(FeatureSections):
            section = getattr(self, each.name)
            if isinstance(section, FeatureSection):
                yield section
