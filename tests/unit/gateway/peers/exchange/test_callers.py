from __future__ import annotations

from typing import Any

from gateway.peers.exchange.callers import REST_NS, STREAMS_EACH_MAX, Callers
from gateway.peers.exchange.wasted_frames import WASTED_MAX, WastedFrameLimit
from tests.support.clock import StillClock
from tests.support.core import SECOND


class Stream:
    """Stream that is only counted, and closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def made(streams_max: int = 100) -> tuple[Callers, StillClock]:
    clock = StillClock()
    return Callers(clock, streams_max), clock


def test_one_caller_takes_no_other_s_place_and_all_together_have_an_end() -> None:
    callers, _ = made(STREAMS_EACH_MAX + 1)
    held = [callers.holding("eu", stream()) for _ in range(STREAMS_EACH_MAX)]
    for each in held:
        each.__enter__()
    assert callers.why_not("eu") == "too many streams"
    assert callers.why_not("ap") == ""
    with callers.holding("ap", stream()):
        assert callers.why_not("jp") == "too many streams"
    held[0].__exit__(None, None, None)
    assert callers.why_not("eu") == ""


def stream() -> Any:
    return Stream()


def test_a_caller_in_disgrace_may_begin_nothing_for_a_while_and_others_may() -> None:
    callers, clock = made()
    callers.disgrace("eu")
    assert "broke the rules" in callers.why_not("eu")
    assert callers.why_not("ap") == ""
    clock.now += REST_NS
    assert callers.why_not("eu") == ""


def test_who_comes_again_at_once_finds_no_new_patience() -> None:
    callers, clock = made()
    patience = callers.patience_with("eu")
    with callers.holding("eu", stream()):
        for _ in range(WASTED_MAX):
            assert patience.waste(clock.now_ns())
    again = callers.patience_with("eu")
    assert not again.waste(clock.now_ns())
    clock.now += 2 * SECOND
    assert callers.patience_with("ap").waste(clock.now_ns())
    assert set(callers._callers) == {"ap"}, "nothing is kept of whoever left"


def test_patience_is_counted_a_second_at_a_time() -> None:
    patience = WastedFrameLimit()
    assert all(patience.waste(5) for _ in range(WASTED_MAX))
    assert not patience.waste(SECOND + 4)
    assert patience.waste(SECOND + 5)


def test_closing_reaches_streams_that_are_and_those_to_come() -> None:
    callers, _ = made()
    one, other = stream(), stream()
    with callers.holding("eu", one):
        callers.close()
        with callers.holding("eu", other):
            assert one.is_closed
            assert other.is_closed
