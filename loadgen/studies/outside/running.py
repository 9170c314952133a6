"""Runs a tool of another project as it is, in a folder of its own and with a deadline."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.demo.processes import DemoFailure, running_child
from loadgen.studies.outside.tools import LOG
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_PLAIN = ("NO_COLOR=1", "TERM=dumb", "COLUMNS=160")
"""Environment of every tool: what it prints has no colours."""


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """End of one run."""

    status: int | None
    """Exit status; None: it was ended at its deadline."""
    took_s: float


async def run_tool(command: Sequence[str], folder: Path, deadline_s: float, tasks: asyncio.TaskGroup) -> ToolEnd:
    """Run the command in the folder, which exists; what it prints is in the file `LOG` there. Raises DemoFailure."""
    env = shutil.which("env")
    if env is None:
        raise DemoFailure("the program `env` is not installed")
    clock, status = Clock(), None
    began_ns = clock.now_ns()
    runner = (env, f"--chdir={folder}", *_PLAIN)
    async with running_child(command[0], command, folder / LOG, tasks, runner=runner, is_vital=False) as child:
        try:
            async with asyncio.timeout(deadline_s):
                status = await child.ended()
        except TimeoutError:
            pass
    return ToolEnd(status, (clock.now_ns() - began_ns) / _SECOND_NS)
