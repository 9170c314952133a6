from __future__ import annotations

from gateway.core.vocabulary import ServiceClass
from gateway.features.batches.classes import LineClasses


def test_urgent_lines_are_interactive_and_counted() -> None:
    classes = LineClasses()
    assert classes.next(is_urgent=False) is ServiceClass.BATCH
    urgent = classes.next(is_urgent=True)
    assert urgent is ServiceClass.INTERACTIVE
    classes.begin(urgent)
    classes.begin(ServiceClass.BATCH)
    assert classes.urgent == 1
    classes.end(ServiceClass.BATCH)
    assert classes.urgent == 1
    classes.end(urgent)
    assert classes.urgent == 0


def test_a_refused_class_is_not_asked_for_again() -> None:
    classes = LineClasses()
    assert classes.refuse(ServiceClass.INTERACTIVE)
    assert classes.next(is_urgent=True) is ServiceClass.BATCH
    assert classes.refuse(ServiceClass.BATCH)
    assert classes.next(is_urgent=True) is ServiceClass.BEST_EFFORT
    assert not classes.refuse(ServiceClass.BEST_EFFORT)
