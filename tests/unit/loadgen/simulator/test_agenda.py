"""The heap of scheduled actions: in order of time, then of entry, and never back in time."""

from __future__ import annotations

import pytest

from loadgen.simulator.agenda import Agenda


def test_things_happen_in_order_of_time_and_then_of_entry() -> None:
    agenda, done = Agenda(), list[tuple[int, str]]()
    for at_ns, name in ((20, "late"), (10, "first"), (10, "second")):
        agenda.at(at_ns, lambda name: done.append((agenda.now_ns, name)), name)
    agenda.run_until(15)
    assert done == [(10, "first"), (10, "second")]
    assert agenda.now_ns == 15
    agenda.run_until(20)
    assert done[-1] == (20, "late")


def test_what_is_done_may_enter_more_for_now() -> None:
    agenda, done = Agenda(), list[int]()
    agenda.at(5, lambda: agenda.after(0, done.append, 1))
    agenda.run_until(5)
    assert done == [1]
    assert agenda.done == 2


def test_nothing_is_due_in_the_past() -> None:
    agenda = Agenda()
    agenda.run_until(10)
    with pytest.raises(AssertionError, match="past"):
        agenda.at(9, print)
