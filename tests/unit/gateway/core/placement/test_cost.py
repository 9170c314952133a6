"""Placement by cost: the cheapest of all targets, or waiting here for one of this gateway's replicas."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from gateway.core.kernel.pools import PoolFit
from gateway.core.kernel.requests import Hold
from gateway.core.placement.cost import CostPolicy, _beginning
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.policy import Choice, Offer
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    Costs,
    GatewayId,
    Hints,
    LoadReport,
    ModelCapacity,
    ModelName,
    PeerObservation,
    PlacementReason,
    ReplicaId,
    ReplicaObservation,
    RequestId,
    RequestProfile,
    peer_target,
    replica_target,
)
from tests.support.core import EU, MODEL, MS, SECOND, desk, peer_spec, profile, started
from tests.support.placement import decisions, desk_with

PRIOR_NS = 10_000
"""Nanoseconds per byte of a prompt, assumed until first tokens were observed."""
REQUEST_BYTES = PlacementConfig().explore_load_bytes
WEIGHT = PlacementConfig().delay_weight
WAY_WEIGHT = 2 * WEIGHT
"""Weight of the way to another gateway. It is measured, so it counts twice as much as an estimated wait."""


class Told:
    """One policy, what its fleet is told, and the policy's verdicts."""

    def __init__(self, replicas: int = 2, *, abroad: bool = False, **placement: object) -> None:
        self.config = PlacementConfig(**({"hold_size_bytes": 0} | placement))  # type: ignore[arg-type]
        peers = [peer_spec("gw-eu", EU)] if abroad else []
        self.core = desk(replicas=replicas, peers=peers, config=CoreConfig(placement=self.config)).core
        self.fleet = Fleet(self.config, self.core.replicas, self.core.peers, random.Random(1))
        self.policy = CostPolicy(self.fleet, self.config)
        self.now_ns = 0
        self.legs = self.heard = 0
        for state in self.core.replicas:
            self.policy.joined(state.target, state.slot)

    def load(self, slot: int, running: int = 0, waiting: int = 0, kv_tokens: int = 0) -> None:
        name = ReplicaId(f"r{slot}")
        told = ReplicaObservation(name, self.now_ns, True, running, waiting, kv_tokens=kv_tokens)
        self.core.replicas.observe(told, self.now_ns)

    def runs(self, slot: int, running: int, yielding: int) -> None:
        """Have requests run at a replica, of which so many yield."""
        self.load(slot, running=running)
        self.core.replicas.at(slot).yielding = yielding
        self.core.replicas.rooms.changed |= 1 << slot
        if yielding:
            self.core.replicas.giving |= 1 << slot

    def reads(self, slot: int, backlog_bytes: int) -> None:
        """Add a leg of this gateway without a first token."""
        self.legs += 1
        key = (RequestId(f"leg{self.legs}"), 1, 1)
        self.core.replicas.started(self.core.replicas.at(slot), key, self.now_ns, backlog_bytes)

    def send(self, asked: RequestProfile, slot: int, *, arrived_ns: int = 0) -> None:
        """Update the books as the placer does when it follows a choice."""
        known = self.fleet.match_replicas(asked, 1 << slot).blocks
        self.policy._arrived_ns, self.policy._now_ns = arrived_ns, self.now_ns
        self.policy.sent(asked, replica_target(ReplicaId(f"r{slot}")), slot, known)
        self.fleet.replica_index.insert(asked.prefix, slot, self.now_ns)

    def hear(
        self,
        *,
        replicas: int = 1,
        load: int = 0,
        rtt_ms: int = 0,
        backlog_bytes: int = 0,
        free_tokens: int | None = None,
        room: int = 64,
        release_ns: int = 0,
        yielding: int = 0,
    ) -> None:
        capacity = ModelCapacity(
            MODEL,
            DEFAULT_POOL,
            EU,
            replicas,
            replicas,
            load=load,
            backlog_bytes=backlog_bytes,
            free_tokens=free_tokens,
            room=room,
            release_ns=release_ns,
            yielding=yielding,
        )
        self.heard += 1
        report = LoadReport(GatewayId("gw-eu"), EU, self.heard, True, 1, "d", (capacity,))
        self.core.peers.observe(PeerObservation(report, 0, 0, rtt_ms * MS, rtt_ms * MS), 0)

    def weigh(self, asked: RequestProfile, offer: Offer | None = None) -> Choice | None:
        return self.policy.weigh(asked, offer or Offer((1 << len(self.core.replicas)) - 1), self.now_ns)

    def chosen(self, asked: RequestProfile, offer: Offer | None = None) -> int:
        choice = self.weigh(asked, offer)
        assert choice is not None
        assert not choice.is_peer
        return choice.slot

    def costs(self, asked: RequestProfile, slot: int, held: Hold | None = None) -> Costs:
        """Costs at a replica, for a request that may go to any replica here."""
        self.weigh(asked)
        return self.policy.costs_at_replica(asked, slot, held)

    def costs_there(self, asked: RequestProfile) -> Costs:
        """Costs at the peer, for a request that may go to any replica here or to the peer."""
        self.weigh(asked, Offer((1 << len(self.core.replicas)) - 1, remotes=1))
        return self.policy.costs_at_peer(asked, 0)

    def hold(self, asked: RequestProfile, offer: Offer | None = None) -> Hold | None:
        choice = self.weigh(asked, offer)
        assert choice is not None
        return choice.hold


def prompt(letter: str, length: int = 1600) -> RequestProfile:
    return profile("q", prompt=letter * length)


