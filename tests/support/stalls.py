"""Stalls of this process, as its event loop sees them: time passes from one turn to the next, and nothing runs."""

from __future__ import annotations

import asyncio


def stall(duration_s: float) -> None:
    """Let time pass on the running event loop's clock: timers that were not due before this turn are overdue in the
    next."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + duration_s  # type: ignore[method-assign]
