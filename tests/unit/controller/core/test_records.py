from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.records import PolicyOf, addresses_of, anywhere_of, areas_of
from controller.core.vocabulary import GatewayEntry
from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.residency import LoggingRule, ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import GatewayId, Place, RegionName, TenantName
from tests.support.controller import AP, EU, MS, US, gateway, policy
from tests.support.core import rule

US1, US2, EU1, AP1 = gateway("us1", US), gateway("us2", US), gateway("eu1", EU), gateway("ap1", AP)
ALL = [US1, US2, EU1, AP1]
OPEN = ControllerConfig()
"""Settings under which only the nearest gateways are named."""
FURTHER = ControllerConfig(further_gateways=1)


def open_policy(region: RegionName) -> ResidencyPolicy | None:
    return next(policy(place) for place in (US, EU, AP) if place.region == region)


def bank(*places: Place) -> dict[TenantName, TenantPolicy]:
    """Rule of a tenant whose requests are processed at these places alone."""
    return {TenantName("bank"): TenantPolicy(rule(*places))}


def by_region(
    living: list[GatewayEntry], config: ControllerConfig = OPEN, policy_of: PolicyOf = open_policy
) -> dict[str, tuple[str, ...]]:
    areas = areas_of(ALL, living, policy_of, Geography(), config)
    return {area.region: area.gateways for area in areas}


class TestAreas:
    def test_each_region_has_all_of_its_own(self) -> None:
        assert by_region(ALL) == {US.region: ("us1", "us2"), EU.region: ("eu1",), AP.region: ("ap1",)}

    def test_nobody_looks_for_what_is_near_where_a_region_has_its_own(self) -> None:
        """Avoid distance computations, which would be most of the work with a hundred regions."""
        asked: list[str] = []

        class Measured(Geography):
            def distance_ns(self, one: GatewayEntry, other: GatewayEntry) -> int:
                asked.append(one.gateway_id)
                return super().distance_ns(one, other)

        areas_of(ALL, [US1, US2, AP1], open_policy, Measured(), OPEN)
        assert set(asked) == {"eu1"}

    def test_a_region_without_any_is_sent_to_the_nearest_other(self) -> None:
        assert by_region([US1, US2, AP1])[EU.region] == ("us1", "us2")

    def test_one_that_is_drained_is_named_only_where_there_is_no_other(self) -> None:
        drained = replace(EU1, is_drained=True)
        assert by_region([US1, drained])[EU.region] == ("us1",)
        closed = ControllerConfig(closed_jurisdictions=frozenset({EU.jurisdiction}))
        assert by_region([US1, drained], closed)[EU.region] == ("eu1",)

    def test_clients_of_a_gateway_without_addresses_are_led_to_the_nearest_that_has_some(self) -> None:
        nowhere = replace(EU1, addresses=())
        assert by_region([nowhere, US1])[EU.region] == ("us1",)
        assert by_region([nowhere, replace(US1, is_drained=True)])[EU.region] == ("us1",)
        closed = ControllerConfig(closed_jurisdictions=frozenset({EU.jurisdiction}))
        assert by_region([nowhere, US1], closed)[EU.region] == ("eu1",)

    def test_a_closed_jurisdiction_lets_others_in_and_nobody_out(self) -> None:
        closed = ControllerConfig(closed_jurisdictions=frozenset({US.jurisdiction}))
        assert by_region([EU1], closed)[US.region] == ()
        assert by_region([US1], closed)[EU.region] == ("us1",)

    def test_nobody_is_sent_where_the_policy_of_its_region_lets_nothing_be_processed(self) -> None:
        at_home_or_ap = policy(EU, process=rule(EU, AP))
        assert by_region([US1, AP1], policy_of=lambda _: at_home_or_ap)[EU.region] == ("ap1",)
        assert by_region([US1, EU1], policy_of=lambda _: policy(EU, process=rule(AP)))[EU.region] == ("eu1",)

    def test_why_there_is_nobody_is_said_of_the_area(self) -> None:
        def why(found: ResidencyPolicy | None, config: ControllerConfig = OPEN) -> str:
            areas = areas_of([EU1, US1], [US1], lambda _: found, Geography(), config)
            (area,) = (each for each in areas if each.region == EU.region)
            assert (area.gateways, area.addresses) == ((), ())
            return area.why.partition("; ")[2]

        assert why(None) == "the policy of eu-west-1 is not known"
        assert why(closed_policy(EU, "no file")) == "the policy of eu-west-1 is closed: no file"
        alone = policy(EU, process=rule(EU))
        assert why(alone) == "the policy of eu-west-1 says where else its requests may be processed"
        assert "as the controller narrows it" in why(narrowed(policy(EU), alone))
        closed = ControllerConfig(closed_jurisdictions=frozenset({EU.jurisdiction}))
        assert why(policy(EU), closed).startswith("EU is closed")

    def test_the_order_of_registration_changes_nothing(self) -> None:
        forwards = areas_of(ALL, ALL, open_policy, Geography(), OPEN)
        backwards = areas_of(ALL[::-1], ALL[::-1], open_policy, Geography(), OPEN)
        assert forwards == backwards