class TestAtAReplica:
    def test_reading_is_of_what_it_was_not_sent_before(self) -> None:
        told = Told()
        told.send(prompt("a"), 0)
        asked = prompt("a", 3200)
        assert told.costs(asked, 1).reading_ns == PRIOR_NS * asked.prompt_bytes
        assert told.costs(asked, 0).reading_ns == PRIOR_NS * (asked.prompt_bytes - 1600)

    def test_crowding_is_by_what_runs_and_waits_there(self) -> None:
        told = Told()
        told.load(0, running=5, waiting=2)
        assert told.costs(prompt("a"), 0).crowding_ns == PRIOR_NS * REQUEST_BYTES * 7
        assert told.costs(prompt("a"), 1).crowding_ns == 0

    @pytest.mark.parametrize(("running", "shares"), [((1, 3), (1, 1)), ((1, 4), (2 / 3.5, 1)), ((0, 7), (1 / 4.5, 1))])
    def test_reading_counts_for_less_where_fewer_than_half_as_many_run_as_on_average(
        self, running: tuple[int, int], shares: tuple[float, float]
    ) -> None:
        told = Told()
        for slot in (0, 1):
            told.load(slot, running=running[slot])
        asked = prompt("a")
        reading = [told.costs(asked, slot).reading_ns for slot in (0, 1)]
        assert reading == pytest.approx([PRIOR_NS * asked.prompt_bytes * share for share in shares])

    def test_waiting_is_until_it_has_read_what_we_sent(self) -> None:
        told = Told()
        told.reads(0, 3000)
        assert told.costs(prompt("a"), 0).waiting_ns == pytest.approx(PRIOR_NS * 3000 * WEIGHT / 1.5)

    def test_and_what_those_who_are_held_there_bring(self) -> None:
        told = Told()
        told.reads(0, 3000)
        for size in (500, 700):
            told.policy.held(Hold(0, size, b"another!"))
        expected = PRIOR_NS * (3000 + 500 + 700) * WEIGHT / 1.5
        assert told.costs(prompt("a"), 0).waiting_ns == pytest.approx(expected)

    def test_for_an_answer_that_has_begun_only_of_others_that_have(self) -> None:
        told = Told()
        told.reads(0, 3000)
        rest = replace(prompt("a"), appends=True)
        told.policy.held(Hold(0, 500, b"another!"))
        assert told.costs(rest, 0).waiting_ns == pytest.approx(PRIOR_NS * 3000 * WEIGHT / 1.5)
        told.policy.held(Hold(0, 700, b"another!", appends=True))
        assert told.costs(rest, 0).waiting_ns == pytest.approx(PRIOR_NS * 3700 * WEIGHT / 1.5)

    def test_or_until_those_in_the_engine_s_own_queue_have_left_if_that_takes_longer(self) -> None:
        told = Told()
        for at_ms in (0, 40, 80):
            told.policy.ended(0, at_ms * MS)
        told.load(0, running=1, waiting=2)
        assert told.costs(prompt("a"), 0).waiting_ns == pytest.approx(80 * MS * WEIGHT / 2.5)
        told.reads(0, 100_000)
        assert told.costs(prompt("a"), 0).waiting_ns == pytest.approx(SECOND * WEIGHT / 2.5)

    def test_before_anybody_has_left_it_is_no_less_than_the_queue_has_stood_still(self) -> None:
        told = Told()
        told.load(0, running=1, waiting=1)
        told.now_ns = 9 * SECOND
        assert told.costs(prompt("a"), 0).waiting_ns == 0, "nothing of ours runs there: there is nothing to go by"
        told.send(prompt("b"), 0)
        moves: list[Callable[[], object]] = [
            lambda: None,
            lambda: told.policy.prefilled(0, 100, 0, told.now_ns),
            lambda: told.policy.ended(0, told.now_ns),
        ]
        for moved in moves:
            moved()
            for passed_ms, counts_ms in ((999, 0), (1001, 2000)):
                told.now_ns += passed_ms * MS
                assert told.costs(prompt("a"), 0).waiting_ns == pytest.approx(counts_ms * MS * WEIGHT / 2)

    def test_the_time_between_two_ends_is_of_late(self) -> None:
        told = Told()
        for at_ms in (0, 40, 140):
            told.policy.ended(0, at_ms * MS)
        told.load(0, waiting=1)
        expected = (0.95 * 40 + 0.05 * 100) * MS * WEIGHT / 1.5
        assert told.costs(prompt("a"), 0).waiting_ns == pytest.approx(expected)

    def test_who_is_held_there_is_ahead_and_those_who_want_the_same_weigh_as_often_as_they_are(self) -> None:
        told = Told()
        for at_ms in (0, 40):
            told.policy.ended(0, at_ms * MS)
        told.send(prompt("a"), 0)
        told.send(prompt("b"), 0)
        beginning = prompt("a").prefix[63 * 8 : 64 * 8]
        for _ in range(3):
            told.policy.held(Hold(0, 1, beginning))
        alone = told.costs(prompt("b"), 0).waiting_ns
        assert alone == pytest.approx(3 * 40 * MS * WEIGHT)
        assert told.costs(prompt("a"), 0).waiting_ns == pytest.approx(4 * alone)

    def test_whoever_is_held_there_is_the_first_of_those_and_elsewhere_it_would_be_the_last(self) -> None:
        told = Told()
        for slot in (0, 1):
            for at_ms in (0, 40):
                told.policy.ended(slot, at_ms * MS)
        own = Hold(0, 1, b"")
        told.policy.held(own)
        told.policy.held(Hold(1, 1, b"another!"))
        assert told.costs(prompt("a"), 0, own).waiting_ns == 0
        assert told.costs(prompt("a"), 1, own).waiting_ns > 0

    def test_once_it_is_held_no_more_it_is_ahead_of_nobody(self) -> None:
        told = Told()
        for at_ms in (0, 40):
            told.policy.ended(0, at_ms * MS)
        hold = Hold(0, 1, b"")
        told.policy.held(hold)
        told.policy.unheld(hold)
        assert told.costs(prompt("a"), 0).waiting_ns == 0

    def test_its_books_go_with_it(self) -> None:
        told = Told()
        told.policy.held(Hold(0, 1, b""))
        for at_ms in (0, 40):
            told.policy.ended(0, at_ms * MS)
        told.policy.left(replica_target(ReplicaId("r0")), 0)
        told.policy.joined(replica_target(ReplicaId("another")), 0)
        assert told.costs(prompt("a"), 0).waiting_ns == 0

    def test_and_so_does_what_its_cache_held(self) -> None:
        told = Told(replicas=1)
        told.send(prompt("a"), 0)
        told.policy.left(replica_target(ReplicaId("r0")), 0)
        told.policy.joined(replica_target(ReplicaId("another")), 0)
        choice = told.weigh(prompt("a"))
        assert choice is not None
        assert choice.uncached_bytes == prompt("a").prompt_bytes


