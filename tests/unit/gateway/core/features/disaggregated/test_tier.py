from __future__ import annotations

import pytest

from gateway.core.features.disaggregated.admissions import AdmissionReason
from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId
from tests.support.decode import MS, SECOND, bench, pool_spec

CONCURRENT = pool_spec(2, Connector.MOONCAKE)
W0 = ReplicaId("w0")


def test_who_waits_goes_where_fewest_are_at_the_next_tick() -> None:
    one = bench(3)
    for number in range(6):
        assert one.add(f"q{number}") is None
    went = one.tick()
    assert sorted(worker for _, worker in went) == ["w0", "w0", "w1", "w1", "w2", "w2"]
    assert [key for key, _ in went] == [f"q{number}" for number in range(6)]


def test_no_worker_gets_more_than_its_batch_and_the_rest_waits_for_a_slot() -> None:
    one = bench(2, spec=pool_spec(2))
    for number in range(5):
        one.add(f"q{number}")
    assert len(one.tick()) == 4
    assert one.tier.next_ns() == 30 * SECOND, "nothing to do before the lease ends"
    one.end("q1")
    worker = one.admitted["q1"].worker_id
    assert one.tick() == [("q4", worker)]


def test_the_first_tick_is_due_at_once_and_the_next_once_the_interval_is_over() -> None:
    one = bench()
    assert one.tier.next_ns() is None
    one.now_ns = 5 * SECOND
    one.add("q0")
    assert one.tier.next_ns() == 5 * SECOND
    assert one.tick(after_ns=0)
    one.now_ns += MS
    one.add("q1")
    assert one.tier.next_ns() == 5 * SECOND + 10 * MS
    assert one.tick(after_ns=MS) == []
    assert one.tick(after_ns=8 * MS) != []


def test_one_round_admits_so_many_and_the_next_is_due_after_the_interval() -> None:
    one = bench(4, config=DecodeConfig(admissions_max=3), spec=pool_spec(8))
    for number in range(7):
        one.add(f"q{number}")
    sizes: list[int] = []
    while one.tier.next_ns() == one.now_ns + (10 * MS if sizes else 0):
        sizes.append(len(one.tick()))
    assert sizes == [3, 3, 1]


def test_whose_lease_or_time_is_over_leaves_and_is_told_once() -> None:
    one = bench(config=DecodeConfig(pool_ttl_ns=20 * SECOND), spec=pool_spec(1))
    one.add("a")
    one.add("b")
    one.tick()
    one.add("short lease", lease_ns=5 * SECOND)
    one.add("long lease", lease_ns=60 * SECOND)
    added_ns = one.now_ns
    assert one.tier.next_ns() == added_ns + 5 * SECOND
    assert one.tier.expired(added_ns + 5 * SECOND - 1) == []
    assert one.tier.expired(added_ns + 5 * SECOND) == ["short lease"]
    assert one.tier.expired(added_ns + 20 * SECOND) == ["long lease"]
    assert one.tier.expired(added_ns + 99 * SECOND) == []
    assert one.tier.next_ns() is None
    assert one.tier.figures(added_ns).expired == 2


def test_who_is_withdrawn_waits_no_longer_and_who_was_sent_cannot_be() -> None:
    one = bench()
    one.add("q0")
    assert one.tier.withdraw(RequestId("q0"))
    assert not one.tier.withdraw(RequestId("q0"))
    assert one.tick() == []
    one.add("q1")
    one.tick()
    assert not one.tier.withdraw(RequestId("q1"))


def test_loads_follow_what_is_sent_generated_and_over() -> None:
    one = bench(1)
    one.add("q0", 100)
    one.add("q1", 50)
    one.tick()
    assert one.loads() == {"dp": (150, 150)}
    one.tier.running(RequestId("q0"))
    one.grow("q0", 7)
    one.grow("q0", 5)
    assert one.loads() == {"dp": (157, 157)}, "a late count changes nothing"
    figures = one.tier.figures(one.now_ns)
    assert (figures.running, figures.dispatched) == (1, 1)
    one.end("q0")
    one.end("q0")
    one.grow("q0", 9)
    assert one.loads() == {"dp": (50, 50)}
    one.end("q1")
    figures = one.tier.figures(one.now_ns)
    assert (figures.running, figures.dispatched, figures.groups[0].load_max, figures.free_slots) == (0, 0, 0, 4)


