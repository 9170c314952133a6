"""Lets a signal or a failure stop a run so that its measurements so far are still reported. It ends nothing by
force."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def ends_by_signal(work: Coroutine[None, None, None]) -> bool:
    """Run `work` to its end, or cancel it once on the first SIGINT, SIGTERM or SIGHUP; returns True if a signal ended
    it."""
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
    """Yield the exceptions of a group and of all groups nested in it."""
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each