class TestWhatAByteTakes:
    def told(self, waiting: int = 0, *, all_at_once: bool = False) -> float:
        told = Told()
        told.load(0, waiting=waiting)
        now_ns = 0
        for size in range(100, 3000, 100):
            started_ns, now_ns = now_ns, now_ns + 5 * MS + 2000 * size
            told.policy.prefilled(0, size, 0 if all_at_once else started_ns, now_ns)
        asked = prompt("a")
        return told.costs(asked, 0).reading_ns / asked.prompt_bytes

    def test_is_learnt_of_all_replicas_together(self) -> None:
        assert self.told() == pytest.approx(2000)

    def test_what_was_read_before_does_not_count(self) -> None:
        assert self.told(all_at_once=True) == pytest.approx(2000)

    def test_is_not_learnt_where_somebody_waits_for_a_slot(self) -> None:
        assert self.told(waiting=1) == PRIOR_NS

    def test_is_known_roughly_from_the_first_one_on(self) -> None:
        """A fleet that starts under load decides much before eight first tokens have come."""
        told = Told()
        told.policy.prefilled(0, 1000, 0, 80 * MS)
        asked = prompt("a")
        assert told.costs(asked, 0).reading_ns / asked.prompt_bytes == pytest.approx(80_000)

    def byte_ns(self, told: Told) -> float:
        asked = prompt("a")
        return told.costs(asked, 0).reading_ns / asked.prompt_bytes

    def test_what_reads_next_to_nothing_tells_nothing_of_it(self) -> None:
        told = Told()
        for number in range(1, 2000):
            told.policy.prefilled(0, number % 256, number * SECOND, number * SECOND + 30 * MS)
        assert self.byte_ns(told) == PRIOR_NS

    def test_one_that_stalls_is_not_taken_for_reading(self) -> None:
        told = Told()
        told.policy.prefilled(0, 4096, 0, 60 * SECOND)
        assert self.byte_ns(told) == pytest.approx(100 * PRIOR_NS)
        for number in range(1, 200):
            told.policy.prefilled(0, 4096, (60 + number) * SECOND, (60 + number) * SECOND + 41 * MS)
        assert self.byte_ns(told) < 3 * PRIOR_NS


class TestLoadOnAverage:
    """One client's time weighs less, the higher the average load of the targets is."""

    def distance_ns(self, told: Told, offer: Offer) -> float:
        told.weigh(prompt("a"), offer)
        return told.policy.costs_at_peer(prompt("a"), 0).distance_ns

    def told(self) -> Told:
        told = Told(replicas=3, abroad=True)
        for slot, running in enumerate((4, 0, 70)):
            told.load(slot, running=running)
        told.hear(replicas=2, load=2, rtt_ms=100)
        return told

    def test_is_of_all_that_it_may_go_to_and_of_each_replica_at_another_gateway(self) -> None:
        told = self.told()
        for offer in (Offer(0b011, siblings=1), Offer(0b011, remotes=1)):
            assert self.distance_ns(told, offer) == pytest.approx(WAY_WEIGHT * 100 * MS / (1 + 6 / 4))

    @pytest.mark.parametrize("lie", [{"load": 10**9}, {"load": 10**9, "replicas": 10**6}])
    def test_whatever_another_gateway_says_makes_nothing_cheap_here(self, lie: dict[str, int]) -> None:
        told = Told(abroad=True)
        for slot in (0, 1):
            told.load(slot, running=6)
        told.hear(**lie)
        told.weigh(prompt("a"), Offer(0b11, remotes=1))
        costs = told.policy.costs_at_replica(prompt("a"), 0, None)
        assert costs.reading_ns == PRIOR_NS * prompt("a").prompt_bytes
        assert told.policy._delay_weight == WEIGHT / 7

    def test_one_that_claims_a_great_fleet_that_is_idle_counts_as_no_more_than_ours(self) -> None:
        told = Told(abroad=True)
        for slot in (0, 1):
            told.load(slot, running=6)
        told.hear(load=0, replicas=10**6)
        told.weigh(prompt("a"), Offer(0b11, remotes=1))
        assert told.policy._delay_weight == WEIGHT / (1 + 12 / 4)

    def test_is_not_of_whom_it_may_not_go_to(self) -> None:
        told = self.told()
        assert self.distance_ns(told, Offer(0b011)) == pytest.approx(WAY_WEIGHT * 100 * MS / (1 + 4 / 2))
        assert self.distance_ns(told, Offer(0, remotes=1)) == pytest.approx(WAY_WEIGHT * 100 * MS / (1 + 2 / 2))

    def test_is_that_of_the_request_that_was_asked_about_last(self) -> None:
        told = self.told()
        told.weigh(prompt("b"))
        told.weigh(prompt("a"), Offer(0, remotes=1))
        assert told.policy.costs_at_peer(prompt("a"), 0).distance_ns == pytest.approx(
            WAY_WEIGHT * 100 * MS / (1 + 2 / 2)
        )
        told.weigh(prompt("a"), Offer(0b011))
        assert told.policy.costs_at_peer(prompt("a"), 0).distance_ns == pytest.approx(
            WAY_WEIGHT * 100 * MS / (1 + 4 / 2)
        )


