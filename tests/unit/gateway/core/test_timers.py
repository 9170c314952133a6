"""One deadline per key, earliest first, memory bounded by the live keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.timers import TimerKey, TimerKind, Timers

A: TimerKey = (TimerKind.REQUEST, "a")
B: TimerKey = (TimerKind.REQUEST, "b")


def test_due_keys_come_earliest_first_and_once() -> None:
    timers = Timers()
    timers.set(A, 20)
    timers.set(B, 10)
    assert timers.next_ns() == 10
    assert list(timers.pop_due(20)) == [B, A]
    assert list(timers.pop_due(20)) == []
    assert timers.next_ns() is None


def test_a_later_setting_replaces_an_earlier_one() -> None:
    timers = Timers()
    timers.set(A, 10)
    timers.set(A, 30)
    assert list(timers.pop_due(20)) == []
    timers.set(A, 5)
    assert list(timers.pop_due(20)) == [A]


def test_set_earlier_never_postpones() -> None:
    timers = Timers()
    timers.set_earlier(A, 10)
    timers.set_earlier(A, 30)
    assert timers.next_ns() == 10


def test_a_key_set_while_popping_with_a_due_time_is_popped_too() -> None:
    timers = Timers()
    timers.set(A, 1)
    seen = []
    for key in timers.pop_due(10):
        seen.append(key)
        if key == A:
            timers.set(B, 2)
    assert seen == [A, B]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50), st.sampled_from(["set", "cancel", "pop"]))))
def test_it_agrees_with_a_plain_dictionary(steps: list[tuple[str, int, str]]) -> None:
    timers, plain = Timers(), dict[TimerKey, int]()
    for name, at_ns, what in steps:
        key = (TimerKind.REQUEST, name)
        if what == "set":
            timers.set(key, at_ns)
            plain[key] = at_ns
        elif what == "cancel":
            timers.cancel(key)
            plain.pop(key, None)
        else:
            due = [one for one, when in plain.items() if when <= at_ns]
            assert sorted(timers.pop_due(at_ns)) == sorted(due)
            for one in due:
                del plain[one]
        assert timers.next_ns() == min(plain.values(), default=None)


def test_resetting_one_key_for_ever_does_not_grow() -> None:
    timers = Timers()
    for at_ns in range(10_000):
        timers.set(A, at_ns)
    assert len(timers) == 1
    assert len(timers._heap) < 200
