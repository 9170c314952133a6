from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.features.expert_locality.fit.eldr_calibration import UnusableCalibration, read_calibration
from tests.support.calibrations import calibration, write_calibration

GIVEN = calibration(6)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in write_calibration(folder / "c.jsonl", GIVEN).read_text().splitlines()]


def test_it_comes_back_as_it_was_captured(tmp_path: Path) -> None:
    read = read_calibration(write_calibration(tmp_path / "c.jsonl", GIVEN))
    assert (read.shape, read.ids, read.documents, read.domains) == (
        GIVEN.shape,
        GIVEN.ids,
        GIVEN.documents,
        GIVEN.domains,
    )
    assert (read.prefill == GIVEN.prefill).all()
    assert np.abs(read.decode - GIVEN.decode).max() < 1e-6
    assert read.digest != calibration(6, seed=2).digest


@pytest.mark.parametrize(
    "change, fault",
    [
        ({"v": 2}, "c.jsonl:2: is of version 2"),
        ({"experts": 13}, "c.jsonl:2: there are not as many"),
        ({"model": "another"}, "c.jsonl:2: is of another model"),
        ({"prefill": "!"}, "c.jsonl:2: they cannot be unpacked"),
        ({"layers": 10**9}, "c.jsonl:2: they are of a shape"),
        ({"id": None}, "c.jsonl:2: .*id"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    told = lines(tmp_path)
    told[1] |= change
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, told)))
    with pytest.raises(UnusableCalibration, match=fault):
        read_calibration(tmp_path / "c.jsonl")


def test_an_empty_file_and_one_that_is_no_json_are_refused(tmp_path: Path) -> None:
    for text, fault in (("\n\n", "holds no request"), ("no json\n", "c.jsonl:1")):
        (tmp_path / "c.jsonl").write_text(text)
        with pytest.raises(UnusableCalibration, match=fault):
            read_calibration(tmp_path / "c.jsonl")
