from __future__ import annotations

import pytest

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import ExploreRule, PlacementConfig, PlacementPolicy, PushingConfig, RemoteChoice
from gateway.core.vocabulary import PlacementReason
from tests.support.core import AP, EU, LAYERED, MS, Desk, desk, peer_spec, started
from tests.support.placement import decisions, desk_with, records


def test_prefix_returns_to_the_replica_that_has_it() -> None:
    one = desk_with(PlacementPolicy.PREFIX)
    (home,) = started(one.ask("first", prompt="a conversation " * 10))
    for i in range(6):
        one.ask(f"noise{i}", prompt=f"{i} something else " * 10)
    assert started(one.ask("second", prompt="a conversation " * 10 + "and its next turn")) == [home]
    assert decisions(one)[-1] is PlacementReason.LOCAL_PREFIX


def test_below_half_of_the_prompt_it_explores_the_least_loaded() -> None:
    """Rule of the paper."""
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


def test_by_default_what_a_match_is_worth_decides_and_not_its_share_of_the_prompt() -> None:
    config = CoreConfig(pushing=PushingConfig(in_band_credit=None))
    one = desk(replicas=2, config=config, placement=PlacementPolicy.PREFIX)
    (home,) = started(one.ask("first", prompt="s" * 160))
    assert started(one.ask("second", prompt="s" * 160 + "own text, much longer than the shared part" * 9)) == [home]
    assert decisions(one)[-1] is PlacementReason.LOCAL_PREFIX


def test_a_match_is_worth_so_much_load() -> None:
    placement = PlacementConfig(explore_rule=ExploreRule.WORTH, explore_load_bytes=64)
    config = CoreConfig(placement=placement, pushing=PushingConfig(in_band_credit=None))
    one = desk(replicas=2, config=config, placement=LAYERED)
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


def by_ratio(replicas: int) -> tuple[Desk, str]:
    """Gateway under ELDR's rule for prefill workers, 1.25 times the mean, and the replica that was sent 160 bytes."""
    config = CoreConfig(
        placement=PlacementConfig(explore_rule=ExploreRule.RATIO), pushing=PushingConfig(in_band_credit=None)
    )
    one = desk(replicas=replicas, config=config, placement=LAYERED)
    (home,) = started(one.ask("first", prompt="s" * 160))
    one.finish("first")
    one.wait(MS)
    return one, home


def test_a_prompt_returns_until_its_replica_has_more_than_a_ratio_of_the_mean_load() -> None:
    one, home = by_ratio(2)
    other = {"r0": "r1", "r1": "r0"}[home]
    one.probe(home, running=5)
    one.probe(other, running=3)
    assert started(one.ask("within", prompt="s" * 160)) == [home], "6 are 1.25 times the mean of 4.5, rounded up"
    one.wait(MS)
    one.probe(home, running=7)
    assert started(one.ask("beyond", prompt="s" * 160)) == [other], "8 are more than 1.25 times the mean of 5.5"
    assert decisions(one)[-2:] == [PlacementReason.LOCAL_PREFIX, PlacementReason.LOCAL_EXPLORE]


@pytest.mark.parametrize(
    "busy, at_home, returns",
    [
        (0, 0, True),  # 1 of at most 1
        (4, 0, True),
        (0, 1, False),  # 2 of at most 1
        (4, 1, False),
        (5, 1, True),  # 2 of at most 2
        (7, 1, True),
        (7, 2, False),
    ],
)
def test_at_a_mean_of_less_than_one_a_replica_may_have_a_whole_request(busy: int, at_home: int, returns: bool) -> None:
    """The knower among eight replicas has `at_home` requests, and `busy` others one each."""
    one, home = by_ratio(8)
    others = [f"r{number}" for number in range(8) if f"r{number}" != home]
    for place, name in enumerate(others):
        one.probe(name, running=int(place < busy))
    one.probe(home, running=at_home)
    assert (started(one.ask("again", prompt="s" * 160)) == [home]) is returns


def test_full_replicas_count_in_the_mean() -> None:
    """The knower's 3 would be more than 1.25 times the mean of 1, rounded up, that there is without the full one."""
    one, home = by_ratio(4)
    full, *others = [f"r{number}" for number in range(4) if f"r{number}" != home]
    for name in others:
        one.probe(name, running=0)
    one.probe(home, running=2)
    one.probe(full, running=9, waiting=1)
    assert started(one.ask("again", prompt="s" * 160)) == [home]


def test_the_record_has_what_the_explored_replica_knows_of_the_prompt() -> None:
    one, home = by_ratio(2)
    other = {"r0": "r1", "r1": "r0"}[home]
    one.probe(home, running=9)
    one.probe(other, running=0)
    assert started(one.ask("half", prompt="s" * 80)) == [other]
    one.finish("half")
    one.wait(MS)
    one.probe(home, running=9)
    one.probe(other, running=0)
    assert started(one.ask("whole", prompt="s" * 160)) == [other]
    assert [each.matched_blocks for each in records(one)[-2:]] == [0, 5], "a block has 16 bytes"


def test_an_unknown_prompt_goes_to_the_least_loaded_under_the_rule_of_a_ratio() -> None:
    one = desk_with(PlacementPolicy.PREFIX, replicas=2, rule=ExploreRule.RATIO)
    one.wait(MS)
    one.probe("r0", running=2)
    one.probe("r1", running=1)
    assert started(one.ask("new", prompt="n" * 160)) == ["r1"]
    assert decisions(one) == [PlacementReason.LOCAL_EXPLORE]


def abroad(placement: PlacementConfig) -> Desk:
    """Gateway whose only replica is full; the peer in Japan was sent a prompt once, and the one in Ireland is
    nearer."""
    config = CoreConfig(placement=placement, pushing=PushingConfig(in_band_credit=None))
    one = desk(replicas=1, peers=[peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)], config=config, placement=LAYERED)
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
