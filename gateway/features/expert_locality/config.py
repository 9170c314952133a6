"""Settings of expert locality for disaggregated pools. The checks here decide nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from gateway.core.vocabulary import PoolName
from gateway.features.section import FeatureSection, WrittenFile
from mesh.faults import FileFault
from mesh.settings import Section
from mesh.values import SECOND_NS


class PoolLocalityConfig(Struct, frozen=True, kw_only=True):
    """Expert locality of one disaggregated pool."""

    pool: PoolName
    """Name of the pool."""
    artifact: Path
    """File written by `nightside fit eldr`; checked at each interval, and loaded when it has changed."""
    calibration: Path | None = None
    """Data that the artifact was fitted to. With it the gateway fits again, in a process of its own, once the number of
    decode worker groups differs from the artifact's clusters."""


class ExpertLocalityConfig(FeatureSection, frozen=True):
    """Expert locality of disaggregated pools. A pool that is not listed has none."""

    pools: tuple[Annotated[PoolLocalityConfig, Section()], ...] = ()
    """Pools with expert locality. Empty: none."""
    look_interval_ns: int = 5 * SECOND_NS
    """Interval of checking artifacts and the number of decode worker groups for changes."""
    refit_after_ns: int = 60 * SECOND_NS
    """Time for which a new number of groups has to last before the artifact is fitted again."""
    refit_timeout_ns: int = 300 * SECOND_NS
    """Time limit of fitting an artifact, which runs in a process of its own."""

    def faults(self, file: WrittenFile) -> Iterator[FileFault]:
        try:
            check_locality(self)
        except ValueError as error:
            key, _, what = str(error).partition(": ")
            yield FileFault(f"locality.{key}", what)
        pools = file.pool_specs()
        for index, told in enumerate(self.pools):
            if told.pool not in pools or pools[told.pool].connector is None:
                yield FileFault(f"locality.pools[{index}].pool", f"{told.pool!r} is no disaggregated pool of this file")


def check_locality(config: ExpertLocalityConfig) -> None:
    """Raise ValueError, in words, for settings that contradict each other."""
    names = [each.pool for each in config.pools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"pools[{index}].pool: {name!r} is listed twice")
    for key, interval_ns in (("look_interval", config.look_interval_ns), ("refit_timeout", config.refit_timeout_ns)):
        if interval_ns <= 0:
            raise ValueError(f"{key}: should be longer than nothing")
