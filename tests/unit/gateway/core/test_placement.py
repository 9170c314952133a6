"""The policies over one filter, score, pick."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.core.config import (
    CoreConfig,
    ExploreRule,
    PlacementConfig,
    PlacementPolicy,
    PushingConfig,
    PushingMode,
    RemoteChoice,
)
from gateway.core.effects import StartLeg
from gateway.core.events import AssignmentApplied, ConfigApplied
from gateway.core.vocabulary import LegResult, PlacementReason
from tests.support.core import AP, EU, MS, Desk, desk, peer_spec, started


def desk_with(policy: PlacementPolicy, replicas: int = 4, rule: ExploreRule = ExploreRule.WORTH) -> Desk:
    placement = PlacementConfig(policy=policy, explore_rule=rule)
    return desk(replicas=replicas, config=CoreConfig(placement=placement, pushing=PushingConfig(in_band_credit=None)))


def decisions(one: Desk) -> list[PlacementReason]:
    return [effect.decision.reason for effect in one.effects if isinstance(effect, StartLeg)]


def test_prefix_returns_to_the_replica_that_has_it() -> None:
    one = desk_with(PlacementPolicy.PREFIX)
    (home,) = started(one.ask("first", prompt="a conversation " * 10))
    for i in range(6):
        one.ask(f"noise{i}", prompt=f"{i} something else " * 10)
    assert started(one.ask("second", prompt="a conversation " * 10 + "and its next turn")) == [home]
    assert decisions(one)[-1] is PlacementReason.LOCAL_PREFIX


def test_below_half_of_the_prompt_it_explores_the_least_loaded() -> None:
    """The paper's rule."""
    one = desk_with(PlacementPolicy.PREFIX, replicas=2, rule=ExploreRule.SHARE)
    (home,) = started(one.ask("first", prompt="s" * 64))
    assert started(one.ask("second", prompt="s" * 64 + "own text, much longer than the shared part" * 3)) != [home]
    assert decisions(one)[-1] is PlacementReason.LOCAL_EXPLORE


def test_with_equal_matches_the_least_loaded_is_taken() -> None:
    one = desk_with(PlacementPolicy.PREFIX, replicas=2)
    one.ask("a", prompt="x" * 160)
    one.probe("r0", running=5)
    one.probe("r1", running=0)
    one.ask("b", prompt="y" * 160)
    one.finish("a")
    one.finish("b")
    homes = {state.spec.replica_id: state.load for state in one.core.replicas}
    assert homes == {"r0": 5, "r1": 0}
    assert started(one.ask("c", prompt="z" * 160)) == ["r1"]


def test_an_unavailable_holder_of_the_prefix_is_passed_over() -> None:
    one = desk_with(PlacementPolicy.PREFIX, replicas=2)
    (home,) = started(one.ask("first", prompt="a conversation " * 10))
    one.probe(home, waiting=1)
    assert started(one.ask("second", prompt="a conversation " * 10)) != [home]


def test_round_robin_takes_turns() -> None:
    one = desk_with(PlacementPolicy.ROUND_ROBIN, replicas=3)
    assert [started(one.ask(f"q{i}"))[0] for i in range(6)] == ["r0", "r1", "r2", "r0", "r1", "r2"]


def test_least_load_evens_out() -> None:
    one = desk_with(PlacementPolicy.LEAST_LOAD, replicas=3)
    assert set(Counter(started(one.ask(f"q{i}"))[0] for i in range(30)).values()) == {10}


def test_consistent_hashing_keeps_a_session_on_one_replica_and_walks_on_when_it_is_busy() -> None:
    one = desk_with(PlacementPolicy.CONSISTENT_HASH)
    homes = {started(one.ask(f"q{i}", session="user-1"))[0] for i in range(10)}
    assert len(homes) == 1
    one.probe(*homes, waiting=1)
    assert not homes & set(started(one.ask("elsewhere", session="user-1")))


def test_consistent_hashing_spreads_sessions() -> None:
    one = desk_with(PlacementPolicy.CONSISTENT_HASH)
    assert len({started(one.ask(f"q{i}", session=f"user-{i}"))[0] for i in range(40)}) == 4


@pytest.mark.parametrize("policy", [PlacementPolicy.RANDOM, PlacementPolicy.POWER_OF_TWO])
def test_chance_reaches_everybody(policy: PlacementPolicy) -> None:
    one = desk_with(policy)
    counts = Counter(started(one.ask(f"q{i}"))[0] for i in range(200))
    assert len(counts) == 4
    assert min(counts.values()) > 20


def test_power_of_two_balances_better_than_chance() -> None:
    spreads = []
    for policy in (PlacementPolicy.RANDOM, PlacementPolicy.POWER_OF_TWO):
        one = desk_with(policy, replicas=8)
        counts = Counter(started(one.ask(f"q{i}"))[0] for i in range(400))
        spreads.append(max(counts.values()) - min(counts.values()))
    assert spreads[1] < spreads[0]


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_every_policy_overflows_to_a_peer(policy: PlacementPolicy) -> None:
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU)], config=CoreConfig(placement=PlacementConfig(policy=policy)))
    one.probe(waiting=1)
    one.hear("gw-eu", EU)
    assert started(one.ask("q")) == ["gw-eu"]


def test_the_policy_can_change_while_running() -> None:
    one = desk_with(PlacementPolicy.ROUND_ROBIN, replicas=2)
    one.ask("q")
    one.tell(ConfigApplied(CoreConfig(placement=PlacementConfig(policy=PlacementPolicy.PREFIX))))
    one.finish("q", LegResult.COMPLETED)
    one.wait(10 * MS)
    one.probe()
    (home,) = started(one.ask("a", prompt="p" * 160))
    assert started(one.ask("b", prompt="p" * 160)) == [home]


