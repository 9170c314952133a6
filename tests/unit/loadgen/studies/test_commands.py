"""Folders of `--keep` hold one run's files, and a machine's use by others is all use but the study's own."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loadgen.machine import CpuTimes
from loadgen.studies import commands
from loadgen.studies.commands import Machine
from loadgen.studies.long.command import long_run
from loadgen.studies.wan.command import wan


@pytest.mark.parametrize(("own_s", "share"), [(0.0, 0.5), (3.0, 0.2), (9.0, 0.0)])
def test_use_by_others_is_all_but_the_studys_own(monkeypatch: pytest.MonkeyPatch, own_s: float, share: float) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    seen = iter([CpuTimes(5 * ticks, 20 * ticks), CpuTimes(10 * ticks, 30 * ticks)])
    used = iter([0.0, own_s])
    monkeypatch.setattr(commands, "read_cpu_times", lambda _: next(seen))
    monkeypatch.setattr(commands, "_own_cpu_s", lambda: next(used))
    assert Machine().others_share() == pytest.approx(share)


@pytest.mark.parametrize("command", [wan, long_run])
def test_a_folder_to_keep_files_in_that_is_not_empty_is_refused(command: click.Command, tmp_path: Path) -> None:
    (tmp_path / "partition-1").mkdir()
    result = CliRunner().invoke(command, ["--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert f"'{tmp_path}' is not empty" in result.output
