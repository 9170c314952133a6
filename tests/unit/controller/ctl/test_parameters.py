from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.ctl.parameters import check_parameters
from mesh.faults import FileError

FILE = Path("parameters.yaml")


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"queue": {"length_max": 7}, "attempt": {"refusals_max": 2}},
        {"listen": {"http": "anywhere"}},
        {"placement": {"policy": "plugged_in_elsewhere"}},
    ],
)
def test_what_others_have_to_judge_is_let_through(sections: dict[str, Any]) -> None:
    check_parameters(FILE, sections)


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"queue": {"length_max": "many"}}, "queue.length_max"),
        ({"queue": {"lenght_max": 7}}, "queue.lenght_max"),
        ({"queue": 7}, "queue"),
        ({"placement": {"policy": "plugged_in_elsewhere"}, "attempt": {"refusals_max": -1}}, "attempt.refusals_max"),
    ],
)
def test_a_value_that_no_region_file_could_hold_is_named_by_its_key(sections: dict[str, Any], key: str) -> None:
    with pytest.raises(FileError, match=f"parameters.yaml: .*{key}: "):
        check_parameters(FILE, sections)
