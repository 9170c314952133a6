from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.core.features.disaggregated.feature import decode_figures_of
from gateway.core.kernel import events
from gateway.core.vocabulary import LegResult, RequestId
from gateway.features.disaggregated.metrics import DecodeLevels, history_counts
from tests.support.core import MS
from tests.support.disaggregated import leg_ended, pair, read, workers


def test_a_pools_figures_are_told_by_pool_and_group() -> None:
    desk = pair(workers(decode=2))
    registry = CollectorRegistry()
    registry.register(DecodeLevels(lambda: decode_figures_of(desk.core, desk.now_ns), history_counts()))

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"nightside_{name}", {"pool": "chat"} | more)

    assert value("decode_running") == 0
    for name in "abcde":
        read(desk, name)
    desk.tell(events.FirstToken(RequestId("a"), 1, 2))
    desk.wait(5 * MS)
    assert value("decode_running") == 1
    assert value("decode_dispatched") == 3
    assert value("decode_pooled") == 1
    assert value("decode_pool_age_seconds") == 0.025
    assert value("decode_free_slots") == 0
    assert value("decode_load_max_tokens", group="dp") == 200
    assert value("decode_imbalance_tokens", group="dp") == 0
    assert value("decode_admissions_total", reason="policy") == 4
    leg_ended(desk, "b", 2, LegResult.FAILED)
    assert value("decode_lease_expiries_total") == 0
    assert value("decode_degraded") == 0


def test_a_gateway_without_such_pools_tells_only_names() -> None:
    registry = CollectorRegistry()
    registry.register(DecodeLevels(dict, history_counts()))
    families = list(registry.collect())
    assert families
    assert not any(family.samples for family in families)
