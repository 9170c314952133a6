"""Sections that features add to the region file. A key that is not listed here is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from gateway.features.scaling.config import ScalingConfig
from gateway.features.section import FeatureSection


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSections:
    """Sections of features, by their keys in the file."""

    scaling: ScalingConfig = field(default_factory=ScalingConfig)

    def of_features(self) -> Iterator[FeatureSection]:
        """All sections of features."""
        for each in fields(FeatureSections):
            yield getattr(self, each.name)
