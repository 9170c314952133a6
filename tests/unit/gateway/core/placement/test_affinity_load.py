from __future__ import annotations

from gateway.core.block_sizes import EVEN_BLOCKS
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig, PushingMode
from tests.support.core import SECOND, Desk, desk, started


def affinity_load(replicas: int = 2, **settings: float) -> Desk:
    placement = PlacementConfig(policy=PlacementPolicy.AFFINITY_LOAD, **settings)  # type: ignore[arg-type]
    return desk(replicas=replicas, config=CoreConfig(placement, PushingConfig(PushingMode.BLIND)))


OTHER = {"r0": "r1", "r1": "r0"}


def test_who_knows_enough_of_a_prompt_keeps_it_however_many_run_there() -> None:
    one = affinity_load(replicas=3)
    (home,) = started(one.ask("first", prompt="s" * 1600))
    one.probe(home, running=50)
    again = [started(one.ask(f"q{i}", prompt="s" * 1600 + "more" * 4))[0] for i in range(20)]
    assert set(again) == {home}


def test_who_knows_less_than_that_competes_by_prefill_alone() -> None:
    """One replica knows half of a prompt of 3,200 bytes, but still has 2,000 bytes to read."""
    one = affinity_load()
    (home,) = started(one.ask("first", prompt="s" * 2000))
    assert started(one.ask("half", prompt="s" * 1600 + "t" * 1600)) == [OTHER[home]]


def test_a_part_of_a_long_prompt_counts_by_its_bytes() -> None:
    """4,096 blocks of a prompt with 4,224 are a quarter of its bytes."""
    one = affinity_load()
    beginning = "s" * 16 * EVEN_BLOCKS
    (home,) = started(one.ask("first", prompt=beginning + "u" * 2**14))
    assert started(one.ask("long", prompt=beginning + "t" * 48 * EVEN_BLOCKS)) == [OTHER[home]]


def test_once_it_is_read_a_prompt_weighs_nothing() -> None:
    one = affinity_load()
    (home,) = started(one.ask("first", prompt="s" * 2000))
    one.first_token("first")
    assert started(one.ask("half", prompt="s" * 1600 + "t" * 1600)) == [home]


def test_the_prefill_before_it_may_take_only_so_much_longer_than_elsewhere() -> None:
    one = affinity_load(affinity_prefill_bytes=1600, affinity_wait_max_ns=2 * SECOND)
    (home,) = started(one.ask("known", prompt="s" * 1600))
    one.first_token("known")
    (busy,) = started(one.ask("large", prompt="s" * 1600 + "l" * 400))
    assert busy == home, "two seconds at most: it has nothing before it"
    one.first_token("large")
    for number in range(3):
        one.ask(f"before {number}", prompt="s" * 1600 + str(number) * 400)
    assert started(one.ask("stays", prompt="s" * 1600 + "x" * 320)) == [home], "three quarters of a second"
    one.probe(home, running=9)
    for number in range(7):
        one.ask(f"long before {number}", prompt="s" * 1600 + f"{number}+" * 200)
    assert started(one.ask("goes", prompt="s" * 1600)) == [OTHER[home]]


def test_those_that_are_alike_take_it_by_chance() -> None:
    one = affinity_load(replicas=4)
    seen = set()
    for number in range(40):
        seen |= set(started(one.ask(f"q{number}", prompt=f"{number} and nobody knows it " * 8)))
        one.finish(f"q{number}")
    assert seen == {"r0", "r1", "r2", "r3"}
