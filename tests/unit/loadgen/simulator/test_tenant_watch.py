from __future__ import annotations

import pytest

from gateway.core.config import CoreConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import RequestArrived, TimePassed
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import GatewayId, Outcome, PeerSpec, RequestId, TenantName
from loadgen.simulator.checkers import Broken
from loadgen.simulator.observers import GatewaySpec
from loadgen.simulator.tenant_watch import TenantWatch, bound_of
from tests.support.core import EU, SECOND, US, desk, policy, profile

TENANT = TenantName("acme")
HERE, THERE = GatewayId("us/gw"), GatewayId("eu/gw")


class Followed:
    def __init__(self, limit: int, sides: int = 1) -> None:
        self.watch = TenantWatch(sides)
        self.config = CoreConfig(tenants={TENANT: TenantConfig(concurrency_max=limit)})
        self.start(HERE)
        self.start(THERE)

    def start(self, gateway_id: GatewayId) -> None:
        spec = GatewaySpec(gateway_id, US, (), (PeerSpec(THERE, EU),), policy(US), self.config)
        self.watch.on_start(spec, policy(US), desk().core)

    def ask(
        self, request_id: str, at: GatewayId = HERE, *, ends: Outcome | None = None, tenant: TenantName = TENANT
    ) -> None:
        end = [] if ends is None else [EndRequest(RequestId(request_id), ends, "", 0)]
        self.watch.on_step(SECOND, at, RequestArrived(profile(request_id, tenant=tenant), 9 * SECOND), list(end))

    def end(self, request_id: str, at: GatewayId = HERE) -> None:
        self.watch.on_step(2 * SECOND, at, TimePassed(), [EndRequest(RequestId(request_id), Outcome.COMPLETED, "", 1)])


def test_what_is_under_way_is_counted_over_all_gateways() -> None:
    one = Followed(9)
    one.ask("a")
    one.ask("b", THERE)
    one.ask("c", ends=Outcome.REJECTED_TENANT_CONCURRENCY)
    one.ask("d", ends=Outcome.REJECTED_UNKNOWN_MODEL)
    one.ask("e", tenant=TenantName("free"))
    one.end("a")
    figures = one.watch.tenants[TENANT]
    assert (figures.total, figures.peak(), figures.peak(2), len(figures.let_in)) == (1, 2, 0, 2)
    assert figures.refused == {Outcome.REJECTED_TENANT_CONCURRENCY: 1}
    assert list(one.watch.tenants) == [TENANT]


def test_more_than_is_stated_is_a_fault() -> None:
    one = Followed(2)
    for name in "abc":
        one.ask(name)
    with pytest.raises(Broken, match="keep to their limits: 4 requests of acme are under way, of at most 3"):
        one.ask("d", THERE)


def test_cut_apart_each_side_may_have_it() -> None:
    one = Followed(2, sides=2)
    for number in range(6):
        one.ask(str(number))
    with pytest.raises(Broken, match="at most 6"):
        one.ask("7")


def test_what_a_gateway_had_is_gone_with_its_life() -> None:
    one = Followed(9)
    one.ask("a")
    one.ask("b", THERE)
    one.start(HERE)
    assert one.watch.tenants[TENANT].total == 1


@pytest.mark.parametrize(("limit", "gateways", "bound"), [(6, 3, 8), (600, 6, 700), (2, 4, 4), (24, 4, 27)])
def test_the_bound_is_the_one_that_is_stated(limit: int, gateways: int, bound: int) -> None:
    assert bound_of(limit, gateways, 0.2) == bound
