"""The demo as whoever tries Nightside meets it: real processes, a short run of either kind, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.demo.main import EXIT_INTERRUPTED, compare_runs
from loadgen.demo.scenario import DemoScenario
from loadgen.workload import Spread, WorkloadConfig

SHORT = WorkloadConfig(
    system_prompt_words=40,
    output_tokens=Spread(median=20, sigma=0.3, minimum=8, maximum=40),
    think_s=Spread(median=0.1, sigma=0.1, minimum=0.1, maximum=0.2),
)


def small_scenario(load_s: float) -> DemoScenario:
    """One little engine in each region, and more clients in the first than it can take at once."""
    base = DemoScenario()
    clients = (12, 2, 1)
    regions = tuple(replace(each, clients=count, engines=1) for each, count in zip(base.regions, clients, strict=True))
    return replace(base, regions=regions, preset="tiny", slots=4, load_s=load_s, drain_s=5.0, workload=SHORT)


@pytest.fixture(autouse=True)
def logs_go_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
