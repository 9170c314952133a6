from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.features.batches import plan_cli
from gateway.features.batches.outlook import BatchOutlook, PlaceShare
from gateway.features.batches.state import LineFault
from tests.support.batches import CHAT_PATH, lines_of


def outlook(**changes: int) -> BatchOutlook:
    limits: Any = {"file_bytes_max": 10**6, "lines_max": 1_000, "line_bytes_max": 10_000} | changes
    return BatchOutlook(
        region="here",
        output_tokens_reserved=1_024,
        lines_at_once=32,
        shares=[PlaceShare(0.0, 1.0)],
        unknown_ahead=0,
        knows_model=True,
        **limits,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines_of(100))
    return path


def test_progress_is_told_now_and_then(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_cli, "_STEP_BYTES", file.stat().st_size // 4)
    counter, faults = plan_cli._read(file, CHAT_PATH, outlook())
    assert ([each.lines for each in counter.counts], faults) == ([100], [])
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 3)


def test_a_file_beyond_the_gateways_limits_has_its_faults(file: Path) -> None:
    size = file.stat().st_size
    assert plan_cli._read(file, CHAT_PATH, outlook(file_bytes_max=size))[1] == []
    _, (large, many) = plan_cli._read(file, CHAT_PATH, outlook(file_bytes_max=size - 1, lines_max=99))
    assert large == LineFault("body_too_large", f"The file is larger than {size - 1:,} bytes.")
    assert many.code == "too_many_tasks"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (119, "119 s"), (600, "10.0 min"), (7_200, "2.0 h")])
def test_spans_are_told_in_a_unit_that_fits(seconds: float, words: str) -> None:
    assert plan_cli._span(seconds) == words
