"""Owns the one core of a live gateway: feeds it events in order, performs its effects, and keeps its one timer.

`submit` never awaits and never reads a socket; an error inside the core ends the process, it is never survived. Effects
are performed at once, and whoever only watches is told in the event loop's next turn: a request is on its way to its
engine before anybody counts it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from gateway.core.effects import (
    Effect,
    EndRequest,
    PublishLoad,
    RecordShadow,
    StartLeg,
)
from gateway.core.events import Event, ForwardArrived, RequestArrived, TimePassed
from gateway.core.value import value
from gateway.core.vocabulary import LoadReport, Outcome, RequestId
from gateway.ground.clock import Clock
from gateway.request.mailbox import Mailbox, cancelled

TAIL_STEPS_DEFAULT = 512
_UNTOLD_STEPS_MAX = 512
"""More steps than this in one turn of the event loop are not held back from the observers."""
_TIMER_GRAIN_S = 0.001
"""Added to every timer: some event loops count in whole milliseconds and would fire early, again and again."""


class Core(Protocol):
    """What the driver needs of `GatewayCore`."""

    def handle(self, event: Event, now_ns: int) -> list[Effect]: ...

    def next_wakeup_ns(self) -> int | None: ...


class Observer(Protocol):
    """Sees every step once and in order, soon after its effects were delivered: metrics, the log, the journal. It must
    not block."""

    def on_step(self, now_ns: int, event: Event, effects: list[Effect]) -> None: ...


@value
class Step:
    """One event and what the core answered; `effects` is None for the step that made the core fail."""

    now_ns: int
    event: Event
    effects: list[Effect] | None


@dataclass(frozen=True, slots=True)
class Crash:
    """Why the driver stopped, with the steps that led there. The last one is the core's failure; it has effects if it
    was an observer that failed."""

    error: BaseException
    tail: tuple[Step, ...]


class Driver:
    """Real time's owner of a core. All calls come from one event loop's thread."""

    def __init__(
        self,
        core: Core,
        clock: Clock,
        *,
        observers: Iterable[Observer] = (),
        on_crash: Callable[[Crash], None] | None = None,
        tail_steps: int = TAIL_STEPS_DEFAULT,
    ) -> None:
        """`on_crash` is told once, after everyone who waits has been: it may take its time."""
        self.failed = asyncio.Event()
        """Set once the core has failed; the composition root waits for it and exits for restart."""
        self.crash: Crash | None = None
        self._core = core
        self._clock = clock
        self._observers = tuple(observers)
        self._on_crash = on_crash
        self._publish: Callable[[LoadReport], None] | None = None
        self._mailboxes: dict[RequestId, Mailbox] = {}
        self._inbox: deque[Event] = deque()
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._untold: deque[Step] = deque()
        """What the observers have not been told yet."""
        self._tail: deque[Step] = deque(maxlen=tail_steps)
        """What they were told last, or are just being told."""

    @property
    def open_requests(self) -> int:
        return len(self._mailboxes)

    def on_publish(self, publish: Callable[[LoadReport], None]) -> None:
        """Who sends our heartbeats. There is one; the last one registered counts."""
        self._publish = publish

    def has_mailbox(self, request_id: RequestId) -> bool:
        return request_id in self._mailboxes

    def open_mailbox(self, request_id: RequestId) -> Mailbox:
        """Must be entered, and must be open before the request's arrival is submitted."""
        assert request_id not in self._mailboxes, f"request {request_id} already has an owner"
        mailbox = Mailbox(request_id, self.submit, self._close_mailbox)
        self._mailboxes[request_id] = mailbox
        if self.crash is not None:
            mailbox.deliver(_end_after_crash(request_id))
        return mailbox

    def _close_mailbox(self, mailbox: Mailbox) -> None:
        self._mailboxes.pop(mailbox.request_id)

    def submit(self, event: Event) -> None:
        """Hand an event to the core and perform what it answers. Called from inside a step, it waits its turn."""
        if self.crash is not None:
            return
        assert not isinstance(event, RequestArrived | ForwardArrived) or self.has_mailbox(event.profile.request_id)
        self._inbox.append(event)
        if not self._pumping:
            self._pump()

    def tell_observers(self) -> None:
        """Whatever they have not been told yet. For whoever is about to rest on what they know, and cannot wait until
        the event loop's next turn, in which it happens by itself."""
        while self._untold:
            step = self._untold.popleft()
            self._tail.append(step)
            for observer in self._observers:
                self._tell(observer, step)

    def close(self) -> None:
        """Stop the timer, and tell the observers the rest. Nothing is submitted afterwards."""
        self.tell_observers()
        self._stop_timer()

    def _pump(self) -> None:
        self._pumping = True
        try:
            while self._inbox:
                self._step(self._inbox.popleft())
        finally:
            self._pumping = False

    def _step(self, event: Event) -> None:
        now_ns = self._clock.now_ns()
        try:
            effects = self._core.handle(event, now_ns)
            for effect in effects:
                self._perform(effect)
            if not self._inbox:
                self._arm()
        except Exception as error:  # noqa: BLE001 - whatever failed inside a step, its state can no longer be trusted
            self.tell_observers()
            self._fail(error, Step(now_ns, event, None))
        else:
            self._tell_soon(Step(now_ns, event, effects))

    def _tell_soon(self, step: Step) -> None:
        """In the loop's next turn: by then what the step ordered has been sent, and the engine is at work."""
        if not self._untold:
            asyncio.get_running_loop().call_soon(self.tell_observers)
        self._untold.append(step)
        if len(self._untold) > _UNTOLD_STEPS_MAX:
            self.tell_observers()

    def _tell(self, observer: Observer, step: Step) -> None:
        """What one that fails has counted or written down can no longer be trusted. The others are told the rest."""
        assert step.effects is not None, "a step that failed is not told"
        try:
            observer.on_step(step.now_ns, step.event, step.effects)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stops this gateway
            self._observers = tuple(each for each in self._observers if each is not observer)
            self._fail(error)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, PublishLoad):
            if self._publish is not None:
                self._publish(effect.report)
            return
        if isinstance(effect, RecordShadow):
            return  # a record for the observers
        mailbox = self._mailboxes.get(effect.request_id)
        if mailbox is not None:
            mailbox.deliver(effect)
        elif isinstance(effect, StartLeg):
            self._inbox.append(cancelled(effect.request_id, effect.attempt, "the owner has gone"))

    def _fail(self, error: Exception, *steps: Step) -> None:
        """The first failure is the one. `steps` is the one that the core failed in; an observer's failure has none."""
        if self.crash is not None:
            return
        self.crash = Crash(error, (*self._tail, *self._untold, *steps))
        self._inbox.clear()
        self._stop_timer()
        for mailbox in tuple(self._mailboxes.values()):
            mailbox.deliver(_end_after_crash(mailbox.request_id))
        self.failed.set()
        if self._on_crash is not None:
            self._on_crash(self.crash)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """One timer, at or before the core's next wake-up. One that fires too early only arms the next."""
        due_ns = self._core.next_wakeup_ns()
        if due_ns is None or (self._timer is not None and self._timer_due_ns <= due_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.0, (due_ns - self._clock.now_ns()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(wait_s + _TIMER_GRAIN_S, self._on_timer)
        self._timer_due_ns = due_ns

    def _on_timer(self) -> None:
        self._timer = None
        due_ns = self._core.next_wakeup_ns()
        if due_ns is not None and due_ns <= self._clock.now_ns():
            self.submit(TimePassed())
        else:
            self._arm()


def _end_after_crash(request_id: RequestId) -> EndRequest:
    detail = "this gateway met an error of its own and restarts"
    return EndRequest(request_id, Outcome.FAILED_BEFORE_FIRST_BYTE, detail, attempts=0)
