from __future__ import annotations

import json
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.core.features.disaggregated.predictors.arrays import LearnedArrays, SurvivalArrays
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.features.disaggregated.files import read_artifact, write_history
from loadgen.fit.main import fit


def called(*arguments: str | Path) -> Result:
    return CliRunner().invoke(fit, ["predictor", *map(str, arguments)])


@pytest.fixture
def history(tmp_path: Path) -> Path:
    rng = random.Random(1)
    ended = tuple(Ended(number % 5, 100, rng.choice((20, 400)), number, number) for number in range(200))
    path = tmp_path / "gw.pool.history.json"
    write_history(path, Snapshot(ended, 200))
    return path


def test_it_fits_scores_and_writes_an_artifact_and_a_page(tmp_path: Path, history: Path) -> None:
    out, report = tmp_path / "artifact.json", tmp_path / "report.html"
    done = called("--history", history, "--kind", "learned", "-o", out, "--report", report, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["requests"] == 200
    assert document["scores"]["requests"] == 50
    artifact = read_artifact(out)
    assert artifact is not None
    assert isinstance(artifact.arrays, LearnedArrays)
    page = report.read_text()
    assert f"{document['scores']['auc']:.4f}" in page
    assert f"{document['scores']['brier']:.4f}" in page
    assert "<svg" in page


def test_in_the_background_it_says_the_same_in_words_at_a_low_priority(tmp_path: Path, history: Path) -> None:
    def call() -> tuple[Result, int]:
        done = called("--history", history, "--kind", "survival", "-o", tmp_path / "artifact.json", "--background")
        return done, os.getpriority(os.PRIO_PROCESS, 0)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1) as aside:  # each thread of Linux has a priority: other tests keep theirs
        done, niceness = aside.submit(call).result()
    assert (done.exit_code, niceness) == (0, min(before + 10, 19))
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert "AUC" in done.stdout


def test_a_predictor_that_is_worse_than_none_is_written_with_a_warning(tmp_path: Path) -> None:
    """Answers become longer than all that it was fitted to, so that it foresees ends that do not come."""
    lengths = [30] * 150 + [4_000] * 50
    ended = tuple(Ended(0, 100, tokens, number, number) for number, tokens in enumerate(lengths))
    path, out = tmp_path / "gw.pool.history.json", tmp_path / "artifact.json"
    write_history(path, Snapshot(ended, len(ended)))
    done = called("--history", path, "--kind", "survival", "-o", out, "--json")
    assert (done.exit_code, out.exists()) == (0, True)
    scores = json.loads(done.stdout)["scores"]
    assert scores["expected_rms_steps"] >= scores["anchor_rms_steps"]
    assert "warning: this predictor is worse than none" in done.stderr


def test_a_predictor_that_helps_is_written_without_one(tmp_path: Path) -> None:
    ended = tuple(Ended(0, 100, 30, number, number) for number in range(200))
    path = tmp_path / "gw.pool.history.json"
    write_history(path, Snapshot(ended, len(ended)))
    done = called("--history", path, "--kind", "survival", "-o", tmp_path / "artifact.json")
    assert (done.exit_code, "warning" in done.stderr) == (0, False)


def test_a_trace_will_do_as_well(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "artifact.json"
    lines = [f"2023-11-16 18:15:{second}.0,{100 + second},{second}" for second in range(10, 60)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    done = called("--trace", trace, "--kind", "exact_match", "--key", "length", "-o", out)
    assert done.exit_code == 0, done.output
    assert read_artifact(out) is not None


def test_one_record_gives_an_artifact_and_a_page_that_says_why_it_has_no_scores(tmp_path: Path) -> None:
    history, out, report = tmp_path / "history.json", tmp_path / "artifact.json", tmp_path / "report.html"
    write_history(history, Snapshot((Ended(0, 1, 5, 0, 0),), 1))
    done = called("--history", history, "--kind", "survival", "-o", out, "--report", report)
    assert done.exit_code == 0
    assert "nothing could be held out" in done.stdout
    assert "nothing could be held out" in report.read_text()
    artifact = read_artifact(out)
    assert artifact is not None
    assert artifact.arrays == SurvivalArrays((5,))


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "no such file"), (b"{", "damaged"), (b'{"kind":"x","version":1,"checksum":"","content":0}', "not decode")],
)
def test_a_history_that_cannot_be_used_is_told_with_its_file(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path, out = tmp_path / "history.json", tmp_path / "artifact.json"
    if content is not None:
        path.write_bytes(content)
    done = called("--history", path, "--kind", "survival", "-o", out)
    assert done.exit_code == 1
    assert f"{path}: " in done.output
    assert problem in done.output
    assert not out.exists()


def test_an_empty_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    write_history(path, Snapshot((), 0))
    done = called("--history", path, "--kind", "learned", "-o", tmp_path / "artifact.json")
    assert (done.exit_code, "the history is empty" in done.output) == (1, True)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, history: Path) -> None:
    (tmp_path / "file").write_text("")
    done = called("--history", history, "--kind", "survival", "-o", tmp_path / "file" / "artifact.json")
    assert done.exit_code == 1
    assert "cannot be written" in done.output


def test_it_wants_one_source(tmp_path: Path, history: Path) -> None:
    for sources in ((), ("--history", history, "--trace", history)):
        assert called(*sources, "--kind", "survival", "-o", tmp_path / "artifact.json").exit_code == 2


def test_without_the_extra_it_says_what_is_missing(
    tmp_path: Path, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gateway.features.disaggregated.fit.fitting", None)
    done = called("--history", history, "--kind", "survival", "-o", tmp_path / "artifact.json")
    assert done.exit_code == 1
    assert "nightside[fit]" in done.output
