from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.core.pool_histories import POOLS_MAX, PoolHistories, PoolMesh
from gateway.core.kernel.residency import ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import GatewayId, Place, TenantName
from mesh.control.pool_history import PoolHistory
from tests.support.core import AP, EU, US, policy, rule
from tests.support.histories import history_of

US_1, EU_1, AP_1 = GatewayId("us-1"), GatewayId("eu-1"), GatewayId("ap-1")
PLACES = {US_1: US, EU_1: EU, AP_1: AP}
POOL = (US_1, "pd")
FROM_HOME = history_of(5, 6)
FROM_ADOPTER = history_of(5, 6, 9, by="eu-1", first_away=2)


def mesh(owner: GatewayId | None = US_1, **policies: ResidencyPolicy) -> PoolMesh:
    found = {US.region: policy(US), EU.region: policy(EU), AP.region: policy(AP)}
    found |= {each.place.region: each for each in policies.values()}
    return PoolMesh({} if owner is None else {POOL: owner}, PLACES, found)


def kept(*histories: PoolHistory, place: Place = AP) -> PoolHistories:
    one = PoolHistories(place)
    for each in histories:
        assert one.take(each.recorded_by, each, mesh(each.recorded_by)) == ""
    return one


def due(one: PoolHistories, to: GatewayId, seen: PoolMesh | None = None) -> list[PoolHistory]:
    return list(one.due(to, set(), seen or mesh(to)))


def test_a_history_goes_to_the_gateway_that_serves_the_pool_next_and_home_again() -> None:
    one = kept(FROM_HOME)
    assert due(one, EU_1) == [FROM_HOME]
    assert one.take(EU_1, FROM_ADOPTER, mesh(EU_1)) == ""
    assert due(one, US_1) == [FROM_ADOPTER]
    assert len(one) == 1


def test_only_the_owner_gets_it_and_only_once() -> None:
    one = kept(FROM_HOME)
    assert due(one, AP_1, mesh(EU_1)) == []
    assert due(one, EU_1, mesh(None)) == []
    assert list(one.due(EU_1, {POOL}, mesh(EU_1))) == []


@pytest.mark.parametrize(
    ("history", "sender", "owner", "fault"),
    [
        (FROM_HOME, US_1, EU_1, "history of pool pd of us-1: us-1 does not serve the pool, eu-1 does"),
        (FROM_HOME, US_1, None, "history of pool pd of us-1: us-1 does not serve the pool, and no gateway does"),
        (FROM_HOME, EU_1, EU_1, "history of pool pd of us-1: it is another gateway's, us-1"),
        (replace(FROM_HOME, after=b"1"), US_1, US_1, "history of pool pd of us-1: prompt_keys: it has 16 bytes"),
    ],
)
def test_a_history_that_its_sender_may_not_send_is_refused(
    history: PoolHistory, sender: GatewayId, owner: GatewayId | None, fault: str
) -> None:
    one = PoolHistories(AP)
    assert one.take(sender, history, mesh(owner)).startswith(fault)
    assert len(one) == 0


def test_a_controller_without_a_region_takes_none() -> None:
    one = PoolHistories(None)
    assert one.take(US_1, FROM_HOME, mesh()) == "history of pool pd of us-1: this controller takes none"


NOT_AP = policy(US, process=rule(US, EU))
CLINIC = policy(US, tenants={TenantName("clinic"): TenantPolicy(rule(US, EU))})


@pytest.mark.parametrize("own", [NOT_AP, CLINIC, closed_policy(US, "no file")])
def test_a_history_is_only_where_every_rule_of_the_homes_policy_lets_it_be(own: ResidencyPolicy) -> None:
    """Policies that do not allow AP, where the controller is first, and the adopter later."""
    one = PoolHistories(AP)
    assert "it may not be at the controller" in one.take(US_1, FROM_HOME, mesh(own=own))
    one = kept(FROM_HOME, place=US)
    assert due(one, AP_1, mesh(AP_1, own=own)) == []
    assert one.withheld[POOL].startswith("history of pool pd of us-1: it may not be at ap-1: policy of us-east-1: ")
    assert due(one, AP_1) == [FROM_HOME], "the policy has changed"
    assert not one.withheld


def test_the_policy_of_the_region_that_recorded_it_counts_too_but_on_the_way_home() -> None:
    strict = policy(EU, process=rule(EU))
    one = PoolHistories(AP)
    assert "policy of eu-west-1" in one.take(EU_1, FROM_ADOPTER, mesh(EU_1, own=strict))
    one = kept(FROM_ADOPTER, place=EU)
    assert due(one, AP_1, mesh(AP_1, own=strict)) == []
    assert due(one, US_1, mesh(US_1, own=strict)) == [FROM_ADOPTER], "its requests have run there"


def test_a_policy_that_forbids_it_by_now_removes_what_was_kept() -> None:
    one = kept(FROM_HOME)
    assert one.take(US_1, FROM_HOME, mesh(own=NOT_AP))
    assert len(one) == 0


def test_an_unknown_policy_allows_nothing() -> None:
    one = kept(FROM_HOME)
    assert due(one, EU_1, PoolMesh({POOL: EU_1}, PLACES, {})) == []


def test_the_number_of_pools_is_bounded_and_those_that_are_gone_make_room() -> None:
    one = PoolHistories(US)
    names = [f"p{number}" for number in range(POOLS_MAX + 1)]
    histories = [replace(FROM_HOME, pool=name) for name in names]
    everything = replace(mesh(), owners=dict.fromkeys(((US_1, name) for name in names), US_1))
    faults = [one.take(US_1, each, everything) for each in histories]
    assert faults[:-1] == [""] * POOLS_MAX
    assert faults[-1] == f"history of pool p{POOLS_MAX} of us-1: {POOLS_MAX} pools have one here already"
    assert one.take(US_1, histories[0], everything) == "", "it replaces its own"
    fewer = replace(everything, owners={(US_1, names[-1]): US_1})
    assert one.take(US_1, histories[-1], fewer) == ""
    assert len(one) == 1