class TestFurther:
    def test_an_answer_names_one_gateway_of_the_next_region_too_and_after_the_nearest(self) -> None:
        named = by_region(ALL, FURTHER)
        assert named == {US.region: ("us1", "us2", "eu1"), EU.region: ("eu1", "us1"), AP.region: ("ap1", "eu1")}

    def test_a_region_without_any_is_sent_to_the_nearest_two(self) -> None:
        assert by_region([US1, US2, AP1], FURTHER)[EU.region] == ("us1", "us2", "ap1")

    def test_a_drained_gateway_is_nobodys_further_one(self) -> None:
        assert by_region([US1, replace(EU1, is_drained=True), AP1], FURTHER)[US.region] == ("us1", "ap1")

    def test_nobody_is_sent_out_of_a_closed_jurisdiction(self) -> None:
        closed = replace(FURTHER, closed_jurisdictions=frozenset({EU.jurisdiction}))
        assert by_region(ALL, closed)[EU.region] == ("eu1",)

    @pytest.mark.parametrize(
        "own,there",
        [
            (policy(EU, process=rule(EU, AP)), None),
            (policy(EU, tenants=bank(EU)), None),
            (None, policy(US, process=rule(EU))),
            (None, policy(US, tenants=bank(EU))),
            (None, closed_policy(US, "no file")),
            (policy(EU, tenants=bank(EU, US)), policy(US, tenants=bank(EU))),
        ],
        ids=[
            "not processed there",
            "a tenant is not processed there",
            "nobody enters there",
            "a tenant does not enter there",
            "closed there",
            "processed there, but does not enter",
        ],
    )
    def test_no_region_is_named_where_a_tenants_requests_would_be_refused(
        self, own: ResidencyPolicy | None, there: ResidencyPolicy | None
    ) -> None:
        policies = {EU.region: own or policy(EU), US.region: there or policy(US)}
        assert by_region([EU1, US1], FURTHER, policies.get)[EU.region] == ("eu1",)

    @pytest.mark.parametrize(
        "own,there",
        [
            (policy(EU, process=rule(EU, US)), policy(US)),
            (policy(EU, process=rule(EU, US)), policy(US, process=rule(US, EU, AP))),
            (policy(EU, tenants=bank(EU, US)), policy(US)),
            (policy(EU, process=rule(EU, US)), policy(US, process=rule(US, EU), tenants=bank(US, AP))),
            (policy(EU, tenants=bank(EU, US)), policy(US, process=rule(US, EU), tenants=bank(US, AP))),
            (policy(EU, process=rule(US)), policy(US, process=rule(US, EU))),
        ],
        ids=[
            "anywhere",
            "to a third region",
            "a tenant anywhere",
            "a tenant that is named there alone",
            "a tenant to a third region",
            "back, where it may not be processed",
        ],
    )
    def test_no_region_is_named_that_could_send_a_tenants_requests_where_their_own_could_not(
        self, own: ResidencyPolicy, there: ResidencyPolicy
    ) -> None:
        policies = {EU.region: own, US.region: there, AP.region: closed_policy(AP, "no file")}
        assert by_region([EU1, US1], FURTHER, policies.get)[EU.region] == ("eu1",), "AP1 is registered, and down"

    def test_places_without_a_gateway_count_too(self) -> None:
        """A replica or a peer that the controller does not know may be there."""
        policies = {EU.region: policy(EU, process=rule(EU, US)), US.region: policy(US, process=rule(US, AP))}
        areas = areas_of([EU1, US1], [EU1, US1], policies.get, Geography(), FURTHER)
        assert {area.region: area.gateways for area in areas} == {EU.region: ("eu1",), US.region: ("us1",)}

    def test_a_region_that_sends_requests_no_further_than_their_own_is_named(self) -> None:
        policies = {EU.region: policy(EU, process=rule(EU, US)), US.region: policy(US, process=rule(EU, US))}
        assert by_region([EU1, US1], FURTHER, policies.get)[EU.region] == ("eu1", "us1")

    @pytest.mark.parametrize("detail", ["tenant", "client_address", "session_key"])
    def test_no_region_is_named_whose_logs_show_more_than_the_clients_own(self, detail: str) -> None:
        silent = LoggingRule(tenant=False)
        policies = {EU.region: policy(EU), US.region: policy(US)}
        for region, logging in ((EU.region, silent), (US.region, replace(silent, **{detail: True}))):
            policies[region] = replace(policies[region], logging=logging)
        assert by_region([EU1, US1], FURTHER, policies.get) == {
            EU.region: ("eu1",),
            US.region: ("us1", "eu1"),
            AP.region: (),
        }

    def test_a_tenant_that_may_go_there_is_no_reason_against_it(self) -> None:
        own, there = policy(EU, tenants=bank(EU, US)), policy(US, tenants=bank(US))
        assert by_region([EU1, US1], FURTHER, {EU.region: own, US.region: there}.get)[EU.region] == ("eu1", "us1")

    @pytest.mark.parametrize(
        ("nearest", "further", "named"),
        [
            (["192.0.2.1"], ["198.51.100.1", "198.51.100.2"], ["198.51.100.1"]),
            (["192.0.2.1", "192.0.2.2"], ["198.51.100.1", "198.51.100.2"], ["198.51.100.1"]),
            (["192.0.2.1"], ["2001:db8::9", "198.51.100.1"], ["198.51.100.1"]),
            (["192.0.2.1", "2001:db8::1"], ["198.51.100.1"], ["198.51.100.1"]),
            (
                ["192.0.2.1", "2001:db8::1"],
                ["198.51.100.1", "2001:db8::9", "2001:db8::a"],
                ["198.51.100.1", "2001:db8::9"],
            ),
            (["192.0.2.1"], ["192.0.2.1", "198.51.100.1"], ["198.51.100.1"]),
            (["192.0.2.1"], ["192.0.2.1"], []),
            (["192.0.2.1"], ["2001:db8::9"], []),
        ],
    )
    def test_at_most_one_address_of_each_ip_version_and_none_that_the_nearest_lacks(
        self, nearest: list[str], further: list[str], named: list[str]
    ) -> None:
        """Clients that prefer a version which only the further gateway has would all go there, and of several addresses
        the further gateway's are taken as often as the nearest's."""
        own, other = replace(EU1, addresses=tuple(nearest)), replace(US1, addresses=tuple(further))
        areas = areas_of([own, other], [own, other], open_policy, Geography(), FURTHER)
        (area,) = (each for each in areas if each.region == EU.region)
        assert (area.addresses, area.further) == ((*nearest, *named), tuple(named))
        assert area.gateways == (("eu1", "us1") if named else ("eu1",))

    @pytest.mark.parametrize(("ap_ms", "further"), [(100, "us1"), (81, "us1"), (79, "ap1")])
    def test_the_region_last_named_is_kept_unless_another_is_clearly_nearer(self, ap_ms: int, further: str) -> None:
        geography = Geography()
        geography.measured(EU1.gateway_id, US1.gateway_id, 101 * MS)
        geography.measured(EU1.gateway_id, AP1.gateway_id, ap_ms * MS)

        def chosen(last: Place | None, policy_of: PolicyOf = open_policy) -> GatewayId:
            last_further = {} if last is None else {EU.region: {last.region}}
            there = [EU1, US1, AP1]
            areas = areas_of(there, there, policy_of, geography, FURTHER, last_further=last_further)
            return next(each for each in areas if each.region == EU.region).gateways[-1]

        assert chosen(US) == further
        assert chosen(AP) == chosen(None) == "ap1"
        closed = {US.region: closed_policy(US, "no file")}
        assert chosen(US, lambda region: closed.get(region, open_policy(region))) == "ap1", "nor where it may not be"

    def test_as_many_regions_are_named_as_are_asked_for_and_a_known_one_is_kept(self) -> None:
        geography = Geography()
        for to, milliseconds in ((US1, 100), (AP1, 90)):
            geography.measured(EU1.gateway_id, to.gateway_id, milliseconds * MS)
        twins = [replace(EU1, addresses=("192.0.2.1",)), US1, replace(US1, gateway_id=GatewayId("us2")), AP1]

        def named(count: int, *last: RegionName) -> tuple[GatewayId, ...]:
            config = ControllerConfig(further_gateways=count)
            areas = areas_of(twins, twins, open_policy, geography, config, last_further={EU.region: last})
            return next(each for each in areas if each.region == EU.region).gateways

        assert [named(count) for count in range(4)] == [
            ("eu1",),
            ("eu1", "ap1"),
            ("eu1", "ap1", "us1"),
            ("eu1", "ap1", "us1"),
        ]
        assert named(1, US.region) == ("eu1", "us1")
        assert named(2, US.region) == ("eu1", "us1", "ap1")

    def test_none_is_named_where_none_is_asked_for(self) -> None:
        areas = areas_of(ALL, ALL, open_policy, Geography(), ControllerConfig())
        assert {each.further for each in areas} == {()}


