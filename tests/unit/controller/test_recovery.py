from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Coroutine
from pathlib import Path

from controller.config import RecoveryConfig, RecoveryKind
from controller.core.effects import StartRecovery
from controller.lease import Lease
from controller.recovery import Recovery
from gateway.core.vocabulary import GatewayId, RegionName
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.clock import StillClock
from tests.support.gateways import until

WRITES = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + '\\n')"


class Started:
    """A recovery with its tasks, and the end of each."""

    def __init__(self, tasks: asyncio.TaskGroup, *command: str, **more: object) -> None:
        self.ended: list[str] = []
        self.lease = Lease(StillClock(), 1, None)
        self.stream = io.StringIO()
        self.running: list[asyncio.Task[None]] = []
        config = RecoveryConfig(RecoveryKind.COMMAND, command, **more)  # type: ignore[arg-type] # a test's own words

        def start(work: Coroutine[None, None, None]) -> None:
            self.running.append(tasks.create_task(work))

        log = make_logger(LoggingConfig(LogFormat.JSON), "ctl", self.stream)
        self.recovery = Recovery(
            config, lambda _: RegionName("us-east-1"), start, log, lease=self.lease, on_end=self.ended.append
        )

    def begin(self, name: str = "us-1", why: str = "silence; rm -rf /") -> None:
        self.recovery.begin(StartRecovery(GatewayId(name), why))


async def test_a_command_is_told_what_died_as_arguments_and_no_shell_reads_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with asyncio.TaskGroup() as tasks:
        started = Started(tasks, sys.executable, "-c", WRITES, str(out), "{gateway}", "{region}", "{why}", "a{gateway}")
        started.begin()
    assert out.read_text() == "us-1 us-east-1 silence; rm -rf / a{gateway}\n"
    assert started.ended == ["done"]
    assert [line["event"] for line in map(json.loads, started.stream.getvalue().splitlines())] == [
        "recovery_started",
        "recovery_completed",
    ]


async def test_one_that_fails_says_so_with_the_end_of_its_words() -> None:
    async with asyncio.TaskGroup() as tasks:
        started = Started(tasks, sys.executable, "-c", "print('x' * 100_000); print('no quota'); raise SystemExit(3)")
        started.begin()
        missing = Started(tasks, "/nothing/there")
        missing.begin()
    assert started.ended == missing.ended == ["failed"]
    assert "no quota" in started.stream.getvalue()
    assert [line["event"] for line in map(json.loads, started.stream.getvalue().splitlines())] == [
        "recovery_started",
        "recovery_failed",
    ]
    assert len(started.stream.getvalue()) < 5_000


async def test_an_unexpected_exception_is_a_failed_recovery_and_ends_nothing_else() -> None:
    def fail(_: GatewayId) -> RegionName:
        raise ValueError("a bug")

    async with asyncio.TaskGroup() as tasks:
        started = Started(tasks, "x")
        started.recovery._region_of = fail
        started.begin()
    assert started.ended == ["failed"]
    (line,) = map(json.loads, started.stream.getvalue().splitlines())
    assert (line["event"], line["reason"]) == ("recovery_failed", "unexpected: ValueError('a bug')")
    assert started.recovery.under_way == set()


async def test_one_that_hangs_is_killed_with_all_that_it_began() -> None:
    hangs = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    async with asyncio.TaskGroup() as tasks:
        started = Started(tasks, sys.executable, "-c", hangs, timeout_ns=300_000_000)
        started.begin()
    assert started.ended == ["timed_out"], "its output stays open as long as anything of it lives"


async def test_a_gateway_never_has_two_and_so_many_run_at_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"import os, sys, time\nopen({str(tmp_path)!r} + '/' + sys.argv[1], 'w')\n"
    waits += f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    async with asyncio.TaskGroup() as tasks:
        started = Started(tasks, sys.executable, "-c", waits, "{gateway}", running_max=1)
        started.begin("one")
        started.begin("one")
        started.begin("two")
        assert len(started.running) == 2
        await until((tmp_path / "one").exists)
        assert not (tmp_path / "two").exists()
        gate.touch()
    assert started.ended == ["done", "done"]
    assert (tmp_path / "two").exists()


async def test_none_starts_nothing() -> None:
    async with asyncio.TaskGroup() as tasks:
        started = Started(tasks, "x")
        started.recovery.configure(RecoveryConfig())
        started.begin()
        assert started.running == []


async def test_one_who_leads_no_more_begins_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with asyncio.TaskGroup() as tasks:
        started = Started(tasks, sys.executable, "-c", WRITES, str(out), "{gateway}")
        started.lease.end()
        started.begin()
    assert (started.ended, out.exists()) == ([], False)
    (line,) = map(json.loads, started.stream.getvalue().splitlines())
    assert (line["event"], line["level"], line["gateway"]) == ("recovery_skipped", "info", "us-1")
    assert line["reason"].startswith("the lease lasts 0.0 s")