def test_prefixes_that_nobody_uses_are_forgotten() -> None:
    config = CoreConfig(placement=PlacementConfig(prefix_ttl_ns=2_000 * MS))
    one = desk(replicas=2, config=config)
    one.ask("q", prompt="p" * 100)
    assert one.core.placer.replica_index.blocks > 0
    one.wait(4_000 * MS)
    assert one.core.placer.replica_index.blocks == 0


# SGLang's selection


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


def test_cache_aware_takes_the_shortest_queue_while_loads_are_far_apart() -> None:
    one = desk(replicas=2, config=cache_aware(cache_aware_spread_max=4))
    homes = [started(one.ask(f"q{i}", prompt="s" * 160))[0] for i in range(6)]
    assert len(set(homes[:5])) == 1
    assert homes[5] != homes[0]


def test_a_tree_is_gone_with_its_replica() -> None:
    one = desk(replicas=2, config=cache_aware())
    one.ask("q", prompt="a" * 1600)
    one.tell(AssignmentApplied(2, (), ()))
    assert not one.core.placer._sent_blocks


# A multi-cluster gateway


def nearest_region(outstanding_max: int = 2) -> CoreConfig:
    return CoreConfig(
        placement=PlacementConfig(policy=PlacementPolicy.NEAREST_REGION),
        pushing=PushingConfig(mode=PushingMode.OUTSTANDING, outstanding_max=outstanding_max),
    )


def test_the_own_region_fills_up_then_the_nearest_then_the_next() -> None:
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)], config=nearest_region())
    one.hear("gw-eu", EU, rtt_ms=80)
    one.hear("gw-ap", AP, rtt_ms=150)
    assert [started(one.ask(f"q{i}"))[0] for i in range(4)] == ["r0", "r0", "gw-eu", "gw-ap"]


def test_with_everybody_full_nobody_waits() -> None:
    one = desk(replicas=2, peers=[peer_spec("gw-eu", EU)], config=nearest_region(outstanding_max=1))
    one.hear("gw-eu", EU, available=0)
    assert Counter(started(one.ask(f"q{i}"))[0] for i in range(6)) == {"r0": 3, "r1": 3}


def test_full_is_not_broken() -> None:
    one = desk(replicas=1, config=nearest_region(outstanding_max=1))
    one.ask("q0")
    one.probe(healthy=False)
    assert started(one.ask("q1")) == []


# Our own rules


def test_by_default_what_a_match_is_worth_decides_and_not_its_share_of_the_prompt() -> None:
    one = desk(replicas=2, config=CoreConfig(pushing=PushingConfig(in_band_credit=None)))
    (home,) = started(one.ask("first", prompt="s" * 160))
    assert started(one.ask("second", prompt="s" * 160 + "own text, much longer than the shared part" * 9)) == [home]
    assert decisions(one)[-1] is PlacementReason.LOCAL_PREFIX


def test_a_match_is_worth_so_much_load() -> None:
    placement = PlacementConfig(explore_rule=ExploreRule.WORTH, explore_load_bytes=64)
    one = desk(replicas=2, config=CoreConfig(placement=placement, pushing=PushingConfig(in_band_credit=None)))
    (home,) = started(one.ask("first", prompt="s" * 160))
    other = {"r0": "r1", "r1": "r0"}[home]
    one.wait(MS)
    one.probe(home, running=3)
    one.probe(other, running=1)
    assert started(one.ask("follows", prompt="s" * 160 + "t" * 800)) == [home]
    one.wait(MS)
    one.probe(home, running=9)
    assert started(one.ask("explores", prompt="s" * 160 + "u" * 800)) == [other]
    assert decisions(one)[-2:] == [PlacementReason.LOCAL_PREFIX, PlacementReason.LOCAL_EXPLORE]


def abroad(placement: PlacementConfig) -> Desk:
    """Full at home; Japan was sent a prompt once, Ireland is nearer."""
    config = CoreConfig(placement=placement, pushing=PushingConfig(in_band_credit=None))
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)], config=config)
    for i in range(20):
        one.ask(f"taught{i}", prompt=f"{i} " + "p" * 16 * i)
        one.now_ns += (100 + i) * MS
        one.first_token(f"taught{i}")
        one.finish(f"taught{i}")
        one.probe()
    one.probe(waiting=1)
    one.hear("gw-ap", AP, rtt_ms=150, available=2)
    assert started(one.ask("first", prompt="s" * 160)) == ["gw-ap"]
    one.first_token("first")
    one.hear("gw-eu", EU, rtt_ms=80, available=2)
    return one


def test_a_small_match_abroad_does_not_pull_below_the_least_share() -> None:
    little = "s" * 160 + "own words " * 100
    assert started(abroad(PlacementConfig()).ask("q", prompt=little)) == ["gw-ap"]
    picky = PlacementConfig(remote_prefix_min_share=0.5)
    assert started(abroad(picky).ask("q", prompt=little)) == ["gw-eu"]
    assert started(abroad(picky).ask("same", prompt="s" * 160)) == ["gw-ap"]


def test_the_first_token_comes_earliest_from_where_prefill_and_round_trip_are_least() -> None:
    """A byte costs a sixteenth of a millisecond here: 160 known bytes save 10 ms, and Japan is 70 ms further away."""
    one = abroad(PlacementConfig(remote_choice=RemoteChoice.FIRST_TOKEN))
    assert started(one.ask("q", prompt="s" * 160)) == ["gw-eu"]
    assert decisions(one)[-1] is PlacementReason.REMOTE_NEAREST
    one.first_token("q")
    one.hear("gw-eu", EU, rtt_ms=80, available=2, queue=3)
    assert started(one.ask("again", prompt="s" * 160)) == ["gw-ap"]
