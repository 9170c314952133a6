"""Runs a pure core in real time: feeds it events in order, has its effects performed, and keeps its one timer.

`submit` never awaits and never reads a socket. An error inside the core stops the pump for good. Effects are performed
at once; observers are told in the event loop's next turn.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias

from mypy_extensions import mypyc_attr

from mesh.clock import Clock
from mesh.steps import Core, Crash, EffectT, EventT, Observer, Step

TAIL_STEPS_DEFAULT = 512
_UNTOLD_STEPS_MAX = 512
"""Most steps that wait for the observers; with one more in the same turn of the event loop, all are told at once."""
_TIMER_GRAIN_S = 0.001
"""Seconds added to every timer: some event loops count whole milliseconds and would fire too early repeatedly."""

_Handler: TypeAlias = "tuple[Observer[EventT, EffectT], Callable[[Step[EventT, EffectT], Any], None]]"


@mypyc_attr(allow_interpreted_subclasses=True)
class Pump(ABC, Generic[EventT, EffectT]):
    """Owner of one core. All calls come from the thread of one event loop."""

    def __init__(
        self,
        core: Core[EventT, EffectT],
        clock: Clock,
        time_passed: EventT,
        *,
        observers: Iterable[Observer[EventT, EffectT]] = (),
        on_crash: Callable[[Crash[EventT, EffectT]], None] | None = None,
        tail_steps: int = TAIL_STEPS_DEFAULT,
    ) -> None:
        """Take the core. `time_passed` is the event for a wake-up that the core asked for. `on_crash` is called once,
        after all waiting callers were told, so it may take its time."""
        self.failed = asyncio.Event()
        """Set once the core or an observer has failed; the composition root waits for it and exits for restart."""
        self.crash: Crash[EventT, EffectT] | None = None
        self._has_failed = False
        self._core = core
        self._clock = clock
        self._time_passed = time_passed
        self._handlers: dict[type, tuple[_Handler[EventT, EffectT], ...]] = {}
        """Handlers by type of event or effect, each with its observer."""
        self.observers = tuple(observers)
        self._on_crash = on_crash
        self._inbox: deque[EventT] = deque()
        self.post = self._inbox.append
        """Submits an event without handling it: the caller sees to it that `run` is called soon."""
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._untold: deque[Step[EventT, EffectT]] = deque()
        """Steps that the observers have not been told."""
        self._tail: deque[Step[EventT, EffectT]] = deque(maxlen=tail_steps)
        """Last steps that the observers were told, or are being told."""

    @property
    def observers(self) -> tuple[Observer[EventT, EffectT], ...]:
        """Observers in the order in which they are told."""
        return self._observers

    @observers.setter
    def observers(self, observers: tuple[Observer[EventT, EffectT], ...]) -> None:
        self._observers = observers
        self._handlers.clear()

    @abstractmethod
    def perform(self, effect: EffectT) -> None:
        """Perform an effect of the core. It may submit further events, which wait their turn."""

    @abstractmethod
    def stopped(self) -> None:
        """Tell all waiting callers that the pump has stopped."""

    def submit(self, event: EventT) -> None:
        """Hand an event to the core and perform its effects. An event that is submitted within a step waits its
        turn."""
        self._inbox.append(event)
        self.run()

    def run(self) -> None:
        """Hand the posted events to the core, in order, and perform their effects."""
        if self._pumping:
            return
        inbox = self._inbox
        if self._has_failed:
            inbox.clear()
            return
        self._pumping = True
        try:
            while inbox:
                self._step(inbox.popleft())
                if self._has_failed:
                    inbox.clear()  # posted by requests as they stopped: no core takes it
        finally:
            self._pumping = False

    def tell_observers(self) -> None:
        """Tell the observers all waiting steps. It happens by itself in the event loop's next turn; call it before
        relying on what observers know."""
        while self._untold:
            step = self._untold.popleft()
            self._tail.append(step)
            assert step.effects is not None, "a step that failed is not told"
            for told in (step, step.event, *step.effects):
                handlers = self._handlers.get(type(told))
                if handlers is None:
                    handlers = self._handlers[type(told)] = self._handlers_of(type(told))
                for observer, handle in handlers:
                    try:
                        handle(step, told)
                    except Exception as error:  # noqa: BLE001 - any error of an observer stops this program
                        self._drop(observer, error)

    def _handlers_of(self, kind: type) -> tuple[_Handler[EventT, EffectT], ...]:
        """Handlers of a type of event or effect, in the order of the observers."""
        return tuple([(each, each.subscriptions[kind]) for each in self._observers if kind in each.subscriptions])

    def _drop(self, observer: Observer[EventT, EffectT], error: Exception) -> None:
        """Drop an observer that failed and stop the pump, since its counts or records cannot be trusted; the others are
        told the rest."""
        self.observers = tuple([each for each in self._observers if each is not observer])
        self.fail(error)

    def fail(self, error: Exception, *steps: Step[EventT, EffectT]) -> None:
        """Stop the pump for a failure of the core, of an observer, or of a part that follows the core by way of one.
        Only the first failure counts. `steps` is the step in which the core failed; other failures have none."""
        if self._has_failed:
            return
        self._has_failed = True
        self.crash = Crash(error, (*self._tail, *self._untold, *steps))
        self._inbox.clear()
        self._stop_timer()
        self.stopped()
        self.failed.set()
        if self._on_crash is not None:
            self._on_crash(self.crash)

    def close(self) -> None:
        """Stop the timer, and tell the observers all waiting steps. No event is submitted afterwards."""
        self.tell_observers()
        self._stop_timer()

    def _step(self, event: EventT) -> None:
        """Handle one event. The observers are told in the loop's next turn, when its effects are under way."""
        now_ns = self._clock.now_ns()
        try:
            effects = self._core.handle(event, now_ns)
            for effect in effects:
                self.perform(effect)
            if not self._inbox:
                self._arm()
        except Exception as error:  # noqa: BLE001 - whatever failed inside a step, its state can no longer be trusted
            self.tell_observers()
            self.fail(error, Step(now_ns, event, None))
        else:
            if not self._untold:
                asyncio.get_running_loop().call_soon(self.tell_observers)
            self._untold.append(Step(now_ns, event, effects))
            if len(self._untold) > _UNTOLD_STEPS_MAX:
                self.tell_observers()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """Set the one timer at or before the core's next wake-up. A timer that fires too early only sets the next."""
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
            self.submit(self._time_passed)
        else:
            self._arm()
