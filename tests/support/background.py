"""Runs a coroutine beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def in_background(work: Coroutine[object, object, object]) -> AsyncIterator[None]:
    """Run `work` as a task, which is cancelled at the end of the block; if it fails, so does the block."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        yield
        task.cancel()