class TestBesideRequestsThatYield:
    """Requests that yield are no load to one that goes first, and are load to all others."""

    def test_they_do_not_raise_the_mean_load(self) -> None:
        told = Told(abroad=True)
        for slot in (0, 1):
            told.runs(slot, 6, yielding=5)
        told.hear(load=20, yielding=19)
        told.fleet.goes_first = True
        told.weigh(prompt("a"), Offer(0b11, remotes=1))
        assert told.policy._delay_weight == WEIGHT / 2
        told.fleet.goes_first = False
        told.weigh(prompt("a"), Offer(0b11, remotes=1))
        assert told.policy._delay_weight == WEIGHT / 7

    @pytest.mark.parametrize("goes_first", [True, False])
    def test_a_replica_where_nothing_else_runs_costs_as_much_as_an_idle_one(self, *, goes_first: bool) -> None:
        told = Told()
        told.runs(0, 20, yielding=20)
        told.fleet.goes_first = goes_first
        there, idle = told.costs(prompt("a"), 0), told.costs(prompt("a"), 1)
        assert (there == idle) is goes_first
        told.load(1, running=1)
        assert told.chosen(prompt("a")) == (0 if goes_first else 1)

    @pytest.mark.parametrize("goes_first", [True, False])
    def test_a_peer_where_nothing_else_runs_costs_as_much_as_an_idle_one(self, *, goes_first: bool) -> None:
        told = Told(abroad=True)
        for slot in (0, 1):
            told.load(slot, running=6)
        told.fleet.goes_first = goes_first
        told.hear(load=0)
        idle = told.costs_there(prompt("a"))
        told.hear(load=20, yielding=20)
        assert (told.costs_there(prompt("a")) == idle) is goes_first
        told.hear(load=1, yielding=20)
        assert told.costs_there(prompt("a")).total_ns >= idle.total_ns, "a lie makes it no cheaper than idle"

    @pytest.mark.parametrize("elsewhere", [0, 1])
    def test_the_one_with_the_most_requests_is_compared_if_these_yield(self, elsewhere: int) -> None:
        told = Told(replicas=7)
        for slot in range(6):
            told.runs(slot, 20, yielding=elsewhere)
        told.runs(6, 22, yielding=21)
        told.fleet.goes_first = True
        assert told.chosen(prompt("a")) == 6
        told.fleet.goes_first = False
        assert told.chosen(prompt("a")) != 6

    def test_nobody_waits_for_room_in_a_cache_beside_them(self) -> None:
        told = Told(replicas=1, kept_gaps=1e9)
        told.runs(0, 20, yielding=20)
        told.policy._is_full = lambda slot: True  # type: ignore[method-assign]
        told.policy.reading_again_ns = lambda uncached_bytes: 10.0**15  # type: ignore[method-assign]
        for goes_first in (True, False):
            told.fleet.goes_first = goes_first
            hold = told.hold(prompt("a"))
            assert (hold is None) is goes_first

    def test_the_policies_that_go_by_load_alone_do_not_count_them(self) -> None:
        told = Told()
        told.runs(0, 20, yielding=20)
        told.load(1, running=2)
        told.fleet.goes_first = True
        assert told.fleet.least_loaded_replica(0b11) == 0
        told.fleet.goes_first = False
        assert told.fleet.least_loaded_replica(0b11) == 1


