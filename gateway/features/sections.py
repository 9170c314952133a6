"""Keys that features add to the region file: sections, files that the region file names, and sections of a pool's
description. A key that is not listed here is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.features.prices.policy import Price
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.placement.policy import Policy
from gateway.core.vocabulary import PoolSpec
from gateway.features.batches.config import BatchesConfig
from gateway.features.cache_digests.checks import cache_digest_faults
from gateway.features.classes.checks import class_faults
from gateway.features.disaggregated.config import PredictionConfig, decode_faults, prediction_faults
from gateway.features.expert_locality.config import ExpertLocalityConfig, locality_faults
from gateway.features.kv_events.checks import kv_event_faults
from gateway.features.lengths.checks import length_faults
from gateway.features.limits.checks import limits_faults
from gateway.features.prices.key import PricesPath
from gateway.features.scaling.config import ScalingConfig
from gateway.features.section import FeatureSection, text_of
from gateway.features.sharing.checks import sharing_faults
from mesh.faults import FileFault

POLICIES: dict[str, type[Policy]] = {
    PlacementPolicy.PRICE: Price,
}
"""Placement policies that come with a feature, by the name that the region file has for them."""
CORE_CHECKS: Sequence[Callable[[CoreConfig], Iterator[FileFault]]] = [
    cache_digest_faults,
    class_faults,
    kv_event_faults,
    length_faults,
    limits_faults,
    sharing_faults,
]
"""Checks of settings that a feature's decisions depend on, from a region file or from a snapshot."""

POOL_CHECKS: Sequence[Callable[[PoolSpec], Iterator[FileFault]]] = [
    decode_faults,
    locality_faults,
    prediction_faults,
]
"""Checks of a pool's description, from a region file or from another gateway. Keys of faults start in the
description."""


class FeatureSections(Struct, frozen=True, kw_only=True):
    """Keys of features."""

    batches: BatchesConfig = field(default_factory=BatchesConfig)
    prices: PricesPath = None
    """Prices of replicas and egress, by time of day. None: only the controller's prices, if it sends any."""
    scaling: ScalingConfig = field(default_factory=ScalingConfig)

    def of_features(self) -> Iterator[FeatureSection]:
        """All sections of features."""
        for name in FeatureSections.__struct_fields__:
            section = getattr(self, name)
            if isinstance(section, FeatureSection):
                yield section


class PoolSections(Struct, frozen=True, kw_only=True):
    """Keys of features in the description of a disaggregated pool."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    expert_locality: ExpertLocalityConfig | None = None
    """Expert locality of the pool. None: its requests are not compared with its workers' experts."""

    def of_features(self) -> Iterator[tuple[str, FeatureSection]]:
        """All sections that have hooks, by key."""
        for name in PoolSections.__struct_fields__:
            section = getattr(self, name)
            if isinstance(section, FeatureSection):
                yield name, section

    def texts(self) -> tuple[tuple[str, str], ...]:
        """Sections that differ from their defaults, as they stand in a pool's spec."""
        usual = PoolSections()
        written = ((name, getattr(self, name)) for name in PoolSections.__struct_fields__)
        return tuple((key, text_of(section)) for key, section in written if section != getattr(usual, key))

    def without_files(self, may_read: Callable[[Path], bool]) -> tuple[PoolSections, tuple[Path, ...]]:
        """Return the sections with the defaults in place of those that name a file which may not be read, and those
        files."""
        unread = {key: [path for path in each.read_files() if not may_read(path)] for key, each in self.of_features()}
        usual = PoolSections()
        kept = replace(self, **{key: getattr(usual, key) for key, paths in unread.items() if paths})
        return kept, tuple(path for paths in unread.values() for path in paths)
