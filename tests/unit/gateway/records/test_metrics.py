from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from gateway.core.kernel.description import gauges_of
from gateway.core.kernel.residency import LoggingRule, closed_policy
from gateway.core.vocabulary import (
    GatewayId,
    Hints,
    LegResult,
    LoadReport,
    ModelCapacity,
    ModelName,
    PeerObservation,
    ReplicaId,
    ReplicaObservation,
    RequestId,
    TenantName,
    peer_target,
)
from gateway.records.metrics import GatewayMetrics
from gateway.records.model_labels import MODELS_MAX
from mesh.totals import FIRST_TOKEN_BOUNDS_S, Totals
from tests.support.core import EU, LAYERED, MODEL, MS, US, desk, peer_spec, policy, profile, replica_spec, under
from tests.support.followed import FAILS, Followed
from tests.support.metrics_pages import sums_by_name


class Watched(Followed):
    """A core whose every step is counted."""

    def __init__(self, replicas: int = 2) -> None:
        super().__init__(desk(replicas=replicas, peers=(peer_spec("eu-1", EU),)))
        self.metrics = GatewayMetrics(
            lambda: gauges_of(self.desk.core, self.desk.now_ns), self.desk.core, self.requests
        )
        self.finished.hand_to(self.metrics.on_finished)
        self.watch([self.metrics])

    def hear(self, available: int = 1, model: str = MODEL) -> None:
        capacities = (ModelCapacity(ModelName(model), replica_spec("x").pool, EU, 1, available, room=available),)
        report = LoadReport(GatewayId("eu-1"), EU, self.desk.now_ns, True, 1, "d", capacities)
        self.tell(
            events.PeersObserved((PeerObservation(report, self.desk.now_ns, self.desk.now_ns, 80 * MS, 90 * MS),))
        )

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"nightside_{name}", labels) or 0.0

    def total(self, name: str) -> float:
        """Sum over every series of that name."""
        return sums_by_name(self.metrics.render().decode()).get(f"nightside_{name}", 0.0)


def test_a_completed_request_counts_where_it_ran_and_how_fast() -> None:
    watched = Watched()
    watched.ask("a")
    watched.desk.now_ns += 200 * MS
    watched.first_token("a")
    watched.desk.now_ns += 1000 * MS
    watched.end("a")
    assert watched.value("attempts_total", target="replica", result="completed") == 1
    assert watched.value("first_token_seconds_sum", model="llama", ran="local") == pytest.approx(0.2)
    assert watched.value("queue_wait_seconds_count", model="llama", source="client") == 1
    assert watched.value("prefix_matched_share_count", model="llama", ran="local") == 1
    assert watched.value("placements_total", reason="local_explore") == 1
    assert watched.total("requests_total") == 0, "its answer is still being sent"
    watched.finish("a")
    assert watched.value("requests_total", model="llama", outcome="completed") == 1


def test_hints_of_clients_count_once_by_kind_and_those_of_forwards_not_again() -> None:
    watched = Watched()
    for request_id, hints in (("a", Hints(output_tokens=5, priority=2)), ("b", Hints(priority=9)), ("c", Hints())):
        watched.ask(request_id, hints=hints)
        watched.end(request_id)
        watched.finish(request_id)
    assert watched.value("hints_total", hint="output_tokens") == 1
    assert watched.value("hints_total", hint="priority") == 2
    assert watched.total("hints_total") == 3


def test_a_line_of_a_batch_waits_apart_from_clients() -> None:
    watched = Watched()
    watched.ask("line", keeps_yielding=True)
    assert watched.value("queue_wait_seconds_count", model="llama", source="batch") == 1
    assert watched.total("queue_wait_seconds_count") == 1


def test_a_look_at_a_stored_response_is_no_request_of_a_model() -> None:
    watched = Watched()
    watched.ask("look", model="", is_control=True)
    watched.first_token("look")
    watched.end("look")
    watched.finish("look")
    assert watched.total("stored_response_calls_total") == 1
    assert watched.total("requests_total") == 0
    assert watched.total("queue_wait_seconds_count") == 0
    assert watched.total("first_token_seconds_count") == 0


