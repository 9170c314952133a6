"""Work for a thread that nobody may overtake or lose, also when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

_Result = TypeVar("_Result")


async def finish_in_thread(work: Callable[..., _Result], *arguments: object) -> _Result:
    """As `asyncio.to_thread`, which on cancellation leaves a thread running, or drops work that it had yet to begin.

    Here cancellations, however many, are passed on as one, once the work is done: its cause is what the work raised,
    if it did. So work that hangs, as on a hung disk, holds up whoever cancels for as long.
    """
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
