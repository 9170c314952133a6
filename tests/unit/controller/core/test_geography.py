from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.core.geography import Geography, great_circle_km
from controller.core.vocabulary import Location
from tests.support.controller import AP, EU, US, gateway

DUBLIN, TOKYO = Location(53.35, -6.26), Location(35.68, 139.69)


class TestGreatCircle:
    @pytest.mark.parametrize(
        ("one", "other", "km"),
        [
            pytest.param(DUBLIN, TOKYO, 9_600, id="far"),
            pytest.param(DUBLIN, DUBLIN, 0, id="the-same-point"),
            pytest.param(Location(0, 179.5), Location(0, -179.5), 111, id="over-the-date-line"),
            pytest.param(Location(90, 0), Location(-90, 77), 20_015, id="pole-to-pole"),
        ],
    )
    def test_it_is_what_an_atlas_says(self, one: Location, other: Location, km: float) -> None:
        assert great_circle_km(one, other) == pytest.approx(km, rel=0.01, abs=1)
        assert great_circle_km(other, one) == pytest.approx(great_circle_km(one, other))


class TestDistance:
    def test_nothing_within_a_region(self) -> None:
        geography = Geography()
        one, other = gateway("a", US), gateway("b", US)
        geography.measured(one.gateway_id, other.gateway_id, 5)
        assert geography.distance_ns(one, other) == 0

    def test_a_measured_round_trip_counts_before_the_globe_whoever_measured_it(self) -> None:
        geography = Geography()
        us, eu = gateway("us", US), gateway("eu", EU)
        by_globe = geography.distance_ns(us, eu)
        geography.measured(eu.gateway_id, us.gateway_id, 7)
        assert geography.distance_ns(us, eu) == 7
        geography.forget(eu.gateway_id)
        assert geography.distance_ns(us, eu) == by_globe

    def test_whoever_stands_nobody_knows_where_is_last(self) -> None:
        geography = Geography()
        us, eu, ap = gateway("us", US), gateway("eu", EU), replace(gateway("ap", AP), location=None)
        assert geography.distance_ns(us, ap) > geography.distance_ns(us, eu)
