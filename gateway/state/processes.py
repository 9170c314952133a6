"""Runs a program of this project beside the gateway, until its time-out or until the caller is cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

_SAID_BYTES_MAX = 2000


class ProcessFailed(Exception):
    """The program failed; the message says why."""


async def run_process(command: list[str], timeout_s: float) -> None:
    """Run a command. It is killed with all that it has started when its time is over or the caller is cancelled. Raises
    ProcessFailed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    said = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            assert process.stderr is not None, "it was asked for"
            while chunk := await process.stderr.read(4096):
                said += chunk
                del said[:-_SAID_BYTES_MAX]
            status = await process.wait()
    except TimeoutError:
        raise ProcessFailed(f"it took longer than {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if status:
        raise ProcessFailed(f"exit status {status}: {said.decode(errors='replace').strip()}")
