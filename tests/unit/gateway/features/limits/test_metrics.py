from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.core.features.limits.feature import limits_of
from gateway.core.vocabulary import TenantName
from gateway.features.limits.metrics import LimitLevels
from gateway.records.tenant_labels import OTHER
from tests.support.core import EU, TENANT, desk, peer_spec
from tests.support.sharing import asked, heard, limited


def test_limits_and_shares_of_tenants_that_ask() -> None:
    one = desk(config=limited(concurrency_max=6, tokens_per_minute=9000), peers=[peer_spec("gw-eu", EU)])
    heard(one, "gw-eu", EU)
    registry = CollectorRegistry()
    registry.register(LimitLevels(limits_of(one.core), str))
    assert registry.get_sample_value("nightside_tenant_limits_counted") == 0
    asked(one)
    value = registry.get_sample_value
    assert value("nightside_tenant_limit", {"tenant": TENANT, "limit": "concurrency"}) == 6
    assert value("nightside_tenant_limit_share", {"tenant": TENANT, "limit": "concurrency"}) == 3
    assert value("nightside_tenant_limit_share", {"tenant": TENANT, "limit": "tokens"}) == 4500
    assert value("nightside_tenant_limit_running", {"tenant": TENANT}) == 1
    assert value("nightside_tenant_limits_counted") == 1
    assert value("nightside_tenant_limits_untold") == 0


def test_one_that_may_not_be_named_has_no_series() -> None:
    one = desk(config=limited(concurrency_max=6))
    registry = CollectorRegistry()

    def label(_: TenantName) -> str:
        return OTHER

    registry.register(LimitLevels(limits_of(one.core), label))
    asked(one)
    assert registry.get_sample_value("nightside_tenant_limit", {"tenant": OTHER, "limit": "concurrency"}) is None
