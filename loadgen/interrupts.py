"""Lets a run be stopped by a signal, or by a failure, and still tell what it has measured. It ends nothing by force."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def ends_by_signal(work: Coroutine[None, None, None]) -> bool:
    """Until the work is done or a signal asks for an end, which cancels it once; True for the latter."""
    task = asyncio.current_task()
    assert task is not None
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        await work
    except asyncio.CancelledError:
        if not is_interrupted:
            raise
        task.uncancel()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return is_interrupted


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The failures themselves, out of all groups."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each