def test_a_forward_counts_by_peer_and_a_refusal_by_reason() -> None:
    watched = Watched(replicas=0)
    watched.hear()
    watched.ask("a")
    watched.end("a", LegResult.REFUSED)
    assert watched.value("forwards_sent_total", peer="eu-1") == 1
    assert watched.value("forwards_refused_total", peer="eu-1", reason="busy") == 1, "while the request still waits"
    watched.desk.now_ns += 200 * MS
    watched.hear()
    assert watched.value("retries_total", after="refused") == 1
    watched.first_token("a", attempt=2)
    watched.end("a", attempt=2)
    assert watched.value("first_token_seconds_count", model="llama", ran="forward") == 1
    assert watched.value("attempts_total", target="peer", result="completed") == 1


def test_a_forward_from_a_peer_counts_as_received_with_our_answer() -> None:
    watched = Watched()
    watched.forward("a")
    assert watched.value("forwards_received_total", peer="eu-1", answer="accepted") == 1
    watched.forward("a")
    assert watched.value("forwards_received_total", peer="eu-1", answer="duplicate") == 1
    watched.forward("b", origin_gateway_id=GatewayId("who"))
    assert watched.value("forwards_received_total", peer="other", answer="residency_not_accepted") == 1
    watched.first_token("a")
    watched.end("a")
    watched.finish("a")
    assert watched.value("forwards_ended_total", model="llama", outcome="completed") == 1
    assert watched.value("queue_wait_seconds_count", model="llama", source="peer") == 1
    for mine in ("requests_total", "first_token_seconds_count", "output_tokens_total"):
        assert watched.total(mine) == 0, "it is its origin's to count"


@pytest.mark.parametrize("failing", [1, 2])
def test_of_two_legs_each_counts_and_the_attempt_is_tried_again_for_the_one_that_failed(failing: int) -> None:
    watched = Watched()
    watched.two_legs("a")
    watched.two_ends("a", FAILS[failing])
    watched.second_leg("a")
    assert watched.value("attempts_total", target="replica", result="failed") == 1
    assert watched.value("attempts_total", target="replica", result="cancelled") == 1
    assert watched.total("placements_total") == 4
    assert watched.value("queue_wait_seconds_count", model="llama", source="client") == 1
    assert watched.value("prefix_matched_share_count", model="llama", ran="local") == 1
    assert watched.value("retries_total", after="failed") == 1
    assert watched.value("retries_total", after="cancelled") == 0


def test_two_legs_that_complete_count_one_first_token() -> None:
    watched = Watched()
    watched.two_legs("a")
    watched.first_token("a", leg=2)
    watched.first_token("a", leg=1)
    watched.two_ends("a", (LegResult.COMPLETED, LegResult.COMPLETED))
    watched.finish("a")
    assert watched.value("first_token_seconds_count", model="llama", ran="local") == 1
    assert watched.value("requests_total", model="llama", outcome="completed") == 1


def test_names_that_nobody_configured_share_one_label() -> None:
    watched = Watched()
    for index in range(50):
        watched.ask(f"x{index}", model=ModelName(f"made-up-{index}"))
        watched.finish(f"x{index}")
    assert watched.value("requests_total", model="other", outcome="rejected_unknown_model") == 50
    assert b"made-up" not in watched.metrics.render()


def test_a_peer_that_makes_up_models_takes_no_label_from_ours() -> None:
    watched = Watched()
    for index in range(2 * MODELS_MAX):
        watched.hear(model=f"rotated-{index}")
    watched.tell(
        events.AssignmentApplied(2, (replica_spec("r9", models=[ModelName("ours")]),), (peer_spec("eu-1", EU),))
    )
    watched.ask("a", model="ours")
    watched.tell(events.RequestAbandoned(RequestId("a")))
    watched.finish("a")
    assert watched.value("requests_total", model="ours", outcome="abandoned") == 1
    assert b"rotated" not in watched.metrics.render()


