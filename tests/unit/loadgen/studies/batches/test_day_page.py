"""Page of days with batches: each aim is judged by the worst of the loads."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.figures import Figures
from loadgen.studies.batches.day import LOADS, DayWork
from loadgen.studies.batches.day_page import page_of

SLOT_S = 100_000
IDLE_S = 0.6 * SLOT_S
"""Idle time of the slots that `figures` leave alone."""
MACHINE = {"cpu": "a CPU", "cores": 2, "python": "CPython"}


def figures(**changes: Any) -> Figures:
    file = {"lines": 10, "completed": 10, "kept": True, "tries": 11, "urgent": 0}
    return {
        "first_p50_ms": 100.0,
        "first_p99_ms": 200.0,
        "requests": 10,
        "failed": 0,
        "busy": 0.4,
        "bill": 100.0,
        "cheapest": 0.0,
        "batches": [file] * 20,
        "interrupted": 3,
        "again_p50_s": 0.1,
        "again_p99_s": 1.0,
        "lost_s": 5.0,
        "slot_s": SLOT_S,
        "used_s": 0.0,
        "lines": 10,
    } | changes


def page(**changes: dict[str, Any]) -> str:
    """Page of good figures, of which those of the last load differ."""
    good = {
        DayWork.BACKLOG: {"busy": 0.97, "used_s": 0.95 * IDLE_S, "first_p99_ms": 204.0},
        DayWork.FILES: {"bill": 109.0},
    }
    found = {
        (load.name, work): figures(**good.get(work, {}) | (changes.get(work.name, {}) if load is LOADS[-1] else {}))
        for load in LOADS
        for work in DayWork
    }
    return page_of(found, MACHINE)


def test_what_is_reached_is_met() -> None:
    text = page()
    assert "**not met**" not in text
    assert text.count("**met**") == 6
    assert "| code, 39% of all slots | 40% | 97% | 95% |" in text
    assert "1.090, 1.090, 1.090" in text
    assert "(kept aside)" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"BACKLOG": {"used_s": 0.8 * IDLE_S}}, "idle slots used"),
        ({"BACKLOG": {"first_p99_ms": 300.0}}, "first tokens"),
        ({"BACKLOG": {"again_p99_s": 3.0}}, "seconds until"),
        ({"FILES": {"batches": [{"kept": False, "completed": 1, "tries": 1, "urgent": 1}] * 20}}, "windows kept"),
        ({"FILES": {"bill": 112.0}}, "bill"),
        ({"FILES": {"failed": 1}}, "no interactive request failed"),
    ],
)
def test_a_missed_aim_is_named(changes: dict[str, Any], told: str) -> None:
    missed = [line for line in page(**changes).splitlines() if line.startswith("- **not met**")]
    assert len(missed) == 1
    assert told in missed[0]


def test_a_load_without_interruptions_has_no_time_of_them() -> None:
    assert "| 0 | – | – |" in page(BACKLOG={"interrupted": 0, "again_p50_s": None, "again_p99_s": None})
