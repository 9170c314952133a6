from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.core.features.sharing.fair_shares import charge_of
from gateway.core.kernel.description import sharing_of
from gateway.core.kernel.drain_rates import DrainRates
from gateway.core.kernel.goodput import Promise
from gateway.core.kernel.waiting_requests import WaitingRequests
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName
from gateway.records.sharing_metrics import SharingLevels
from tests.support.core import SECOND, desk
from tests.unit.gateway.core.kernel.test_spare_capacity import ask


def test_who_waits_is_told_by_class_and_tenant_and_what_came_of_promises() -> None:
    one = desk(replicas=1)
    one.probe(running=5, kv_usage=0.95)
    for number, tenant in enumerate(("acme", "zeta", "zeta")):
        ask(one, f"b{number}", ServiceClass.BATCH, tenant)
    one.core.goodput.count(ServiceClass.INTERACTIVE, Promise.LATE)
    one.core.goodput.gave_way(next(iter(one.core.requests.values())).profile)
    drains = one.core.drain_rates = DrainRates()
    one_that_waits = next(iter(one.core.requests.values()))
    for model in (ModelName("a"), ModelName("b")):
        one_that_waits.profile = replace(one_that_waits.profile, model=model)
        waiting = WaitingRequests()
        waiting.join(one_that_waits)
        drains.waits(waiting, one_that_waits, 0)
        for number in range(8):
            drains.served(waiting, one_that_waits, (number + 1) * SECOND)
    registry = CollectorRegistry()
    labels = {TenantName("acme"): "acme", TenantName("zeta"): "other"}
    registry.register(
        SharingLevels(lambda: sharing_of(one.core, 8 * SECOND), lambda name: labels[name], lambda _: "other")
    )
    value = registry.get_sample_value
    assert value("nightside_class_requests_total", {"service_class": "interactive", "promise": "late"}) == 1
    assert value("nightside_interruptions_total", {"service_class": "batch"}) == 1
    assert value("nightside_class_queue_length", {"service_class": "batch"}) == 3
    assert value("nightside_class_queue_length", {"service_class": "interactive"}) == 0
    assert value("nightside_tenant_queue_length", {"tenant": "other"}) == 2
    assert value("nightside_queue_drain_rate", {"model": "other"}) == 2, "one a second of either model"
    assert value("nightside_tenants_counted") == 2
    assert value("nightside_tenants_forgotten_total") == 0


def test_operators_are_told_whose_turn_it_is_and_no_other_tenants_name() -> None:
    one = desk(replicas=1)
    one.probe(running=5, kv_usage=0.95)
    for number, tenant in enumerate(("acme", "zeta")):
        ask(one, f"b{number}", ServiceClass.BATCH, tenant)
    request = next(iter(one.core.requests.values()))
    charge_of(request).account.counter += 100
    told = one.core.why_it_waits(request.request_id)
    assert "as batch it takes only what is idle" in told
    assert "its tenant's turn comes after that of 1 others who had less" in told
    assert "zeta" not in told
