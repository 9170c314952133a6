"""A step told to an observer as a driver would tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mesh.steps import Observer, Step


def tell_step(observer: Observer[Any, Any], now_ns: int, event: object, effects: Iterable[object] = ()) -> None:
    """Call the observer's handlers of the step, its event and its effects, in this order."""
    ordered = list(effects)
    step = Step(now_ns, event, ordered)
    for told in (step, event, *ordered):
        handle = observer.subscriptions.get(type(told))
        if handle is not None:
            handle(step, told)