class TestAtAnotherGateway:
    def test_load_is_that_of_one_of_its_replicas_and_of_the_way_the_weight_of_a_client_s_time_counts(self) -> None:
        told = Told(abroad=True)
        told.hear(replicas=4, load=20, rtt_ms=100)
        costs = told.costs_there(prompt("a"))
        assert costs.crowding_ns == PRIOR_NS * REQUEST_BYTES * 5
        assert costs.distance_ns == pytest.approx(WAY_WEIGHT * 100 * MS), (
            "nobody runs here, and it speaks for itself alone"
        )
        assert costs.reading_ns == PRIOR_NS * prompt("a").prompt_bytes
        assert costs.waiting_ns == 0

    @pytest.mark.parametrize(("running", "ways"), [(6, 1.0), (7, 0.25), (100, 0.25)])
    def test_the_way_counts_for_a_quarter_where_ours_are_more_crowded_by_a_fifth_and_four(
        self, running: int, ways: float
    ) -> None:
        told = Told(abroad=True)
        for slot in (0, 1):
            told.load(slot, running=running)
        told.hear(load=1, rtt_ms=100)  # 1.2 × (4 + 1) = 6
        told.weigh(prompt("a"), Offer(0b11, remotes=1))
        costs = told.policy.costs_at_peer(prompt("a"), 0)
        assert costs.distance_ns == pytest.approx(ways * WAY_WEIGHT * 100 * MS / (1 + (2 * running + 1) / 3))

    @pytest.mark.parametrize(("running", "share"), [(1, 1.0), (11, 1.0), (23, 0.5), (119, 0.1)])
    def test_one_more_request_weighs_less_among_many(self, running: int, share: float) -> None:
        told = Told(abroad=True)
        for slot in (0, 1):
            told.load(slot, running=running)
        told.hear(load=running)
        told.weigh(prompt("a"), Offer(0b11, remotes=1))
        each_ns = PRIOR_NS * REQUEST_BYTES * share
        assert told.policy.costs_at_replica(prompt("a"), 0, None).crowding_ns == pytest.approx(each_ns * running)
        assert told.policy.costs_at_peer(prompt("a"), 0).crowding_ns == pytest.approx(each_ns * running)

    def test_where_hardly_anybody_runs_reading_counts_for_less_there_too(self) -> None:
        told = Told(abroad=True)
        told.hear(replicas=2, load=2)
        told.load(0, running=6)
        asked = prompt("a")
        assert told.costs_there(asked).reading_ns == PRIOR_NS * asked.prompt_bytes, "one on each, of two on average"
        told.now_ns += 1
        told.load(0, running=7)
        expected = PRIOR_NS * asked.prompt_bytes * 2 / (1 + 9 / 4)
        assert told.costs_there(asked).reading_ns == pytest.approx(expected)

    def test_what_it_says_that_it_has_to_read_is_ahead(self) -> None:
        told = Told(abroad=True)
        told.hear(backlog_bytes=3000)
        assert told.costs_there(prompt("a")).waiting_ns == pytest.approx(PRIOR_NS * 3000 * WEIGHT)

    def test_and_so_is_what_was_forwarded_since(self) -> None:
        told = Told(abroad=True)
        told.hear(backlog_bytes=3000)
        (peer,) = told.core.peers
        told.core.peers.started(peer, (RequestId("leg"), 1, 1), 0, 500)
        expected = PRIOR_NS * 3500 * WEIGHT
        assert told.costs_there(prompt("a")).waiting_ns == pytest.approx(expected)

    def test_what_would_only_wait_for_room_there_stays_unless_most_of_it_is_there(self) -> None:
        told = Told(abroad=True)
        offer = Offer(0b11, remotes=1)
        for slot in (0, 1):
            told.load(slot, running=500)
        asked = prompt("a")
        taken = []
        for free_tokens in (asked.prompt_bytes // 4 - 1, asked.prompt_bytes // 4, None):
            told.hear(free_tokens=free_tokens)
            choice = told.weigh(asked, offer)
            assert choice is not None
            taken.append(choice.is_peer)
        assert taken == [False, True, True]
        told.hear(free_tokens=1)
        assert told.weigh(asked, Offer(0, remotes=1)) is None, "it waits here"
        told.fleet.peer_index.insert(asked.prefix, 0, 0)
        choice = told.weigh(asked, offer)
        assert choice is not None
        assert choice.is_peer

    def test_where_no_own_replica_answers_it_goes_there_all_the_same(self) -> None:
        told = Told(abroad=True)
        for state in told.core.replicas:
            told.core.replicas.observe(ReplicaObservation(state.spec.replica_id, 0, False, 0, 0), 0)
        told.hear(free_tokens=1)
        choice = told.weigh(prompt("a"), Offer(0, remotes=1))
        assert choice is not None
        assert choice.is_peer

    @pytest.mark.parametrize(("known", "is_candidate"), [(50, False), (51, True)])
    def test_most_of_it_is_more_than_half(self, known: int, is_candidate: bool) -> None:
        told = Told(abroad=True)
        told.hear(free_tokens=1)
        told.fleet.peer_index.insert(prompt("a", known * 16).prefix, 0, 0)
        choice = told.weigh(prompt("a", 1600), Offer(0, remotes=1))
        assert (choice is not None) == is_candidate

    def test_it_need_not_read_what_was_forwarded_there(self) -> None:
        told = Told(abroad=True)
        told.hear()
        told.fleet.peer_index.insert(prompt("a").prefix, 0, 0)
        assert told.costs_there(prompt("a")).reading_ns == PRIOR_NS * (prompt("a").prompt_bytes - 1600)

    def test_the_cheapest_of_all_is_taken_wherever_it_is(self) -> None:
        told = Told(abroad=True)
        told.hear(rtt_ms=10)
        asked = prompt("a", 80)
        offer = Offer(0b11, remotes=1)
        taken = []

        def is_cheaper_here(running: int) -> bool:
            here_ns = PRIOR_NS * (asked.prompt_bytes + REQUEST_BYTES * running)
            return here_ns < (PRIOR_NS * asked.prompt_bytes + WAY_WEIGHT * 10 * MS) / (1 + 2 * running / 3)

        worth = max(filter(is_cheaper_here, range(5)))
        assert worth > 1
        for running in (worth, worth + 1):
            told.now_ns += 1
            told.load(0, running=running)
            told.load(1, running=running)
            choice = told.weigh(asked, offer)
            assert choice is not None
            taken.append((choice.is_peer, choice.reason))
        assert taken == [(False, PlacementReason.LOCAL_EXPLORE), (True, PlacementReason.REMOTE_NEAREST)]

    def test_one_whose_way_alone_costs_as_much_is_passed_over_and_would_never_be_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng, passed_over, crowded = random.Random(3), 0, 0
        for number in range(400):
            told = Told(abroad=True)
            for slot in range(2):
                told.load(slot, running=rng.randrange(rng.choice((3, 30))))
            told.hear(rtt_ms=rng.randrange(300), load=rng.randrange(30), backlog_bytes=rng.choice((0, 5_000)))
            asked = replace(prompt("a", rng.choice((40, 400, 2_000))), hints=Hints(ends_session=bool(number % 2)))
            offer = Offer(0b11, remotes=1)
            choice = told.weigh(asked, offer)
            assert choice is not None
            with monkeypatch.context() as patched:
                patched.setattr(CostPolicy, "_least_ways", lambda *_: 0.0)
                other = told.weigh(asked, offer)
            assert other is not None
            assert (choice.is_peer, choice.slot) == (other.is_peer, other.slot)
            passed_over += len(other.peers) - len(choice.peers)
            crowded += told.policy._least_ways(asked) < 1
        assert passed_over > 100
        assert crowded > 100

    def test_each_heartbeat_counts_at_once(self) -> None:
        told = Told(abroad=True)
        for load in (2, 5, 5):
            told.hear(load=load, replicas=2, free_tokens=load, backlog_bytes=7 * load)
            assert told.fleet.peer_load_per_replica(0, MODEL) == load / 2
            assert told.fleet.peer_backlog(0, MODEL) == 7 * load
            assert told.fleet.peer_free_tokens(0, MODEL) == load

    def test_pools_that_do_not_fit_the_request_count_for_nothing(self) -> None:
        told = Told(abroad=True)
        told.hear(load=4)
        fits = [PoolFit(10, (), (), takes_unknown=each) for each in (False, True)]
        for fit, load in ((None, 4), (fits[0], 0), (fits[1], 4), (fits[0], 0), (fits[1], 4), (None, 4)):
            told.fleet.fit = fit
            assert told.fleet.peer_load_per_replica(0, MODEL) == load

    def test_nothing_is_remembered_of_models_that_it_does_not_serve(self) -> None:
        told = Told(abroad=True)
        told.hear(load=4)
        for number in range(3):
            assert told.fleet.peer_load_per_replica(0, ModelName(f"m{number}")) == 0
        assert [*told.fleet._loads[0][1]] == []

    def test_a_gateway_of_the_region_is_told_from_one_of_another(self) -> None:
        told = Told(abroad=True)
        told.hear()
        choice = told.weigh(prompt("a"), Offer(0, siblings=1))
        assert choice is not None
        assert choice.reason is PlacementReason.SIBLING_OVERFLOW
        told.fleet.peer_index.insert(prompt("a").prefix, 0, 0)
        reasons = []
        for offer in (Offer(0, siblings=1), Offer(0, remotes=1)):
            choice = told.weigh(prompt("a"), offer)
            assert choice is not None
            reasons.append((choice.reason, choice.matched_blocks))
        assert reasons == [(PlacementReason.SIBLING_PREFIX, 100), (PlacementReason.REMOTE_PREFIX, 100)]

    def test_what_it_has_is_neither_sent_nor_left_to_our_own_books(self) -> None:
        told = Told(abroad=True)
        told.policy.joined(peer_target(GatewayId("gw-eu")), 0)
        told.policy.sent(prompt("a"), peer_target(GatewayId("gw-eu")), 0, 0)
        told.policy.left(peer_target(GatewayId("gw-eu")), 0)
        assert told.policy._caches.uncached_bytes(prompt("a"), 0) == prompt("a").prompt_bytes
        assert told.chosen(prompt("a"), Offer(0b01)) == 0


class TestAmongOurs:
    def test_whoever_knows_most_is_cheapest_until_the_crowd_there_outweighs_it(self) -> None:
        told = Told()
        told.send(prompt("a"), 0)
        asked = prompt("a", 1700)
        worth = max(each for each in range(100) if 100 + REQUEST_BYTES * each < 1700 / (1 + each / 2))
        assert worth > 1
        for running, slot in ((worth, 0), (worth + 1, 1)):
            told.now_ns += 1
            told.load(0, running=running)
            assert told.chosen(asked) == slot

    def test_of_equal_costs_the_least_loaded_and_of_equal_loads_they_take_turns(self) -> None:
        told = Told(replicas=3)
        slots = []
        for letter in "abcd":
            assert told.chosen(prompt(letter)) == told.chosen(prompt(letter)), "to be asked is not to be followed"
            slots.append(told.chosen(prompt(letter)))
            told.send(prompt(letter), slots[-1])
        assert slots == [0, 1, 2, 0]

    def test_one_with_less_to_do_is_found_beside_those_that_know_the_prompt(self) -> None:
        """Nine holders of the prompt, busier than their cache is worth, and one idle replica."""
        told = Told(replicas=10)
        for slot in range(9):
            told.load(slot, running=50)
            told.send(prompt("a"), slot)
        assert told.chosen(prompt("a", 1700)) == 9

    def test_a_holder_is_found_among_many_that_are_idler(self) -> None:
        told = Told(replicas=10)
        told.send(prompt("a"), 7)
        told.load(7, running=3)
        assert told.chosen(prompt("a", 1700)) == 7

    def test_only_a_few_are_looked_at_however_many_there_are(self) -> None:
        """Sixty replicas are alike, except for one in their midst that has nothing to read."""
        told = Told(replicas=60)
        for slot in range(60):
            told.send(prompt("a"), slot)
            if slot == 50:
                told.load(slot, running=1)
            else:
                told.reads(slot, 2000)
        assert told.fleet.replica_load(50) == told.fleet.replica_load(0) == 1
        assert told.chosen(prompt("a", 1700)) < 4
        assert told.chosen(prompt("a", 1700), Offer(1 << 50 | 1)) == 50

    def test_the_reason_says_whether_it_knew_the_prompt(self) -> None:
        told = Told()
        choice = told.weigh(prompt("a"), Offer(0b11))
        assert choice is not None
        assert (choice.reason, choice.matched_blocks) == (PlacementReason.LOCAL_EXPLORE, 0)
        told.send(prompt("a"), 1)
        choice = told.weigh(prompt("a"), Offer(0b11))
        assert choice is not None
        assert (choice.slot, choice.reason, choice.matched_blocks) == (1, PlacementReason.LOCAL_PREFIX, 100)

    def test_nobody_is_nobody(self) -> None:
        assert Told().weigh(prompt("a"), Offer(0)) is None


class TestWaitingForItsTime:
    def test_what_takes_long_to_read_waits_here_while_there_is_as_much_to_read(self) -> None:
        told = Told(replicas=1)
        told.reads(0, 6000)
        hold = told.hold(prompt("a", 6000))
        assert hold is not None
        assert (hold.slot, hold.beginning, hold.is_cold) == (0, b"", False)
        assert hold.uncached_bytes == prompt("a", 6000).prompt_bytes

    def test_it_names_what_it_waits_for_by_the_last_hash_at_a_power_of_two_that_is_known(self) -> None:
        told = Told(replicas=1)
        told.send(prompt("a"), 0)
        told.reads(0, 9000)
        hold = told.hold(prompt("a", 9000))
        assert hold is not None
        assert hold.beginning == prompt("a").prefix[63 * 8 : 64 * 8]

    @pytest.mark.parametrize(("known", "block"), [(1, 1), (2, 2), (3, 2), (4, 4), (63, 32), (64, 64), (65, 64)])
    def test_that_stands_for_half_at_least_of_what_is_known(self, known: int, block: int) -> None:
        asked = prompt("a")
        assert _beginning(asked, known) == asked.prefix[(block - 1) * 8 : block * 8]
        assert _beginning(asked, 0) == b""

    def test_prompts_of_unlike_lengths_have_it_in_common(self) -> None:
        assert _beginning(prompt("a", 1600), 100) == _beginning(prompt("a", 1100), 68) != b""

    @pytest.mark.parametrize(("own", "ahead"), [(6000, 4990), (4900, 6000)])
    def test_where_either_is_short_it_is_sent(self, own: int, ahead: int) -> None:
        told = Told(replicas=1)
        told.reads(0, ahead)
        assert told.hold(prompt("a", own)) is None

    def test_hold_says_how_long_that_is(self) -> None:
        told = Told(replicas=1, hold_ns=2 * MS)
        told.reads(0, 300)
        assert told.hold(prompt("a", 300)) is not None
        assert Told(replicas=1, hold_ns=2 * MS).hold(prompt("a", 300)) is None, "nothing is before it"

    def test_one_that_may_not_be_sent_anything_now_is_waited_for(self) -> None:
        told = Told(replicas=1)
        offer = Offer(0b1)
        offer.ready = 0
        hold = told.hold(prompt("a", 16), offer)
        assert hold is not None
        assert not hold.is_cold

    def test_whoever_comes_goes_past_those_held_only_so_often(self) -> None:
        told = Told(replicas=1)
        told.reads(0, 100)
        held = Hold(0, 400, b"")
        told.policy.held(held)
        assert told.hold(prompt("a", 320)) is None
        told.send(prompt("b", 640), 0)
        assert told.hold(prompt("a", 320)) is not None
        offer = Offer(0b1)
        offer.held = held
        assert told.hold(prompt("a", 320), offer) is None, "the first of those held themselves is not behind them"


class TestUnderMemoryPressure:
    """A cache of a hundred blocks, full of conversations that go on every second, and a new prompt."""

    def told(self, *, running: int = 4, replicas: int = 1, abroad: bool = False, **placement: object) -> Told:
        told = Told(replicas, abroad=abroad, **placement)
        told.load(0, running=running, kv_tokens=100 * 16 // 4)
        for _ in range(30):
            for letter in "abcd":
                told.now_ns += SECOND // 4
                told.send(prompt(letter, 16 * 24), 0, arrived_ns=told.now_ns)
        told.load(0, running=running, kv_tokens=100 * 16 // 4)
        return told

    def test_what_is_read_pushes_out_as_much_that_will_be_read_again_wherever_it_is_read(self) -> None:
        again, asked = self.told(abroad=True), prompt("n")
        once = self.told(abroad=True, kept_gaps=0.0)
        for told in (again, once):
            told.hear(replicas=1, load=4)
        more = 1 + again.policy._caches.follow_ups()
        assert more > 4
        assert again.costs(asked, 0).reading_ns == pytest.approx(more * once.costs(asked, 0).reading_ns)
        assert again.costs_there(asked).reading_ns == pytest.approx(more * once.costs_there(asked).reading_ns)

    def test_the_way_counts_for_two_of_those_that_follow_in_the_session_as_well(self) -> None:
        told, asked = self.told(abroad=True), prompt("n")
        told.hear(replicas=1, load=4, rtt_ms=100)
        assert told.policy._caches.follow_ups() > 2
        assert told.costs_there(asked).distance_ns == pytest.approx(3 * WAY_WEIGHT * 100 * MS / (1 + 4))

    def test_the_way_of_the_last_request_of_a_session_counts_once(self) -> None:
        told, asked = self.told(abroad=True), replace(prompt("n"), hints=Hints(ends_session=True))
        told.hear(replicas=1, load=4, rtt_ms=100)
        assert told.costs_there(asked).distance_ns == pytest.approx(WAY_WEIGHT * 100 * MS / (1 + 4))

    def test_the_way_counts_for_as_many_where_ours_are_crowded_but_their_caches_are_full(self) -> None:
        told, asked = self.told(abroad=True, running=100), prompt("n")
        told.hear(replicas=1, load=0, rtt_ms=100)
        told.weigh(asked, Offer(0b1, remotes=1))
        costs = told.policy.costs_at_peer(asked, 0)
        assert costs.distance_ns == pytest.approx(3 * WAY_WEIGHT * 100 * MS / (1 + 100 / 2))

    def test_as_many_of_another_gateway_s_caches_are_full_as_of_ours(self) -> None:
        told, asked = self.told(abroad=True, replicas=2), prompt("n")
        told.hear(replicas=1, load=4)
        told.load(1, running=4)
        once_ns = PRIOR_NS * asked.prompt_bytes
        again = told.policy._caches.follow_ups()
        assert told.costs_there(asked).reading_ns == pytest.approx((1 + again / 2) * once_ns)
        assert told.costs(asked, 0).reading_ns == pytest.approx((1 + again) * once_ns)
        assert told.costs(asked, 1).reading_ns == pytest.approx(once_ns)

    def offer(self, told: Told, waited_ns: int = 0) -> Offer:
        offer = Offer(0b1)
        offer.arrived_ns = told.now_ns - waited_ns
        return offer

    def is_cold(self, told: Told, asked: RequestProfile, waited_ns: int = 0) -> bool:
        hold = told.hold(asked, self.offer(told, waited_ns))
        return hold is not None and hold.is_cold

    def test_what_is_wanted_back_soon_is_not_pushed_out_for_one_that_begins(self) -> None:
        told = self.told()
        assert told.policy._caches.gap_ns == pytest.approx(SECOND, rel=0.05)
        assert self.is_cold(told, prompt("n", 16_000))

    def test_what_goes_on_is_never_held_for_it(self) -> None:
        told = self.told(running=40)
        assert self.is_cold(told, prompt("n", 16 * 16))
        assert not self.is_cold(told, prompt("d", 16 * 40)), "as much to read, but most of it is there"

    def test_it_waits_no_longer_than_reading_all_that_again_would_take(self) -> None:
        told = self.told()
        caches = told.policy._caches
        asked = prompt("n", 16_000)
        patience_ns = caches.follow_ups() * PRIOR_NS * asked.prompt_bytes * 5
        assert self.is_cold(told, asked, int(patience_ns) - 1)
        assert not self.is_cold(told, asked, int(patience_ns) + 1)

    def test_not_where_nobody_runs_who_would_be_hurt(self) -> None:
        assert not self.is_cold(self.told(running=0), prompt("n", 16_000))

    def test_not_where_the_engine_does_not_tell_its_room(self) -> None:
        told = self.told()
        told.now_ns += 1
        told.load(0, running=4, kv_tokens=0)
        assert not self.is_cold(told, prompt("n", 16_000))

    def test_not_where_the_cache_keeps_for_long_what_nobody_asks_for(self) -> None:
        told = self.told()
        told.now_ns += 4 * SECOND
        assert not self.is_cold(told, prompt("n", 16_000)), "three gaps and more"
        assert self.is_cold(self.told(kept_gaps=3.0), prompt("n", 16_000))
        assert not self.is_cold(self.told(kept_gaps=0.0), prompt("n", 16_000))

    def test_not_where_they_come_back_too_late_to_be_worth_its_wait(self) -> None:
        told = self.told()
        told.policy._caches.gap_ns = 1e4 * SECOND
        assert not self.is_cold(told, prompt("n", 16_000))

    def test_not_where_nothing_is_used_again(self) -> None:
        told = self.told()
        told.policy._caches.continued = 0.0
        assert not self.is_cold(told, prompt("n", 16_000))


class TestInAGateway:
    def test_a_conversation_returns_to_the_replica_that_has_it(self) -> None:
        one = desk_with(PlacementPolicy.COST)
        (home,) = started(one.ask("first", prompt="a conversation " * 100))
        one.first_token("first")
        one.finish("first")
        for i in range(3):
            one.ask(f"noise{i}", prompt=f"{i} something else " * 10)
        assert started(one.ask("second", prompt="a conversation " * 100 + "and on")) == [home]
        assert decisions(one)[-1] is PlacementReason.LOCAL_PREFIX

    def test_it_goes_to_an_engine_with_requests_waiting_where_that_is_cheapest(self) -> None:
        one = desk_with(PlacementPolicy.COST, replicas=1)
        one.probe(running=2, waiting=1)
        assert started(one.ask("q")) == ["r0"], "a request that waits is no wall"

    def test_whoever_is_held_goes_as_soon_as_there_is_nothing_before_it_and_keeps_no_books(self) -> None:
        one = desk_with(PlacementPolicy.COST, replicas=1)
        one.ask("first", prompt="a" * 9000)
        for name in ("second", "third"):
            assert started(one.ask(name, prompt=name * 9000)) == []
        assert started(one.first_token("first")) == ["r0"]
        assert started(one.first_token("second")) == ["r0"]
        assert one.core.waiting.homes == 0

    def test_whoever_gives_up_while_held_is_forgotten(self) -> None:
        one = desk_with(PlacementPolicy.COST, replicas=1)
        one.ask("first", prompt="a" * 9000)
        one.ask("second", prompt="b" * 9000, deadline_ns=20 * MS)
        assert one.core.waiting.homes == 1
        one.wait(20 * MS)
        assert (one.core.waiting.homes, len(one.core.waiting)) == (0, 0)


def test_the_same_story_ends_the_same() -> None:
    def told() -> list[tuple[int, bool]]:
        rng, one = random.Random(3), Told(replicas=5, abroad=True)
        one.hear(rtt_ms=2)
        choices = []
        for number in range(200):
            one.now_ns += MS
            asked = prompt(rng.choice("abcdef"), rng.randrange(100, 3000))
            choice = one.weigh(asked, Offer(0b11111, remotes=1))
            assert choice is not None
            choices.append((choice.slot, choice.hold is None))
            if not choice.is_peer and choice.hold is None:
                one.send(asked, choice.slot)
                one.reads(choice.slot, one.fleet.replica_backlog_bytes(choice.slot) // 2 + number)
        return choices

    assert told() == told()


def test_settings_that_change_keep_what_was_learnt() -> None:
    told = Told()
    told.send(prompt("a"), 0)
    told.reads(0, 3000)
    assert told.costs(prompt("a"), 0).waiting_ns > 0
    told.policy.configure(replace(told.config, delay_weight=0.0))
    costs = told.costs(prompt("a"), 0)
    assert costs.waiting_ns == 0
    assert costs.reading_ns == PRIOR_NS * (prompt("a").prompt_bytes - 1600)
    assert told.policy._caches.uncached_bytes(prompt("a"), 0) == prompt("a").prompt_bytes - 1600
    told.policy.configure(replace(told.config, prefix_ttl_ns=1))
    assert told.policy._caches.uncached_bytes(prompt("a"), 0) == prompt("a").prompt_bytes


def test_its_caches_forget_what_nobody_asks_for() -> None:
    told = Told(prefix_ttl_ns=5)
    told.send(prompt("a"), 0)
    told.policy.expire(6)
    assert told.policy._caches.uncached_bytes(prompt("a"), 0) == prompt("a").prompt_bytes


class TestFollowingAStoredResponse:
    def test_it_reads_all_of_its_prompt_though_the_replica_was_sent_the_same_words(self) -> None:
        told = Told()
        told.send(prompt("a"), 0)
        follows = replace(prompt("a"), follows="key")
        hold = told.policy.hold_pinned(follows, not_ready(0b11), 0)
        assert hold is not None
        assert hold.uncached_bytes == follows.prompt_bytes, "a response of its own stands between the words"
        again = told.policy._caches.uncached_bytes(follows, 0)
        assert again < follows.prompt_bytes


def not_ready(mask: int) -> Offer:
    """Offer of replicas none of which may be sent a request now."""
    offer = Offer(mask)
    offer.ready = 0
    return offer
