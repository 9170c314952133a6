from __future__ import annotations

from msgspec.structs import replace

from controller.core.adoption import Requirements, adopters_of, least_burdened
from controller.core.geography import Geography
from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.residency import closed_policy
from gateway.core.vocabulary import GatewayId, PlaceRule
from tests.support.controller import AP, EU, US, gateway, policy

HOME = gateway("eu", EU)
OTHERS = [gateway("us", US), gateway("ap", AP), gateway("eu2", EU), gateway("eu3", EU)]


class TestAdopters:
    def test_siblings_come_first_and_share(self) -> None:
        assert adopters_of(HOME, [HOME, *OTHERS], policy(EU), Geography()).gateways == ("eu2", "eu3")

    def test_then_the_nearest_region(self) -> None:
        assert adopters_of(HOME, OTHERS[:2], policy(EU), Geography()).gateways == ("us",)

    def test_never_one_whose_clients_the_home_does_not_accept(self) -> None:
        only_ap = policy(EU, accept=PlaceRule(regions=frozenset({AP.region})))
        assert adopters_of(HOME, OTHERS[:2], only_ap, Geography()).gateways == ("ap",)

    def test_a_closed_region_lets_not_even_a_sibling(self) -> None:
        found = adopters_of(HOME, OTHERS, closed_policy(EU, "unreadable"), Geography())
        assert found.gateways == ()
        assert found.why == "the policy of eu-west-1 accepts none of ap, eu2, eu3, us (closed: unreadable)"

    def test_whoever_the_controller_leaves_out_and_why(self) -> None:
        left = narrowed(policy(EU), policy(EU, accept=PlaceRule()))
        assert adopters_of(HOME, OTHERS, left, Geography()).gateways == ("eu2", "eu3")
        found = adopters_of(HOME, OTHERS[:2], left, Geography())
        assert found.gateways == ()
        assert found.why == "the policy of eu-west-1 accepts none of ap, us (as the controller narrows it)"

    def test_the_nearest_that_is_able_and_has_not_left_it_out(self) -> None:
        able = [replace(each, abilities=frozenset({"connector nixl", "decode_policy br_h"})) for each in OTHERS]
        near, further, unable = able[2], able[0], OTHERS[3]
        required = Requirements(HOME.gateway_id, frozenset({"connector nixl", "decode_policy br_h"}))
        assert adopters_of(HOME, [near, further, unable], policy(EU), Geography(), required).gateways == ("eu2",)
        refused = replace(required, refusals=((near.gateway_id, "no key"),))
        assert adopters_of(HOME, [near, further, unable], policy(EU), Geography(), refused).gateways == ("us",)
        found = adopters_of(HOME, [near, unable], policy(EU), Geography(), refused)
        assert found.gateways == ()
        assert found.why == (
            "no gateway that may have it can serve it: eu2 left it out (no key); "
            "eu3 lacks connector nixl, decode_policy br_h"
        )

    def test_a_reason_lists_a_few_gateways_and_counts_the_others(self) -> None:
        many = [gateway(f"us{number:02}", US) for number in range(40)]
        required = Requirements(HOME.gateway_id, refusals=tuple((each.gateway_id, "x" * 1000) for each in many))
        told = adopters_of(HOME, many, policy(EU), Geography(), required).why
        assert told.count("left it out") == 4
        assert told.endswith("; and 36 more")
        assert len(told) < 1000
        closed = adopters_of(HOME, many, closed_policy(EU, "unreadable"), Geography()).why
        assert "none of us00, us01, us02, us03, and 36 more (closed" in closed

    def test_why_there_is_nobody(self) -> None:
        assert "no other" in adopters_of(HOME, [HOME], policy(EU), Geography()).why
        assert "not known" in adopters_of(HOME, OTHERS, None, Geography()).why


def test_of_equals_whoever_has_least_takes_it_then_by_name() -> None:
    one, other = GatewayId("b"), GatewayId("a")
    assert least_burdened([one, other], {one: 1, other: 2}) == one
    assert least_burdened([one, other], {one: 1, other: 1}) == other
