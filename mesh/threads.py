"""Runs work in a thread to its end, even if the caller is cancelled: the work is neither lost nor overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

_Result = TypeVar("_Result")


async def finish_in_thread(work: Callable[..., _Result], *arguments: object) -> _Result:
    """Run work as `asyncio.to_thread` does, which on cancellation leaves a thread running, or drops work that has not
    begun. Here one or more cancellations are passed on as one, once the work is done; its cause is the exception of the
    work, if any. So work that hangs, as on a hung disk, delays the cancellation for as long."""
    done = asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from done.exception()
    return done.result()