def test_room_is_what_free_slots_and_the_margin_leave() -> None:
    one = bench(2, config=DecodeConfig(room_margin=3), spec=pool_spec(2))
    assert one.tier.has_room(6)
    assert not one.tier.has_room(7)
    for number in range(5):
        one.add(f"q{number}")
    assert one.tier.has_room(1)
    assert not one.tier.has_room(2)
    one.tick()
    assert one.tier.has_room(1)
    assert not one.tier.has_room(2), "one is pooled, and no slot is free"
    one.tier.set_open(ReplicaId("w0"), False, one.now_ns)
    one.tier.set_open(ReplicaId("w1"), False, one.now_ns)
    assert not one.tier.has_room(0), "nobody decodes"


def test_a_closed_worker_gets_nothing_and_counts_in_its_group() -> None:
    one = bench(2)
    one.add("q0", 100)
    ((_, worker),) = one.tick()
    one.tier.set_open(ReplicaId(worker), False, one.now_ns)
    other = {"w0": "w1", "w1": "w0"}[worker]
    for number in range(1, 7):
        one.add(f"q{number}", 10)
    assert {to for _, to in one.tick()} == {other}
    assert one.loads() == {"dp": (100, 40)}
    one.tier.set_open(ReplicaId(worker), True, one.now_ns)
    assert {to for _, to in one.tick()} == {worker}


def test_a_worker_that_left_gets_nothing_and_what_it_had_ends_later() -> None:
    one = bench(2)
    for number in range(4):
        one.add(f"q{number}", 10)
    one.tick()
    one.tier.leave(W0)
    assert one.tier.figures(0).groups[0].workers == 1
    for number in range(4):
        one.end(f"q{number}")
    assert one.loads() == {"dp": (0, 0)}
    one.tier.leave(ReplicaId("w1"))
    one.add("q4")
    assert one.tick() == []
    assert one.tier.figures(0).groups == ()


def test_a_worker_may_change_its_group_and_keeps_what_it_has() -> None:
    one = bench(1)
    one.add("q0", 70)
    one.tick()
    one.tier.join(W0, "other", one.now_ns)
    assert one.loads() == {"other": (70, 70)}
    one.end("q0")
    assert one.loads() == {"other": (0, 0)}


def test_who_names_no_group_is_one_alone() -> None:
    one = bench({"w0": "", "w1": ""})
    one.add("q0", 10)
    one.tick()
    figures = one.tier.figures(0).groups
    assert [each.workers for each in figures] == [1, 1]
    assert [each.imbalance for each in figures] == [0, 0]


def test_figures_tell_how_uneven_a_group_is() -> None:
    one = bench(3, spec=pool_spec(1))
    for key, tokens in (("a", 100), ("b", 40), ("c", 10)):
        one.add(key, tokens)
    one.tick()
    one.add("d")
    (group,) = one.tier.figures(one.now_ns).groups
    assert (group.imbalance, group.deficit) == (90, 150)
    figures = one.tier.figures(one.now_ns + SECOND)
    assert (figures.pooled, figures.oldest_age_ns) == (1, SECOND)


def test_an_adopter_counts_what_engines_had_until_it_has_drained() -> None:
    one = bench(1, spec=pool_spec(4))
    one.observe("w0", running=2, waiting=1, kv_tokens=900)
    assert one.loads() == {"dp": (900, 900)}
    one.add("q0", 100)
    one.add("q1", 100)
    assert len(one.tick()) == 1, "one slot of four was free"
    one.observe("w0", running=3, waiting=1, kv_tokens=1000)
    assert one.tier.figures(0).inherited == 3, "ours was sent, and one of them is it"
    one.tier.running(RequestId("q0"))
    one.observe("w0", running=3, waiting=0, kv_tokens=800)
    assert one.tier.figures(0).inherited == 2
    assert one.loads() == {"dp": (800, 800)}
    assert [key for key, _ in one.tick()] == ["q1"]
    one.observe("w0", running=1, waiting=1, kv_tokens=300)
    assert one.tier.figures(0).inherited == 1, "the one sent last may not have been there when it was asked"
    one.observe("w0", running=1, waiting=1, kv_tokens=200)
    assert one.tier.figures(0).inherited == 0
    one.observe("w0", running=4, waiting=9, kv_tokens=9000)
    assert one.tier.figures(0).inherited == 0, "whatever comes now, we sent"
    assert one.loads() == {"dp": (200, 200)}


