"""A service manager's restarts, with real processes: only they show that signals arrive and that no process remains."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import pytest

from loadgen.hosts.supervised import RESTARTED

_WAIT_S = 20.0
ENDS_IN_ORDER = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
print(os.getpid(), flush=True)
os._exit(3 if signal.sigwait([signal.SIGTERM, signal.SIGUSR1]) is signal.SIGUSR1 else 7)
"""


async def started(program: str) -> Process:
    command = [sys.executable, "-m", "loadgen.hosts.supervised", sys.executable, "-c", program]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, start_new_session=True)


async def line_of(service: Process) -> str:
    assert service.stdout is not None
    return (await service.stdout.readline()).decode().strip()


async def test_a_command_that_ends_by_itself_is_started_again_and_all_end_with_their_group() -> None:
    service = await started(ENDS_IN_ORDER)
    try:
        await check_life(service)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(service.pid, signal.SIGKILL)


async def check_life(service: Process) -> None:
    async with asyncio.timeout(_WAIT_S):
        for number, status in ((signal.SIGUSR1, 3), (signal.SIGKILL, -signal.SIGKILL)):
            os.kill(int(await line_of(service)), number)
            assert await line_of(service) == f"the command {RESTARTED}: status {status}"
        last = int(await line_of(service))
        os.killpg(service.pid, signal.SIGTERM)
        assert await service.wait() == 7, "it ended in order"
        with pytest.raises(ProcessLookupError):
            os.kill(last, 0)
