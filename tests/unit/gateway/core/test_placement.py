"""The policies over one filter, score, pick."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.core.config import CoreConfig, PlacementConfig, PlacementPolicy, PushingConfig
from gateway.core.effects import StartLeg
from gateway.core.events import ConfigApplied
from gateway.core.vocabulary import AttemptResult, PlacementReason
from tests.support.core import EU, MS, Desk, desk, peer_spec, started


def desk_with(policy: PlacementPolicy, replicas: int = 4) -> Desk:
    config = CoreConfig(placement=PlacementConfig(policy=policy), pushing=PushingConfig(in_band_credit=None))
    return desk(replicas=replicas, config=config)


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
    one = desk_with(PlacementPolicy.PREFIX, replicas=2)
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
    one.finish("q", AttemptResult.COMPLETED)
    one.wait(10 * MS)
    one.probe()
    (home,) = started(one.ask("a", prompt="p" * 100))
    assert started(one.ask("b", prompt="p" * 100)) == [home]


def test_prefixes_that_nobody_uses_are_forgotten() -> None:
    config = CoreConfig(placement=PlacementConfig(prefix_ttl_ns=2_000 * MS))
    one = desk(replicas=2, config=config)
    one.ask("q", prompt="p" * 100)
    assert one.core.placer.replica_index.blocks > 0
    one.wait(4_000 * MS)
    assert one.core.placer.replica_index.blocks == 0
