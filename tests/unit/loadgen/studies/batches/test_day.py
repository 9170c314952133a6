"""Days with batches: what lines use of the idle slots, what they cost, and how long interrupted ones wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.figures import Figures
from loadgen.studies.batches.day import LOADS, DayCell, DayWork, _Attempts, play


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    file = tmp_path / "rates.csv"
    rows = [f"{hour // 24},{hour % 24},{100 + 50 * (hour % 24 > 11)}" for hour in range(7 * 24)]
    file.write_text("\n".join(["day,hour_utc,invocations_per_min", *rows]) + "\n")
    return file


@pytest.fixture
def played(curve: Path) -> dict[DayWork, Figures]:
    return {work: play(DayCell(LOADS[0], work, day_s=50), curve) for work in DayWork}


@pytest.mark.nightly
def test_lines_use_what_is_idle_and_add_to_the_bill(played: dict[DayWork, Figures]) -> None:
    alone, backlog = played[DayWork.NOTHING], played[DayWork.BACKLOG]
    assert alone["busy"] < backlog["busy"] <= 1
    assert all(each["failed"] == 0 for each in played.values())
    assert 0 < backlog["lines"] <= sum(each["completed"] for each in backlog["batches"])
    assert 0 < backlog["used_s"] < 50 * 6 * 24
    no_files, files = played[DayWork.NO_FILES], played[DayWork.FILES]
    assert no_files["bill"] <= files["bill"]
    assert 0 < files["cheapest"] < files["bill"], "lines of one region leave it for reserved engines"
    assert no_files["cheapest"] == 0
    assert len(files["batches"]) == 24
    assert no_files["batches"] == []


def test_attempts_of_lines_are_followed_until_the_end_of_the_day() -> None:
    told = _Attempts(10_000_000_000)
    for line in (
        "1000000000 us/gw arrived batch0:1~0 100 aa by 9 -> start batch0:1~0/1 replica:us/0 local_prefix 1",
        "3000000000 us/gw arrived 0:us/1 100 aa by 9 -> take back batch0:1~0/1",
        "3000000000 us/gw ended batch0:1~0/1 taken back -> start batch0:1~0/2 peer:eu/gw remote_nearest 0",
        "3200000000 us/gw TimePassed -> end batch0:1~0 expired_in_queue",
        "4500000000 eu/gw forward batch0:1~1 100 aa of us/gw by 9 -> start batch0:1~1/1 replica:eu/0 local_prefix 1",
        "5000000000 eu/gw ended batch0:1~1/1 completed   -> end batch0:1~1 completed",
        "5100000000 us/gw ended batch0:1~1/1 completed   -> end batch0:1~1 completed",
        "6000000000 us/gw arrived batch0:2~0 100 aa by 9 -> start batch0:2~0/1 replica:us/0 local_prefix 1",
        "6500000000 us/gw arrived 0:us/2 100 aa by 9 -> take back batch0:2~0/1",
        "7000000000 us/gw arrived batch1:2~0 100 aa by 9 -> start batch1:2~0/1 replica:us/0 local_prefix 1",
        "7000000000 us/gw arrived 0:us/3 100 aa by 9 -> start 0:us/3/1 replica:us/0 local_prefix 1",
        "12000000000 us/gw arrived batch0:2~0 100 aa by 9 -> start batch0:2~0/2 replica:us/0 local_prefix 1",
    ):
        told.read(line)
    assert told.figures() == {
        "lines": 1,
        "interrupted": 2,
        "again_p50_s": 1.5,
        "again_p99_s": 3.5,
        "used_s": 0.5 + 3.0,
        "lost_s": 2.0 + 0.5,
    }
