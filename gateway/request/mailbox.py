"""Mailbox of one request: the core's orders for its owner, and the scopes that its legs run in. It never decides and
never touches a socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, assert_never

from gateway.core.events import Event
from gateway.core.kernel.effects import AcceptForward, EndRequest, RefuseForward, StartLeg, StopLeg
from gateway.core.kernel.events import LegEnded, RequestAbandoned
from gateway.core.vocabulary import LegResult, RequestId
from mesh.waiter import Waiter

Order = StartLeg | AcceptForward | RefuseForward | EndRequest
"""Order of the core to a request's owner."""


class LegScope:
    """Context of a leg, through which it can be stopped from outside: the leg then leaves with TimeoutError."""

    __slots__ = ("_cancelling", "_handle", "_is_ending", "_task", "is_expired", "is_silent", "is_stopped")

    def __init__(self) -> None:
        self.is_expired = False
        self.is_silent = False
        """True if the leg was stopped because no progress was made."""
        self.is_stopped = False
        """True if the leg was ordered to stop, perhaps before its context was entered."""
        self._is_ending = False
        self._handle: asyncio.Handle | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a leg runs in a task"
        assert not self.is_stopped, "what was stopped before it began is not begun"
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Turn this scope's own cancellation into TimeoutError; any other passes through."""
        self._forget()
        task, self._task = self._task, None
        assert task is not None
        if self.is_expired and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def stop(self) -> None:
        """Stop the leg in the next iteration of the event loop."""
        if self.is_stopped:
            return
        self.is_stopped = True
        if self._task is not None and not self.is_expired:
            self._is_ending = True
            self._forget()
            self._handle = asyncio.get_running_loop().call_soon(self._expire)

    def hurry(self, seconds: float) -> None:
        """Stop the leg after this many seconds unless it has ended."""
        if not self._is_ending:
            self._is_ending = True
            self._forget()
            self._handle = asyncio.get_running_loop().call_later(seconds, self._expire)

    def watch(self, progress: Callable[[], int], silence_s: float) -> None:
        """Stop the leg once `progress` has returned the same number for this long; it may take up to twice as long."""
        if not self._is_ending:
            self._forget()
            look = partial(self._look, progress, progress(), silence_s)
            self._handle = asyncio.get_running_loop().call_later(silence_s, look)

    def _look(self, progress: Callable[[], int], seen: int, silence_s: float) -> None:
        if progress() == seen:
            self.is_silent = True
            self._expire()
        else:
            self.watch(progress, silence_s)

    def _forget(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _expire(self) -> None:
        assert self._task is not None
        self.is_expired = True
        self._task.cancel()


class Mailbox:
    """Queue of one request's orders, with the guarantee that each StartLeg is answered by exactly one LegEnded.

    Leaving the context early cancels: legs still open are ended as cancelled, and the request, if the core has not
    ended it, is reported as abandoned.
    """

    __slots__ = (
        "_error",
        "_legs",
        "_on_closed",
        "_orders",
        "_run_beside",
        "_submit",
        "_waiter",
        "end",
        "refused",
        "request_id",
    )

    def __init__(
        self, request_id: RequestId, submit: Callable[[Event], None], on_closed: Callable[[Mailbox], None]
    ) -> None:
        self.request_id = request_id
        self.end: EndRequest | None = None
        """Core's final order; after an early exit it is still there for the log line."""
        self.refused = False
        self._run_beside: Callable[[StartLeg], None] | None = None
        """Callback that runs further legs while the owner runs a leg itself and reads no orders."""
        self._submit = submit
        self._on_closed = on_closed
        self._orders: deque[Order] = deque()
        self._waiter = Waiter()
        self._legs: dict[tuple[int, int], LegScope] = {}
        """Legs started and not ended, by attempt and leg."""
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._legs:
            attempt, leg = next(iter(self._legs))
            self.end_leg(cancelled(self.request_id, attempt, leg, "the owner left"))
        if self.end is None and not self.refused:
            self._submit(RequestAbandoned(self.request_id))
        self._on_closed(self)

    async def next(self) -> Order:
        """Return the oldest unread order, waiting for one. Raises the error of a leg that runs beside the owner's
        own."""
        while self._error is None and not self._orders:
            await self._waiter.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the error's traceback refers to this mailbox
        return self._orders.popleft()

    def scope_of(self, order: StartLeg) -> LegScope:
        """Return the scope to run the leg in: its StopLeg, or the request's end, stops it with TimeoutError."""
        return self._legs[order.attempt, order.leg]

    def busy(self, run_beside: Callable[[StartLeg], None]) -> None:
        """Note that the owner runs a leg itself: unread and later StartLegs are run beside it."""
        self._run_beside = run_beside
        if not self._orders:
            return
        waiting = [order for order in self._orders if isinstance(order, StartLeg)]
        for order in waiting:
            self._orders.remove(order)
            run_beside(order)

    def idle(self) -> None:
        """Note that the owner reads orders again: the next leg is its own to run."""
        self._run_beside = None

    def end_leg(self, ended: LegEnded) -> None:
        """Answer a StartLeg. One that was already answered, because the owner left first, is not answered again."""
        if self._legs.pop((ended.attempt, ended.leg), None) is not None:
            self._submit(ended)

    def fail(self, error: Exception) -> None:
        """Pass on an error that ends the request, such as a client that has gone, from a further leg to the owner."""
        self._error = error
        self._stop_legs()
        self._waiter.wake()

    def deliver(self, order: Order | StopLeg) -> None:
        """Accept an order from the driver, and wake the owner or interrupt the leg concerned."""
        match order:
            case StartLeg():
                self._legs[order.attempt, order.leg] = LegScope()
                if self._run_beside is not None:
                    self._run_beside(order)
                    return
            case StopLeg():
                if (scope := self._legs.get((order.attempt, order.leg))) is not None:
                    scope.stop()
                return
            case EndRequest():
                self.end = order
                self._stop_legs()
            case RefuseForward():
                self.refused = True
            case AcceptForward():
                pass
            case _:
                assert_never(order)
        self._orders.append(order)
        self._waiter.wake()

    def _stop_legs(self) -> None:
        for scope in self._legs.values():
            scope.stop()


def cancelled(request_id: RequestId, attempt: int, leg: int, detail: str) -> LegEnded:
    return LegEnded(request_id, attempt, leg, LegResult.CANCELLED, detail=detail)
