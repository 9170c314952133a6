"""Lets one task wait until another one wakes it. The waiter carries no data: the woken task looks for the change."""

from __future__ import annotations

import asyncio


class Waiter:
    """Wait of one task at a time. A wake with no task waiting is not kept: look first, then wait."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until `wake`; raise the error that `fail` was given."""
        assert self._future is None, "two tasks wait for one thing"
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        finally:
            self._future = None

    def wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def fail(self, error: BaseException) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)
