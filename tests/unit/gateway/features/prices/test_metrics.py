"""The prices in force and the expected cost of placements, as Prometheus sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gateway.core.features.prices.in_force import money_figure
from gateway.core.features.prices.price_table import Prices, ReplicaPrice
from gateway.core.kernel.events import RequestArrived
from gateway.core.kernel.requests import LegState, RequestRecord
from gateway.core.vocabulary import (
    Candidate,
    Costs,
    Decision,
    GatewayId,
    LegRole,
    PlacementReason,
    PoolName,
    Standing,
    Target,
)
from gateway.core.vocabulary import peer_target as peer
from gateway.features.prices.metrics import FILE, MoneyTally, PriceLevels
from tests.support.core import EU, SECOND, US, desk, peer_spec, policy, profile

LIST = Prices("EUR", "digest", (ReplicaPrice(EU.region, PoolName(""), 4_400_000, True, 16),))


@dataclass
class FakePrices:
    fault: str = ""
    source: str = FILE
    in_force: Prices | None = field(default_factory=lambda: LIST)
    age_s: float | None = 60.0
    valid_s: float | None = -5.0


def samples(prices: FakePrices | None) -> dict[tuple[str, ...], float]:
    families = PriceLevels(prices).collect()
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_what_is_in_force_is_shown_with_its_age_and_what_is_left_of_it() -> None:
    assert samples(FakePrices()) == {
        ("nightside_price_replica_hour", EU.region, "", "EUR"): 4.4,
        ("nightside_prices_age_seconds", "file"): 60,
        ("nightside_prices_valid_seconds",): -5,
        ("nightside_prices_refused",): 0,
    }


def test_without_prices_there_is_only_whether_some_were_refused() -> None:
    nothing = FakePrices("prices.yaml: version: is missing", in_force=None, age_s=None, valid_s=None)
    assert samples(nothing) == {("nightside_prices_refused",): 1}
    assert samples(None) == {}


def leg(target: Target, costs: Costs | None) -> LegState:
    considered = (Candidate(target, Standing.AVAILABLE, 0, 0, costs=costs),)
    decision = Decision(PlacementReason.REMOTE_PRICE, 0, 0, 1, 0, considered)
    core = desk(peers=[peer_spec(target.id, EU)]).core
    (at,) = core.peers
    return LegState(1, 1, LegRole.WHOLE, at, decision, policy=core.policy, started_ns=0, kept_blocks=0, replicas_here=1)


def test_money_is_counted_by_where_it_was_sent_once_a_request_is_over() -> None:
    registry = CollectorRegistry()
    tally = MoneyTally(registry)
    known, unknown = (Costs(further=(money_figure(each, "EUR"),)) for each in (250_000.0, None))
    legs = [leg(peer(GatewayId("eu-1")), each) for each in (known, known, unknown, None)]
    record = RequestRecord(RequestArrived(profile("r"), SECOND), policy(US), 0)
    record.legs += legs
    tally.on_finished(None, None, None, record)  # type: ignore[arg-type]
    tally.on_finished(None, None, None, None)  # type: ignore[arg-type]
    labels = {"region": EU.region, "currency": "EUR"}
    assert registry.get_sample_value("nightside_placement_money_total", labels) == 0.5
