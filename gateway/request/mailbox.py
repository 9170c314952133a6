"""One request's orders, and the scopes that its legs run in. It must never decide, nor touch a socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, assert_never

from gateway.core.effects import AcceptForward, EndRequest, RefuseForward, StartLeg, StopLeg
from gateway.core.events import Event, LegEnded, RequestAbandoned
from gateway.core.vocabulary import LegResult, RequestId
from gateway.ground.waiter import Waiter

Order = StartLeg | AcceptForward | RefuseForward | EndRequest
"""What a request's owner is told to do."""


class LegScope:
    """What a leg runs inside, so that it can be broken off from outside: it then leaves with TimeoutError."""

    __slots__ = ("_cancelling", "_handle", "_is_ending", "_task", "is_expired", "is_silent", "is_stopped")

    def __init__(self) -> None:
        self.is_expired = False
        self.is_silent = False
        """It was broken off because nothing went on in it."""
        self.is_stopped = False
        """It was ordered to stop, perhaps before anybody entered it."""
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
        """A cancellation that is not ours passes through."""
        self._forget()
        task, self._task = self._task, None
        assert task is not None
        if self.is_expired and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def stop(self) -> None:
        """Break it off, as soon as the loop comes to it."""
        if self.is_stopped:
            return
        self.is_stopped = True
        if self._task is not None and not self.is_expired:
            self._is_ending = True
            self._forget()
            self._handle = asyncio.get_running_loop().call_soon(self._expire)

    def hurry(self, seconds: float) -> None:
        """Give it this long to end by itself."""
        if not self._is_ending:
            self._is_ending = True
            self._forget()
            self._handle = asyncio.get_running_loop().call_later(seconds, self._expire)

    def watch(self, progress: Callable[[], int], silence_s: float) -> None:
        """Break it off once `progress` has told the same number for this long, and at most twice as long."""
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
    """One request's orders, and the promise that each StartLeg among them is answered by exactly one LegEnded.

    Leaving the context early is the cancellation: legs still open are ended as cancelled, and the request, if the core
    has not ended it, is reported as abandoned.
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
        """The core's last word, once spoken; after an early exit it is still there for the log line."""
        self.refused = False
        self._run_beside: Callable[[StartLeg], None] | None = None
        """Set while the owner runs a leg itself and reads no orders: whoever runs further legs beside it."""
        self._submit = submit
        self._on_closed = on_closed
        self._orders: deque[Order] = deque()
        self._waiter = Waiter()
        self._legs: dict[tuple[int, int], LegScope] = {}
        """Those started and not ended, by attempt and leg."""
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
        """The oldest order not yet read; waits for one. Raises what a leg beside the owner's own has met."""
        while self._error is None and not self._orders:
            await self._waiter.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback knows this mailbox
        return self._orders.popleft()

    def scope_of(self, order: StartLeg) -> LegScope:
        """Run the leg inside this: its StopLeg, or the request's end, breaks it off with TimeoutError."""
        return self._legs[order.attempt, order.leg]

    def busy(self, run_beside: Callable[[StartLeg], None]) -> None:
        """The owner runs a leg itself from now on: those that are not read yet, and those to come, run beside it."""
        self._run_beside = run_beside
        if not self._orders:
            return
        waiting = [order for order in self._orders if isinstance(order, StartLeg)]
        for order in waiting:
            self._orders.remove(order)
            run_beside(order)

    def idle(self) -> None:
        """The owner reads orders again: the next leg is its own to run."""
        self._run_beside = None

    def end_leg(self, ended: LegEnded) -> None:
        """Answer a StartLeg. One that was answered already, since the owner left first, is not answered again."""
        if self._legs.pop((ended.attempt, ended.leg), None) is not None:
            self._submit(ended)

    def fail(self, error: Exception) -> None:
        """A leg beside the owner's own met what ends the request, such as a client that has gone: the owner is told."""
        self._error = error
        self._stop_legs()
        self._waiter.wake()

    def deliver(self, order: Order | StopLeg) -> None:
        """The driver's side: put an order in, and wake or interrupt whom it is about."""
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
