"""Decisions of the core on single requests: queueing, retries, deadlines, forwards, refusals."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig, all_of
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.config import (
    AttemptConfig,
    OverflowMode,
    PeerAvailability,
    PlacementConfig,
    PlacementPolicy,
    PushingConfig,
    QueueConfig,
)
from gateway.core.kernel.description import describe
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.forwarding import leg_end_of
from gateway.core.kernel.residency import TenantPolicy, closed_policy
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    GatewayId,
    Hops,
    LegResult,
    LoadReport,
    ModelCapacity,
    PeerObservation,
    PlaceRule,
    RefusalReason,
    ReplicaId,
    ReplicaObservation,
    RequestId,
    TenantName,
    peer_target,
    replica_target,
)
from tests.support.core import (
    ANYWHERE,
    AP,
    BOTH,
    EU,
    EU_PEER,
    LAYERED,
    LONG,
    MODEL,
    MS,
    SECOND,
    US,
    Desk,
    busy_desk,
    desk,
    ended,
    forward,
    home_of,
    occupy,
    of_kind,
    peer_spec,
    policy,
    profile,
    reading,
    replica_spec,
    rule,
    started,
    under,
    words,
)

under_both = pytest.mark.parametrize("placement", BOTH)


@under_both
class TestQueue:
    def test_an_idle_replica_takes_a_request_at_once(self, placement: PlacementPolicy) -> None:
        assert started(desk(placement=placement).ask("q")) in (["r0"], ["r1"])

    def test_with_pending_requests_everywhere_it_waits_and_is_placed_by_the_next_good_probe(
        self, placement: PlacementPolicy
    ) -> None:
        one = desk(placement=placement)
        occupy(one)
        assert started(one.ask("q")) == []
        assert started(one.probe("r1")) == ["r1"]

    def test_waiting_requests_are_served_in_order_of_arrival(self, placement: PlacementPolicy) -> None:
        one = desk(
            replicas=1,
            config=CoreConfig(attempt=AttemptConfig(ramp_step_ns=1 * MS), pushing=PushingConfig(in_band_credit=0)),
            placement=placement,
        )
        occupy(one)
        for name in ("first", "second", "third"):
            one.ask(name)
        served = []
        for _ in range(3):
            served += [effect.request_id for effect in of_kind(ordered.StartLeg, one.wait(1 * MS) + one.probe())]
        assert served == ["first", "second", "third"]

    def test_a_retried_request_keeps_its_place(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, config=CoreConfig(pushing=PushingConfig(in_band_credit=0)), placement=placement)
        one.ask("early")
        one.ask("late")
        one.finish("early", LegResult.BUSY)
        one.wait(1 * MS)
        effects = one.probe()
        assert [effect.request_id for effect in of_kind(ordered.StartLeg, effects)] == ["early"]

    def test_a_request_that_may_go_nowhere_does_not_block_one_that_may(self, placement: PlacementPolicy) -> None:
        home_only = {TenantName("home"): TenantPolicy(rule(US))}
        one = desk(replicas=1, peers=[EU_PEER], own_policy=policy(US, tenants=home_only), placement=placement)
        occupy(one)
        one.ask("stays", tenant="home")
        assert started(one.ask("goes")) == []
        assert started(one.hear("gw-eu", EU)) == ["gw-eu"]

    def test_patience_ends_in_the_queue(self, placement: PlacementPolicy) -> None:
        one = desk(config=CoreConfig(queue=QueueConfig(wait_max_ns=2 * SECOND)), placement=placement)
        occupy(one)
        one.ask("q")
        assert ended(one.wait(1999 * MS)) == []
        assert ended(one.wait(2 * MS)) == [("q", "expired_in_queue")]

    def test_an_adapter_is_routed_to_the_replicas_that_have_it(self, placement: PlacementPolicy) -> None:
        tuned = replica_spec("tuned", models=["llama", "llama-legal"])  # type: ignore[list-item]
        one = desk(replicas=[replica_spec("plain"), tuned], placement=placement)
        assert started(one.ask("q", model="llama-legal")) == ["tuned"]

    def test_a_client_that_leaves_the_queue_is_gone(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        occupy(one)
        one.ask("q")
        assert ended(one.tell(events.RequestAbandoned(RequestId("q")))) == [("q", "abandoned")]
        assert started(one.probe()) == []
        assert not one.core.requests


class TestSelectivePushing:
    def test_between_probes_own_pushes_count_as_pending_beyond_the_credit(self) -> None:
        one = desk(replicas=1, config=CoreConfig(pushing=PushingConfig(in_band_credit=2)), placement=LAYERED)
        placed = [started(one.ask(f"q{i}")) for i in range(5)]
        assert placed == [["r0"], ["r0"], ["r0"], [], []]

    def test_a_first_token_gives_the_credit_back(self) -> None:
        one = desk(replicas=1, config=CoreConfig(pushing=PushingConfig(in_band_credit=0)), placement=LAYERED)
        one.ask("a")
        one.ask("b")
        assert started(one.first_token("a")) == ["r0"]

    def test_a_later_probe_accounts_for_earlier_pushes(self) -> None:
        one = desk(replicas=1, config=CoreConfig(pushing=PushingConfig(in_band_credit=0)), placement=LAYERED)
        one.ask("a")
        one.ask("b")
        one.wait(1 * MS)
        assert started(one.probe()) == ["r0"]

    def test_a_probe_sent_before_the_push_accounts_for_nothing(self) -> None:
        one = desk(replicas=1, config=CoreConfig(pushing=PushingConfig(in_band_credit=0)), placement=LAYERED)
        sent_ns = one.now_ns
        one.wait(5 * MS)
        one.ask("a")
        one.ask("b")
        late = ReplicaObservation(ReplicaId("r0"), sent_ns, healthy=True)
        assert started(one.tell(events.ReplicasObserved((late,)))) == []

    def test_without_credit_knowledge_probes_alone_decide(self) -> None:
        one = desk(replicas=1, config=CoreConfig(pushing=PushingConfig(in_band_credit=None)), placement=LAYERED)
        assert all(started(one.ask(f"q{i}")) == ["r0"] for i in range(20))

    def test_a_stale_probe_makes_a_replica_unavailable(self) -> None:
        one = desk(replicas=1, placement=LAYERED)
        one.wait(3 * SECOND)
        assert started(one.ask("q")) == []


@under_both
class TestRetries:
    def test_a_failure_before_the_first_byte_goes_elsewhere(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        (first,) = started(one.ask("q"))
        (second,) = started(one.finish("q", LegResult.FAILED))
        assert {first, second} == {"r0", "r1"}

    def test_it_never_returns_to_the_replica_that_failed_while_there_is_another(
        self, placement: PlacementPolicy
    ) -> None:
        one = desk(replicas=2, placement=placement)
        (first,) = started(one.ask("q"))
        other = "r1" if first == "r0" else "r0"
        occupy(one, other)
        assert started(one.finish("q", LegResult.FAILED)) == []
        one.wait(10 * MS)
        assert started(one.probe(first)) == []
        assert started(one.probe(other)) == [other]

    @pytest.mark.parametrize("result", [LegResult.FAILED, LegResult.BUSY])
    def test_a_lone_replica_rests_and_is_tried_again_once_a_probe_found_it_well(
        self, placement: PlacementPolicy, result: LegResult
    ) -> None:
        one = desk(replicas=1, placement=placement)
        one.ask("q")
        assert started(one.finish("q", result)) == []
        one.wait(10 * MS)
        assert started(one.probe()) == ["r0"]

    def test_attempts_are_bounded(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=4, config=CoreConfig(attempt=AttemptConfig(attempts_max=2)), placement=placement)
        one.ask("q")
        one.finish("q", LegResult.FAILED)
        assert ended(one.finish("q", LegResult.FAILED, attempt=2)) == [("q", "failed_before_first_byte")]

    def test_an_outage_cannot_multiply_the_load(self, placement: PlacementPolicy) -> None:
        """Attempts that all fail exceed requests by at most the share and the initial reserve of the retry budget."""
        budget = AttemptConfig(
            retry_budget_min=5, retry_budget_share=0.1, breaker_failures_in_row=10**6, breaker_window=10**6
        )
        one = desk(replicas=3, config=CoreConfig(attempt=budget), placement=placement)
        for i in range(200):
            one.ask(f"q{i}")
            for attempt in (1, 2, 3):
                one.finish(f"q{i}", LegResult.FAILED, attempt=attempt)
            one.wait(1 * MS)
            one.probe()
        assert len(started(one.effects)) <= 200 * 1.1 + 5

    def test_after_the_first_token_there_is_no_retry(self, placement: PlacementPolicy) -> None:
        one = desk(placement=placement)
        one.ask("q")
        one.first_token("q")
        assert ended(one.finish("q", LegResult.FAILED)) == [("q", "failed_midstream")]

    def test_engines_that_are_full_again_and_again_are_busy_and_not_broken(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, config=CoreConfig(attempt=AttemptConfig(refusals_max=2)), placement=placement)
        one.ask("q")
        for attempt in (1, 2):
            one.finish("q", LegResult.BUSY, attempt=attempt)
            one.wait(SECOND)
            assert started(one.probe()) == ["r0"]
        assert ended(one.finish("q", LegResult.BUSY, attempt=3)) == [("q", "rejected_queue_full")]

    def test_a_late_answer_from_an_old_attempt_changes_nothing(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        one.ask("q")
        one.finish("q", LegResult.FAILED)
        before = describe(one.core, one.now_ns)
        assert one.finish("q", LegResult.COMPLETED, attempt=1) == []
        assert one.first_token("q", attempt=1) == []
        assert describe(one.core, one.now_ns) == before

    def test_client_errors_never_open_a_breaker(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, config=CoreConfig(pushing=PushingConfig(in_band_credit=None)), placement=placement)
        for i in range(50):
            assert started(one.ask(f"q{i}")) == ["r0"]
            one.finish(f"q{i}", LegResult.CLIENT_ERROR)

    def test_a_replica_that_fails_fast_does_not_look_idle(self, placement: PlacementPolicy) -> None:
        config = CoreConfig(
            attempt=AttemptConfig(attempts_max=1, breaker_failures_in_row=3, breaker_open_ns=5 * SECOND)
        )
        one = desk(replicas=1, config=config, placement=placement)
        for i in range(3):
            one.ask(f"q{i}")
            one.finish(f"q{i}", LegResult.FAILED)
            one.wait(1 * MS)
            one.probe()
        assert started(one.ask("q")) == []
        for _ in range(60):
            one.wait(100 * MS)
            one.probe()
        assert "r0" in started(one.effects)[3:]

    def test_no_first_token_in_time_is_a_failure_of_the_target(self, placement: PlacementPolicy) -> None:
        config = CoreConfig(attempt=AttemptConfig(first_token_deadline_ns=1 * SECOND))
        one = desk(replicas=2, config=config, placement=placement)
        (first,) = started(one.ask("q"))
        stops = of_kind(ordered.StopLeg, one.wait(1100 * MS))
        assert len(stops) == 1
        assert started(one.finish("q", LegResult.CANCELLED)) != [first]
        assert ended(one.effects) == []

    def test_the_deadline_stops_a_running_attempt_and_ends_the_request_once(self, placement: PlacementPolicy) -> None:
        one = desk(placement=placement)
        one.ask("q", deadline_ns=1 * SECOND)
        one.first_token("q")
        effects = one.wait(1 * SECOND)
        kinds = [type(effect) for effect in effects if not isinstance(effect, ordered.PublishLoad)]
        assert kinds == [ordered.StopLeg, ordered.EndRequest]
        assert ended(effects) == [("q", "expired_running")]
        assert ended(one.finish("q", LegResult.CANCELLED)) == []
        assert not one.core.requests

    def test_an_owner_that_left_ends_the_request_as_abandoned_only_once(self, placement: PlacementPolicy) -> None:
        one = desk(placement=placement)
        one.ask("q")
        assert ended(one.finish("q", LegResult.CANCELLED)) == [("q", "abandoned")]
        assert one.tell(events.RequestAbandoned(RequestId("q"))) == []


@under_both
class TestErrorsOfOurs:
    STRICT = CoreConfig(attempt=AttemptConfig(attempts_max=3, breaker_failures_in_row=1))

    @pytest.mark.parametrize("answering", [False, True])
    def test_one_ends_the_request_and_says_nothing_about_a_replica(
        self, placement: PlacementPolicy, answering: bool
    ) -> None:
        one = desk(replicas=1, config=self.STRICT, placement=placement)
        one.ask("q")
        if answering:
            one.first_token("q")
        assert ended(one.finish("q", LegResult.INTERNAL)) == [("q", "failed_internally")]
        assert started(one.ask("next")) == ["r0"], "at once, and without another probe"

    def test_nor_about_a_peer(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], config=self.STRICT, placement=placement)
        occupy(one)
        one.hear("gw-eu", EU, available=2)
        assert started(one.ask("q")) == ["gw-eu"]
        assert ended(one.finish("q", LegResult.INTERNAL)) == [("q", "failed_internally")]
        assert started(one.ask("next")) == ["gw-eu"]

    def test_a_request_that_fails_everywhere_is_no_fair_trial_but_once(self, placement: PlacementPolicy) -> None:
        """A prompt that kills engines would else keep a recovered replica out of use for longer."""
        config = CoreConfig(attempt=AttemptConfig(attempts_max=2, breaker_failures_in_row=1, breaker_open_ns=SECOND))
        one = desk(replicas=2, peers=(), config=config, placement=placement)
        for name in ("kills", "kills too"):
            one.ask(name)
            one.finish(name, LegResult.FAILED)
            one.finish(name, LegResult.FAILED, attempt=2)
            one.wait(SECOND)
            one.probe()
        first, second = started(one.effects)[-2:]
        assert first != second
        assert started(one.ask("q")) == [second], "the other one waits twice as long"

    def test_it_leaves_a_trial_behind_a_breaker_as_it_was(self, placement: PlacementPolicy) -> None:
        config = CoreConfig(attempt=AttemptConfig(attempts_max=1, breaker_failures_in_row=1, breaker_open_ns=SECOND))
        one = desk(replicas=1, config=config, placement=placement)
        one.ask("q")
        one.finish("q", LegResult.FAILED)
        one.wait(SECOND)
        one.probe()
        assert started(one.ask("trial")) == ["r0"]
        one.finish("trial", LegResult.INTERNAL)
        assert started(one.ask("another")) == ["r0"]
        assert started(one.ask("waits")) == [], "it is on trial still"


@under_both
class TestOverflow:
    def test_a_busy_region_forwards_to_an_idle_peer(self, placement: PlacementPolicy) -> None:
        (leg,) = of_kind(ordered.StartLeg, busy_desk(placement).ask("q"))
        assert leg.target == peer_target(GatewayId("gw-eu"))
        assert leg.hops == Hops(0, 1)
        assert leg.stamp is not None
        assert leg.stamp.origin == US

    def test_a_local_replica_is_preferred_whatever_the_peer_knows(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.ask("q", prompt="a long shared prefix " * 10)
        one.finish("q")
        one.wait(1 * MS)
        one.probe()
        one.hear("gw-eu", EU)
        assert started(one.ask("again", prompt="a long shared prefix " * 10)) in (["r0"], ["r1"])

    def test_overflow_off_keeps_everything_at_home(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement, config=CoreConfig(placement=PlacementConfig(overflow=OverflowMode.OFF)))
        assert started(one.ask("q")) == []

    def test_a_peer_with_a_long_queue_is_left_alone(self, placement: PlacementPolicy) -> None:
        one = desk(
            replicas=1,
            peers=[EU_PEER],
            config=CoreConfig(
                placement=PlacementConfig(peer_queue_length_max=3, peer_availability=PeerAvailability.FREE_REPLICA)
            ),
            placement=placement,
        )
        occupy(one)
        one.hear("gw-eu", EU, queue=4)
        assert started(one.ask("q")) == []
        assert started(one.hear("gw-eu", EU, queue=3)) == ["gw-eu"]

    def test_a_peer_is_asked_for_as_many_requests_as_it_has_room_for(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.hear("gw-eu", EU, available=1, room=16)
        sent = [started(one.ask(f"q{number}")) for number in range(20)]
        assert sent.count(["gw-eu"]) == 16
        one.wait(100 * MS)
        assert len(started(one.hear("gw-eu", EU, available=1, room=3))) == 3, "those of before are counted there now"

    def test_requests_that_wait_there_take_the_room_first(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.hear("gw-eu", EU, available=1, room=4, queue=3)
        assert [bool(started(one.ask(name))) for name in "abc"] == [True, False, False]

    def test_the_way_there_is_filled_with_requests_that_find_a_slot_when_they_arrive(
        self, placement: PlacementPolicy
    ) -> None:
        """Ten requests leave the peer within 150 ms of round trip and 100 ms until the next heartbeat. Four times as
        many may wait there where the wait is part of the cost."""
        one = busy_desk(placement)
        one.hear("gw-eu", EU, available=1, room=0, rtt_ms=150, release_ns=25 * MS)
        sent = [started(one.ask(f"q{number}")) for number in range(50)]
        assert sent.count(["gw-eu"]) == (40 if placement is PlacementPolicy.COST else 10)

    def test_a_forward_that_has_answered_takes_room_until_a_heartbeat_counts_it(
        self, placement: PlacementPolicy
    ) -> None:
        one = busy_desk(placement)
        one.hear("gw-eu", EU, available=1, room=1)
        assert started(one.ask("a")) == ["gw-eu"]
        one.first_token("a")
        assert started(one.ask("b")) == []

    def test_the_papers_rule_counts_no_forwards(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        rule = PlacementConfig(policy=one.core.config.placement.policy, peer_availability=PeerAvailability.FREE_REPLICA)
        one.tell(events.ConfigApplied(replace(all_of(one.core.config), placement=rule)))
        one.hear("gw-eu", EU, available=1, room=1)
        assert [started(one.ask(name)) for name in "abc"] == [["gw-eu"]] * 3

    def test_own_forwards_count_until_a_heartbeat_reflects_them(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        assert started(one.ask("a")) == ["gw-eu"]
        assert started(one.ask("b")) == []
        one.wait(50 * MS)
        assert started(one.hear("gw-eu", EU)) == ["gw-eu"]

    def test_a_stale_peer_is_no_target(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.wait(3100 * MS)
        occupy(one)
        assert started(one.ask("q")) == []

    def test_a_lost_peer_is_no_target_at_once(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.tell(events.TargetLost(peer_target(GatewayId("gw-eu")), "connection broke"))
        assert started(one.ask("q")) == []

    def test_a_false_alarm_about_a_peer_costs_latency_alone(self, placement: PlacementPolicy) -> None:
        """No stream there is broken, and nothing counts against the peer."""
        one = busy_desk(placement)
        assert started(one.ask("runs")) == ["gw-eu"]
        one.first_token("runs")
        alarm = one.tell(events.TargetLost(peer_target(GatewayId("gw-eu")), "it gave no sign of life", is_silent=True))
        assert (of_kind(ordered.StopLeg, alarm), ended(alarm)) == ([], [])
        assert started(one.ask("waits")) == []
        one.wait(50 * MS)
        found = one.hear("gw-eu", EU, available=2) + one.wait(SECOND)
        assert started(found) == ["gw-eu"], "the next heartbeat ends it, but for the ramp"
        assert ended(one.finish("runs")) == [("runs", "completed")]
        state = one.core.peers.get("gw-eu")
        assert state is not None
        assert state.breaker.state is BreakerState.CLOSED

    def test_a_peer_that_claims_another_region_is_no_target(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], placement=placement)
        occupy(one)
        one.hear("gw-eu", AP)
        assert started(one.ask("q")) == []
        assert "claims" in describe(one.core, one.now_ns)["peers"][0]["detail"]  # type: ignore[index]

    def test_the_only_peer_is_tried_again_when_there_is_nobody_else(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=0, peers=[EU_PEER], placement=placement)
        one.hear("gw-eu", EU)
        assert started(one.ask("q")) == ["gw-eu"]
        one.finish("q", LegResult.FAILED)
        one.wait(10 * MS)
        assert started(one.hear("gw-eu", EU)) == ["gw-eu"]

    def test_a_peer_that_failed_is_left_alone_while_there_is_a_replica(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.ask("q")
        one.finish("q", LegResult.FAILED)
        one.wait(10 * MS)
        assert started(one.hear("gw-eu", EU)) == []
        assert started(one.probe("r0")) == ["r0"]

    def test_a_refused_forward_returns_to_its_place_and_the_snapshot_forgets_it(
        self, placement: PlacementPolicy
    ) -> None:
        one = busy_desk(placement)
        one.ask("q", prompt="x" * 400)
        assert one.core.placer.peer_index.blocks > 0
        effects = one.finish("q", LegResult.REFUSED, refusal=RefusalReason.BUSY)
        assert started(effects) == []
        assert ended(effects) == []
        assert one.core.placer.peer_index.blocks == 0
        one.wait(1 * MS)
        assert started(one.probe("r0")) == ["r0"]

    def test_what_an_engine_finds_fault_with_it_has_not_read(self, placement: PlacementPolicy) -> None:
        """The index keeps what it knows of the conversation before, for a replica here and for a peer."""
        at_home, away = desk(replicas=1, placement=placement), busy_desk(placement)
        for one, index in ((at_home, at_home.core.placer.replica_index), (away, away.core.placer.peer_index)):
            one.ask("first", prompt="x" * 400)
            one.finish("first")
            known = index.blocks
            assert known > 0
            if one is away:
                occupy(one)
            one.hear("gw-eu", EU)
            one.ask("second", prompt="x" * 400 + "y" * 400)
            assert index.blocks > known
            one.finish("second", LegResult.CLIENT_ERROR)
            assert index.blocks == known
            assert index.check() == []

    def test_after_enough_refusals_it_waits_for_its_own_region(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement, config=CoreConfig(attempt=AttemptConfig(refusals_max=2)))
        one.ask("q")
        for attempt in (1, 2):
            one.finish("q", LegResult.REFUSED, attempt=attempt, refusal=RefusalReason.BUSY)
            one.wait(10 * MS)
            one.hear("gw-eu", EU)
        assert started(one.effects) == ["gw-eu", "gw-eu"]
        one.probe("r0")
        assert started(one.effects)[-1] == "r0"

    def test_equal_matches_go_to_the_nearest(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER, peer_spec("gw-ap", AP)], placement=placement)
        occupy(one)
        one.hear("gw-ap", AP, rtt_ms=150)
        one.hear("gw-eu", EU, rtt_ms=70)
        assert started(one.ask("q")) == ["gw-eu"]

    def test_the_longest_match_beats_the_nearest(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER, peer_spec("gw-ap", AP)], placement=placement)
        occupy(one)
        one.hear("gw-ap", AP, rtt_ms=150)
        one.ask("first", prompt="conversation " * 2000)
        one.finish("first")
        one.wait(10 * MS)
        one.hear("gw-eu", EU, rtt_ms=70)
        one.hear("gw-ap", AP, rtt_ms=150)
        assert started(one.ask("second", prompt="conversation " * 2000)) == ["gw-ap"]

    def test_a_sibling_gateway_competes_by_prefix(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[peer_spec("gw-us-2", US)], placement=placement)
        occupy(one)
        one.hear("gw-us-2", US)
        assert started(one.ask("first", prompt="session " * 300)) == ["gw-us-2"]
        one.finish("first")
        one.wait(10 * MS)
        one.probe()
        one.hear("gw-us-2", US)
        assert started(one.ask("second", prompt="session " * 300)) == ["gw-us-2"]
        assert started(one.ask("other", prompt="quite another text " * 10)) == ["r0"]

    def test_one_model_may_overflow_while_others_stay(self, placement: PlacementPolicy) -> None:
        one_goes = PlacementConfig(overflow=OverflowMode.OFF, overflow_by_model={MODEL: OverflowMode.ON})
        assert started(busy_desk(placement, config=CoreConfig(placement=one_goes)).ask("q")) == ["gw-eu"]
        reverse = PlacementConfig(overflow_by_model={MODEL: OverflowMode.OFF})
        assert started(busy_desk(placement, config=CoreConfig(placement=reverse)).ask("q")) == []


@under_both
class TestForwardsIn:
    def test_a_forward_is_accepted_and_placed(self, placement: PlacementPolicy) -> None:
        one = desk(peers=[EU_PEER], placement=placement)
        effects = one.tell(forward("q"))
        assert [type(effect) for effect in effects[:2]] == [ordered.AcceptForward, ordered.StartLeg]

    def test_it_is_never_forwarded_again(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER, peer_spec("gw-ap", AP)], placement=placement)
        occupy(one)
        one.hear("gw-ap", AP)
        effects = one.tell(forward("q"))
        assert isinstance(effects[0], ordered.AcceptForward)
        assert started(one.effects) == []


@under_both
class TestResidency:
    def test_a_peer_outside_the_rule_is_never_asked(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], own_policy=policy(US, process=rule(US, AP)), placement=placement)
        occupy(one)
        one.hear("gw-eu", EU)
        assert started(one.ask("q")) == []

    def test_a_forbidden_peer_with_an_adopted_replica_in_an_allowed_place_is_never_asked(
        self, placement: PlacementPolicy
    ) -> None:
        """The peer itself would see the plaintext."""
        one = desk(replicas=1, peers=[EU_PEER], own_policy=policy(US, process=rule(US, AP)), placement=placement)
        occupy(one)
        capacity = ModelCapacity(MODEL, DEFAULT_POOL, AP, 1, 1, room=1)
        report = LoadReport(GatewayId("gw-eu"), EU, 1, True, 1, "digest", (capacity,))
        one.tell(events.PeersObserved((PeerObservation(report, one.now_ns, one.now_ns, 1, 1),)))
        assert started(one.ask("q")) == []

    def test_a_closed_policy_forwards_nothing_and_takes_nothing(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement, own_policy=closed_policy(US, "file missing"))
        assert started(one.ask("q")) == []
        assert isinstance(one.tell(forward("f"))[0], ordered.RefuseForward)

    def test_what_waits_is_judged_again_when_the_policy_changes(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], own_policy=policy(US, process=rule(US)), placement=placement)
        occupy(one)
        one.hear("gw-eu", EU)
        one.ask("q")
        assert started(one.tell(events.PolicyApplied(policy(US)))) == ["gw-eu"]

    def test_a_retry_runs_under_the_policy_of_its_moment(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        one.ask("q")
        one.tell(events.PolicyApplied(policy(US, process=rule(US))))
        one.finish("q", LegResult.FAILED)
        one.wait(10 * MS)
        assert started(one.hear("gw-eu", EU)) == []
        assert started(one.probe("r0")) == ["r0"]


class TestTheRecord:
    def considered(self, effects: list[Effect]) -> list[tuple[str, str]]:
        (leg,) = of_kind(ordered.StartLeg, effects)
        return [(candidate.target.id, candidate.standing.value) for candidate in leg.decision.considered]

    def test_the_chosen_comes_first_and_the_others_say_what_stood_against_them(self) -> None:
        one = desk(
            replicas=2,
            peers=[EU_PEER, peer_spec("gw-ap", AP)],
            own_policy=policy(US, process=rule(US, EU)),
            placement=LAYERED,
        )
        one.probe(waiting=1)
        one.hear("gw-ap", AP)
        one.hear("gw-eu", EU)
        seen = self.considered(one.ask("q"))
        assert seen[0] == ("gw-eu", "available")
        assert sorted(seen[1:]) == [("gw-ap", "not_allowed"), ("r0", "pending"), ("r1", "pending")]

    def test_it_is_bounded_and_can_be_switched_off(self) -> None:
        for room in (0, 3):
            one = desk(
                replicas=20, config=CoreConfig(placement=PlacementConfig(considered_max=room)), placement=LAYERED
            )
            assert len(self.considered(one.ask("q"))) == room


@under_both
class TestChangesOfTheFleet:
    def test_a_returning_replica_ramps_up(self, placement: PlacementPolicy) -> None:
        config = CoreConfig(pushing=PushingConfig(in_band_credit=None), attempt=AttemptConfig(ramp_step_ns=1 * SECOND))
        one = desk(replicas=1, config=config, placement=placement)
        one.probe(healthy=False)
        one.wait(10 * MS)
        one.probe()
        taken = [len(started(one.ask(f"q{i}"))) for i in range(4)]
        assert taken == [1, 0, 0, 0]
        one.wait(990 * MS)
        one.probe()
        one.wait(20 * MS)
        assert len(started(one.effects)) == 2

    def test_a_removed_replica_gets_nothing_new_and_its_attempts_may_end(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        one.ask("q")
        one.tell(events.AssignmentApplied(2, (replica_spec("new"),), ()))
        one.probe()
        assert ended(one.finish("q")) == [("q", "completed")]
        assert started(one.ask("next")) == ["new"]

    def failed_at_r0(self, placement: PlacementPolicy) -> Desk:
        """A waiting request that failed at r0; both replicas have pending requests."""
        one = desk(replicas=1, placement=placement)
        one.ask("q")
        one.tell(events.AssignmentApplied(2, (replica_spec("r0"), replica_spec("r1")), ()))
        occupy(one, "r1")
        one.finish("q", LegResult.FAILED)
        return one

    def test_who_takes_over_a_slot_answers_for_nothing_that_failed_there(self, placement: PlacementPolicy) -> None:
        one = self.failed_at_r0(placement)
        one.tell(events.AssignmentApplied(3, (replica_spec("fresh"), replica_spec("r1")), ()))
        assert started(one.probe("fresh")) == ["fresh"]

    def test_who_fails_after_it_left_leaves_no_trace_on_who_took_its_slot(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        one.ask("q")
        one.tell(events.AssignmentApplied(2, (replica_spec("fresh"), replica_spec("r1")), ()))
        one.probe("fresh")
        occupy(one, "r1")
        assert started(one.finish("q", LegResult.FAILED)) == ["fresh"]

    def test_who_comes_back_is_still_remembered_by_those_that_it_failed(self, placement: PlacementPolicy) -> None:
        one = self.failed_at_r0(placement)
        one.tell(events.AssignmentApplied(3, (replica_spec("r1"),), ()))
        one.tell(events.AssignmentApplied(4, (replica_spec("r1"), replica_spec("fresh"), replica_spec("r0")), ()))
        assert started(one.probe("r0")) == []
        assert started(one.probe("fresh")) == ["fresh"]

    def test_a_peer_that_takes_over_a_slot_answers_for_nothing_that_failed_there(
        self, placement: PlacementPolicy
    ) -> None:
        one = busy_desk(placement)
        one.ask("q")
        one.finish("q", LegResult.FAILED)
        one.tell(events.AssignmentApplied(2, (replica_spec("r0"), replica_spec("r1")), (peer_spec("gw-ap", AP),)))
        assert started(one.hear("gw-ap", AP)) == ["gw-ap"]

    def test_an_older_assignment_is_ignored(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        one.tell(events.AssignmentApplied(3, (replica_spec("r9"),), ()))
        one.tell(events.AssignmentApplied(2, (replica_spec("r5"),), ()))
        assert [state.spec.replica_id for state in one.core.replicas] == ["r9"]

    def test_a_lost_replica_is_not_used(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        one.tell(events.TargetLost(replica_target(ReplicaId("r0")), "connection refused"))
        assert started(one.ask("q")) == []

    def test_draining_refuses_new_work_and_finishes_old(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], placement=placement)
        one.ask("running")
        one.tell(events.DrainRequested())
        assert ended(one.ask("late")) == [("late", "rejected_draining")]
        assert isinstance(one.tell(forward("f"))[0], ordered.RefuseForward)
        assert ended(one.finish("running")) == [("running", "completed")]

    def test_a_new_config_decides_again_at_once(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement, config=CoreConfig(placement=PlacementConfig(overflow=OverflowMode.OFF)))
        one.ask("q")
        assert started(one.tell(events.ConfigApplied(under(placement)))) == ["gw-eu"]

    def test_a_heartbeat_that_says_the_same_changes_nothing_but_its_age(self, placement: PlacementPolicy) -> None:
        one = desk(peers=(EU_PEER,), placement=placement)
        one.hear("gw-eu", EU)
        version = one.core.peers.version
        one.wait(SECOND)
        one.hear("gw-eu", EU)
        assert one.core.peers.version == version
        one.hear("gw-eu", EU, queue=1)
        assert one.core.peers.version > version


def test_time_never_goes_backwards() -> None:
    one = desk()
    one.wait(1 * SECOND)
    with pytest.raises(AssertionError, match="backwards"):
        one.core.handle(events.LegEnded(RequestId("x"), 1, 1, LegResult.FAILED), 5)


@under_both
class TestKeysThatNarrow:
    """A key's own rule applies beside the policy: at admission, in the queue, and in the stamp of a forward."""

    def ask(self, one: Desk, process: PlaceRule, request_id: str = "q") -> list[Effect]:
        narrowed = replace(profile(request_id), process=process)
        return one.tell(events.RequestArrived(narrowed, one.now_ns + 600 * SECOND))

    def busy_desk(self, placement: PlacementPolicy) -> Desk:
        one = desk(US, replicas=1, peers=[peer_spec("eu", EU), peer_spec("ap", AP)], placement=placement)
        occupy(one)
        one.hear("eu", EU, rtt_ms=10)
        one.hear("ap", AP, rtt_ms=50)
        return one

    def test_it_goes_only_where_both_allow_and_the_stamp_says_so(self, placement: PlacementPolicy) -> None:
        one = self.busy_desk(placement)
        (leg,) = of_kind(ordered.StartLeg, self.ask(one, rule(US, AP)))
        assert leg.target == peer_target(GatewayId("ap"))
        assert leg.stamp is not None
        assert [leg.stamp.rule.allows(place) for place in (US, EU, AP)] == [True, False, True]

    def test_one_that_may_go_nowhere_else_waits(self, placement: PlacementPolicy) -> None:
        one = self.busy_desk(placement)
        assert started(self.ask(one, PlaceRule(jurisdictions=frozenset({US.jurisdiction})))) == []
        assert started(one.ask("other")) == ["eu"]
        assert started(one.probe(waiting=0)) == ["r0"]

    def test_a_new_policy_is_narrowed_as_the_old_one_was(self, placement: PlacementPolicy) -> None:
        one = self.busy_desk(placement)
        assert started(self.ask(one, rule(US))) == []
        assert started(one.tell(events.PolicyApplied(replace(policy(US), digest="newer")))) == []
        assert started(one.probe(waiting=0)) == ["r0"]

    def test_it_never_widens_the_policy(self, placement: PlacementPolicy) -> None:
        one = self.busy_desk(placement)
        one.tell(events.PolicyApplied(policy(US, process=rule(US))))
        assert started(self.ask(one, ANYWHERE)) == []


