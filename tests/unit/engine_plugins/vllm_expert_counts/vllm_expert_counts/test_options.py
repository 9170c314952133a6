from __future__ import annotations

from pathlib import Path

import pytest

from vllm_expert_counts.options import SECTION, Options, read_options


@pytest.mark.parametrize("config", [None, {}, {"somebody_else": 1}, {SECTION: {}}, "not a dict"])
def test_nothing_has_to_be_said(config: object) -> None:
    assert read_options(config) == Options()


def test_a_recording_is_asked_for_by_its_file() -> None:
    said = {SECTION: {"record": "calibration.jsonl", "record_lines_max": 5}}
    assert read_options(said) == Options(Path("calibration.jsonl"), 5)


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        (7, "should be an object"),
        ({"recrod": "x"}, "recrod is not known"),
        ({"record": ""}, "path of a file"),
        ({"record": 3}, "path of a file"),
        ({"record_lines_max": 0}, "1 or more"),
        ({"record_lines_max": True}, "1 or more"),
        ({"record_lines_max": "9"}, "1 or more"),
    ],
)
def test_what_is_not_understood_is_named(section: object, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_options({SECTION: section})
