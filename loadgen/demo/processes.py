"""Child processes of the demo, each with a log: started, watched, stopped on every way out. None outlives the demo."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_LOG_TAIL_LINES = 8
_LOG_LINE_MAX = 160
OUR_MODULES = (sys.executable, "-m")


class DemoFailure(Exception):
    """The demo cannot go on; the message gives the reason for the user."""


@dataclass(slots=True, eq=False)
class Child:
    """One process of the demo, in a session of its own so that a Ctrl-C reaches only the demo."""

    name: str
    _process: asyncio.subprocess.Process
    log: Path
    _is_stopping: bool = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def watch(self) -> None:
        """Wait for the child's end; returns if it was stopped, and raises DemoFailure if it ended by itself."""
        status = await self._process.wait()
        if not self._is_stopping:
            raise DemoFailure(f"{self.name} ended by itself with status {status}\n{log_tail(self.log)}")

    async def ended(self) -> int:
        """Wait for the process to end, for any reason; returns its status."""
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`, also when cancelled meanwhile."""
        self._is_stopping = True
        self._signal(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        finally:
            self._signal(signal.SIGKILL)
        await self._process.wait()

    async def kill(self) -> None:
        """Send SIGKILL, as a crash would end the process. The end does not fail the demo."""
        self._is_stopping = True
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def halt(self) -> None:
        """Stop the process (SIGSTOP) while its host still accepts connections, until `go_on` or the end."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the child and its own children."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


@asynccontextmanager
async def running_child(
    name: str,
    arguments: Sequence[str],
    log: Path,
    tasks: asyncio.TaskGroup,
    *,
    runner: Sequence[str] = OUR_MODULES,
    grace_s: float = 5.0,
    is_vital: bool = True,
) -> AsyncIterator[Child]:
    """Run a Python module, or the program of `runner`, with these arguments; its output is appended to `log`. A
    premature end fails `tasks` if `is_vital`."""
    command = [*OUR_MODULES, "loadgen.demo.bound_to_parent", str(os.getpid()), *runner, *arguments]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    child = Child(name, process, log)
    watch = tasks.create_task(child.watch()) if is_vital else None
    try:
        yield child
    finally:
        await child.stop(grace_s)
        if watch is not None:
            watch.cancel()


def log_tail(log: Path) -> str:
    """Last lines of a log, under its name."""
    lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:] or ["(empty)"]
    return "\n".join([f"{log}:", *(f"  {line[:_LOG_LINE_MAX]}" for line in lines)])