def test_a_closed_jurisdiction_is_told_to_be_one() -> None:
    closed = ControllerConfig(closed_jurisdictions=frozenset({EU.jurisdiction}))
    areas = areas_of(ALL, ALL, open_policy, Geography(), closed)
    assert {each.region for each in areas if each.is_closed} == {EU.region}


class TestAnywhere:
    US_CLOSED = ControllerConfig(closed_jurisdictions=frozenset({US.jurisdiction}))
    TWO_CLOSED = ControllerConfig(closed_jurisdictions=frozenset({US.jurisdiction, EU.jurisdiction}))

    def test_it_is_all_that_live_and_are_not_drained(self) -> None:
        drained = replace(AP1, is_drained=True)
        assert anywhere_of([EU1, US1, drained], OPEN) == addresses_of([EU1, US1])
        assert anywhere_of([drained], OPEN) == addresses_of([AP1])

    def test_nobody_is_led_into_a_closed_jurisdiction_while_another_gateway_lives(self) -> None:
        assert anywhere_of(ALL, self.US_CLOSED) == addresses_of([AP1, EU1])
        assert anywhere_of([US1, replace(AP1, is_drained=True)], self.US_CLOSED) == addresses_of([AP1])
        assert anywhere_of([US1, US2], self.US_CLOSED) == addresses_of([US1, US2])

    def test_nor_into_one_of_two(self) -> None:
        assert anywhere_of([US1, EU1], self.TWO_CLOSED) == ()
        assert anywhere_of(ALL, self.TWO_CLOSED) == addresses_of([AP1])


def test_an_address_that_two_gateways_share_is_told_once() -> None:
    assert addresses_of([US1, replace(US2, addresses=US1.addresses)]) == US1.addresses
