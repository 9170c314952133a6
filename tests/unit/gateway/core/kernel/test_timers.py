"""Timers: one deadline each, earliest first, memory bounded by the timers that are set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.kernel.timers import Timer, TimerKind, Timers


def some(*names: str) -> list[Timer]:
    return [Timer(TimerKind.REQUEST, name) for name in names]


def test_those_due_come_earliest_first_and_once() -> None:
    timers, (a, b) = Timers(), some("a", "b")
    timers.set(a, 20)
    timers.set(b, 10)
    assert timers.next_ns() == 10
    assert list(timers.pop_due(20)) == [b, a]
    assert list(timers.pop_due(20)) == []
    assert timers.next_ns() is None


def test_a_later_setting_replaces_an_earlier_one() -> None:
    timers, (a,) = Timers(), some("a")
    timers.set(a, 10)
    timers.set(a, 30)
    assert list(timers.pop_due(20)) == []
    timers.set(a, 5)
    assert list(timers.pop_due(20)) == [a]


def test_set_earlier_never_postpones() -> None:
    timers, (a,) = Timers(), some("a")
    timers.set_earlier(a, 10)
    timers.set_earlier(a, 30)
    assert timers.next_ns() == 10


def test_one_set_while_popping_with_a_due_time_is_popped_too() -> None:
    timers, (a, b) = Timers(), some("a", "b")
    timers.set(a, 1)
    seen = []
    for timer in timers.pop_due(10):
        seen.append(timer)
        if timer is a:
            timers.set(b, 2)
    assert seen == [a, b]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50), st.sampled_from(["set", "cancel", "pop"]))))
def test_it_agrees_with_a_plain_dictionary(steps: list[tuple[str, int, str]]) -> None:
    timers, plain = Timers(), dict[Timer, int]()
    named = {timer.id: timer for timer in some(*"abcdef")}
    for name, at_ns, what in steps:
        timer = named[name]
        if what == "set":
            timers.set(timer, at_ns)
            plain[timer] = at_ns
        elif what == "cancel":
            timers.cancel(timer)
            plain.pop(timer, None)
        else:
            due = [one for one, when in plain.items() if when <= at_ns]
            assert {*timers.pop_due(at_ns)} == {*due}
            for one in due:
                del plain[one]
        assert timers.next_ns() == min(plain.values(), default=None)
        assert len(timers) == len(plain)


def test_resetting_one_for_ever_does_not_grow() -> None:
    timers, (a,) = Timers(), some("a")
    for at_ns in range(10_000):
        timers.set(a, 10_000 + at_ns)
        timers.set(a, 10_000 - at_ns)
    assert len(timers) == 1
    assert len(timers._heap) < 200
