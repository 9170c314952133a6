"""Runs a command as a host's service manager does, as `python -m loadgen.hosts.supervised COMMAND ...`: starts it again
after it ended by itself, and ends with it after SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from loadgen.demo.processes import OUR_MODULES

RESTART_S = 1.0
"""Delay before a command is started again."""
_GRACE_S = 4.0
"""Time in which the command ends by the signal that its whole process group has received, before it is told alone."""
RESTARTED = "ended by itself and is started again"
"""Words in the log for each start after the first."""


async def supervise(command: list[str]) -> int:
    """Run the command until SIGTERM; returns the status of its last end."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    status = 0
    while not stop.is_set():
        status = await _ended(command, stop)
        if not stop.is_set():
            sys.stdout.write(f"the command {RESTARTED}: status {status}\n")
            sys.stdout.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(RESTART_S):
                    await stop.wait()
    return status


async def _ended(command: list[str], stop: asyncio.Event) -> int:
    """Run the command until it ends, by itself or by SIGTERM once `stop` is set; returns its status."""
    bound = [*OUR_MODULES, "loadgen.demo.bound_to_parent", str(os.getpid()), *command]
    process = await asyncio.create_subprocess_exec(*bound)
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(_end(process, stop))
        status = await process.wait()
        ending.cancel()
    return status


async def _end(process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    await stop.wait()
    await asyncio.sleep(_GRACE_S)
    with suppress(ProcessLookupError):
        process.terminate()


if __name__ == "__main__":
    sys.exit(asyncio.run(supervise(sys.argv[1:])))
