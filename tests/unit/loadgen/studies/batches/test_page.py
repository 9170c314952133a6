"""The page calls no missed aim met, and shows what each window measured."""

from __future__ import annotations

from dataclasses import replace

from loadgen.studies.batches.beside import Beside
from loadgen.studies.batches.large_file import LargeFileRun
from loadgen.studies.batches.page import page_of

MACHINE = {"cpu": "A CPU", "cores": 2, "memory_gib": 8, "kernel": "6", "python": "CPython 3.11", "core": "plain Python",
           "busy": "half of it was busy"}  # fmt: skip
LARGE = LargeFileRun(
    lines=1_000_000, file_bytes=250_000_000, upload_s=10.0, check_s=20.0, run_s=500.0, requests_per_s=2_500.0,
    lines_per_s=1_800.0, request_cpu_us=400.0, line_cpu_us=500.0, idle_kib=102_400, peak_kib=512 * 1024, kills=0,
    failed=0, lost=0, doubled=0,
)  # fmt: skip
KILLED = replace(LARGE, lines=50_000, kills=3)
ALONE = Beside(has_backlog=False, first_s=(0.1, 0.2, 0.3), failed=0, lines=0, busy_share=0.4)
BESIDE = Beside(has_backlog=True, first_s=(0.1, 0.2, 0.306), failed=0, lines=700, busy_share=0.9, interrupted=12)


def page(large: LargeFileRun = LARGE, killed: LargeFileRun = KILLED, behind: Beside = BESIDE) -> str:
    return page_of(large, killed, [ALONE, behind], MACHINE)


def test_aims_are_met_by_what_just_meets_them() -> None:
    text = page()
    assert text.count("**met**") == 4
    assert "**not met**" not in text
    assert "| 1 | 40% | 90% | 700 | 12 | 200 | 200 |" in text


def test_each_miss_is_told() -> None:
    assert "**not met**: memory of at most 512 MiB (513 MiB)" in page(replace(LARGE, peak_kib=513 * 1024))
    assert "**not met**: lines at 70% of the rate" in page(replace(LARGE, lines_per_s=1_700.0))
    assert "**not met**: no line lost or doubled (1 and 0)" in page(killed=replace(KILLED, lost=1))
    assert "**not met**: no line lost or doubled (0 and 2)" in page(replace(LARGE, doubled=2))
    assert "**not met**: first tokens beside a backlog" in page(behind=replace(BESIDE, first_s=(0.1, 0.2, 0.4)))
