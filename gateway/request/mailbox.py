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

Order = StartLeg | StopLeg | AcceptForward | RefuseForward | EndRequest
"""An effect that belongs to one request."""


class LegScope:
    """What a leg runs inside, so that it can be broken off from outside: it then leaves with TimeoutError."""

    __slots__ = ("_cancelling", "_handle", "_is_ending", "_task", "is_expired", "is_silent")

    def __init__(self) -> None:
        self.is_expired = False
        self.is_silent = False
        """It was broken off because nothing went on in it."""
        self._is_ending = False
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "an owner runs in a task"
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A cancellation that is not ours passes through."""
        self._forget()
        if self.is_expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def interrupt(self) -> None:
        """Break it off, as soon as the loop comes to it."""
        if not self.is_expired:
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
        self.is_expired = True
        self._task.cancel()


class Mailbox:
    """One request's orders, and the promise that each StartLeg among them is answered by exactly one LegEnded.

    Leaving the context early is the cancellation: attempts still open are ended as cancelled, and the request, if the
    core has not ended it, is reported as abandoned.
    """

    __slots__ = (
        "_attempts",
        "_on_closed",
        "_orders",
        "_running",
        "_scope",
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
        self._submit = submit
        self._on_closed = on_closed
        self._orders: deque[Order] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._scope: LegScope | None = None
        self._running = 0
        self._attempts: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._attempts:
            self.end_attempt(cancelled(self.request_id, self._attempts[0], "the owner left"))
        if self.end is None and not self.refused:
            self._submit(RequestAbandoned(self.request_id))
        self._on_closed(self)

    async def next(self) -> Order:
        """The oldest order not yet read; waits for one."""
        while not self._orders:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._orders.popleft()

    def leg_scope(self, attempt: int) -> LegScope:
        """Run a leg inside this: its StopLeg, or the request's end, breaks it off with TimeoutError. One at a time."""
        assert self._scope is None, f"attempt {self._running} still runs"
        self._running = attempt
        self._scope = LegScope()
        return self._scope

    def hurry(self, seconds: float) -> None:
        """Give the running leg this long to finish by itself. Only from inside its scope."""
        if self._scope is not None:
            self._scope.hurry(seconds)

    def watch(self, progress: Callable[[], int], silence_s: float) -> None:
        """Break the running leg off when it makes no progress. Only from inside its scope."""
        if self._scope is not None:
            self._scope.watch(progress, silence_s)

    def end_attempt(self, ended: LegEnded) -> None:
        """Answer a StartLeg. The leg's scope is over."""
        self._scope = None
        self._attempts.remove(ended.attempt)
        self._submit(ended)

    def deliver(self, order: Order) -> None:
        """The driver's side: put an order in, and wake or interrupt the owner."""
        match order:
            case StartLeg():
                self._attempts.append(order.attempt)
            case StopLeg():
                if order.attempt == self._running:
                    self._interrupt()
            case EndRequest():
                self.end = order
                self._interrupt()
            case RefuseForward():
                self.refused = True
            case AcceptForward():
                pass
            case _:
                assert_never(order)
        self._orders.append(order)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _interrupt(self) -> None:
        if self._scope is not None:
            self._scope.interrupt()


def cancelled(request_id: RequestId, attempt: int, detail: str) -> LegEnded:
    return LegEnded(request_id, attempt, 1, LegResult.CANCELLED, detail=detail)
