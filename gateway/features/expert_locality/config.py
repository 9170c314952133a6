"""Settings of expert locality for a disaggregated pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.core.vocabulary import PoolSpec
from gateway.features.section import FeatureSection, duration_faults, settings_in
from mesh.faults import FileFault
from mesh.values import SECOND_NS

_KEY = "expert_locality"
"""Key of a pool's description that holds its `ExpertLocalityConfig`."""


class ExpertLocalityConfig(FeatureSection, frozen=True, kw_only=True):
    """Expert locality of a disaggregated pool."""

    artifact: Path
    """File written by `nightside fit eldr`; checked at each interval, and loaded when it has changed."""
    calibration: Path | None = None
    """Data that the artifact was fitted to. With it the gateway fits again, in a process of its own, once the number of
    decode worker groups differs from the artifact's clusters."""
    look_interval_ns: int = 5 * SECOND_NS
    """Interval of checking the artifact and the number of decode worker groups for changes."""
    refit_after_ns: int = 60 * SECOND_NS
    """Time for which a new number of groups has to last before the artifact is fitted again."""
    refit_timeout_ns: int = 300 * SECOND_NS
    """Time limit of fitting an artifact, which runs in a process of its own."""

    def read_files(self) -> Iterator[Path]:
        yield self.artifact
        if self.calibration is not None:
            yield self.calibration


def locality_of(spec: PoolSpec) -> ExpertLocalityConfig | None:
    """Settings of a pool's expert locality. None: it has none."""
    return settings_in(spec, _KEY, ExpertLocalityConfig)


def locality_faults(spec: PoolSpec) -> Iterator[FileFault]:
    """Faults of the settings of a pool's expert locality."""
    config = locality_of(spec)
    if config is not None:
        yield from duration_faults(config, _KEY)
