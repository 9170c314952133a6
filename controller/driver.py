"""Driver of the controller's core in real time: hands each effect to its performer.

The driver decides nothing and waits for nothing: an effect that takes time is performed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, assert_never

from controller.core.effects import (
    Assign,
    Effect,
    KeepOwners,
    KeepPolicy,
    PublishRecords,
    StartRecovery,
    TellCondition,
    TellFrozen,
    TellOrphans,
)
from controller.core.events import ControllerTimePassed, Event
from mesh.clock import Clock
from mesh.naming.tree import RecordTree
from mesh.pump import TAIL_STEPS_DEFAULT, Pump
from mesh.steps import Core, Crash, Observer, Step, Subscriptions

ControllerStep: TypeAlias = Step[Event, Effect]
ControllerCrash: TypeAlias = Crash[Event, Effect]
ControllerObserver: TypeAlias = Observer[Event, Effect]
ControllerSubscriptions: TypeAlias = Subscriptions[Event, Effect]


class ControllerDriver(Pump[Event, Effect]):
    """Pumps a `ControllerCore`. All calls come from one event loop's thread."""

    def __init__(
        self,
        core: Core[Event, Effect],
        clock: Clock,
        *,
        observers: Iterable[ControllerObserver] = (),
        on_crash: Callable[[ControllerCrash], None] | None = None,
        tail_steps: int = TAIL_STEPS_DEFAULT,
    ) -> None:
        super().__init__(
            core, clock, ControllerTimePassed(), observers=observers, on_crash=on_crash, tail_steps=tail_steps
        )
        self._keep: Callable[[KeepOwners | KeepPolicy | TellCondition], None] = _ignore
        self._publish: list[Callable[[RecordTree], None]] = []
        self._recover: Callable[[StartRecovery], None] = _ignore

    def on_keep(self, keep: Callable[[KeepOwners | KeepPolicy | TellCondition], None]) -> None:
        """Set the function that stores. An `Assign` goes out once it is stored, as part of a whole snapshot."""
        self._keep = keep

    def on_records(self, publish: Callable[[RecordTree], None]) -> None:
        """Add a publisher of records. It is called at once, stored or not: DNS has to lead away from gateways that are
        down even while the store cannot be written."""
        self._publish.append(publish)

    def on_recovery(self, recover: Callable[[StartRecovery], None]) -> None:
        self._recover = recover

    def perform(self, effect: Effect) -> None:
        match effect:
            case KeepOwners() | KeepPolicy() | TellCondition():
                self._keep(effect)
            case PublishRecords():
                for publish in self._publish:
                    publish(effect.tree)
            case StartRecovery():
                self._recover(effect)
            case Assign() | TellFrozen() | TellOrphans():
                pass  # handled by the observers
            case _:
                assert_never(effect)

    def stopped(self) -> None:
        """Do nothing: no caller waits for this core, and gateways go on by what they were told last."""


def _ignore(_: object) -> None:
    pass