def test_what_was_inherited_drains_though_no_first_token_is_ever_told() -> None:
    """Answers in one piece report no first token, so their start is unknown."""
    one = bench(1, spec=pool_spec(64))
    one.observe("w0", running=32)
    for number in range(40):
        one.add(f"q{number}")
    assert len(one.tick()) == 32
    one.observe("w0", running=32)
    assert one.tier.figures(0).inherited == 32, "it was asked before ours arrived"
    one.observe("w0", running=60)
    assert one.tier.figures(0).inherited == 28
    one.observe("w0", running=64)
    assert one.tier.figures(0).inherited == 28, "it only drains"
    assert len(one.tick()) == 4
    one.observe("w0", running=36)
    one.observe("w0", running=36)
    figures = one.tier.figures(0)
    assert (figures.inherited, figures.dispatched) == (0, 36)
    assert figures.free_slots == 28


@pytest.mark.parametrize(
    "policy", [DecodePolicyName.JOIN_SHORTEST_QUEUE, DecodePolicyName.ROUND_ROBIN, DecodePolicyName.BR_0]
)
def test_one_tick_sends_no_more_than_a_worker_may_have_that_has_to_prove_itself(policy: DecodePolicyName) -> None:
    one = bench(2, config=DecodeConfig(policy=policy, room_margin=0), spec=pool_spec(8))
    one.tier.limit(W0, 1, 0)
    one.tier.set_open(ReplicaId("w1"), False, 0)
    assert one.tier.has_room(0)
    assert not one.tier.has_room(1)
    for number in range(12):
        one.add(f"q{number}")
    assert [worker for _, worker in one.tick()] == ["w0"]
    assert one.tier.next_ns() == 30 * SECOND, "nothing to do before the lease ends"
    one.tier.limit(W0, 2, one.now_ns)
    assert [worker for _, worker in one.tick()] == ["w0"] * 2
    one.tier.limit(W0, None, one.now_ns)
    assert one.tier.figures(0).free_slots == 5
    assert len(one.tick()) == 5


def test_a_worker_with_a_margin_has_room_for_its_trial() -> None:
    one = bench(1, config=DecodeConfig(bypass=True, in_flight_margin=2, room_margin=0), spec=pool_spec(4))
    one.tier.limit(W0, 1, 0)
    assert one.tier.has_room(0), "or nothing would be read for it"
    assert one.add("q0") is not None
    assert one.add("q1") is None


def test_whoever_begins_with_an_idle_engine_counts_only_what_it_sends() -> None:
    one = bench(1)
    one.observe("w0")
    one.add("q0", 100)
    one.tick()
    one.observe("w0", running=2, waiting=3, kv_tokens=500)
    assert (one.tier.figures(0).inherited, one.loads()) == (0, {"dp": (100, 100)})


def test_who_fits_no_cache_waits_and_goes_first_once_it_has_waited_long() -> None:
    one = bench(2, spec=pool_spec(4, kv_tokens=1000))
    for number in range(4):
        one.add(f"s{number}", 300)
    one.tick()
    one.add("large", 800)
    one.add("small", 100)
    assert [key for key, _ in one.tick()] == ["small"], "whoever fits passes"
    one.now_ns += 15 * SECOND
    for number in range(4):
        one.add(f"t{number}", 100)
    went = one.tick()
    assert went
    assert len({worker for _, worker in went}) == 1, "the other one is kept for who has waited long"
    kept = ({"w0", "w1"} - {worker for _, worker in went}).pop()
    for key in ("s0", "s1", "s2", "s3", "small"):
        if one.admitted[key].worker_id == kept:
            one.end(key)
    assert ("large", kept) in one.tick()


def test_for_one_request_an_empty_worker_has_room_however_large_it_is() -> None:
    one = bench(1, spec=pool_spec(4, kv_tokens=1000))
    one.add("large", 5000)
    one.add("other", 10)
    assert [key for key, _ in one.tick()] == ["large"]


def test_what_an_engine_tells_of_its_cache_holds_where_the_pool_does_not_say() -> None:
    one = bench(1)
    one.observe("w0", room=250)
    for number in range(3):
        one.add(f"q{number}", 100)
    assert len(one.tick()) == 2


