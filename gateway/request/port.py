"""Interface between a request and the driver that it lives in: a live gateway's or the simulator's.

A request reads no clock, sets no timer of its own and never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.core.events import Event
from gateway.core.kernel.effects import AcceptForward, EndRequest, RefuseForward, StartLeg, StopLeg, TakeBackLeg
from gateway.core.kernel.events import ForwardArrived, RequestArrived
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import RequestId
from gateway.request.progress import ProgressBoard

Order = StartLeg | StopLeg | TakeBackLeg | AcceptForward | RefuseForward | EndRequest
"""Effect of the core that concerns one request."""


class PortTimer(Protocol):
    def cancel(self) -> None: ...


class OpenRequest(Protocol):
    """Request that a driver delivers effects to."""

    def on_effect(self, effect: Order) -> None: ...

    def report(self) -> None:
        """Hand over the finished request to its recorders."""
        ...


class Port(Protocol):
    """Driver, as one of its requests sees it."""

    @property
    def progress(self) -> ProgressBoard: ...

    def post(self, event: Event, /) -> None:
        """Submit an event. It is handled after the current input: no effect arrives before the caller returns."""
        ...

    def now_ns(self) -> int: ...

    def after(self, delay_s: float, act: Callable[[], None]) -> PortTimer:
        """Call `act` once, in so many seconds, unless the timer is cancelled."""
        ...

    def is_open(self, request_id: RequestId) -> bool:
        """Return true if a request of this id is open here once all that was submitted has been handled: a forward that
        was cancelled and comes again may arrive together with its cancellation."""
        ...

    def begin(self, request: OpenRequest, arrival: RequestArrived | ForwardArrived) -> None:
        """Open a request and submit its arrival at once: its first effects arrive before this returns."""
        ...

    def arrived(self) -> RequestRecord | None:
        """Record of the request that arrived last; None after a crash of the core."""
        ...

    def over(self, request_id: RequestId, request: OpenRequest) -> None:
        """Close a request, which gets no further effect, and call its `report` once its last step is complete."""
        ...

    def keep(self, record: RequestRecord) -> None:
        """Keep the record of an open request, for observers."""
        ...

    def done(self, record: RequestRecord) -> None:
        """Let go of the record of a request that was reported."""
        ...