def test_a_request_that_is_left_counts_with_what_ran_for_it() -> None:
    watched = Watched(replicas=1)
    watched.ask("left")
    watched.tell(events.RequestAbandoned(RequestId("left")))
    watched.end("left", LegResult.CANCELLED)
    watched.tell(events.LegEnded(RequestId("left"), 1, 1, LegResult.FAILED))
    watched.finish("left")
    assert watched.value("requests_total", model="llama", outcome="abandoned") == 1
    assert watched.value("attempts_total", target="replica", result="cancelled") == 1
    assert watched.value("attempts_total", target="replica", result="failed") == 0, "that word came late"


def test_levels_are_asked_of_the_core_at_each_scrape() -> None:
    watched = Watched()
    watched.hear()
    assert watched.value("replicas") == 2
    assert watched.value("peers_usable") == 1
    assert watched.value("peer_rtt_seconds", peer="eu-1") == pytest.approx(0.08)
    watched.desk.now_ns += 500 * MS
    assert watched.value("probe_age_seconds", replica="r0") == pytest.approx(0.5)
    assert watched.value("heartbeat_age_seconds", peer="eu-1") == pytest.approx(0.5)
    watched.tell(events.TargetLost(peer_target(GatewayId("eu-1")), "gone"))
    assert watched.value("targets_lost_total", target="peer") == 1
    assert watched.value("peers_usable") == 0
    watched.tell(events.AssignmentApplied(2, (), ()))
    assert b"eu-1" not in b"".join(line for line in watched.metrics.render().splitlines() if b"rtt" in line)


def test_each_model_s_queue_and_each_replica_s_load_show() -> None:
    watched = Watched(replicas=1)
    watched.tell(events.ConfigApplied(under(LAYERED)))
    watched.ask("runs")
    observed = ReplicaObservation(ReplicaId("r0"), watched.desk.now_ns, healthy=True, waiting=3)
    watched.tell(events.ReplicasObserved((observed,)))
    watched.ask("waits")
    assert watched.value("queue_length", model="llama") == 1
    assert watched.value("replica_in_flight", replica="r0") == 1
    assert watched.value("replica_pending", replica="r0") == 3
    watched.tell(events.RequestAbandoned(RequestId("waits")))
    assert b'nightside_queue_length{model="llama"} 0.0' in watched.metrics.render()


def test_who_is_held_shows_at_the_replica() -> None:
    watched = Watched(replicas=2)
    watched.tell(events.ConfigApplied(CoreConfig(placement=PlacementConfig(policy=PlacementPolicy.COST))))
    for name in ("runs", "runs too", "waits"):
        watched.desk.tell(events.RequestArrived(profile(name, prompt=name * 4000), 60_000 * MS))
    held = [watched.value("replica_held", replica=name) for name in ("r0", "r1")]
    assert sorted(held) == [0, 1]


def test_the_room_of_a_replica_is_negative_where_requests_wait_in_its_engine() -> None:
    watched = Watched()
    observed = ReplicaObservation(ReplicaId("r0"), watched.desk.now_ns, healthy=True, running=4, waiting=3, slots=4)
    watched.tell(events.ReplicasObserved((observed,)))
    assert watched.value("replica_room", replica="r0") == -3


def test_what_is_turned_away_at_the_door_counts_by_reason_and_tenant() -> None:
    watched = Watched()
    watched.metrics.refused("invalid_api_key", None)
    watched.metrics.refused("token_rate_exceeded", TenantName("acme"))
    assert watched.value("refusals_total", reason="invalid_api_key", tenant="") == 1
    assert watched.value("refusals_total", reason="token_rate_exceeded", tenant="acme") == 1


