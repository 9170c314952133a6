from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gateway.features.batches import plan_cli
from gateway.features.batches.client import BatchClient, BatchFault
from gateway.features.batches.counting import FileCounter, FileCounts
from gateway.features.batches.outlook import BatchOutlook, RegionOutlook
from gateway.features.batches.planning import FileWork
from gateway.features.batches.state import LineFault
from tests.support.batch_outlooks import outlook_of
from tests.support.batches import CHAT_PATH, lines_of
from tests.support.core import MODEL


def read(file: Path, told: BatchOutlook) -> tuple[int, list[LineFault]]:
    """Lines and faults of a file."""
    counter = FileCounter(CHAT_PATH, MODEL, told)
    faults = plan_cli._read(file, counter, told)
    return counter.counts.lines, faults


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines_of(100))
    return path


def test_progress_is_told_now_and_then(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_cli, "_STEP_BYTES", file.stat().st_size // 4)
    assert read(file, outlook_of()) == (100, [])
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 3)


def test_a_file_beyond_the_gateways_limits_has_its_faults(file: Path) -> None:
    size = file.stat().st_size
    refused = LineFault("batches_exceeded", "Too many.")
    assert read(file, outlook_of(file_bytes_max=size, faults=[refused])) == (100, [refused])
    _, (large, many) = read(file, outlook_of(file_bytes_max=size - 1, lines_max=99, faults=[refused]))
    assert large == LineFault("body_too_large", f"The file is larger than {size - 1:,} bytes.")
    assert many.code == "too_many_tasks"


@pytest.mark.parametrize("shares", [[], [{"from_s": 0.0, "places": 0.0, "room": 1.0}]])
async def test_an_outlook_that_gives_no_batch_a_place_is_a_fault_of_the_gateway(shares: list[object]) -> None:
    class Lying:
        async def ask(self, *_: object) -> Any:
            return msgspec.to_builtins(outlook_of()) | {"shares": shares}

    with pytest.raises(BatchFault, match="in another form: a batch would never have a place"):
        await plan_cli._outlook(cast("BatchClient", Lying()), MODEL)


def test_a_file_comes_from_the_gateways_region() -> None:
    told = outlook_of(region="here", regions=[RegionOutlook("there", 1, 2.0, 3.0)])
    job = plan_cli._job(told, FileCounts(CHAT_PATH, MODEL, 10, prompt_bytes=400), FileWork(10, 100, 50.0))
    assert (job.home, job.prompt_bytes, job.times_ns) == ("here", 400, {"there": (200.0, 150.0)})


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (119, "119 s"), (600, "10.0 min"), (7_200, "2.0 h")])
def test_spans_are_told_in_a_unit_that_fits(seconds: float, words: str) -> None:
    assert plan_cli._span(seconds) == words
