from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.core.config import all_of
from gateway.core.events import ConfigApplied
from gateway.core.features.lengths.config import ThresholdConfig
from gateway.core.features.lengths.feature import pools_by_length
from gateway.core.kernel import events
from gateway.core.kernel.events import TooLong
from gateway.core.vocabulary import Category, LegResult, ReplicaId, ReplicaObservation
from gateway.features.lengths.metrics import PoolLevels, ThresholdLevels
from tests.support.core import MODEL, MS, desk, profile
from tests.support.pools import LONG, SHORT, ask, member, pooled


def test_how_requests_came_to_their_pools_and_which_were_too_short() -> None:
    core = pooled([member("s0", SHORT), member("l0", LONG)])
    registry = CollectorRegistry()
    registry.register(PoolLevels(pools_by_length(core.core).figures))

    def value(name: str, pool: str, **more: str) -> float | None:
        return registry.get_sample_value(f"nightside_{name}", {"model": MODEL, "pool": pool} | more)

    ask(core, "a", 7000)
    core.finish("a", LegResult.TOO_LONG, too_long=TooLong(4096), detail="status 400")
    core.probe("s0", waiting=1)
    ask(core, "b", 100)
    core.probe("l0", waiting=1)
    ask(core, "c", 100)
    assert value("pool_placements_total", SHORT, step="preferred") == 1
    assert value("pool_placements_total", LONG, step="preferred") == 1
    assert value("pool_placements_total", LONG, step="spilled") == 1
    assert value("pool_misroutes_total", SHORT, how="refused") == 1
    assert value("pool_misroutes_total", SHORT, how="cut") == 0
    assert value("pool_queue_length", SHORT) == 1
    assert value("pool_queue_length", LONG) == 0
    assert registry.get_sample_value("nightside_replica_context_tokens_learnt", {"replica": "s0"}) == 4096
    core.now_ns += MS
    core.tell(events.ReplicasObserved((ReplicaObservation(ReplicaId("s0"), core.now_ns, True, preemptions=3),)))
    assert registry.get_sample_value("nightside_pool_preemptions_total", {"pool": SHORT}) == 3


def test_a_gateway_without_thresholds_tells_only_names() -> None:
    registry = CollectorRegistry()
    registry.register(PoolLevels(pools_by_length(desk().core).figures))
    told = {family.name: len(family.samples) for family in registry.collect()}
    assert set(told.values()) == {0}
    assert "nightside_pool_misroutes" in told


def test_where_a_threshold_stands_that_tunes_itself_is_told() -> None:
    core = pooled()
    registry = CollectorRegistry()
    registry.register(ThresholdLevels(pools_by_length(core.core).tuning))
    assert registry.get_sample_value("nightside_pool_threshold_tokens", {"pool": SHORT}) is None, "it stands still"
    config = replace(all_of(core.core.config), threshold=ThresholdConfig(tuned=True))
    core.tell(ConfigApplied(config))
    assert registry.get_sample_value("nightside_pool_threshold_tokens", {"pool": SHORT}) == 8000
    moved = registry.get_sample_value("nightside_pool_threshold_moves_total", {"pool": SHORT, "move": "trouble"})
    assert moved == 0


def test_what_is_reckoned_as_a_token() -> None:
    core = pooled([member("s0", SHORT), member("l0", LONG)])
    registry = CollectorRegistry()
    registry.register(PoolLevels(pools_by_length(core.core).figures))
    learnt = replace(profile("a"), text_bytes=40_000, category=Category.CODE)
    for _ in range(100):
        pools_by_length(core.core).token_budget.observe(learnt, 10_000, 5)
    ratio = registry.get_sample_value("nightside_bytes_per_token", {"model": MODEL, "category": "code"})
    assert ratio is not None
    assert 3.9 < ratio <= 4.0
