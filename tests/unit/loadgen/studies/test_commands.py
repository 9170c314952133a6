"""A machine's use by others is all use but that of the study and of the processes that it has started."""

from __future__ import annotations

import os

import pytest

from loadgen.machine import CpuTimes
from loadgen.studies import commands
from loadgen.studies.commands import Machine


@pytest.mark.parametrize(("own_s", "share"), [(0.0, 0.5), (3.0, 0.2), (9.0, 0.0)])
def test_use_by_others_is_all_but_the_studys_own(monkeypatch: pytest.MonkeyPatch, own_s: float, share: float) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    seen = iter([CpuTimes(5 * ticks, 20 * ticks), CpuTimes(10 * ticks, 30 * ticks)])
    used = iter([0.0, own_s])
    monkeypatch.setattr(commands, "read_cpu_times", lambda _: next(seen))
    monkeypatch.setattr(commands, "_own_cpu_s", lambda: next(used))
    assert Machine().others_share() == pytest.approx(share)
