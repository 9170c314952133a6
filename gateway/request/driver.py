"""Driver of a live gateway's core: performs its effects in real time and holds a mailbox for each open request.

It decides nothing, and it starts a leg before observers see the step. It has the record of each request until the
request's owner is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from gateway.core.events import Event
from gateway.core.features.disaggregated.events import ProgressSampled
from gateway.core.kernel.effects import Effect, EndRequest, PublishLoad, RecordShadow, SampleProgress, StartLeg
from gateway.core.kernel.events import ForwardArrived, RequestArrived, TimePassed
from gateway.core.kernel.requests import RequestRecord
from gateway.core.vocabulary import LoadReport, Outcome, RequestId
from gateway.request.mailbox import Mailbox, cancelled
from gateway.request.progress import ProgressBoard
from mesh.clock import Clock
from mesh.pump import TAIL_STEPS_DEFAULT, Core, Crash, Observer, Pump, Step, Subscriptions

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
    """Pump of a `GatewayCore`. All calls come from one event loop's thread."""

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
        """`requests` takes the records of the requests whose owners are not done."""
        super().__init__(core, clock, TimePassed(), observers=observers, on_crash=on_crash, tail_steps=tail_steps)
        self._arrivals = core
        self.requests: dict[RequestId, RequestRecord] = {} if requests is None else requests
        """Records of the requests whose owners are not done; of two with the same id, the later one."""
        self._publish: Callable[[LoadReport], None] | None = None
        self._mailboxes: dict[RequestId, Mailbox] = {}
        self.progress = ProgressBoard()

    @property
    def open_requests(self) -> int:
        return len(self._mailboxes)

    def on_publish(self, publish: Callable[[LoadReport], None]) -> None:
        """Register the sender of heartbeats. There is one; the last registered counts."""
        self._publish = publish

    def has_mailbox(self, request_id: RequestId) -> bool:
        return request_id in self._mailboxes

    def open_mailbox(self, request_id: RequestId) -> Mailbox:
        """Open the mailbox of a request. It must be entered as a context, and open before the request's arrival is
        submitted."""
        assert request_id not in self._mailboxes, f"request {request_id} already has an owner"
        mailbox = Mailbox(request_id, self.submit, self._close_mailbox)
        self._mailboxes[request_id] = mailbox
        if self.crash is not None:
            mailbox.deliver(_end_after_crash(request_id))
        return mailbox

    def begin(self, arrival: RequestArrived | ForwardArrived) -> RequestRecord | None:
        """Submit a request's arrival. Return the record that the core keeps of it; None after a crash. Observers find
        the record of each step's request: none is told a step before its record is here, or after a later one has taken
        its place."""
        if arrival.profile.request_id in self.requests or len(self._untold) >= _UNTOLD_STEPS_MAX:
            self.tell_observers()
        self.submit(arrival)
        record = None if self.crash is not None else self._arrivals.arrived
        if record is not None and record.refusal is None:
            self.requests[record.request_id] = record
        return record

    def done(self, record: RequestRecord) -> None:
        """Let go of the record of a request whose owner is done."""
        if self.requests.get(record.request_id) is record:
            del self.requests[record.request_id]

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, PublishLoad):
            if self._publish is not None:
                self._publish(effect.report)
            return
        if isinstance(effect, RecordShadow):
            return  # only the observers record it
        if isinstance(effect, SampleProgress):
            self.submit(ProgressSampled(effect.pool, self.progress.sample(effect.pool)))
            return
        mailbox = self._mailboxes.get(effect.request_id)
        if mailbox is not None:
            mailbox.deliver(effect)
        elif isinstance(effect, StartLeg):
            self.submit(cancelled(effect.request_id, effect.attempt, effect.leg, "the owner has gone"))

    def stopped(self) -> None:
        for mailbox in tuple(self._mailboxes.values()):
            mailbox.deliver(_end_after_crash(mailbox.request_id))

    def _close_mailbox(self, mailbox: Mailbox) -> None:
        self._mailboxes.pop(mailbox.request_id)


def _end_after_crash(request_id: RequestId) -> EndRequest:
    detail = "this gateway met an error of its own and restarts"
    return EndRequest(request_id, Outcome.FAILED_BEFORE_FIRST_BYTE, detail, attempts=0)
