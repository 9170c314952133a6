"""Keys that features add to the region file, as it is read."""

from __future__ import annotations

from pathlib import Path

from gateway.features.disaggregated.config import PredictionConfig
from gateway.features.expert_locality.config import ExpertLocalityConfig
from gateway.features.scaling.config import ScalingConfig
from gateway.features.section import FeatureSection
from gateway.features.sections import FeatureSections
from tests.support.region_files import SMALLEST, load_config, region_at, region_faults


def test_sections_are_told_from_other_keys() -> None:
    assert list(FeatureSections().of_features()) == [PredictionConfig(), ExpertLocalityConfig(), ScalingConfig()]
    assert not list(FeatureSection().secret_files())


def test_a_key_that_no_feature_lists_is_unknown(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "scalings: {}\n")
    assert "scalings: is not a known key" in fault


def test_a_feature_that_the_file_does_not_name_has_its_defaults(tmp_path: Path) -> None:
    config = load_config(region_at(tmp_path, SMALLEST), environ={})
    assert (config.scaling, config.prices) == (ScalingConfig(), None)
