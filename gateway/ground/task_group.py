"""asyncio's group of tasks, for whatever may be stopped while one of its tasks fails."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self


class TaskGroup(asyncio.TaskGroup):
    """Who is cancelled in the moment in which a task of the group fails stays cancelled. Python before 3.13 raises the
    failure and forgets the cancellation, so that a loop which outlives such failures would run on after it was stopped,
    and whoever waits for its end would wait for ever.

    Before 3.13 what cancelled the owner must mean it: a timeout around the group in the same task would be raised, and
    the next wait be cancelled all the same.
    """

    _parent_cancel_requested: bool
    """asyncio's own: the group has cancelled its owner by itself, since a task failed."""

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a group is entered in a task"
        self._owner, self._cancelling_before = task, task.cancelling()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_taken_back = self._parent_cancel_requested
        try:
            await super().__aexit__(kind, error, traceback)
        except BaseExceptionGroup:
            if sys.version_info < (3, 13):
                self._cancel_again(is_taken_back=is_taken_back)
            raise

    def _cancel_again(self, *, is_taken_back: bool) -> None:
        """So that the next wait raises it."""
        owner = self._owner
        if self._parent_cancel_requested and not is_taken_back:
            owner.uncancel()  # the group's own, which came while the owner waited for the others' end
        if owner.cancelling() > self._cancelling_before:
            owner.uncancel()
            owner.cancel()
