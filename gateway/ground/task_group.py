"""asyncio's group of tasks, for whatever may be stopped while one of its tasks fails; and what cancelled tasks keep."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any, Self, TypeVar

_T = TypeVar("_T")


def forget_cancellation(task: asyncio.Task[Any]) -> None:
    """Callback for a task that is done. One that was cancelled keeps the exception until it is asked for its result,
    and with it every frame that the exception went through. Where one of those knows the task, as each does that has an
    `asyncio.timeout` in a variable, nothing but the garbage collector would free any of them."""
    if task.cancelled():
        with suppress(asyncio.CancelledError):
            task.exception()


class TaskGroup(asyncio.TaskGroup):
    """Who is cancelled in the moment in which a task of the group fails stays cancelled. Python before 3.13 raises the
    failure and forgets the cancellation, so that a loop which outlives such failures would run on after it was stopped,
    and whoever waits for its end would wait for ever.

    Before 3.13 what cancelled the owner must mean it: a timeout around the group in the same task would be raised, and
    the next wait be cancelled all the same.
    """

    _parent_cancel_requested: bool
    """asyncio's own: the group has cancelled its owner by itself, since a task failed."""

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        task = super().create_task(coro, name=name, context=context)
        task.add_done_callback(forget_cancellation)
        return task

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
