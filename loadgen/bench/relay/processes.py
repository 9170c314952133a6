"""Starts the bench's processes, each on its core and with a log, and stops them on every way out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from loadgen.demo.processes import Child, log_tail

_ENGINE_START_S = 20.0
_GRACE_S = 3.0


class BenchFailure(Exception):
    """The bench, or one relay's part in it, cannot go on; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Command:
    """One process: its name in figures, its arguments, and its core."""

    name: str
    arguments: Sequence[str]
    core: int


@asynccontextmanager
async def running(command: Command, log: Path, *, is_piped: bool = False) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the process until the context is left. Its output goes to the log, unless it is piped to the caller."""
    pinned = [sys.executable, "-m", "loadgen.bench.relay.pinned", str(command.core), str(os.getpid())]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *pinned,
            *command.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if is_piped else file,
            stderr=file,
            start_new_session=True,
        )
    child = Child(command.name, process, log)
    try:
        yield process
    finally:
        await child.stop(_GRACE_S)


@asynccontextmanager
async def running_engines(count: int, core: int, folder: Path) -> AsyncIterator[list[int]]:
    """Run engines in one process; yields their ports. Raises BenchFailure."""
    log = folder / "engines.log"
    command = Command("engines", [sys.executable, "-m", "loadgen.bench.relay.engine", str(count)], core)
    async with running(command, log, is_piped=True) as process:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_ENGINE_START_S):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise BenchFailure(f"the engines did not start\n{log_tail(log)}")
        yield list(json.loads(line))
