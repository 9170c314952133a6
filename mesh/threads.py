"""Runs work in a thread to its end, even if the caller is cancelled: the work is neither lost nor overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from io import IOBase
from typing import TypeVar

_Result = TypeVar("_Result")


async def finish_in_thread(work: Callable[..., _Result], *arguments: object) -> _Result:
    """Run work to its end in a thread of the event loop's own."""
    return await finish_in(None, work, *arguments)


async def finish_in(threads: Executor | None, work: Callable[..., _Result], *arguments: object) -> _Result:
    """Run work in one of these threads as `asyncio.to_thread` does, which on cancellation leaves a thread running, or
    drops work that has not begun. Here one or more cancellations are passed on as one, once the work is done; its cause
    is the exception of the work, if any, and a file that it has opened is closed. So work that hangs, as on a hung
    disk, delays the cancellation for as long. None: threads of the event loop's own, which look up names as well."""
    done = asyncio.get_running_loop().run_in_executor(threads, partial(work, *arguments))
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        fault = done.exception()
        if fault is None and isinstance(opened := done.result(), IOBase):
            opened.close()
        raise cancelled from fault
    return done.result()
