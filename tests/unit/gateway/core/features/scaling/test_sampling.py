from __future__ import annotations

from msgspec.structs import replace

from gateway.core import events
from gateway.core.features.scaling.sampling import accepts_of, key_by_model, key_by_replica, samples_of, ways_of
from gateway.core.features.scaling.vocabulary import PoolKey, Sample, ScalingSettings
from gateway.core.vocabulary import DEFAULT_POOL, ModelName, PoolName, ReplicaId, ReplicaRole, ServiceClass
from tests.support.core import (
    AP,
    EU,
    LAYERED,
    MODEL,
    MS,
    SECOND,
    US,
    Desk,
    desk,
    forward,
    peer_spec,
    policy,
    profile,
    replica_spec,
    rule,
)
from tests.support.pools import LONG, SHORT, ask, member, pooled

KEY = PoolKey(MODEL, DEFAULT_POOL)
PEERS = (peer_spec("eu-1", EU), peer_spec("ap-1", AP))


def sampled(core: Desk) -> Sample:
    return samples_of(core.core, [KEY])[KEY]


def test_a_clients_requests_count_here_wherever_they_run() -> None:
    core = desk(replicas=1, peers=PEERS, placement=LAYERED)
    core.ask("a")
    core.probe("r0", waiting=1)
    core.hear("eu-1", EU, available=1)
    core.ask("b")
    core.ask("c")
    told = sampled(core)
    assert (told.ready, told.running, told.waiting, told.sent, told.taken) == (1, 2, 1, 1, 0)


def test_best_effort_starts_nothing() -> None:
    core = desk(replicas=2)
    core.ask("a")
    core.tell(events.RequestArrived(replace(profile("b"), service_class=ServiceClass.BEST_EFFORT), 600 * SECOND))
    classes = ScalingSettings().classes
    assert samples_of(core.core, [KEY], classes)[KEY].running == 1
    assert samples_of(core.core, [KEY])[KEY].running == 2


def test_what_others_send_is_theirs() -> None:
    core = desk(replicas=1, peers=PEERS)
    core.hear("eu-1", EU)
    core.tell(forward("f", origin="eu-1"))
    told = sampled(core)
    assert (told.running, told.waiting, told.taken) == (0, 0, 1)


def test_replicas_that_do_not_answer_and_those_of_other_places_are_not_ready() -> None:
    core = desk(replicas=[replica_spec("a"), replica_spec("b"), replica_spec("c", EU)])
    core.probe("b", healthy=False)
    assert sampled(core).ready == 1


def test_a_replica_that_leaves_is_not_ready() -> None:
    core = desk(replicas=2)
    core.tell(events.ReplicaLeaves(ReplicaId("r0"), core.now_ns + 30 * SECOND))
    assert sampled(core).ready == 1


def test_workers_of_a_disaggregated_pool_are_no_replicas_to_scale() -> None:
    worker = replace(replica_spec("p"), role=ReplicaRole.PREFILL)
    assert sampled(desk(replicas=[worker, replica_spec("a")])).ready == 1


def test_what_its_tenant_keeps_at_home_may_not_leave() -> None:
    core = desk(replicas=1, peers=PEERS, own_policy=policy(US, process=rule(US)))
    core.ask("a")
    assert sampled(core).pinned == 1
    open_core = desk(replicas=1, peers=PEERS)
    open_core.ask("a")
    assert sampled(open_core).pinned == 0


def test_pools_by_length_have_the_requests_that_are_meant_for_them() -> None:
    core = pooled([member("s0", SHORT), member("l0", LONG)])
    short, long = PoolKey(MODEL, SHORT), PoolKey(MODEL, LONG)
    ask(core, "a", 100)
    ask(core, "b", 20_000)
    told = samples_of(core.core, [short, long])
    assert (told[short].running, told[long].running) == (1, 1)
    core.probe("s0", waiting=1)
    core.probe("l0", waiting=1)
    ask(core, "c", 20_000)
    told = samples_of(core.core, [short, long])
    assert (told[short].waiting, told[long].waiting) == (0, 1)


def test_adapters_are_demand_of_the_replicas_that_have_them() -> None:
    adapter = ModelName("support-de")
    core = desk(replicas=[replica_spec("a", models=(MODEL, adapter))])
    assert key_by_model(core.core, [KEY]) == {MODEL: KEY, adapter: KEY}
    assert key_by_replica(core.core, [KEY]) == {"a": KEY}
    assert key_by_replica(core.core, [PoolKey(MODEL, PoolName("other"))]) == {}


def test_ways_lead_to_peers_that_are_heard_take_requests_and_are_allowed() -> None:
    core = desk(replicas=1, peers=PEERS)
    assert ways_of(core.core) == ()
    core.hear("eu-1", EU, rtt_ms=80)
    core.hear("ap-1", AP, accepting=False)
    (way,) = ways_of(core.core)
    assert (way.region, way.rtt_ns) == (EU.region, 80 * MS)
    assert ways_of(desk(replicas=1, peers=PEERS, own_policy=policy(US, process=rule(US))).core) == ()
    core.tell(events.DrainRequested())
    assert ways_of(core.core) == ()


def test_those_are_taken_in_whom_the_own_policy_accepts() -> None:
    assert set(accepts_of(desk(peers=PEERS).core)) == {EU.region, AP.region}
    assert accepts_of(desk(peers=PEERS, own_policy=policy(US, accept=rule(EU))).core) == (EU.region,)
    locked = desk(peers=PEERS)
    locked.tell(events.LockdownChanged(True))
    assert accepts_of(locked.core) == ()