def test_a_concurrent_connector_commits_at_once_up_to_the_margin() -> None:
    one = bench(2, config=DecodeConfig(in_flight_margin=1), spec=CONCURRENT)
    chosen = []
    for number in range(6):
        admission = one.tier.commit(Facts(RequestId(f"q{number}"), 100), 0)
        assert admission is not None
        assert admission.reason is AdmissionReason.COMMITTED
        chosen.append(admission.worker_id)
    assert sorted(chosen) == ["w0"] * 3 + ["w1"] * 3
    assert one.tier.commit(Facts(RequestId("q6"), 100), 0) is None
    assert not one.tier.has_room(0)
    one.end("q0")
    assert one.tier.has_room(99)
    admission = one.tier.commit(Facts(RequestId("q6"), 100), 0)
    assert admission is not None
    assert admission.worker_id == chosen[0]


def test_whoever_has_room_for_another_one_commits_to_it_though_no_cache_has() -> None:
    one = bench(2, spec=PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.SGLANG, 2, kv_tokens=1000))
    for number in range(8):
        assert one.tier.has_room(0)
        assert one.tier.commit(Facts(RequestId(f"q{number}"), 900), 0) is not None
    assert not one.tier.has_room(0)


def test_with_bypass_nobody_waits_while_less_than_the_margin_is_in_flight() -> None:
    one = bench(2, config=DecodeConfig(bypass=True, in_flight_margin=1), spec=pool_spec(1))
    sent = [one.add(f"q{number}") for number in range(4)]
    assert [each is not None and each.reason for each in sent] == [AdmissionReason.BYPASS] * 4
    assert one.add("q4") is None
    assert one.tier.figures(0).pooled == 1
    one.end("q0")
    assert [key for key, _ in one.tick()] == ["q4"]
    assert one.tier.figures(0).free_slots == 0


def test_a_decision_tells_whom_else_it_looked_at() -> None:
    one = bench(4, config=DecodeConfig(considered_max=2))
    one.add("q0", 100)
    one.tick()
    one.now_ns += SECOND
    one.add("q1", 100)
    one.tick()
    admission = one.admitted["q1"]
    assert admission.waited_ns == 10 * MS
    assert next(view.worker_id for view in admission.considered) == admission.worker_id
    assert len(admission.considered) == 2
    assert [view.margin_tokens for view in admission.considered] == [100, 100]
    one = bench(4, config=DecodeConfig(considered_max=0))
    one.add("q0", 100)
    one.tick()
    assert one.admitted["q0"].considered == ()


def test_progress_is_asked_for_before_a_tick_and_not_too_often() -> None:
    one = bench(config=DecodeConfig(progress_interval_ns=50 * MS))
    one.add("q0")
    assert not one.tier.wants_progress(0), "nobody decodes"
    one.tick()
    assert not one.tier.wants_progress(one.now_ns), "no tick is due"
    one.now_ns += 100 * MS
    one.add("q1")
    assert one.tier.wants_progress(one.now_ns)
    assert not one.tier.wants_progress(one.now_ns)
    one.tick(0)
    one.now_ns += 20 * MS
    one.add("q2")
    assert not one.tier.wants_progress(one.now_ns)
    assert one.tier.wants_progress(one.now_ns + 30 * MS)


def test_other_settings_keep_the_books() -> None:
    one = bench(1, spec=pool_spec(2))
    for number in range(4):
        one.add(f"q{number}", 100)
    one.tick()
    one.tier.configure(DecodeConfig(policy=DecodePolicyName.LEAST_KV_TOKENS), pool_spec(3), one.now_ns)
    assert [key for key, _ in one.tick()] == ["q2"]
    assert one.loads() == {"dp": (300, 300)}


def test_other_sizes_keep_what_an_engine_told_of_its_cache() -> None:
    one = bench(1)
    one.observe("w0", room=250)
    one.tier.configure(DecodeConfig(), pool_spec(5), one.now_ns)
    for number in range(3):
        one.add(f"q{number}", 100)
    assert len(one.tick()) == 2


def test_a_pool_that_is_not_disaggregated_has_no_decode_tier() -> None:
    with pytest.raises(AssertionError, match="pd: no decode worker may run anything"):
        bench(spec=pool_spec(0))
