"""CPU shares from /proc/stat: idle and waiting for disks is not busy, and too few samples give no figure."""

from __future__ import annotations

from pathlib import Path

from loadgen.demo.machine import CpuSampler, CpuTimes, parse_proc_stat, read_cpu_times
from loadgen.report import MachineUse

PROC_STAT = """cpu  100 20 30 800 50 5 10 15 40 0
cpu0 50 10 15 400 25 2 5 7 20 0
intr 12345
"""


def test_guests_are_not_counted_twice_and_idle_is_not_busy() -> None:
    assert parse_proc_stat(PROC_STAT) == CpuTimes(busy=180, total=1030)


def test_a_system_without_the_file_gives_no_figure(tmp_path: Path) -> None:
    assert read_cpu_times(tmp_path / "stat") is None


def test_the_mean_spans_the_run_and_the_peak_is_the_busiest_sample() -> None:
    sampler = CpuSampler(samples=[CpuTimes(0, 0), CpuTimes(10, 100), CpuTimes(100, 200)])
    assert sampler.use() == MachineUse(mean_share=0.5, peak_share=0.9)
    assert sampler.latest_share == 0.9


def test_one_sample_is_no_measurement() -> None:
    sampler = CpuSampler(samples=[CpuTimes(5, 10)])
    assert sampler.use() is None
    assert sampler.latest_share is None
