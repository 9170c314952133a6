"""Group of asyncio tasks that keeps a cancellation which arrives as one of its tasks fails, and releases what cancelled
tasks would keep.
"""

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
    """Callback that frees the exception of a cancelled task. Such a task keeps the exception until its result is read,
    and with it every frame that the exception passed through. Where one of those frames knows the task, as each does
    that has an `asyncio.timeout` in a variable, only the garbage collector would free them."""
    if task.cancelled():
        with suppress(asyncio.CancelledError):
            task.exception()


class TaskGroup(asyncio.TaskGroup):
    """Task group whose owner stays cancelled where it is cancelled in the moment in which a task of the group fails.
    Python before 3.13 raises the failure and forgets the cancellation, so that a loop which survives such failures
    would run on after it was stopped, and a caller that waits for its end would wait for ever.

    Before 3.13 the owner's cancellation must be meant as one: a time-out around the group in the same task would be
    raised, and the next wait be cancelled all the same.
    """

    _parent_cancel_requested: bool
    """Attribute of asyncio: the group has cancelled its owner by itself, since a task failed."""

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        given: Any = coro  # asyncio takes a generator up to Python 3.12
        task: asyncio.Task[_T] = super().create_task(given, name=name, context=context)
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
        """Cancel the owner again, so that its next wait raises the cancellation."""
        owner = self._owner
        if self._parent_cancel_requested and not is_taken_back:
            owner.uncancel()  # asyncio's own cancellation, which came while the owner waited for the other tasks to end
        if owner.cancelling() > self._cancelling_before:
            owner.uncancel()
            owner.cancel()
