"""Description of a gateway for operators and the metrics page."""

from __future__ import annotations

import json

from gateway.core.kernel.config import PlacementPolicy
from gateway.core.kernel.description import ReplicaCondition, describe, gauges_of
from gateway.core.kernel.events import DrainRequested, ReplicasObserved
from gateway.core.vocabulary import GatewayId, LegResult, ReplicaId, ReplicaObservation
from tests.support.core import EU, LAYERED, MS, Desk, desk, peer_spec, profile
from tests.support.placement import desk_with


def one_in_three() -> Desk:
    """Gateway with one request running here, one abroad and one waiting; one of its replicas has never answered."""
    one = desk(replicas=2, peers=[peer_spec("gw-eu", EU)], probed=False, placement=LAYERED)
    one.hear("gw-eu", EU, available=3, queue=2, rtt_ms=30)
    one.probe("r0")
    one.ask("here", prompt="a long prompt " * 10)
    one.probe("r0", waiting=1)
    one.ask("abroad")
    one.ask("waits", tenant="acme", session="a secret")
    one.now_ns += 5 * MS
    return one


def test_the_levels() -> None:
    one = one_in_three()
    gauges = gauges_of(one.core, one.now_ns)
    assert (gauges.queue_length, gauges.requests, gauges.attempts) == (1, 3, 2)
    assert (gauges.replicas, gauges.replicas_available, gauges.peers, gauges.peers_usable) == (2, 0, 1, 1)
    assert gauges.probe_age_ns == {ReplicaId("r0"): 5 * MS, ReplicaId("r1"): 5 * MS}, "r1 is ours, and never answered"
    assert gauges.replica_conditions == {ReplicaId("r0"): "full", ReplicaId("r1"): "down"}
    assert gauges.heartbeat_age_ns == {GatewayId("gw-eu"): 5 * MS}
    assert gauges.queue_lengths == {"llama": 1}
    assert gauges.in_flight == {"r0": 1, "r1": 0}
    assert gauges.pending == {"r0": 1, "r1": 0}
    assert gauges.prefix_index_blocks >= profile("q", prompt="a long prompt " * 10).prefix_blocks
    assert gauges.prefix_index_bytes > 0


def test_a_probe_that_finds_nobody_makes_the_last_good_one_no_younger() -> None:
    one = desk(replicas=1)
    one.wait(40 * MS)
    one.probe(healthy=False)
    gauges = gauges_of(one.core, one.now_ns)
    assert gauges.probe_age_ns == {ReplicaId("r0"): 40 * MS}
    assert gauges.replica_conditions == {ReplicaId("r0"): ReplicaCondition.DOWN}


def test_of_each_standing_an_operator_is_told_one_of_four() -> None:
    one = desk(replicas=4)
    one.probe("r0", waiting=1)
    one.probe("r1", healthy=False)
    one.core.replicas.lose("r2", "reset", one.now_ns)
    told = gauges_of(one.core, one.now_ns).replica_conditions
    assert list(told.values()) == ["full", "down", "down", "available"]
    one.ask("q")
    one.wait(1 * MS)
    one.finish("q", LegResult.FAILED)
    assert gauges_of(one.core, one.now_ns).replica_conditions[ReplicaId("r3")] is ReplicaCondition.RECOVERING


def test_the_whole_state_in_words_and_numbers() -> None:
    one = one_in_three()
    one.tell(DrainRequested())
    told = json.loads(json.dumps(describe(one.core, one.now_ns)))
    assert (told["gateway"], told["draining"], told["lockdown"]) == ("gw-us-east-1", True, False)
    assert told["queue"] == {"length": 1, "by_model": {"llama": 1}}
    known, unknown = told["replicas"]
    assert (known["id"], known["pending"], known["in_flight"], known["probe_age_ms"]) == ("r0", 1, 1, 5)
    assert (unknown["id"], unknown["available"], unknown["probe_age_ms"]) == ("r1", False, None)
    (peer,) = told["peers"]
    assert (peer["id"], peer["usable"], peer["in_flight"], peer["rtt_ms"]) == ("gw-eu", True, 1, 30)
    assert peer["models"][0]["queue_length"] == 2


def test_who_is_held_for_a_replica_counts_there_and_in_the_queue() -> None:
    one = desk_with(PlacementPolicy.COST, replicas=2)
    for name in ("a", "b", "c"):
        one.ask(name, prompt=name * 9000)
    one.tell(ReplicasObserved((ReplicaObservation(ReplicaId("r0"), one.now_ns, True, 1, 0, 0.5, 8192),)))
    gauges = gauges_of(one.core, one.now_ns)
    assert (sum(gauges.held.values()), gauges.queue_length) == (1, 1)
    described = json.loads(json.dumps(describe(one.core, one.now_ns)))["replicas"]
    assert {each["id"]: each["held"] for each in described} == gauges.held
    assert [each["kv_tokens"] for each in described] == [8192, 0]


def test_a_peer_s_load_is_shown_where_it_tells() -> None:
    one = one_in_three()
    (peer,) = json.loads(json.dumps(describe(one.core, one.now_ns)))["peers"]
    assert peer["models"][0]["load"] == 0


def test_nothing_of_a_request_is_shown() -> None:
    one = one_in_three()
    shown = repr(describe(one.core, one.now_ns)) + repr(gauges_of(one.core, one.now_ns))
    for hidden in ("acme", "secret", "long prompt", "waits"):
        assert hidden not in shown
