"""Requests whose answer has begun elsewhere: they go before new ones, at this gateway and at peers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import (
    AttemptConfig,
    PeerAvailability,
    PlacementConfig,
    PlacementPolicy,
    PushingConfig,
    QueueConfig,
)
from gateway.core.kernel.effects import EndRequest, PublishLoad, StartLeg
from gateway.core.kernel.events import RequestArrived
from gateway.core.vocabulary import Standing
from tests.support.core import (
    BOTH,
    EU,
    EU_PEER,
    MODEL,
    MS,
    SECOND,
    US,
    Desk,
    desk,
    of_kind,
    policy,
    profile,
    replica_spec,
    started,
    words,
)

under_both = pytest.mark.parametrize("placement", BOTH)


def ask_rest(one: Desk, request_id: str, prompt: str = "hello") -> list[str]:
    """Have the rest of an answer arrive; return the targets that it starts at."""
    asked = replace(profile(request_id, prompt=prompt), appends=True)
    return started(one.tell(RequestArrived(asked, one.now_ns + 600 * SECOND)))


def starts(one: Desk) -> list[str]:
    return [leg.request_id for leg in of_kind(StartLeg, one.effects)]


@under_both
def test_they_are_placed_before_new_ones_that_came_first(placement: PlacementPolicy) -> None:
    one = desk(replicas=2, placement=placement)
    one.probe(healthy=False)
    for name in ("new1", "new2"):
        one.ask(name)
    ask_rest(one, "rest")
    one.probe("r0")
    assert starts(one)[0] == "rest"


def full(placement: PlacementPolicy = PlacementPolicy.COST, *, release_ms: int = 50) -> Desk:
    """Gateway with one replica of one slot, which is taken, so that further requests are held for it."""
    one = desk(replicas=[replace(replica_spec("r0"), slots=1)], placement=placement)
    one.ask("runs")
    one.first_token("runs")
    one.wait(release_ms * MS)
    one.probe("r0", running=1)
    one.ask("next")
    return one


def test_at_a_full_replica_they_go_before_all_new_ones_that_are_held_for_it() -> None:
    one = full()
    for name in ("new1", "new2"):
        one.ask(name)
    ask_rest(one, "rest")
    one.ask("new3")
    assert "rest" not in starts(one), "the replica is full"
    one.finish("runs")
    one.probe("r0")
    waiting = [name for name in starts(one) if name not in ("runs", "next")]
    assert waiting[:1] == ["rest"]


def test_no_short_new_request_overtakes_one_that_is_held_for_the_replica_s_time() -> None:
    one = desk(replicas=1)
    one.ask("long", prompt=words("long", 10_000))
    assert ask_rest(one, "rest", words("rest", 10_000)) == []
    one.ask("short")
    assert starts(one) == ["long"]
    one.first_token("long")
    one.probe()
    assert starts(one)[:2] == ["long", "rest"]


@pytest.mark.parametrize("availability", PeerAvailability)
def test_a_queue_of_new_requests_at_a_peer_is_not_ahead_of_them(availability: PeerAvailability) -> None:
    placement = PlacementConfig(peer_availability=availability)
    one = desk(replicas=0, peers=[EU_PEER], config=CoreConfig(placement=placement))
    one.hear("gw-eu", EU, queue=500, room=2, release_ns=50 * MS)
    peers, (peer,) = one.core.peers, one.core.peers
    rule = policy(US).process
    standings = [peers.standing_for(peer, MODEL, rule, appends=appends) for appends in (False, True)]
    assert standings[0] in (Standing.BUSY, Standing.QUEUE)
    assert standings[1] is Standing.AVAILABLE
    assert [bool(peers.available(MODEL, rule, appends=appends)) for appends in (True, False)] == [True, False]
    assert (peers.wait_ns(peer, MODEL, None) > SECOND, peers.wait_ns(peer, MODEL, None, appends=True)) == (True, 0)
    one.ask("new")
    assert ask_rest(one, "rest") == ["gw-eu"]
    assert starts(one) == ["rest"]


@pytest.mark.parametrize("availability", PeerAvailability)
def test_others_that_wait_at_a_peer_are_ahead_of_them(availability: PeerAvailability) -> None:
    placement = PlacementConfig(peer_availability=availability)
    one = desk(replicas=0, peers=[EU_PEER], config=CoreConfig(placement=placement))
    one.hear("gw-eu", EU, queue=500, appending=50, room=2, release_ns=50 * MS)
    assert ask_rest(one, "rest") == []
    peers, (peer,) = one.core.peers, one.core.peers
    assert SECOND < peers.wait_ns(peer, MODEL, None, appends=True) < peers.wait_ns(peer, MODEL, None)
    one.hear("gw-eu", EU, queue=500, room=2, release_ns=50 * MS)
    assert starts(one) == ["rest"]


def test_peers_are_told_how_many_of_them_wait() -> None:
    one = desk(replicas=1, peers=[EU_PEER])
    one.probe(healthy=False)
    one.ask("new")
    for name in ("rest1", "rest2"):
        ask_rest(one, name)
    one.wait(SECOND)
    (queue,) = of_kind(PublishLoad, one.effects)[-1].report.queues
    assert (queue.length, queue.appending) == (3, 2)


@under_both
def test_a_queue_full_of_new_requests_has_room_for_them(placement: PlacementPolicy) -> None:
    config = CoreConfig(queue=QueueConfig(length_max=2, tenant_length_max=2))
    one = desk(replicas=1, config=config, placement=placement)
    one.probe(healthy=False)
    for name in ("new1", "new2", "new3"):
        one.ask(name)
    for name in ("rest1", "rest2", "rest3"):
        ask_rest(one, name)
    assert [end.request_id for end in of_kind(EndRequest, one.effects)] == ["new3", "rest3"]


def test_a_burst_of_them_is_spread_over_all_targets_with_room() -> None:
    """A hundred rests at once, which are read in the same time anywhere, go to all replicas alike."""
    one = desk(replicas=[replace(replica_spec(f"r{number}"), slots=64) for number in range(4)])
    one.probe(healthy=False)
    for number in range(100):
        ask_rest(one, f"rest{number}")
    one.probe()
    for _ in range(100):
        one.wait(50 * MS)
        for leg in of_kind(StartLeg, one.effects):
            one.first_token(leg.request_id)
        one.probe()
    at = started(one.effects)
    assert sorted(at.count(f"r{number}") for number in range(4)) == [25] * 4


def test_a_request_held_for_a_replica_that_closes_chooses_before_later_ones() -> None:
    """A short request takes the last leg that the replica's ramp allows; the one held for it takes the peer."""
    attempt = AttemptConfig(ramp_step_ns=1 * SECOND)
    config = CoreConfig(pushing=PushingConfig(in_band_credit=None), attempt=attempt)
    one = desk(replicas=1, peers=[EU_PEER], config=config)
    one.probe(healthy=False)
    one.wait(10 * MS)
    one.probe()
    for name, prompt in (("reads", words("reads", 10_000)), ("held", words("held", 10_000)), ("short", "hi")):
        one.ask(name, prompt=prompt)
    one.ask("later", prompt=words("later", 10_000))
    one.wait(900 * MS)
    one.probe(running=1)
    one.now_ns += 200 * MS
    effects = one.hear("gw-eu", EU, rtt_ms=3_000, room=1, release_ns=10_000 * SECOND)
    begun = [(leg.request_id, leg.target.id) for leg in of_kind(StartLeg, effects)]
    assert begun == [("short", "r0"), ("held", "gw-eu")]
