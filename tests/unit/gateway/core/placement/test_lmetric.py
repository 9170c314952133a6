from __future__ import annotations

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig, PushingMode
from tests.support.core import Desk, desk, started


def lmetric(replicas: int = 2) -> Desk:
    placement = PlacementConfig(policy=PlacementPolicy.LMETRIC)
    return desk(replicas=replicas, config=CoreConfig(placement, PushingConfig(PushingMode.BLIND)))


def test_a_replica_that_knows_the_prompt_outweighs_one_that_is_idle() -> None:
    one = lmetric()
    (home,) = started(one.ask("first", prompt="s" * 1600))
    one.first_token("first")
    again = [started(one.ask(f"q{i}", prompt="s" * 1600 + "more" * 4))[0] for i in range(3)]
    assert set(again) == {home}


def test_what_is_left_to_prefill_there_counts_like_what_would_be_added() -> None:
    """Each has one request; one of them has more left to read than the other would have to read in all."""
    one = lmetric()
    (busy,) = started(one.ask("long", prompt="a" * 6400))
    (other,) = started(one.ask("short", prompt="b" * 1600))
    assert other != busy
    assert started(one.ask("again", prompt="a" * 4000)) == [other]
    one.first_token("long")
    assert started(one.ask("later", prompt="a" * 6400 + "more" * 4)) == [busy]


def test_of_two_that_know_nothing_the_smaller_batch_is_taken() -> None:
    one = lmetric()
    one.probe("r0", running=5)
    one.probe("r1", running=4)
    assert started(one.ask("q", prompt="c" * 160)) == ["r1"]


def test_a_large_enough_batch_outweighs_a_match() -> None:
    """The score is bytes to read times batch size. At home 200 bytes are to be read and elsewhere 1,800, so a batch of
    nine at home breaks even."""
    one = lmetric()
    (home,) = started(one.ask("first", prompt="s" * 1600))
    one.first_token("first")
    other = {"r0": "r1", "r1": "r0"}[home]
    one.probe(home, running=6)
    assert started(one.ask("few", prompt="s" * 1600 + "t" * 200)) == [home]
    one.first_token("few")
    one.probe(home, running=15)
    assert started(one.ask("many", prompt="s" * 1600 + "u" * 200)) == [other]
