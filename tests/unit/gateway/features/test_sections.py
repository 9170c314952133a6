"""Keys that features add to the region file, as it is read."""

from __future__ import annotations

from pathlib import Path

from gateway.core.vocabulary import PoolName, PoolSpec
from gateway.features.batches.config import BatchesConfig
from gateway.features.disaggregated.config import PredictionConfig, prediction_of
from gateway.features.expert_locality.config import ExpertLocalityConfig, locality_of
from gateway.features.scaling.config import ScalingConfig
from gateway.features.section import FeatureSection
from gateway.features.sections import FeatureSections, PoolSections
from tests.support.region_files import SMALLEST, load_config, region_at, region_faults


def test_sections_are_told_from_other_keys() -> None:
    assert list(FeatureSections().of_features()) == [BatchesConfig(), ScalingConfig()]
    assert list(PoolSections().of_features()) == [("prediction", PredictionConfig())]
    assert not list(FeatureSection().secret_files())
    assert not list(FeatureSection().read_files())


def test_a_pools_sections_are_the_same_after_they_stood_in_its_spec() -> None:
    sections = PoolSections(
        prediction=PredictionConfig(artifact=Path("/a/predictor.json"), requests_min=7),
        expert_locality=ExpertLocalityConfig(artifact=Path("/a/eldr.json")),
    )
    spec = PoolSpec(PoolName("chat"), features=sections.texts())
    assert prediction_of(spec) == sections.prediction
    assert locality_of(spec) == sections.expert_locality
    assert [key for key, _ in spec.features] == ["prediction", "expert_locality"], "no other says anything"
    assert PoolSections().texts() == ()
    silent = PoolSpec(PoolName("chat"))
    assert (prediction_of(silent), locality_of(silent)) == (PredictionConfig(), None)


def test_a_section_goes_with_a_file_that_may_not_be_read() -> None:
    near = ExpertLocalityConfig(artifact=Path("/a/eldr.json"), calibration=Path("/b/calibration.jsonl"))
    sections = PoolSections(prediction=PredictionConfig(artifact=Path("/a/predictor.json")), expert_locality=near)
    kept, unread = sections.without_files(lambda path: path.is_relative_to("/a"))
    assert kept == PoolSections(prediction=sections.prediction)
    assert unread == (Path("/b/calibration.jsonl"),)
    assert sections.without_files(lambda _: True) == (sections, ())


def test_a_key_that_no_feature_lists_is_unknown(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "scalings: {}\n")
    assert "scalings: is not a known key" in fault


def test_a_tenant_may_not_have_more_uploads_than_all(tmp_path: Path) -> None:
    section = "batches:\n  uploads_max: 2\n  tenant_uploads_max: "
    (fault,) = region_faults(tmp_path, f"{SMALLEST}{section}3\n")
    assert "batches.tenant_uploads_max: should be at most batches.uploads_max" in fault
    assert load_config(region_at(tmp_path, f"{SMALLEST}{section}2\n"), environ={}).batches.tenant_uploads_max == 2


def test_a_feature_that_the_file_does_not_name_has_its_defaults(tmp_path: Path) -> None:
    config = load_config(region_at(tmp_path, SMALLEST), environ={})
    assert (config.scaling, config.prices) == (ScalingConfig(), None)
