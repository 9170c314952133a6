from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core.features.disaggregated.predictors.arrays import (
    ForestArrays,
    LearnedArrays,
    PredictorArrays,
    PredictorKind,
    PromptKey,
    SurvivalArrays,
)
from gateway.core.features.disaggregated.predictors.exact_match import fit_exact_match
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.features.disaggregated.predictors.learned import FEATURES
from gateway.features.disaggregated.files import (
    Artifact,
    HistoryColumns,
    artifact_file,
    artifact_of,
    history_file,
    read_artifact,
    read_history,
    write_history,
)
from mesh.state_files import StateFile, StateUnusable

MILLISECOND_NS = 1_000_000
ENDED = (Ended(7, 10, 5, 0, 3 * MILLISECOND_NS), Ended(0, 20, 6, 1, 4 * MILLISECOND_NS))
COLUMNS = HistoryColumns(4, (7, 0), (10, 20), (5, 6), (0, 1), (3, 4))
FOREST = ForestArrays(0.1, (0,), (1, 0, 0), (0.3, 0.0, 0.0), (1, 1, 2), (2, 1, 2), (0.0, 1 / 3, -1e-9))
ALL_KINDS: list[PredictorArrays] = [
    SurvivalArrays((1, 2)),
    fit_exact_match(ENDED, PromptKey.PROMPT),
    LearnedArrays(48, FEATURES, FOREST, FOREST),
]


def test_a_history_comes_back_with_wall_times(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    assert read_history(path) is None
    write_history(path, Snapshot(ENDED, 9), wall_ahead_ns=1000 * MILLISECOND_NS)
    found = read_history(path)
    assert found is not None
    assert found.added == 9
    assert [dataclasses.replace(each, ended_ns=each.ended_ns - 1000 * MILLISECOND_NS) for each in found.ended] == list(
        ENDED
    )


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (replace(COLUMNS, after=(0,)), "not equally long"),
        (replace(COLUMNS, added=1), "more than 1"),
        (replace(COLUMNS, output_tokens=(-1, 0)), "not between 0"),
        (replace(COLUMNS, prompt_tokens=(1, 1 << 40)), "not between 0"),
        (replace(COLUMNS, prompt_keys=(1, 1 << 63)), "not between 0"),
        (replace(COLUMNS, after=(0, 5)), "not between 0"),
    ],
)
def test_a_history_that_makes_no_sense_is_refused_in_words(
    tmp_path: Path, columns: HistoryColumns, problem: str
) -> None:
    path = tmp_path / "history.json"
    history_file(path).write(COLUMNS)
    read_history(path)
    history_file(path).write(columns)
    with pytest.raises(StateUnusable, match=problem):
        read_history(path)


@pytest.mark.parametrize("arrays", ALL_KINDS, ids=lambda arrays: type(arrays).__name__)
def test_an_artifact_comes_back_to_the_last_bit(tmp_path: Path, arrays: PredictorArrays) -> None:
    path = tmp_path / "artifact.json"
    assert read_artifact(path) is None
    artifact_file(path).write(artifact_of(arrays, requests=2, wall_ns=5 * MILLISECOND_NS, fitted_by="a test"))
    found = read_artifact(path)
    assert found is not None
    assert found.arrays == arrays
    assert (found.requests, found.fitted_ms, found.fitted_by) == (2, 5, "a test")


def test_an_artifact_says_of_which_kind_it_is() -> None:
    kinds = [artifact_of(arrays, requests=1, wall_ns=0, fitted_by="").kind for arrays in ALL_KINDS]
    assert kinds == list(PredictorKind)


@pytest.mark.parametrize(
    ("artifact", "problem"),
    [
        (Artifact(0, 1, ""), "holds those of 0"),
        (Artifact(0, 1, "", survival=SurvivalArrays((1,)), learned=ALL_KINDS[2]), "holds those of 2"),  # type: ignore[arg-type]
        (Artifact(0, 1, "", survival=SurvivalArrays(())), "no lengths"),
        (Artifact(0, 1, "", survival=SurvivalArrays((2, 1))), "ascending"),
        (Artifact(0, 1, "", learned=LearnedArrays(48, ("x",), FOREST, FOREST)), "features"),
    ],
)
def test_an_artifact_that_no_predictor_can_be_made_of_is_refused_in_words(
    tmp_path: Path, artifact: Artifact, problem: str
) -> None:
    path = tmp_path / "artifact.json"
    artifact_file(path).write(artifact)
    with pytest.raises(StateUnusable, match=problem):
        read_artifact(path)


def test_another_version_a_change_and_what_is_no_number_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "artifact.json"
    artifact = Artifact(0, 1, "", survival=SurvivalArrays((1, 5)))
    StateFile(path, "decode predictor", 2, Artifact).write(artifact)
    with pytest.raises(StateUnusable, match="version 2"):
        read_artifact(path)
    artifact_file(path).write(artifact)
    path.write_text(path.read_text().replace("[1,5]", "[1,6]"))
    with pytest.raises(StateUnusable, match="checksum"):
        read_artifact(path)
    path.write_text(json.dumps({"kind": "decode predictor"}))
    with pytest.raises(StateUnusable, match="damaged"):
        read_artifact(path)
    artifact_file(path).write(Artifact(0, 1, "", learned=LearnedArrays(48, FEATURES, FOREST, nan_forest())))
    with pytest.raises(StateUnusable):
        read_artifact(path)


def nan_forest() -> ForestArrays:
    return replace(FOREST, value=(0.0, float("nan"), 0.0))


def test_an_artifact_grows_stale_and_one_from_the_future_does_not_stay_fresh_for_ever() -> None:
    artifact = Artifact(1000, 1, "", survival=SurvivalArrays((1,)))
    wall_ns = 1000 * MILLISECOND_NS
    assert artifact.fresh_for_ns(wall_ns + 3, 10) == 7
    assert artifact.fresh_for_ns(wall_ns + 11, 10) == 0
    assert artifact.fresh_for_ns(wall_ns - 500, 10) == 10
