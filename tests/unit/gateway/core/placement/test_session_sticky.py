from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig, PushingMode
from tests.support.core import Desk, desk, started


def session_sticky(replicas: int = 4, ratio: float = 1.5) -> Desk:
    placement = PlacementConfig(policy=PlacementPolicy.SESSION_STICKY, sticky_load_ratio=ratio)
    return desk(replicas=replicas, config=CoreConfig(placement, PushingConfig(PushingMode.BLIND)))


def home_of(one: Desk, session: str) -> str:
    (home,) = started(one.ask(f"of {session}", session=session))
    one.finish(f"of {session}")
    return home


def test_a_session_keeps_its_replica_whatever_it_asks() -> None:
    one = session_sticky()
    home = home_of(one, "user-1")
    for number in range(10):
        assert started(one.ask(f"q{number}", session="user-1", prompt=f"{number} other words " * 9)) == [home]
        one.finish(f"q{number}")


def test_sessions_are_spread() -> None:
    one = session_sticky()
    assert len({home_of(one, f"user-{number}") for number in range(40)}) == 4


def test_a_session_leaves_a_replica_that_has_much_more_than_the_others_and_comes_back() -> None:
    one = session_sticky()
    home = home_of(one, "user-1")
    sent = [started(one.ask(f"q{number}", session="user-1"))[0] for number in range(12)]
    counts = sorted(sent.count(replica) for replica in set(sent))
    assert sent[0] == home
    assert counts[-1] <= 5, "1.5 times the average of 3, and one"
    for number in range(12):
        one.finish(f"q{number}")
    assert home_of(one, "user-1") == home


def test_with_a_high_ratio_it_never_leaves() -> None:
    one = session_sticky(ratio=100.0)
    assert len({started(one.ask(f"q{number}", session="user-1"))[0] for number in range(30)}) == 1


def test_a_ratio_that_nobody_is_below_turns_nobody_away() -> None:
    one = session_sticky(replicas=2, ratio=0.01)
    assert [len(started(one.ask(f"q{number}", session=f"user-{number}"))) for number in range(6)] == [1] * 6
