"""Steps of a pure core, as the pump takes them and observers are told: values and interfaces only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")
_EventT_contra = TypeVar("_EventT_contra", contravariant=True)
_EffectOf = TypeVar("_EffectOf")


class Core(Protocol[_EventT_contra, _EffectOf]):
    """Core that the pump runs: events in, effects out."""

    def handle(self, event: _EventT_contra, now_ns: int) -> list[_EffectOf]: ...

    def next_wakeup_ns(self) -> int | None: ...


class Step(Struct, Generic[EventT, EffectT], frozen=True):
    """Event and the core's effects; `effects` is None for the step in which the core failed."""

    now_ns: int
    event: EventT
    effects: list[EffectT] | None


Subscriptions: TypeAlias = Mapping[type, Callable[[Step[EventT, EffectT], Any], None]]
"""Handlers by the type of event or effect that each is told of, with its step. The handler of `Step` is told of every
step, before its event."""


class Observer(Protocol[EventT, EffectT]):
    """Observer such as metrics, the log or the journal. It is told each event, and then each effect, of the types that
    it subscribes to, once and in order, soon after the effects were performed. It must not block."""

    @property
    def subscriptions(self) -> Subscriptions[EventT, EffectT]: ...


class Crash(Struct, Generic[EventT, EffectT], frozen=True):
    """Error that stopped the pump, with the steps that led there. The last step has no effects where the core failed;
    it has effects where an observer failed, or a part that an observer passes steps on to."""

    error: BaseException
    tail: tuple[Step[EventT, EffectT], ...]
