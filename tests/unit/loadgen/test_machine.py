"""CPU shares from /proc: idle time and waiting for disks are not busy, and too few samples give no figure."""

from __future__ import annotations

from pathlib import Path

from loadgen.machine import CpuSampler, CpuTimes, parse_machine_stat, parse_process_stat, read_cpu_times
from loadgen.report import MachineUse

MACHINE = """cpu  100 20 30 800 50 5 10 15 40 0
cpu0 50 10 15 400 25 2 5 7 20 0
intr 12345
"""
PROCESS = "7 (a name) with)) S 1 7 7 0 -1 4194560 100 0 0 0 120 34 0 0 20 0 1 0 5 6 7"


def test_guests_are_not_counted_twice_and_idle_is_not_busy() -> None:
    assert parse_machine_stat(MACHINE) == CpuTimes(busy=180, total=1030)


def test_a_process_may_be_called_anything() -> None:
    assert parse_process_stat(PROCESS) == 154


def test_the_watched_processes_add_up(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(MACHINE)
    for pid in ("7", "8"):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(PROCESS)
    assert read_cpu_times((7, 8), tmp_path) == CpuTimes(busy=180, total=1030, own=308)


def test_a_system_without_the_files_gives_no_figure(tmp_path: Path) -> None:
    assert read_cpu_times((7,), tmp_path) is None


def test_the_mean_spans_the_run_and_the_peak_is_the_busiest_sample() -> None:
    sampler = CpuSampler((7,), samples=[CpuTimes(0, 0, 0), CpuTimes(10, 100, 5), CpuTimes(100, 200, 40)])
    assert sampler.use() == MachineUse(mean_share=0.5, peak_share=0.9, own_share=0.2)
    assert sampler.latest_share == 0.9


def test_one_sample_is_no_measurement() -> None:
    sampler = CpuSampler((7,), samples=[CpuTimes(5, 10)])
    assert sampler.use() is None
    assert sampler.latest_share is None
