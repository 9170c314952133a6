"""Runs a program of ours beside the gateway: it ends with its time, or with whoever waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

_SAID_BYTES_MAX = 2000


class ProcessFailed(Exception):
    """Why nothing came of it, in words."""


async def run_process(command: list[str], timeout_s: float) -> None:
    """Killed once its time is over or nobody waits any more, with all that it has started. Raises ProcessFailed."""
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
