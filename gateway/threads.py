"""Work for a thread that nobody may overtake or lose, also when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

_Result = TypeVar("_Result")


async def finish_in_thread(work: Callable[..., _Result], *arguments: object) -> _Result:
    """As `asyncio.to_thread`, which on cancellation leaves a thread running, or drops work that it had yet to begin.

    Here a cancellation is passed on once the work is done.
    """
    done = asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise
