from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.expert_counts import unpacked
from vllm_expert_counts.counting import Scheduled
from vllm_expert_counts.recording import Recorder, file_of
from vllm_expert_counts.rows import HostRows
from vllm_expert_counts.wire import Label

LAYERS, EXPERTS = 1, 4


def prefill() -> NDArray[np.uint32]:
    return np.array([[2, 1, 0, 0]], dtype=np.uint32)


def recorder(file: Path, lines_max: int = 10) -> Recorder:
    return Recorder(HostRows(1, 4, LAYERS, EXPERTS), file, lines_max, "m")


def share(request_id: str, start: int, tokens: int, prompt: int = 3) -> Scheduled:
    return Scheduled(request_id, start, tokens, prompt, (0, 1, 2), True)


def picked(*experts: int) -> object:
    return np.array(experts, dtype=np.uint8).reshape(-1, LAYERS, 1)


def test_an_answer_is_recorded_token_by_token(tmp_path: Path) -> None:
    file = tmp_path / "calibration.jsonl"
    recording = recorder(file)
    recording.step([share("a", 0, 3)], picked(0, 0, 1), {"a": prefill}, {"a": Label("page 7")})
    recording.step([share("b", 0, 2), share("a", 3, 1)], picked(3, 3, 2), {}, {})
    recording.step([share("a", 4, 1)], picked(3), {}, {})
    recording.end(["b", "a", "unheard"])
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["id"], line["document"], line["steps"]) == ("a", "page 7", 2)
    assert (unpacked(line["prefill"], "<u2"), unpacked(line["decode"], "<u4")) == ([2, 1, 0, 0], [0, 0, 1, 1])


def test_what_is_read_again_after_a_preemption_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "calibration.jsonl"
    recording = recorder(file)
    recording.step([share("a", 0, 3)], picked(0, 0, 1), {"a": prefill}, {})
    recording.step([share("a", 3, 1)], picked(2), {}, {})
    recording.step([share("a", 0, 5)], picked(0, 0, 1, 2, 3), {}, {})
    recording.end(["a"])
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (unpacked(line["decode"], "<u4"), line["steps"], line["document"]) == ([0, 0, 1, 1], 2, "a")


def test_an_answer_of_one_token_has_nothing_to_record(tmp_path: Path) -> None:
    recording = recorder(tmp_path / "calibration.jsonl")
    recording.step([share("a", 0, 3)], picked(0, 0, 1), {"a": prefill}, {})
    recording.end(["a"])
    assert list(tmp_path.iterdir()) == []


def play(recording: Recorder, *request_ids: str) -> None:
    for each in request_ids:
        recording.step([share(each, 0, 4)], picked(0, 0, 1, 2), {each: prefill}, {})
    recording.end(request_ids)


def test_the_file_has_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "calibration.jsonl"
    recording = recorder(file, lines_max=3)
    play(recording, "a", "b")
    assert recording.is_on
    play(recording, "c", "d")
    assert not recording.is_on
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == ["a", "b", "c"]
    assert "all the lines that it may have" in caplog.text


def test_a_file_that_cannot_be_written_ends_the_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = recorder(tmp_path / "missing" / "calibration.jsonl")
    play(recording, "a")
    assert not recording.is_on
    assert "nothing more is recorded" in caplog.text


def test_ranks_write_into_files_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "calibration.jsonl"
    assert file_of(file, 1, 0) == file
    assert file_of(file, 2, 1) == tmp_path / "calibration.1.jsonl"
