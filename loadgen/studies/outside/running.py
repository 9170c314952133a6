"""Runs a tool of another project as it is, in a folder of its own and with a deadline."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadgen.demo.processes import DemoFailure, running_child
from loadgen.studies.outside.readings import LOG
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000
_PLAIN = ("NO_COLOR=1", "TERM=dumb", "COLUMNS=160", "NO_PROXY=*", "no_proxy=*", "HF_HUB_OFFLINE=1")
"""Environment of every tool: what it prints has no colours, no proxy stands between it and the gateways, and it asks
Hugging Face's hub for nothing that is not in its cache."""


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """End of one run."""

    status: int | None
    """Exit status; None: it was ended at its deadline."""
    took_s: float


async def run_tool(
    command: Sequence[str], folder: Path, deadline_s: float, tasks: asyncio.TaskGroup, hub: Path | None = None
) -> ToolEnd:
    """Run the command in the folder, which exists; what it prints is in the file `LOG` there. Processes of its group
    that it leaves behind are killed. `hub`: cache of Hugging Face's hub. Raises DemoFailure."""
    env = shutil.which("env")
    if env is None:
        raise DemoFailure("the program `env` is not installed")
    clock, status = Clock(), None
    began_ns = clock.now_ns()
    runner = (env, f"--chdir={folder}", *_PLAIN, *([f"HF_HUB_CACHE={hub}"] if hub is not None else []))
    child = None
    try:
        async with running_child(command[0], command, folder / LOG, tasks, runner=runner, is_vital=False) as child:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    status = await child.ended()
    finally:
        if child is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return ToolEnd(status, (clock.now_ns() - began_ns) / _SECOND_NS)