class TestHolding:
    """Default placement: while a replica reads, a request that it would take long to read waits here, where it can be
    placed anew."""

    def test_it_waits_while_its_home_reads_and_goes_when_that_is_over(self) -> None:
        one = reading()
        assert (started(one.effects), home_of(one)) == (["r0"], "r0")
        assert one.core.why_it_waits(RequestId("waits"))
        one.wait(50 * MS)
        assert started(one.probe(running=1)) == [], "it reads on"
        assert started(one.first_token("first")) == ["r0"]

    @pytest.mark.parametrize("result", [LegResult.COMPLETED, LegResult.CLIENT_ERROR, LegResult.CANCELLED])
    def test_it_goes_when_what_was_read_has_ended_without_a_token(self, result: LegResult) -> None:
        one = reading()
        assert started(one.finish("first", result)) == ["r0"]

    def test_what_is_short_passes(self) -> None:
        one = reading()
        assert started(one.ask("short", prompt="hi")) == ["r0"]
        assert home_of(one) == "r0"

    def test_a_replica_that_reads_nothing_is_waited_for_by_nobody(self) -> None:
        one = desk(replicas=2)
        assert sorted(started(one.ask("a", prompt=words("a"))) + started(one.ask("b", prompt=words("b")))) == [
            "r0",
            "r1",
        ]

    @pytest.mark.parametrize("tenant", ["default", "home"])
    def test_it_is_overtaken_by_no_more_than_was_before_it_and_than_it_brings(self, tenant: str) -> None:
        """The bound holds for requests of any tenant, also in another queue, and for requests that are looked at
        repeatedly."""
        one = reading(own_policy=policy(US, tenants={TenantName("home"): TenantPolicy(rule(US))}))
        passed: list[RequestId] = []
        for i in range(100):
            one.wait(MS)
            told = one.ask(f"q{i}", prompt=words(f"q{i}", 100), tenant=tenant) + one.probe(running=1)
            while begun := [leg.request_id for leg in of_kind(ordered.StartLeg, told)]:
                passed += begun
                told = [effect for name in begun for effect in one.first_token(name)]
        assert "waits" not in passed, "what was read before it is read on"
        bound = 2 * profile("waits", prompt=words("waits")).prompt_bytes
        assert home_of(one) == "r0"
        assert 0 < len(passed) <= bound // profile("q", prompt=words("q", 100)).prompt_bytes + 1

    def test_whoever_is_held_first_is_the_first_to_go(self) -> None:
        one = reading()
        for name in ("second", "third"):
            assert started(one.ask(name, prompt=words(name))) == []
        begun: list[str] = []
        for name in ("first", "waits", "second"):
            begun += [leg.request_id for leg in of_kind(ordered.StartLeg, one.first_token(name))]
        assert begun == ["waits", "second", "third"]

    # Changes of the replica that a request is held for

    def between_two(self) -> tuple[Desk, str, str]:
        """Both replicas read; `waits` continues a prompt that its home has read. Returns the desk, the home and the
        other replica."""
        one = desk(replicas=2)
        (home,) = started(one.ask("first", prompt=words("first")))
        (other,) = started(one.ask("second", prompt=words("second", 2 * LONG)))
        one.ask("waits", prompt=words("first") + words("waits"))
        assert (home_of(one), {home, other}) == (home, {"r0", "r1"})
        return one, home, other

    @pytest.mark.parametrize("event", ["lost", "sick", "stale", "unassigned", "taken over", "changed"])
    def test_a_home_that_is_none_any_more_releases_who_was_held(self, event: str) -> None:
        one, home, other = self.between_two()
        if event == "lost":
            one.tell(events.TargetLost(replica_target(ReplicaId(home)), "reset"))
        elif event == "sick":
            one.probe(home, healthy=False)
        elif event == "stale":
            for _ in range(31):
                one.wait(100 * MS)
                one.probe(other)
        elif event == "unassigned":
            one.tell(events.AssignmentApplied(2, (replica_spec(other),), ()))
        elif event == "taken over":
            one.tell(events.AssignmentApplied(2, (replica_spec(other), replica_spec("fresh")), ()))
        else:
            serves_another = replica_spec(home, models=["mistral"])  # type: ignore[list-item]
            one.tell(events.AssignmentApplied(2, (replica_spec(other), serves_another), ()))
        assert home_of(one) == other
        assert started(one.first_token("second")) == [other]

    def test_with_nobody_left_it_waits_for_anybody(self) -> None:
        one = reading()
        one.tell(events.TargetLost(replica_target(ReplicaId("r0")), "reset"))
        assert home_of(one) is None
        assert one.core.waiting.homes == 0
        one.finish("first", LegResult.COMPLETED)
        one.wait(10 * MS)
        assert started(one.probe()) == ["r0"]

    def test_who_was_held_for_a_home_that_is_lost_chooses_before_those_who_came_later(self) -> None:
        one = reading(peers=[EU_PEER])
        one.ask("later", prompt="hi")
        one.hear("gw-eu", EU, rtt_ms=2_000)
        effects = one.finish("later", LegResult.BUSY)
        assert [(leg.request_id, leg.target.id) for leg in of_kind(ordered.StartLeg, effects)] == [("waits", "gw-eu")]

    def test_it_goes_elsewhere_once_that_is_cheaper(self) -> None:
        one = reading(peers=[EU_PEER])
        one.hear("gw-eu", EU, rtt_ms=200)
        assert started(one.effects) == ["r0"]
        one.wait(10 * MS)
        one.hear("gw-eu", EU, rtt_ms=10)
        assert started(one.probe(running=300)) == ["gw-eu"]

    def test_a_gateway_that_drains_serves_whom_it_holds(self) -> None:
        one = reading()
        one.tell(events.DrainRequested())
        assert home_of(one) == "r0"
        assert started(one.first_token("first")) == ["r0"]

    # Other settings

    def test_a_new_config_decides_again_at_once(self) -> None:
        one = reading()
        patient = CoreConfig(placement=PlacementConfig(hold_ns=10 * SECOND))
        assert started(one.tell(events.ConfigApplied(patient))) == ["r0"]

    def test_under_another_policy_nobody_is_held(self) -> None:
        one = reading()
        one.ask("too", prompt=words("too"))
        assert started(one.tell(events.ConfigApplied(under(LAYERED)))) == ["r0", "r0"]
        assert one.core.waiting.homes == 0

    def test_and_back_again(self) -> None:
        one = reading()
        one.tell(events.ConfigApplied(under(LAYERED)))
        one.tell(events.ConfigApplied(CoreConfig()))
        assert started(one.ask("too", prompt=words("too"))) == []
        one.first_token("first")
        assert started(one.first_token("waits")) == ["r0"]

    # Limits

    @pytest.mark.parametrize(
        ("queue", "outcome"),
        [
            (QueueConfig(length_max=1), "rejected_queue_full"),
            (QueueConfig(tenant_length_max=1), "rejected_tenant_limit"),
        ],
    )
    def test_limits_hold_for_those_who_are_held(self, queue: QueueConfig, outcome: str) -> None:
        one = reading(config=CoreConfig(queue=queue))
        assert ended(one.ask("late", prompt=words("late"))) == [("late", outcome)]
        assert started(one.ask("short", prompt="hi")) == ["r0"], "it need not wait"
        assert len(one.core.waiting) == 1
        assert started(one.first_token("first")) == ["r0"]

    def test_a_forward_that_would_be_held_in_a_full_queue_goes_back(self) -> None:
        one = reading(peers=[EU_PEER], config=CoreConfig(queue=QueueConfig(length_max=1)))
        effects = one.tell(self.long_forward("f"))
        assert ended(effects) == [("f", "rejected_queue_full")]
        assert leg_end_of(of_kind(ordered.EndRequest, effects)[0].outcome, "")[0] is LegResult.REFUSED

    def test_patience_ends_while_it_is_held(self) -> None:
        one = reading(config=CoreConfig(queue=QueueConfig(wait_max_ns=SECOND)))
        assert ended(one.wait(SECOND)) == [("waits", "expired_in_queue")]
        assert (len(one.core.waiting), one.core.waiting.homes) == (0, 0)

    def test_a_client_that_leaves_while_it_is_held_is_gone(self) -> None:
        one = reading()
        assert ended(one.tell(events.RequestAbandoned(RequestId("waits")))) == [("waits", "abandoned")]
        assert (len(one.core.waiting), one.core.waiting.homes) == (0, 0)
        assert started(one.first_token("first")) == []

    def test_a_retry_may_be_held_again(self) -> None:
        one = desk(replicas=2)
        one.ask("q", prompt=words("q"))
        (other,) = started(one.ask("other", prompt=words("other")))
        assert started(one.finish("q", LegResult.FAILED)) == []
        assert home_of(one, "q") == other
        assert started(one.first_token("other")) == [other]

    # Other gateways

    def long_forward(self, request_id: str) -> events.ForwardArrived:
        return replace(forward(request_id), profile=profile(request_id, prompt=words(request_id)))

    def test_a_forward_is_held_at_the_peer_as_its_own_are(self) -> None:
        one = reading(peers=[EU_PEER])
        effects = one.tell(self.long_forward("f"))
        assert [type(effect) for effect in effects] == [ordered.AcceptForward]
        assert home_of(one, "f") == "r0"
        one.first_token("first")
        assert started(one.first_token("waits")) == ["r0"]

    def test_what_is_held_is_judged_again_when_the_policy_changes(self) -> None:
        abroad = replica_spec("abroad", EU)
        one = desk(replicas=[replica_spec("r0"), abroad])
        one.probe("r0", running=400)
        assert started(one.ask("first", prompt=words("first"))) == ["abroad"]
        one.ask("waits", prompt=words("first") + words("waits"))
        assert home_of(one) == "abroad"
        assert started(one.tell(events.PolicyApplied(policy(US, process=rule(US))))) == ["r0"]

    def test_who_may_not_enter_any_more_is_not_held(self) -> None:
        one = reading()
        away = {TenantName("default"): TenantPolicy(rule(EU))}
        told = one.tell(events.PolicyApplied(policy(US, tenants=away)))
        assert ended(told) == [("waits", "rejected_residency_ingress")]
        assert one.core.waiting.homes == 0


