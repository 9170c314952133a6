"""The demo's child processes: their logs, their premature ends, and that none outlives the demo."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.demo.processes import DemoFailure, running_child

READY_THEN_WAIT = """
import pathlib, sys, threading
pathlib.Path(sys.argv[1]).touch()
threading.Event().wait()
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + READY_THEN_WAIT


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module whose text a test writes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return "child_of_the_test"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process, which tells us nothing
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_ends_when_we_are_done_with_it(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(READY_THEN_WAIT)
    async with asyncio.TaskGroup() as tasks:
        async with running_child("it", [module, str(tmp_path / "ready")], tmp_path / "log", tasks) as child:
            await until((tmp_path / "ready").exists)
            assert is_alive(child.pid)
        assert not is_alive(child.pid)


async def test_a_deaf_child_is_killed(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(DEAF)
    arguments = [module, str(tmp_path / "ready")]
    async with asyncio.TaskGroup() as tasks:
        async with running_child("it", arguments, tmp_path / "log", tasks, grace_s=0.1) as child:
            await until((tmp_path / "ready").exists)
        assert not is_alive(child.pid)


async def test_a_child_that_ends_by_itself_fails_everything_and_shows_its_last_words(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / f"{module}.py").write_text("raise SystemExit('no engine here')")
    with pytest.RaisesGroup(
        pytest.RaisesExc(DemoFailure, match=r"(?s)it ended by itself with status 1.*no engine here")
    ):
        async with asyncio.TaskGroup() as tasks, running_child("it", [module], tmp_path / "log", tasks):
            await asyncio.Event().wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text(READY_THEN_WAIT)
    (tmp_path / "parent.py").write_text(
        f"""
import asyncio, pathlib
from loadgen.demo.processes import running_child

async def main():
    folder = pathlib.Path({str(tmp_path)!r})
    async with asyncio.TaskGroup() as tasks:
        async with running_child("it", [{module!r}, str(folder / "ready")], folder / "log", tasks) as child:
            (folder / "pid.tmp").write_text(str(child.pid))
            (folder / "pid.tmp").rename(folder / "pid")
            await asyncio.Event().wait()

asyncio.run(main())
"""
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-m", "parent")
    try:
        await until((tmp_path / "ready").exists)
        await until((tmp_path / "pid").exists)
    finally:
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
    child_pid = int((tmp_path / "pid").read_text())
    await until(lambda: not is_alive(child_pid))
