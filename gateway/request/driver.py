"""Driver of a live gateway's core: performs its effects in real time and delivers them to the open requests.

It decides nothing. A leg is started before observers see the step, and a finished request is reported after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from gateway.core.events import Event
from gateway.core.kernel.effects import Effect, EndRequest, PublishLoad, RecordShadow, SampleProgress, StartLeg
from gateway.core.kernel.events import ForwardArrived, LegEnded, ProgressSampled, RequestArrived, TimePassed
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import LegResult, LoadReport, Outcome, RequestId
from gateway.request.port import OpenRequest, PortTimer
from gateway.request.progress import ProgressBoard
from mesh.clock import Clock
from mesh.pump import TAIL_STEPS_DEFAULT, Pump
from mesh.steps import Core, Crash, Observer, Step, Subscriptions

_UNTOLD_STEPS_MAX = 256
"""Most steps that wait for the observers when a request arrives; the pump itself tells them at twice as many."""

GatewayStep: TypeAlias = Step[Event, Effect]
GatewayCrash: TypeAlias = Crash[Event, Effect]
GatewayObserver: TypeAlias = Observer[Event, Effect]
GatewaySubscriptions: TypeAlias = Subscriptions[Event, Effect]


class RecordingCore(Core[Event, Effect], Protocol):
    """Core that the driver runs."""

    @property
    def arrived(self) -> RequestRecord | None:
        """Record of the request that arrived last."""
        ...


class Driver(Pump[Event, Effect]):
    """Pump of a `GatewayCore`, and the `Port` of its requests. All calls come from one event loop's thread."""

    def __init__(
        self,
        core: RecordingCore,
        clock: Clock,
        *,
        observers: Iterable[GatewayObserver] = (),
        on_crash: Callable[[GatewayCrash], None] | None = None,
        tail_steps: int = TAIL_STEPS_DEFAULT,
        requests: dict[RequestId, RequestRecord] | None = None,
    ) -> None:
        """`requests` takes the records of the requests that are not reported yet."""
        super().__init__(core, clock, TimePassed(), observers=observers, on_crash=on_crash, tail_steps=tail_steps)
        self._arrivals = core
        self.requests: dict[RequestId, RequestRecord] = {} if requests is None else requests
        """Records of the requests that are not reported yet; of two with the same id, the later one."""
        self.now_ns = clock.now_ns
        self._publish: Callable[[LoadReport], None] | None = None
        self._open: dict[RequestId, OpenRequest] = {}
        self._finished: list[OpenRequest] = []
        """Requests that are over and not reported yet."""
        self.progress = ProgressBoard()

    @property
    def open_requests(self) -> int:
        """Requests that are not reported yet."""
        return len(self._open) + len(self._finished)

    def on_publish(self, publish: Callable[[LoadReport], None]) -> None:
        """Register the sender of heartbeats. There is one; the last registered counts."""
        self._publish = publish

    # Port of the requests

    def is_open(self, request_id: RequestId) -> bool:
        if request_id in self._open:
            self.run()  # posted events may end it
        return request_id in self._open

    def begin(self, request: OpenRequest, arrival: RequestArrived | ForwardArrived) -> None:
        request_id = arrival.profile.request_id
        self._open[request_id] = request
        if self.crash is not None:
            request.on_effect(_end_after_crash(request_id))
            return
        if request_id in self.requests or len(self._untold) >= _UNTOLD_STEPS_MAX:
            self.tell_observers()  # observers find the record of each step's request: not a later one of the same id
        self.submit(arrival)

    def arrived(self) -> RequestRecord | None:
        return None if self.crash is not None else self._arrivals.arrived

    def keep(self, record: RequestRecord) -> None:
        self.requests[record.request_id] = record

    def over(self, request_id: RequestId, request: OpenRequest) -> None:
        if self._open.get(request_id) is request:
            del self._open[request_id]
        self._finished.append(request)
        if len(self._finished) == 1:
            asyncio.get_running_loop().call_soon(self.report)

    def done(self, record: RequestRecord) -> None:
        if self.requests.get(record.request_id) is record:
            del self.requests[record.request_id]

    def after(self, delay_s: float, act: Callable[[], None]) -> PortTimer:
        return asyncio.get_running_loop().call_later(delay_s, self._act, act)

    def _act(self, act: Callable[[], None]) -> None:
        act()
        self.run()

    # Pump

    def close(self) -> None:
        """Report the requests that have just finished, then close as the pump does."""
        self.report()
        super().close()

    def report(self) -> None:
        """Hand over the finished requests, once the observers have seen all their steps."""
        self.tell_observers()
        finished, self._finished = self._finished, []
        for request in finished:
            request.report()

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, PublishLoad):
            if self._publish is not None:
                self._publish(effect.report)
            return
        if isinstance(effect, RecordShadow):
            return  # only the observers record it
        if isinstance(effect, SampleProgress):
            self.post(ProgressSampled(effect.pool, self.progress.sample(effect.pool)))
            return
        request = self._open.get(effect.request_id)
        if request is not None:
            request.on_effect(effect)
        elif isinstance(effect, StartLeg):
            detail = "the owner has gone"
            self.post(LegEnded(effect.request_id, effect.attempt, effect.leg, LegResult.CANCELLED, detail=detail))

    def stopped(self) -> None:
        for request_id, request in tuple(self._open.items()):
            request.on_effect(_end_after_crash(request_id))


def _end_after_crash(request_id: RequestId) -> EndRequest:
    detail = "this gateway met an error of its own and restarts"
    return EndRequest(request_id, Outcome.FAILED_BEFORE_FIRST_BYTE, detail, attempts=0)
