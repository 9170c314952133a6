"""Placement by price: the cheapest in money of the targets in time; without prices, placement by cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig, all_of
from gateway.core.features.classes.config import BatchConfig, ClassesConfig
from gateway.core.features.prices.in_force import FIRST_TOKEN, MONEY
from gateway.core.features.prices.price_table import MICROS, EgressPrice, Prices, ReplicaPrice
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    Candidate,
    Costs,
    Figure,
    GatewayId,
    LoadReport,
    ModelCapacity,
    PeerObservation,
    Place,
    PlacementReason,
    PlaceRule,
    PoolName,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ServiceClass,
    peer_target,
)
from tests.support.core import AP, EU, MODEL, MS, SECOND, US, Desk, desk, peer_spec, profile, replica_spec

ANY_POOL = PoolName("")
PROMPT_BYTES = 100_000
"""Bytes that take one second to read at the rate assumed until first tokens were observed."""


def owned(place: Place) -> ReplicaPrice:
    return ReplicaPrice(place.region, ANY_POOL, 4 * MICROS, False, 16)


def by_use(place: Place, hour: float = 4) -> ReplicaPrice:
    return ReplicaPrice(place.region, ANY_POOL, round(hour * MICROS), True, 16)


def prices(*replicas: ReplicaPrice, egress: tuple[EgressPrice, ...] = (), carbon_micros: int = 0) -> Prices:
    return Prices("EUR", "digest", replicas, egress, carbon_micros)


def mesh(
    *replicas: ReplicaPrice, first_token_s: float = 4, ours: Iterable[ReplicaSpec] | int = 2, **placement: object
) -> Desk:
    """Two replicas at home, in US, and two gateways abroad, EU near and AP far."""
    config = PlacementConfig(
        PlacementPolicy.PRICE,
        price_first_token_ns=round(first_token_s * SECOND) or None,
        **placement,  # type: ignore[arg-type]
    )
    peers = [peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)]
    made = desk(replicas=ours, peers=peers, config=CoreConfig(config, PushingConfig(in_band_credit=None)))
    if replicas:
        made.tell(events.PricesChanged(prices(*replicas)))
    hear(made, "gw-eu", EU, rtt_ms=80)
    hear(made, "gw-ap", AP, rtt_ms=160)
    return made


def hear(
    one: Desk, name: str, place: Place, *, rtt_ms: int, backlog_bytes: int = 0, load: int = 0, room: int = 4
) -> None:
    capacity = ModelCapacity(
        MODEL, DEFAULT_POOL, place, 4, 4, load=load, backlog_bytes=backlog_bytes, room=room, spare=room
    )
    report = LoadReport(GatewayId(name), place, one.now_ns + 1, True, 1, "digest", (capacity,))
    heard = PeerObservation(report, one.now_ns, one.now_ns, rtt_ms * MS, rtt_ms * MS)
    one.tell(events.PeersObserved((heard,)))


def ask(one: Desk, name: str, **details: object) -> RequestProfile:
    asked = replace(profile(name), prompt_bytes=PROMPT_BYTES, **details)
    one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND))
    return asked


def where(one: Desk) -> list[str]:
    return [effect.target.id for effect in one.effects if isinstance(effect, StartLeg)]


def last(one: Desk) -> StartLeg:
    return [effect for effect in one.effects if isinstance(effect, StartLeg)][-1]


def test_what_is_paid_for_anyway_is_filled_before_what_is_paid_by_use() -> None:
    """Two own replicas read each request for one second. Of the four seconds promised, an estimate may take two, so the
    fifth request would be too late here."""
    one = mesh(owned(US), by_use(EU, 2), by_use(AP, 1), hold_ns=60 * SECOND)
    for number in range(5):
        ask(one, f"a{number}")
    assert sorted(where(one)) == ["gw-ap", "r0", "r0", "r1", "r1"]
    assert last(one).decision.reason is PlacementReason.REMOTE_PRICE


def test_cost_would_not_have_waited_for_money() -> None:
    """The same requests without prices."""
    one = mesh(hold_ns=60 * SECOND)
    for number in range(5):
        ask(one, f"a{number}")
    assert "gw-eu" in where(one)[:4]


def test_the_cheapest_is_not_taken_where_it_would_be_late() -> None:
    one = mesh(by_use(US, 9), by_use(EU, 5), by_use(AP, 1))
    hear(one, "gw-ap", AP, rtt_ms=160, backlog_bytes=3 * PROMPT_BYTES)
    ask(one, "a")
    assert where(one) == ["gw-eu"]


def test_where_nobody_is_in_time_money_has_no_say() -> None:
    one = mesh(by_use(US, 90), by_use(EU, 5), by_use(AP, 1), first_token_s=1)
    ask(one, "a")
    assert where(one) == ["r0"]
    assert last(one).decision.reason is PlacementReason.LOCAL_EXPLORE


def test_what_a_request_has_waited_is_gone_from_its_time() -> None:
    one = mesh(owned(US), by_use(EU, 1), by_use(AP, 1), hold_ns=60 * SECOND)
    one.probe(healthy=False)
    hear(one, "gw-eu", EU, rtt_ms=80, backlog_bytes=PROMPT_BYTES)
    for name in ("gw-ap", "gw-eu"):
        one.tell(events.TargetLost(peer_target(GatewayId(name)), "gone"))
    ask(one, "a")
    assert where(one) == []
    one.wait(1500 * MS)
    hear(one, "gw-eu", EU, rtt_ms=80)
    one.now_ns += 10
    one.probe()
    assert where(one) == ["gw-eu"], "by then nobody was in time: whoever costs least is asked"


def test_bytes_that_leave_a_region_are_part_of_its_price() -> None:
    far = (EgressPrice(US.region, AP.region, 10**9), EgressPrice(AP.region, US.region, 0))
    one = mesh()
    one.tell(events.PricesChanged(prices(by_use(US, 90), by_use(EU, 5), by_use(AP, 1), egress=far)))
    ask(one, "a")
    assert where(one) == ["gw-eu"], "100 kB at 1000 EUR a GB are 0.1 EUR"


def test_a_picture_leaves_a_region_with_all_its_bytes() -> None:
    far = (EgressPrice(US.region, EU.region, 10**6), EgressPrice(EU.region, US.region, 0))
    for sent_bytes, name in ((0, "gw-eu"), (100 * PROMPT_BYTES, "gw-ap")):
        one = mesh()
        one.tell(events.PricesChanged(prices(by_use(US, 90), by_use(EU, 5), by_use(AP, 6), egress=far)))
        ask(one, "a", sent_bytes=sent_bytes)
        assert where(one) == [name]


def test_carbon_has_a_price_if_the_list_says_so() -> None:
    dirty = ReplicaPrice(US.region, ANY_POOL, MICROS, False, 16, busy_milligrams=900_000)
    clean = ReplicaPrice(EU.region, ANY_POOL, MICROS, False, 16, busy_milligrams=10_000)
    one = mesh()
    one.tell(events.PricesChanged(prices(dirty, clean, carbon_micros=0)))
    ask(one, "a")
    one.tell(events.PricesChanged(prices(dirty, clean, carbon_micros=100_000)))
    ask(one, "b")
    assert where(one) == ["r0", "gw-eu"]


def test_whoever_is_missing_in_the_list_is_no_bargain() -> None:
    one = mesh(by_use(US, 5), by_use(EU, 1))
    ask(one, "a")
    assert where(one) == ["gw-eu"]
    one = mesh(by_use(EU, 1))
    hear(one, "gw-eu", EU, rtt_ms=80, backlog_bytes=3 * PROMPT_BYTES)
    ask(one, "a")
    assert where(one) == ["r0"], "ours has no price, and nor has AP: as among equals, ours costs less"


def test_a_second_may_have_a_price_too() -> None:
    one = mesh(by_use(US, 4), by_use(EU, 3), by_use(AP, 1), price_of_second=1.0)
    ask(one, "a")
    assert where(one) == ["r0"]


def test_a_class_is_held_to_what_it_is_promised_and_one_that_is_promised_nothing_is_placed_by_cost() -> None:
    one = mesh(by_use(US, 9), by_use(EU, 5), by_use(AP, 1), first_token_s=0)
    ask(one, "nothing")
    promised = ClassesConfig(batch=BatchConfig(first_token_ns=60 * SECOND))
    one.tell(events.ConfigApplied(replace(all_of(one.core.config), classes=promised)))
    ask(one, "batch", service_class=ServiceClass.BATCH)
    ask(one, "interactive")
    assert where(one) == ["r0", "gw-ap", "r1"]


@pytest.mark.parametrize("first_token_s", [0, 1])
def test_a_line_of_a_batch_goes_by_price_alone(first_token_s: int) -> None:
    one = mesh(by_use(US, 9), by_use(EU, 5), by_use(AP, 1), first_token_s=first_token_s)
    hear(one, "gw-ap", AP, rtt_ms=5_000)
    ask(one, "line", service_class=ServiceClass.BATCH, keeps_yielding=True)
    assert where(one) == ["gw-ap"]


LINE: Final = {"service_class": ServiceClass.BATCH, "keeps_yielding": True}
PATIENT: Final = {**LINE, "is_patient": True}


class TestPatientLines:
    """Lines of a batch that has time to spare."""

    def test_one_waits_for_what_is_paid_for_anyway_and_holds_no_other_back(self) -> None:
        one = mesh(by_use(US, 1), owned(EU), by_use(AP, 1))
        hear(one, "gw-eu", EU, rtt_ms=80, load=4, room=0)
        ask(one, "patient", **PATIENT)
        assert where(one) == []
        assert "as its batch has time to spare" in one.core.why_it_waits(RequestId("patient"))
        ask(one, "late", **LINE)
        assert where(one) == ["r0"]
        hear(one, "gw-eu", EU, rtt_ms=80, load=3, room=1)
        assert where(one) == ["r0", "gw-eu"]

    def test_one_waits_for_a_replica_of_its_gateway(self) -> None:
        spot = replace(replica_spec("r1"), pool=PoolName("spot"))
        one = mesh(first_token_s=8, ours=(replica_spec("r0"), spot))
        paid = ReplicaPrice(US.region, DEFAULT_POOL, 9 * MICROS, False, 16)
        one.tell(events.PricesChanged(prices(paid, by_use(US, 1))))
        ask(one, "first", **PATIENT)
        ask(one, "second", **PATIENT)
        assert where(one) == ["r0"]
        ask(one, "late", **LINE)
        assert where(one) == ["r0", "r1"]

    @pytest.mark.parametrize(
        ("known", "details"),
        [
            ((by_use(US, 9), by_use(EU, 5)), {}),
            ((by_use(US, 9), owned(EU)), {"process": PlaceRule(jurisdictions=frozenset({US.jurisdiction}))}),
            ((by_use(US, 9),), {}),
            ((owned(US), owned(EU)), {}),
        ],
        ids=["all are paid by use", "it may not go there", "no price is known", "nothing is added"],
    )
    def test_none_waits_where_it_cannot_save(self, known: tuple[ReplicaPrice, ...], details: dict[str, Any]) -> None:
        one = mesh(*known)
        hear(one, "gw-eu", EU, rtt_ms=80, load=4, room=0)
        hear(one, "gw-ap", AP, rtt_ms=160, load=4, room=0)
        ask(one, "patient", **PATIENT, **details)
        assert where(one) == ["r0"]

    def test_other_policies_let_none_wait(self) -> None:
        one = mesh(by_use(US, 1), owned(EU))
        one.tell(events.ConfigApplied(replace(all_of(one.core.config), placement=PlacementConfig())))
        hear(one, "gw-eu", EU, rtt_ms=80, load=4, room=0)
        ask(one, "patient", **PATIENT)
        assert where(one) == ["r0"]


def test_other_prices_hold_from_the_moment_they_are_told() -> None:
    one = mesh(by_use(US, 9), by_use(EU, 1), by_use(AP, 5))
    ask(one, "a")
    one.tell(events.PricesChanged(prices(by_use(US, 1), by_use(EU, 9), by_use(AP, 5))))
    ask(one, "b")
    one.tell(events.PricesChanged(None))
    assert not one.core.placer._fleet.facts
    assert where(one) == ["gw-eu", "r0"]


def test_pools_of_ours_are_told_apart_by_their_prices() -> None:
    spot = replace(replica_spec("r1"), pool=PoolName("spot"))
    one = mesh(first_token_s=8, hold_ns=60 * SECOND, ours=(replica_spec("r0"), spot))
    dear = ReplicaPrice(US.region, DEFAULT_POOL, 9 * MICROS, True, 16)
    one.tell(events.PricesChanged(prices(dear, by_use(US, 1))))
    for number in range(2):
        ask(one, f"a{number}")
    assert where(one) == ["r1", "r1"]


def test_replicas_that_stay_are_asked_once_another_has_left() -> None:
    one = mesh(owned(US), by_use(EU, 2), by_use(AP, 1), ours=3, hold_ns=60 * SECOND)
    peers = (peer_spec("gw-eu", EU), peer_spec("gw-ap", AP))
    one.tell(events.AssignmentApplied(2, (replica_spec("r1"), replica_spec("r2")), peers))
    for number in range(2):
        ask(one, f"a{number}")
    assert sorted(where(one)) == ["r1", "r2"]


def amount(costs: Costs, name: str) -> float | None:
    (found,) = [each.amount for each in costs.further if each.name == name]
    return found


def test_each_target_that_was_looked_at_is_recorded_with_its_money_and_its_first_token() -> None:
    one = mesh(owned(US), by_use(EU, 4), by_use(AP, 1))
    ask(one, "a")
    seen: dict[str, Candidate] = {each.target.id: each for each in last(one).decision.considered}
    home, abroad = seen["r0"].costs, seen["gw-eu"].costs
    assert home is not None
    assert abroad is not None
    assert home.further[1] == Figure(MONEY, 0.0, "EUR", MICROS)
    assert amount(home, FIRST_TOKEN) == pytest.approx(SECOND)
    assert amount(abroad, FIRST_TOKEN) == pytest.approx(SECOND + 80 * MS)
    one_second, ten_shared = 4 * MICROS / 3600, 4 * MICROS / 3600 * 10 / 16
    assert amount(abroad, MONEY) == pytest.approx(one_second + ten_shared)


def test_how_long_an_answer_is_written_is_learnt_from_streams() -> None:
    one = mesh(by_use(US, 4))
    ask(one, "a", stream=True)
    one.tell(events.FirstToken(RequestId("a"), 1, 1))
    one.wait(32 * SECOND)
    one.probe()
    one.finish("a")
    ask(one, "b", stream=True)
    costs = last(one).decision.considered[0].costs
    assert costs is not None
    second_micros = 4 * MICROS / 3600
    read_s = PROMPT_BYTES * one.core.placer._policy._byte_ns / SECOND  # type: ignore[attr-defined]
    assert amount(costs, MONEY) == pytest.approx(second_micros * (read_s + 32 / 16))