class TestHoldingForACache:
    """A new prompt would push prompts out of a full cache that will be asked for again sooner."""

    ROOM_TOKENS = 5_200
    """Room for two prompts of `LONG` words, and hardly more."""

    def turn(self, one: Desk, name: str, request_id: str) -> None:
        """Run the next turn of a session whose last turn was a tenth of a second ago."""
        one.wait(50 * MS)
        assert started(one.ask(request_id, prompt=words(name))) == ["r0"]
        one.first_token(request_id)
        one.finish(request_id)
        one.probe(kv_tokens=self.ROOM_TOKENS, running=1)

    def living(self) -> Desk:
        """Two sessions fill the only cache, and another request keeps running."""
        one = desk(replicas=1)
        one.probe(kv_tokens=self.ROOM_TOKENS)
        for i in range(60):
            self.turn(one, f"session{i % 2}", f"turn{i}")
        one.ask("runs", prompt="hi")
        one.first_token("runs")
        return one

    def test_what_is_new_waits_and_who_goes_on_does_not_wait_behind_it(self) -> None:
        one = self.living()
        assert started(one.ask("new", prompt=words("new"))) == []
        held = one.core.requests[RequestId("new")].held
        assert held is not None
        assert held.is_cold
        self.turn(one, "session0", "goes on")

    def test_it_goes_at_once_where_nothing_runs(self) -> None:
        one = self.living()
        one.ask("new", prompt=words("new"))
        one.finish("runs")
        one.wait(MS)
        assert "new" in {
            leg.request_id for leg in of_kind(ordered.StartLeg, [*one.effects, *one.probe(kv_tokens=self.ROOM_TOKENS)])
        }

    def test_its_patience_is_bounded_though_others_go_on_and_on(self) -> None:
        one = self.living()
        one.ask("new", prompt=words("new"))
        for i in range(40):
            self.turn(one, f"session{i % 2}", f"more{i}")
            if one.core.requests[RequestId("new")].held is None:
                break
        assert 1 < i < 20
        assert "new" in {leg.request_id for leg in of_kind(ordered.StartLeg, one.effects)}

    def test_with_room_in_the_cache_it_does_not_wait(self) -> None:
        one = self.living()
        one.probe(kv_tokens=10 * self.ROOM_TOKENS, running=1)
        assert started(one.ask("new", prompt=words("new"))) == ["r0"]


def test_a_prompt_that_no_cache_has_room_for_goes_to_the_one_region_that_serves_it() -> None:
    """The request is sent because only that engine can refuse it as too long; if it waited here, it would time out."""
    one = desk(replicas=0, peers=(peer_spec("gw-eu", EU),))
    capacity = ModelCapacity(MODEL, DEFAULT_POOL, EU, replicas=1, available=1, free_tokens=2048, room=1)
    report = LoadReport(GatewayId("gw-eu"), EU, 1, True, 1, "digest", (capacity,))
    one.tell(events.PeersObserved((PeerObservation(report, one.now_ns, one.now_ns, 10 * MS, 10 * MS),)))
    assert started(one.ask("long", prompt="word " * 5000)) == ["gw-eu"]
