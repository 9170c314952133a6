"""Disaggregated pools: a prompt is read at one replica and its answer written at another. Tests cover the core's orders
and what is left afterwards."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.disaggregated.balance_route import BalanceRoute
from gateway.core.features.disaggregated.config import BalanceConfig, DecodeConfig, DecodePolicyName, PolicySource
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.disaggregated.predictors.arrays import ForestArrays, LearnedArrays
from gateway.core.features.disaggregated.predictors.history import Ended
from gateway.core.features.disaggregated.predictors.learned import FEATURES
from gateway.core.features.disaggregated.predictors.survival import fit_survival
from gateway.core.features.sharing.fair_shares import charge_of
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.config import AttemptConfig
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg, StopLeg
from gateway.core.vocabulary import (
    Connector,
    LegResult,
    LegRole,
    ModelName,
    PlacementReason,
    PoolKind,
    PoolName,
    PoolSpec,
    ReplicaId,
    ReplicaObservation,
    ReplicaRole,
    ReplicaSpec,
    RequestId,
    Standing,
    Target,
    TargetKind,
)
from tests.support.core import (
    EU,
    MS,
    SECOND,
    Desk,
    ended,
    forward,
    of_kind,
    profile,
    replica_spec,
    started,
)
from tests.support.disaggregated import (
    POOL,
    SHORTEST_QUEUE,
    books,
    decoding,
    leg_ended,
    pair,
    read,
    resized,
    roles,
    with_decode,
    worker,
    workers,
)
from tests.support.nightly import first_of

LEAF = ForestArrays(3.0, (0,), (0,), (0.0,), (0,), (0,), (4.0,))


def test_a_prompt_is_read_at_one_and_its_answer_written_at_another() -> None:
    desk = pair()
    assert roles(desk.ask("a")) == [("a", "prefill", "p0")]
    assert books(desk)[:2] == (1, 0)
    leg_ended(desk, "a", 1, prompt_tokens=100)
    (order,) = of_kind(StartLeg, desk.effects)[1:]
    assert order.role is LegRole.DECODE
    assert order.target.id in ("d0", "d1")
    assert order.prefill == Target(TargetKind.REPLICA, "p0")
    assert order.pool == POOL.name
    assert order.decision.reason is PlacementReason.DECODE_POLICY
    chosen = order.decision.considered[0]
    assert chosen.target == order.target
    assert chosen.decode is not None
    assert chosen.decode.group == "dp"
    assert books(desk) == (0, 0, 1, 0, 1, 1)
    desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    assert books(desk) == (0, 0, 0, 1, 0, 1), "what was kept has been fetched"
    assert ended(leg_ended(desk, "a", 2, prompt_tokens=100, output_tokens=7)) == [("a", "completed")]
    assert books(desk) == (0, 0, 0, 0, 0, 0)
    assert not desk.core.requests


def test_decode_workers_are_no_targets_and_no_capacity() -> None:
    desk = pair(workers(prefill=1, decode=2))
    (capacity,) = desk.core.replicas.capacities()
    assert (capacity.replicas, capacity.available, capacity.connector) == (1, 1, Connector.NIXL)
    for name in "abcdefgh":
        desk.ask(name)
    assert {target for _, _, target in roles(desk.effects)} == {"p0"}


def test_who_has_to_wait_waits_before_the_prefill() -> None:
    """Two workers of two slots each, and a margin of one: the sixth request waits before its prefill, where it could
    still go elsewhere."""
    desk = pair(margin=1)
    for number in range(8):
        desk.ask(f"r{number}")
    assert len(roles(desk.effects)) == 5
    state = desk.core.replicas.get("p0")
    assert state is not None
    assert state.standing is Standing.DECODE_FULL
    (capacity,) = desk.core.replicas.capacities()
    assert capacity.available == 0, "and peers are told so"
    leg_ended(desk, "r0", 1, LegResult.CLIENT_ERROR)
    assert len(roles(desk.effects)) == 6


def test_a_call_that_cannot_be_handed_over_waits_for_the_end_of_a_lockdown() -> None:
    desk = pair()
    desk.hear("gw-eu", EU)
    desk.tell(events.LockdownChanged(active=True))
    whole = replace(profile("a"), connectors=frozenset())
    assert ended(desk.tell(events.RequestArrived(whole, 600 * SECOND))) == []
    assert started(desk.tell(events.LockdownChanged(active=False))) == ["gw-eu"]


def test_a_full_pool_overflows_and_refuses_forwards() -> None:
    desk = pair(workers(decode=1), margin=0)
    desk.hear("gw-eu", EU)
    assert [target for _, _, target in roles(desk.ask("a") + desk.ask("b"))] == ["p0", "p0"]
    assert started(desk.ask("c")) == ["gw-eu"]


def test_no_pool_is_served_without_decode_workers() -> None:
    desk = pair(workers(decode=0))
    assert ended(desk.ask("a")) == [("a", "rejected_unknown_model")]


def test_a_call_that_cannot_be_handed_over_needs_a_unified_replica() -> None:
    desk = pair()
    desk.hear("gw-eu", EU, model=ModelName("another"))
    whole = replace(profile("a"), connectors=frozenset())
    effects = desk.tell(events.RequestArrived(whole, 600 * SECOND))
    assert ended(effects) == [("a", "rejected_unsupported")]
    over_another = replace(profile("b"), connectors=frozenset({Connector.SGLANG}))
    assert ended(desk.tell(events.RequestArrived(over_another, 600 * SECOND))) == [("b", "rejected_unsupported")]


def test_a_call_that_cannot_be_handed_over_goes_to_the_unified_replica() -> None:
    desk = pair((*workers(), replica_spec("u0")))
    whole = replace(profile("a"), connectors=frozenset())
    assert roles(desk.tell(events.RequestArrived(whole, 600 * SECOND))) == [("a", "whole", "u0")]


def test_decode_slots_bound_what_runs_and_a_free_one_is_taken() -> None:
    desk = pair(workers(decode=1))
    for name in "abc":
        read(desk, name)
    assert [role for _, role, _ in roles(desk.effects)].count("decode") == 2
    assert books(desk)[:2] == (0, 1)
    for leg in ("a", "b"):
        desk.tell(events.FirstToken(RequestId(leg), 1, 2))
    assert roles(leg_ended(desk, "a", 2)) == [("c", "decode", "d0")]


def test_a_lease_that_ends_means_a_new_prefill() -> None:
    pool = with_decode(POOL, replace(SHORTEST_QUEUE, pool_ttl_ns=40 * SECOND))
    desk = pair(workers(decode=1), pool=pool)
    for name in "abc":
        read(desk, name)
    effects: list[Effect] = []
    for _ in range(31):
        desk.probe()
        effects += desk.wait(SECOND)
    again = [each for each in of_kind(StartLeg, desk.effects) if each.attempt == 2]
    assert [(each.request_id, each.role) for each in again] == [("c", LegRole.PREFILL)]
    assert not ended(effects)


@pytest.mark.parametrize("stage", ["prefill", "pooled", "decode", "answering"])
def test_a_client_that_leaves_leaves_nothing_behind(stage: str) -> None:
    desk = pair(workers(decode=1))
    for name in ("x", "y"):
        read(desk, name)
    before = books(desk)
    desk.ask("a")
    leg = 1
    if stage != "prefill":
        leg_ended(desk, "a", 1, prompt_tokens=10)
        desk.wait(20 * MS)
    if stage in ("decode", "answering"):
        leg_ended(desk, "x", 2)
        desk.wait(20 * MS)
        leg = 2
        before = books(desk)
    if stage == "answering":
        desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    effects = desk.tell(events.RequestAbandoned(RequestId("a")))
    assert ended(effects) == [("a", "abandoned")]
    if stage != "pooled":
        leg_ended(desk, "a", leg, LegResult.CANCELLED)
    assert RequestId("a") not in desk.core.requests
    assert sum(books(desk)) <= sum(before)
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    assert not pool.tier.is_pooled(RequestId("a"))
    assert pool.in_prefill == 0


def test_a_decode_worker_that_fails_before_its_first_token_means_a_new_prefill() -> None:
    desk = pair(workers(prefill=2, decode=2))
    read(desk, "a")
    effects = leg_ended(desk, "a", 2, LegResult.FAILED, detail="it died")
    (again,) = of_kind(StartLeg, effects)
    assert (again.attempt, again.role) == (2, LegRole.PREFILL)
    leg_ended(desk, "a", 1, attempt=2, prompt_tokens=100)
    desk.wait(20 * MS)
    first, second = (each.target for each in of_kind(StartLeg, desk.effects) if each.role is LegRole.DECODE)
    assert first != second, "the one that failed has not been heard of since"


def test_an_answer_that_we_cannot_put_together_says_nothing_of_its_engine_and_is_asked_for_again() -> None:
    desk = pair(workers(decode=1))
    read(desk, "a")
    desk.tell(events.FirstToken(RequestId("a"), 1, 2, is_sent=False))
    again = leg_ended(desk, "a", 2, LegResult.INTERNAL)
    assert roles(again) == [("a", "prefill", "p0")], "at once: nobody has to be heard first"
    worker = desk.core.replicas.get("d0")
    assert worker is not None
    assert (worker.standing, worker.distrusted_since_ns, worker.rest.until_ns) == (Standing.AVAILABLE, None, 0)
    leg_ended(desk, "a", 1, attempt=2)
    assert desk.core.requests[RequestId("a")].failed_at == ()
    assert ended(leg_ended(desk, "a", 2, attempt=2)) == [("a", "completed")]


def test_a_decode_that_fails_on_our_side_again_and_again_is_our_failure() -> None:
    desk = pair(workers(decode=1))
    effects = desk.ask("a")
    for attempt in range(1, AttemptConfig().attempts_max + 1):
        leg_ended(desk, "a", 1, attempt=attempt)
        desk.wait(20 * MS)
        effects = leg_ended(desk, "a", 2, LegResult.INTERNAL, attempt=attempt)
    assert ended(effects) == [("a", "failed_internally")]
    assert not desk.core.requests


def test_an_error_of_ours_after_the_first_token_ends_the_request() -> None:
    desk = pair(workers(decode=1))
    read(desk, "a")
    desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    assert ended(leg_ended(desk, "a", 2, LegResult.INTERNAL)) == [("a", "failed_internally")]


def test_a_decode_worker_that_fails_after_its_first_token_breaks_the_stream_off() -> None:
    desk = pair()
    read(desk, "a")
    desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    assert ended(leg_ended(desk, "a", 2, LegResult.FAILED)) == [("a", "failed_midstream")]
    assert not any(books(desk))


def test_a_prefill_that_fails_is_tried_elsewhere() -> None:
    desk = pair(workers(prefill=2))
    (first,) = started(desk.ask("a"))
    (second,) = started(leg_ended(desk, "a", 1, LegResult.FAILED))
    assert {first, second} == {"p0", "p1"}
    assert books(desk)[0] == 1


def test_the_first_tokens_deadline_holds_while_nobody_is_free_to_decode() -> None:
    config = CoreConfig()
    config = replace(config, attempt=replace(config.attempt, first_token_deadline_ns=2 * SECOND, attempts_max=1))
    desk = pair(workers(decode=1), config=config)
    for name in "ab":
        read(desk, name)
        desk.tell(events.FirstToken(RequestId(name), 1, 2))
    read(desk, "c")
    effects: list[Effect] = []
    for _ in range(3):
        desk.probe()
        effects += desk.wait(SECOND)
    assert ended(effects) == [("c", "failed_before_first_byte")]
    assert not of_kind(StopLeg, effects)


def test_a_pool_that_is_taken_away_lets_go_of_who_stands_in_it() -> None:
    desk = pair(workers(decode=1))
    for name in "abc":
        read(desk, name)
    effects = desk.tell(events.AssignmentApplied(2, (replica_spec("u0"),), ()))
    assert not started(effects)
    assert roles(desk.probe()) == [("c", "whole", "u0")]
    assert ended(leg_ended(desk, "a", 2)) == [("a", "completed")], "what runs there ends as it would have"


def test_a_decode_worker_that_leaves_and_comes_back_finishes_what_it_has() -> None:
    desk = pair(workers(decode=1))
    read(desk, "a")
    desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    desk.tell(events.AssignmentApplied(2, workers(decode=0), (), pools=(POOL,)))
    desk.tell(events.AssignmentApplied(3, workers(decode=1), (), pools=(POOL,)))
    desk.probe(running=1)
    read(desk, "b")
    assert ended(leg_ended(desk, "a", 2, output_tokens=3)) == [("a", "completed")]
    assert ended(leg_ended(desk, "b", 2, output_tokens=3)) == [("b", "completed")]
    assert not any(books(desk))


@pytest.mark.parametrize("away", [(workers(decode=0), (POOL,)), ((replica_spec("u0"),), ())], ids=["worker", "pool"])
def test_own_requests_from_before_count_where_an_engine_does_not_report_them(
    away: tuple[tuple[ReplicaSpec, ...], tuple[PoolSpec, ...]],
) -> None:
    desk = pair(workers(decode=1))
    read(desk, "a")
    desk.tell(events.AssignmentApplied(2, away[0], (), pools=away[1]))
    desk.tell(events.AssignmentApplied(3, workers(decode=1), (), pools=(POOL,)))
    for _ in range(4):  # a worker that comes back ramps up
        desk.probe(running=0)
        desk.wait(SECOND)
    assert POOL.decode_batch_max == 2
    assert (decoding(read(desk, "b")), decoding(read(desk, "c"))) == (["b"], [])
    freed = leg_ended(desk, "a", 2, output_tokens=3) + desk.wait(20 * MS)
    assert decoding(freed) == ["c"], "the slot is free again"
    for name in "bc":
        leg_ended(desk, name, 2, output_tokens=3)
    assert not any(books(desk))


def test_what_a_dead_prefill_worker_has_read_is_asked_of_nobody() -> None:
    desk = pair(workers(prefill=2, decode=1))
    for name in "ab":
        read(desk, name)
    desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    (order,) = of_kind(StartLeg, desk.ask("c"))
    leg_ended(desk, "c", 1, prompt_tokens=10)
    desk.tell(events.TargetLost(order.target, "its connection broke"))
    effects = leg_ended(desk, "a", 2) + desk.wait(20 * MS)
    (again,) = of_kind(StartLeg, effects)
    assert (again.request_id, again.attempt, again.role) == ("c", 2, LegRole.PREFILL)
    assert again.target != order.target


def test_leases_that_end_cost_nobody_a_retry() -> None:
    config = CoreConfig()
    config = replace(config, attempt=replace(config.attempt, retry_budget_min=1, retry_budget_share=0.0))
    pool = with_decode(POOL, replace(SHORTEST_QUEUE, pool_ttl_ns=SECOND))
    desk = pair(workers(decode=1), pool=pool, config=config)
    for number in range(12):
        read(desk, f"r{number}")
    for _ in range(3):
        desk.wait(SECOND // 2)
        desk.probe()
    assert not ended(desk.effects)
    assert any(order.attempt == 2 for order in of_kind(StartLeg, desk.effects))


def test_a_prefill_that_comes_after_its_deadline_has_failed() -> None:
    config = CoreConfig()
    config = replace(config, attempt=replace(config.attempt, first_token_deadline_ns=SECOND))
    desk = pair(workers(prefill=2), config=config)
    (order,) = of_kind(StartLeg, desk.ask("a"))
    desk.probe()
    assert [each.leg for each in of_kind(StopLeg, desk.wait(SECOND))] == [1]
    desk.probe()
    (again,) = of_kind(StartLeg, leg_ended(desk, "a", 1, prompt_tokens=10))
    assert (again.attempt, again.role) == (2, LegRole.PREFILL)
    assert again.target != order.target


def test_what_follows_a_stored_response_is_no_prefill_workers() -> None:
    desk = pair((replica_spec("p0"), *workers(prefill=1, decode=1)[1:]))
    desk.ask("a")
    desk.tell(events.ResponseStored(RequestId("a"), 1, 1, "key"))
    desk.finish("a")
    desk.tell(events.AssignmentApplied(2, workers(prefill=1, decode=1), (), pools=(POOL,)))
    desk.probe()
    follows = replace(profile("b"), follows="key", connectors=frozenset())
    assert ended(desk.tell(events.RequestArrived(follows, 600 * SECOND))) == [("b", "rejected_unknown_response")]


def test_nobody_writes_an_answer_elsewhere_than_its_prompt_was_read() -> None:
    """Residency was judged for the place of the prefill, so a decode worker in another place gets nothing, even if
    assigned."""
    abroad = replace(workers(decode=2)[-1], place=EU)
    desk = pair((*workers(decode=1), abroad))
    for name in "abc":
        read(desk, name)
    assert {target for _, role, target in roles(desk.effects) if role == "decode"} == {"d0"}


def test_a_decode_worker_may_come_before_those_who_read_for_it() -> None:
    desk = pair(workers(prefill=0, decode=1))
    desk.tell(events.AssignmentApplied(2, workers(prefill=1, decode=1), (), pools=(POOL,)))
    desk.probe()
    assert [role for _, role, _ in roles(read(desk, "a"))] == ["prefill", "decode"]


def test_a_lockdown_takes_back_a_forward_that_stands_in_the_pool() -> None:
    desk = pair(workers(decode=1))
    desk.hear("gw-eu", EU)
    for name in "ab":
        read(desk, name)
    desk.tell(forward("c"))
    leg_ended(desk, "c", 1, prompt_tokens=10)
    assert ended(desk.tell(events.LockdownChanged(active=True))) == [("c", "failed_before_first_byte")]
    assert RequestId("c") not in desk.core.requests


def test_an_unhealthy_decode_worker_is_sent_nothing() -> None:
    desk = pair()
    desk.probe("d0", healthy=False)
    for name in "abc":
        read(desk, name)
    assert {target for _, role, target in roles(desk.effects) if role == "decode"} == {"d1"}


def test_a_prefill_worker_with_a_full_cache_is_passed_over() -> None:
    desk = pair(workers(prefill=2))
    desk.probe("p0", kv_usage=0.97, kv_tokens=10_000)
    assert {started(desk.ask(name))[0] for name in "abcd"} == {"p1"}
    state = desk.core.replicas.get("p0")
    assert state is not None
    assert state.standing is Standing.KV_FULL


def test_it_takes_both_parts_to_serve_anybody() -> None:
    desk = pair(workers(decode=1))
    assert desk.core.replicas.any_answers()
    for name in ("p0", "d0"):
        desk.probe(name, healthy=False)
        assert not desk.core.replicas.any_answers()
        desk.probe(name)
    assert desk.core.replicas.any_answers()


def test_both_legs_start_at_once_where_engines_meet() -> None:
    pool = replace(POOL, connector=Connector.MOONCAKE)
    desk = pair(pool=pool)
    effects = desk.ask("a")
    assert [role for _, role, _ in roles(effects)] == ["prefill", "decode"]
    assert of_kind(StartLeg, effects)[1].prefill == Target(TargetKind.REPLICA, "p0")
    assert not ended(leg_ended(desk, "a", 1))
    assert ended(leg_ended(desk, "a", 2, output_tokens=3)) == [("a", "completed")]
    assert not any(books(desk))


def test_either_leg_failing_stops_the_other() -> None:
    pool = replace(POOL, connector=Connector.MOONCAKE)
    desk = pair(workers(prefill=2), pool=pool)
    desk.ask("a")
    effects = leg_ended(desk, "a", 1, LegResult.FAILED)
    assert [(each.leg) for each in of_kind(StopLeg, effects)] == [2]
    again = leg_ended(desk, "a", 2, LegResult.CANCELLED)
    assert [(each.attempt, each.role.value) for each in of_kind(StartLeg, again)] == [(2, "prefill"), (2, "decode")]


def test_concurrent_pools_are_full_when_every_worker_has_its_batch_in_flight() -> None:
    pool = replace(POOL, connector=Connector.SGLANG)
    desk = pair(workers(decode=1), pool=pool)
    for number in range(10):
        desk.ask(f"r{number}")
    in_flight = [role for _, role, _ in roles(desk.effects)].count("decode")
    assert in_flight == POOL.decode_batch_max + DecodeConfig().in_flight_margin
    leg_ended(desk, "r0", 2)
    leg_ended(desk, "r0", 1)
    assert [role for _, role, _ in roles(desk.effects)].count("decode") == in_flight + 1


def test_progress_is_asked_for_before_a_tick_and_counts() -> None:
    desk = pair(workers(decode=1))
    read(desk, "a")
    desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    desk.wait(SECOND)
    desk.ask("b")
    effects = leg_ended(desk, "b", 1, prompt_tokens=50)
    assert of_kind(ordered.SampleProgress, effects) == [ordered.SampleProgress(POOL.name)]
    assert not of_kind(StartLeg, effects)
    told = events.ProgressSampled(POOL.name, (events.LegProgress(RequestId("a"), 1, 40),))
    (order,) = of_kind(StartLeg, desk.tell(told))
    view = order.decision.considered[0].decode
    assert view is not None
    assert view.load_tokens == 100 + 40
    assert charge_of(desk.core.requests[RequestId("a")]).output_tokens == 40


def test_a_breaker_lets_one_decode_leg_through_for_a_trial() -> None:
    config = CoreConfig()
    config = replace(config, attempt=replace(config.attempt, attempts_max=1))
    desk = pair(workers(decode=1), pool=replace(POOL, decode_batch_max=5), config=config)
    for number in range(15):
        read(desk, f"r{number}")
    assert len(decoding(desk.effects)) == 5
    desk.wait(SECOND)
    for number in range(5):
        leg_ended(desk, f"r{number}", 2, LegResult.FAILED)
    for _ in range(8):
        desk.wait(SECOND)
        desk.probe()
    assert len(decoding(desk.effects)) == 6
    desk.tell(events.FirstToken(RequestId("r5"), 1, 2))
    leg_ended(desk, "r5", 2)
    desk.wait(20 * MS)
    assert len(decoding(desk.effects)) == 7, "it ramps up"
    for _ in range(4):
        desk.wait(SECOND)
        desk.probe()
    assert len(decoding(desk.effects)) == 11, "and has its batch then"


def test_who_has_just_failed_is_not_sent_the_next_one() -> None:
    desk = pair(workers(decode=1), pool=replace(POOL, decode_batch_max=1))
    for name in "ab":
        read(desk, name)
    desk.wait(SECOND)
    leg_ended(desk, "a", 2, LegResult.FAILED)
    assert decoding(desk.effects) == ["a"]
    desk.now_ns += 1
    desk.probe()
    desk.wait(20 * MS)
    assert decoding(desk.effects) == ["a", "b"]


def test_a_decode_worker_that_comes_back_ramps_up() -> None:
    desk = pair(workers(decode=1), pool=replace(POOL, decode_batch_max=8))
    for number in range(16):
        read(desk, f"r{number}")
    desk.probe("d0", healthy=False)
    for number in range(8):
        leg_ended(desk, f"r{number}", 2)
    assert len(decoding(desk.effects)) == 8
    sent = []
    for _ in range(4):
        desk.probe()
        desk.wait(20 * MS)
        sent.append(len(decoding(desk.effects)) - 8)
        desk.wait(980 * MS)
    assert sent == [1, 2, 4, 8]


def test_a_pool_of_another_size_stays_what_it_is() -> None:
    desk = pair(workers(decode=1))
    pool = decode_pools_of(desk.core).get(POOL.name)
    for name in "abc":
        read(desk, name)
    assert decoding(desk.effects) == ["a", "b"]
    sized = replace(POOL, decode_batch_max=3, kv_tokens=9000, context_tokens_max=500, lease_ns=5 * SECOND)
    assert decoding(resized(desk, sized, workers(decode=1)) + desk.wait(20 * MS)) == ["c"]
    assert decode_pools_of(desk.core).get(POOL.name) is pool
    assert books(desk)[:3] == (0, 0, 3)
    read(desk, "d")
    for name in "abc":
        desk.tell(events.FirstToken(RequestId(name), 1, 2))
    resized(desk, replace(sized, decode_batch_max=1), workers(decode=1), version=3)
    for name in "ab":
        assert decoding(leg_ended(desk, name, 2) + desk.wait(20 * MS)) == []
    assert decoding(leg_ended(desk, "c", 2) + desk.wait(20 * MS)) == ["d"]
    leg_ended(desk, "d", 2)
    assert not any(books(desk))


def test_a_pool_that_begins_anew_asks_engines_what_they_have_first() -> None:
    desk = pair(workers(decode=1), margin=0)
    for name in "ab":
        read(desk, name)
    desk.now_ns += SECOND // 2
    changed = with_decode(replace(POOL, connector=Connector.ASCEND), replace(SHORTEST_QUEUE, room_margin=0))
    resized(desk, changed, workers(decode=1))
    desk.ask("c")
    assert not [role for name, role, _ in roles(desk.effects) if name == "c"]
    asked_before = ReplicaObservation(ReplicaId("d0"), desk.now_ns - 1, healthy=True)
    desk.tell(events.ReplicasObserved((asked_before,)))
    assert not [role for name, role, _ in roles(desk.effects) if name == "c"], "that tells nothing of what came since"
    desk.now_ns += 10 * MS
    desk.probe(running=2)
    assert not [role for name, role, _ in roles(desk.effects) if name == "c"], "its batch is full"
    leg_ended(desk, "a", 2)
    desk.probe(running=1)
    leg_ended(desk, "c", 1)
    desk.wait(20 * MS)
    assert decoding(desk.effects) == ["a", "b", "c"]


def test_each_pool_has_its_own_settings() -> None:
    """The second pool keeps fuller prefill workers open and uses BR-0, since it says nothing."""
    other = PoolSpec(PoolName("other"), PoolKind.DISAGGREGATED, Connector.NIXL, decode_batch_max=2)
    members = (
        replace(worker("q0", ReplicaRole.PREFILL), pool=other.name),
        replace(worker("e0", ReplicaRole.DECODE), pool=other.name),
    )
    strict = with_decode(POOL, replace(SHORTEST_QUEUE, prefill_kv_max_share=0.2))
    desk = pair()
    desk.tell(events.AssignmentApplied(2, (*workers(), *members), (), pools=(strict, other)))
    desk.probe(kv_usage=0.5)
    standings = {state.spec.replica_id: state.standing for state in desk.core.replicas}
    assert (standings[ReplicaId("p0")], standings[ReplicaId("q0")]) == (Standing.KV_FULL, Standing.AVAILABLE)
    pools = {pool.spec.name: pool.config.policy for pool in decode_pools_of(desk.core)}
    assert pools == {POOL.name: DecodePolicyName.JOIN_SHORTEST_QUEUE, other.name: DecodePolicyName.BR_0}
    desk.tell(events.AssignmentApplied(3, workers(), (), pools=(POOL,)))
    assert desk.core.replicas.get(ReplicaId("p0")).standing is Standing.AVAILABLE  # type: ignore[union-attr]


def test_other_settings_are_taken_while_requests_run() -> None:
    desk = pair(workers(decode=1))
    for name in "abc":
        read(desk, name)
    balanced = with_decode(POOL, DecodeConfig(DecodePolicyName.BR_0, balance=BalanceConfig(horizon_steps=8)))
    resized(desk, balanced, workers(decode=1))
    assert books(desk)[:3] == (0, 1, 2), "nothing is lost"
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    assert isinstance(pool.tier.policy, BalanceRoute)
    assert decode_pools_of(desk.core).horizon_of(POOL.name) == 8


def test_a_silent_pool_looks_ahead_while_its_predictor_foresees_loads() -> None:
    desk = pair(workers(decode=1), pool=replace(POOL, features=()))
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    for name in "abc":
        read(desk, name)
    assert pool.policy_by is PolicySource.DEFAULT
    arrays = fit_survival([5] * 50)
    desk.tell(events.PredictorFitted(POOL.name, 600 * SECOND, survival=arrays, is_better=True))
    assert (pool.config.policy, pool.policy_by) == (DecodePolicyName.BR_H, PolicySource.PREDICTOR)
    assert books(desk)[:3] == (0, 1, 2), "nothing is lost"
    assert not pool.tier.figures(desk.now_ns).is_degraded
    desk.tell(events.AssignmentApplied(2, (), ()))
    resized(desk, replace(POOL, features=()), workers(decode=1), version=3)
    again = decode_pools_of(desk.core).get(POOL.name)
    assert again is not None
    assert again.config.policy is DecodePolicyName.BR_0, "nothing was restored for it, so its predictor is gone"
    desk.tell(events.PredictorFitted(POOL.name, 600 * SECOND, survival=arrays, is_better=True))
    desk.tell(events.PredictorFitted(POOL.name, 600 * SECOND, survival=arrays, is_better=False))
    assert again.config.policy is DecodePolicyName.BR_0


def test_an_idle_pool_is_not_degraded_any_more_once_it_has_a_predictor() -> None:
    """No request comes after the fit, so no tick tells."""
    desk = pair(workers(decode=1), pool=with_decode(POOL, DecodeConfig(DecodePolicyName.BR_H)))
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    read(desk, "a")
    assert pool.tier.figures(desk.now_ns).is_degraded
    desk.tell(events.PredictorFitted(POOL.name, 600 * SECOND, survival=fit_survival([5] * 50), is_better=False))
    assert not pool.tier.figures(desk.now_ns).is_degraded


def test_a_silent_pool_looks_ahead_no_longer_than_its_arrays_are_fresh() -> None:
    desk = pair(workers(decode=1), pool=replace(POOL, features=()))
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    ends_ns = desk.now_ns + 60 * SECOND
    desk.tell(events.PredictorFitted(POOL.name, ends_ns, survival=fit_survival([5] * 50), is_better=True))
    assert pool.config.policy is DecodePolicyName.BR_H
    desk.wait(ends_ns - desk.now_ns - 1)
    assert pool.config.policy is DecodePolicyName.BR_H
    desk.wait(1)
    assert (pool.config.policy, pool.policy_by) == (DecodePolicyName.BR_0, PolicySource.DEFAULT)
    assert not pool.predictor.is_better


def test_a_silent_pool_looks_ahead_with_no_arrays_of_another_horizon() -> None:
    desk = pair(workers(decode=1), pool=replace(POOL, features=()))
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    arrays = LearnedArrays(pool.config.balance.horizon_steps, FEATURES, LEAF, LEAF)
    desk.tell(events.PredictorFitted(POOL.name, 600 * SECOND, learned=arrays, is_better=True))
    assert pool.config.policy is DecodePolicyName.BR_H
    balance = BalanceConfig(horizon_steps=96)
    resized(desk, with_decode(POOL, DecodeConfig(balance=balance)), workers(decode=1), version=2)
    assert not pool.predictor.is_ready(desk.now_ns)
    assert (pool.config.policy, pool.config.balance.horizon_steps) == (DecodePolicyName.BR_0, 96)


def history(*outputs: int, pool: PoolName = POOL.name) -> events.DecodeHistoryRestored:
    ended_ = tuple(Ended(3, 10, output, 0, 0) for output in outputs)
    return events.DecodeHistoryRestored(pool, ended_, len(ended_), 100)


def remembered(desk: Desk) -> list[int]:
    known = decode_pools_of(desk.core).history_of(POOL.name)
    assert known is not None
    return [each.output_tokens for each in known.snapshot().ended]


def test_a_history_that_is_told_before_there_is_a_pool_is_the_pools_once_it_comes() -> None:
    desk = pair(())
    desk.tell(events.AssignmentApplied(2, (), ()))
    assert decode_pools_of(desk.core).history_of(POOL.name) is None, "nobody told of it, and it is gone"
    desk.tell(history(7, 8))
    resized(desk, POOL, workers(), version=3)
    desk.probe()
    read(desk, "a")
    leg_ended(desk, "a", 2, output_tokens=9)
    assert remembered(desk) == [7, 8, 9]


def test_a_second_history_counts_only_if_it_is_longer_and_comes_before_what_has_ended_here() -> None:
    desk = pair()
    desk.tell(history(7))
    read(desk, "a")
    leg_ended(desk, "a", 2, output_tokens=9)
    desk.tell(history(1, 2))
    assert remembered(desk) == [7, 9]
    for _ in range(2):
        desk.tell(history(1, 2, 3))
        assert remembered(desk) == [1, 2, 3, 9]


def test_a_history_outlives_its_pool() -> None:
    desk = pair()
    desk.tell(history(7))
    pool = decode_pools_of(desk.core).get(POOL.name)
    assert pool is not None
    read(desk, "a")
    desk.tell(events.AssignmentApplied(2, (), ()))
    leg_ended(desk, "a", 2, output_tokens=9)
    desk.tell(history(7, 9))
    assert remembered(desk) == [7, 9], "it has been told already what was before"
    arrays = fit_survival([5] * 50)
    desk.tell(events.PredictorFitted(POOL.name, 60 * SECOND, survival=arrays))
    desk.tell(events.PredictorFitted(PoolName("nobody's"), 60 * SECOND, survival=arrays))
    resized(desk, POOL, workers(), version=3)
    again = decode_pools_of(desk.core).get(POOL.name)
    assert again is not None
    assert again is not pool
    assert again.predictor.history is decode_pools_of(desk.core).history_of(POOL.name)
    assert again.predictor.is_ready(desk.now_ns)
    assert remembered(desk) == [7, 9]


def test_not_every_pool_that_was_ever_told_of_is_remembered() -> None:
    desk = pair()
    desk.tell(history(7))
    names = [PoolName(f"x{number}") for number in range(100)]
    for name in names:
        desk.tell(history(1, pool=name))
    kept = [name for name in names if decode_pools_of(desk.core).history_of(name) is not None]
    assert kept == names[-64:]
    assert remembered(desk) == [7]


@pytest.mark.parametrize("count", first_of([1_000, 10_000]))
def test_thousands_at_once_are_all_served_and_leave_nothing(count: int) -> None:
    """The checker, which inspects everything after every event, is left out."""
    desk = pair(workers(prefill=4, decode=8), pool=replace(POOL, decode_batch_max=64))
    core, alive = desk.core, deque[StartLeg]()
    outcomes: Counter[str] = Counter()

    def take(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartLeg):
                alive.append(effect)
            elif isinstance(effect, EndRequest):
                outcomes[effect.outcome] += 1

    def tell(event: events.Event) -> None:
        take(core.handle(event, desk.now_ns))

    for number in range(count):
        tell(events.RequestArrived(profile(f"r{number}"), desk.now_ns + 600 * SECOND))
    for _ in range(10 * count):
        if not alive:
            desk.now_ns += 10 * MS
            seen = (ReplicaObservation(each.spec.replica_id, desk.now_ns, healthy=True) for each in core.replicas)
            tell(events.ReplicasObserved(tuple(seen)))
            if not (alive or core.requests):
                break
            continue
        order = alive.popleft()
        if order.role is LegRole.DECODE:
            tell(events.FirstToken(order.request_id, order.attempt, order.leg))
        tell(events.LegEnded(order.request_id, order.attempt, order.leg, LegResult.COMPLETED, prompt_tokens=10))
    assert outcomes == {"completed": count}
    assert not any(books(desk))
