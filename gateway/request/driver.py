"""Driver of a live gateway's core: performs its effects in real time and holds a mailbox for each open request.

It decides nothing, and it starts a leg before observers see the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from gateway.core.effects import Effect, EndRequest, PublishLoad, RecordShadow, SampleProgress, StartLeg
from gateway.core.events import Event, ProgressSampled, TimePassed
from gateway.core.vocabulary import LoadReport, Outcome, RequestId
from gateway.ground.clock import Clock
from gateway.ground.pump import TAIL_STEPS_DEFAULT, Core, Crash, Observer, Pump, Step
from gateway.request.mailbox import Mailbox, cancelled
from gateway.request.progress import ProgressBoard

GatewayStep: TypeAlias = Step[Event, Effect]
GatewayCrash: TypeAlias = Crash[Event, Effect]
GatewayObserver: TypeAlias = Observer[Event, Effect]


class Driver(Pump[Event, Effect]):
    """Pump of a `GatewayCore`. All calls come from one event loop's thread."""

    def __init__(
        self,
        core: Core[Event, Effect],
        clock: Clock,
        *,
        observers: Iterable[GatewayObserver] = (),
        on_crash: Callable[[GatewayCrash], None] | None = None,
        tail_steps: int = TAIL_STEPS_DEFAULT,
    ) -> None:
        super().__init__(core, clock, TimePassed(), observers=observers, on_crash=on_crash, tail_steps=tail_steps)
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