def test_a_tenant_that_logs_may_not_name_is_named_nowhere() -> None:
    watched = Watched()
    watched.tell(events.PolicyApplied(replace(policy(US), logging=LoggingRule(tenant=False))))
    watched.metrics.refused("token_rate_exceeded", TenantName("acme"))
    assert watched.value("refusals_total", reason="token_rate_exceeded", tenant="other") == 1
    assert b"acme" not in watched.metrics.render()


def test_a_dead_replica_is_told_from_a_busy_one() -> None:
    watched = Watched()
    watched.tell(events.ReplicasObserved((ReplicaObservation(ReplicaId("r0"), watched.desk.now_ns, True, waiting=3),)))
    watched.tell(events.ReplicasObserved((ReplicaObservation(ReplicaId("r1"), watched.desk.now_ns, False),)))
    for replica, now in (("r0", "full"), ("r1", "down")):
        states = ("available", "full", "recovering", "down")
        found = {state: watched.value("replica_state", replica=replica, state=state) for state in states}
        assert found == {state: float(state == now) for state in states}
    watched.tell(events.AssignmentApplied(2, (replica_spec("r1"),), ()))
    assert b'replica="r0"' not in watched.metrics.render(), "as many as are assigned"


def test_a_region_that_runs_closed_shows() -> None:
    watched = Watched()
    watched.tell(events.PolicyApplied(closed_policy(US, "unreadable")))
    assert watched.value("policy_closed") == 1
    watched.tell(events.PolicyApplied(policy(US)))
    assert watched.value("policy_closed") == 0


def test_two_gateways_count_apart() -> None:
    first, second = Watched(), Watched()
    first.metrics.restarted("probes")
    first.metrics.loop_delayed(3 * MS)
    assert first.value("supervised_restarts_total", task="probes") == 1
    assert first.value("event_loop_delay_seconds_count") == 1
    assert second.value("supervised_restarts_total", task="probes") == 0


def test_what_is_odd_about_streams_of_forwards_counts_by_peer() -> None:
    watched = Watched()
    watched.metrics.exchange_ignored(GatewayId("eu-1"))
    watched.metrics.exchange_broken("caller", GatewayId("eu-1"))
    watched.metrics.exchange_broken("called", GatewayId("nobody-we-know"))
    assert watched.value("exchange_frames_ignored_total", peer="eu-1") == 1
    assert watched.value("exchanges_broken_total", peer="eu-1", seen_by="caller") == 1
    assert watched.value("exchanges_broken_total", peer="other", seen_by="called") == 1


def test_no_request_is_ever_a_label() -> None:
    watched = Watched()
    watched.ask("very-secret-id")
    assert b"very-secret-id" not in watched.metrics.render()


def test_totals_are_the_sums_of_the_counters_and_of_clients_requests_alone() -> None:
    watched = Watched()
    assert watched.metrics.totals() == Totals()
    watched.ask("served")
    watched.desk.now_ns += 30 * MS
    watched.first_token("served")
    watched.end("served")
    watched.finish("served")
    watched.forward("of-a-peer")
    watched.end("of-a-peer")
    watched.finish("of-a-peer")
    for name in ("a", "b"):
        watched.ask(name, model=ModelName("unknown"))
        watched.finish(name)
    bounds = len(FIRST_TOKEN_BOUNDS_S)
    assert watched.metrics.totals() == Totals(3, 2, 0, tuple(int(index == 2) for index in range(bounds + 1)), 0)


def test_a_forward_sent_is_in_the_totals() -> None:
    watched = Watched(replicas=0)
    watched.hear()
    watched.ask("a")
    assert watched.metrics.totals() == Totals(forwards=1)


def test_every_level_that_is_to_be_followed_is_followed_by_a_gateway() -> None:
    sources = "".join(path.read_text() for path in (Path(__file__).parents[4] / "gateway/app").glob("*.py"))
    to_follow = [name for name in dir(GatewayMetrics) if name.startswith("follow_")]
    assert len(to_follow) > 3
    assert [name for name in to_follow if f"metrics.{name}(" not in sources] == []
