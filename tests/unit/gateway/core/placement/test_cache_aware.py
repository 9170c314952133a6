from __future__ import annotations

from gateway.core.block_sizes import EVEN_BLOCKS
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig, PushingMode
from gateway.core.kernel.events import AssignmentApplied
from tests.support.core import desk, replica_spec, started


def cache_aware(**settings: float) -> CoreConfig:
    placement = PlacementConfig(policy=PlacementPolicy.CACHE_AWARE, **settings)  # type: ignore[arg-type]
    return CoreConfig(placement=placement, pushing=PushingConfig(mode=PushingMode.BLIND))


def test_cache_aware_follows_a_match_above_its_share_however_loaded() -> None:
    one = desk(replicas=3, config=cache_aware())
    (home,) = started(one.ask("first", prompt="s" * 160))
    again = [started(one.ask(f"q{i}", prompt="s" * 160 + f"own words {i}" * 10))[0] for i in range(20)]
    assert set(again) == {home}


def test_cache_aware_sends_a_miss_to_the_smallest_tree_not_to_the_idlest() -> None:
    one = desk(replicas=2, config=cache_aware())
    (large,) = started(one.ask("large", prompt="a" * 1600))
    one.finish("large")
    small = {started(one.ask(f"q{i}", prompt=f"{i} other words " * 3))[0] for i in range(10)}
    assert large not in small


def test_a_tree_is_measured_in_bytes_where_blocks_grow() -> None:
    """Two prompts together have more blocks than one that is twice as long as both."""
    one = desk(replicas=2, config=cache_aware())
    (large,) = started(one.ask("large", prompt="a" * 64 * EVEN_BLOCKS))
    one.finish("large")
    small = {started(one.ask(letter, prompt=letter * 16 * EVEN_BLOCKS))[0] for letter in "bcd"}
    assert large not in small


def test_cache_aware_takes_the_shortest_queue_while_loads_are_far_apart() -> None:
    one = desk(replicas=2, config=cache_aware(cache_aware_spread_max=4))
    homes = [started(one.ask(f"q{i}", prompt="s" * 160))[0] for i in range(6)]
    assert len(set(homes[:5])) == 1
    assert homes[5] != homes[0]


def test_a_tree_is_gone_with_its_replica() -> None:
    """A kept tree would make the next replica in the slot count as the one with the largest tree."""
    one = desk(replicas=[replica_spec("r0"), replica_spec("r1")], config=cache_aware())
    (home,) = started(one.ask("q", prompt="a" * 1600))
    other = {"r0": "r1", "r1": "r0"}[home]
    assert started(one.ask("r", prompt="b" * 160)) == [other]
    one.tell(AssignmentApplied(2, (replica_spec(other), replica_spec("fresh")), ()))
    one.probe()
    assert started(one.ask("s", prompt="c" * 16)) == ["fresh"]
