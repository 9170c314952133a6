"""`nightside results long` with little of a made-up day: real processes, two faults, and a page that judges them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.nightly
def test_faults_are_played_and_what_processes_hold_is_judged(tmp_path: Path) -> None:
    curve = tmp_path / "traces/azure2024_digitised/code_hourly.csv"
    curve.parent.mkdir(parents=True)
    rows = [f"{hour // 24},{hour % 24},100" for hour in range(7 * 24)]
    curve.write_text("\n".join(["day,hour_utc,invocations_per_min", *rows]) + "\n")
    options = ["--hours=1.5", f"--traces={tmp_path}/traces", f"--out={tmp_path}"]
    command = [sys.executable, "-m", "nightside", "results", "long", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "long.md").read_text()
    assert "**met**: each fault was played in its slot (2 of 2)" in page
    assert "**met**: a fault explains each failed request (0 failed, 0 without one)" in page
    assert "**met**: all is whole again within 45 s of each fault's end (2 of 2)" in page
    assert "**met**: demo-controller: one life spans the run" in page
    for name in ("us-east-1", "eu-west-1", "ap-northeast-1"):
        assert f"gw-{name}: descriptors at rest are flat" in page
    assert "engine killed: " in done.stderr
