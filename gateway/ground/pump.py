"""Real time's owner of a pure core: feeds it events in order, has its effects performed, and keeps its one timer.

`submit` never awaits and never reads a socket; an error inside the core stops the pump, it is never survived. Effects
are performed at once, and whoever only watches is told in the event loop's next turn.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gateway.core.value import value
from gateway.ground.clock import Clock

TAIL_STEPS_DEFAULT = 512
_UNTOLD_STEPS_MAX = 512
"""More steps than this in one turn of the event loop are not held back from the observers."""
_TIMER_GRAIN_S = 0.001
"""Added to every timer: some event loops count in whole milliseconds and would fire early, again and again."""

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")
_EventT_contra = TypeVar("_EventT_contra", contravariant=True)
_EffectOf = TypeVar("_EffectOf")


class Core(Protocol[_EventT_contra, _EffectOf]):
    """What is pumped: events in, effects out."""

    def handle(self, event: _EventT_contra, now_ns: int) -> list[_EffectOf]: ...

    def next_wakeup_ns(self) -> int | None: ...


class Observer(Protocol[_EventT_contra, _EffectOf]):
    """Sees every step once and in order, soon after its effects were performed: metrics, the log, the journal. It must
    not block."""

    def on_step(self, now_ns: int, event: _EventT_contra, effects: list[_EffectOf]) -> None: ...


@value
class Step(Generic[EventT, EffectT]):
    """One event and what the core answered; `effects` is None for the step that made the core fail."""

    now_ns: int
    event: EventT
    effects: list[EffectT] | None


@dataclass(frozen=True, slots=True)
class Crash(Generic[EventT, EffectT]):
    """Why the pump stopped, with the steps that led there. The last one is the core's failure; it has effects if it was
    an observer that failed, or whoever an observer hands on to."""

    error: BaseException
    tail: tuple[Step[EventT, EffectT], ...]


class Pump(ABC, Generic[EventT, EffectT]):
    """Owns one core. All calls come from one event loop's thread."""

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
        """`time_passed` is the event for a wake-up that the core asked for. `on_crash` is told once, after everyone who
        waits has been: it may take its time."""
        self.failed = asyncio.Event()
        """Set once the core has failed; the composition root waits for it and exits for restart."""
        self.crash: Crash[EventT, EffectT] | None = None
        self._core = core
        self._clock = clock
        self._time_passed = time_passed
        self._observers = tuple(observers)
        self._on_crash = on_crash
        self._inbox: deque[EventT] = deque()
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._untold: deque[Step[EventT, EffectT]] = deque()
        """What the observers have not been told yet."""
        self._tail: deque[Step[EventT, EffectT]] = deque(maxlen=tail_steps)
        """What they were told last, or are just being told."""

    @abstractmethod
    def perform(self, effect: EffectT) -> None:
        """Do what the core orders. It may submit further events: they wait their turn."""

    @abstractmethod
    def stopped(self) -> None:
        """The core has failed: tell everyone who waits for it."""

    def submit(self, event: EventT) -> None:
        """Hand an event to the core and perform what it answers. Called from inside a step, it waits its turn."""
        if self.crash is not None:
            return
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

    def fail(self, error: Exception, *steps: Step[EventT, EffectT]) -> None:
        """Stop, as for an observer that failed: also for whoever follows the core by way of one. The first failure is
        the one. `steps` is the one that the core failed in; anybody else's failure has none."""
        if self.crash is not None:
            return
        self.crash = Crash(error, (*self._tail, *self._untold, *steps))
        self._inbox.clear()
        self._stop_timer()
        self.stopped()
        self.failed.set()
        if self._on_crash is not None:
            self._on_crash(self.crash)

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

    def _step(self, event: EventT) -> None:
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
            self._tell_soon(Step(now_ns, event, effects))

    def _tell_soon(self, step: Step[EventT, EffectT]) -> None:
        """In the loop's next turn: by then what the step ordered is under way."""
        if not self._untold:
            asyncio.get_running_loop().call_soon(self.tell_observers)
        self._untold.append(step)
        if len(self._untold) > _UNTOLD_STEPS_MAX:
            self.tell_observers()

    def _tell(self, observer: Observer[EventT, EffectT], step: Step[EventT, EffectT]) -> None:
        """What one that fails has counted or written down can no longer be trusted. The others are told the rest."""
        assert step.effects is not None, "a step that failed is not told"
        try:
            observer.on_step(step.now_ns, step.event, step.effects)
        except Exception as error:  # noqa: BLE001 - whatever it is, it stops this program
            self._observers = tuple(each for each in self._observers if each is not observer)
            self.fail(error)

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
            self.submit(self._time_passed)
        else:
            self._arm()
