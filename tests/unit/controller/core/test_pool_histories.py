from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.core.pool_histories import HISTORIES_MAX, OF_ONE_GATEWAY_MAX, PoolHistories, PoolMesh
from gateway.core.kernel.residency import ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import GatewayId, Place, TenantName
from mesh.control.pool_history import PoolHistory
from tests.support.core import AP, EU, US, policy, rule
from tests.support.histories import history_of

US_1, EU_1, AP_1 = GatewayId("us-1"), GatewayId("eu-1"), GatewayId("ap-1")
PLACES = {US_1: US, EU_1: EU, AP_1: AP}
POOL = (US_1, "pd")
FROM_HOME = history_of(5, 6)
FROM_ADOPTER = history_of(9, by="eu-1")


def mesh(owner: GatewayId | None = US_1, **policies: ResidencyPolicy) -> PoolMesh:
    found = {US.region: policy(US), EU.region: policy(EU), AP.region: policy(AP)}
    found |= {each.place.region: each for each in policies.values()}
    return PoolMesh({POOL: owner}, PLACES, found)


def kept(*histories: PoolHistory, place: Place = AP) -> PoolHistories:
    one = PoolHistories(place)
    for each in histories:
        assert one.take(each.recorded_by, each, mesh(each.recorded_by)) == ""
    return one


def due(one: PoolHistories, to: GatewayId, seen: PoolMesh | None = None) -> list[PoolHistory]:
    return list(one.due(to, set(), seen or mesh(to)))


def test_what_each_gateway_recorded_goes_to_the_next_owner_of_the_pool() -> None:
    one = kept(FROM_HOME)
    assert due(one, EU_1) == [FROM_HOME]
    assert one.take(EU_1, FROM_ADOPTER, mesh(EU_1)) == ""
    assert due(one, AP_1) == [FROM_HOME, FROM_ADOPTER]
    assert due(one, US_1) == [FROM_HOME, FROM_ADOPTER], "the home may have lost its own"
    longer = history_of(5, 6, 7)
    assert one.take(US_1, longer, mesh()) == ""
    assert due(one, EU_1) == [longer, FROM_ADOPTER]


def test_only_the_owner_gets_it_and_only_once() -> None:
    one = kept(FROM_HOME)
    assert due(one, AP_1, mesh(EU_1)) == []
    assert due(one, EU_1, mesh(None)) == []
    assert list(one.due(EU_1, {(POOL, US_1)}, mesh(EU_1))) == []
    assert list(one.due(EU_1, {(POOL, EU_1)}, mesh(EU_1))) == [FROM_HOME]


@pytest.mark.parametrize(
    ("history", "sender", "owner", "fault"),
    [
        (FROM_HOME, US_1, EU_1, "history of pool pd of us-1: us-1 does not serve the pool, eu-1 does"),
        (FROM_HOME, US_1, None, "history of pool pd of us-1: us-1 does not serve the pool, and no gateway does"),
        (FROM_HOME, EU_1, EU_1, "history of pool pd of us-1: it is another gateway's, us-1"),
        (
            replace(FROM_HOME, prompt_tokens=b"1"),
            US_1,
            US_1,
            "history of pool pd of us-1: prompt_tokens: it has 1 byte",
        ),
    ],
)
def test_a_history_that_its_sender_may_not_send_is_refused(
    history: PoolHistory, sender: GatewayId, owner: GatewayId | None, fault: str
) -> None:
    one = PoolHistories(AP)
    assert one.take(sender, history, mesh(owner)).startswith(fault)
    assert len(one) == 0


def test_a_gateway_that_has_lost_what_it_recorded_gets_it_back_and_replaces_it_only_by_more() -> None:
    one = kept(FROM_HOME)
    fault = one.take(US_1, history_of(1), mesh())
    assert fault == "history of pool pd of us-1: us-1 has recorded 1 requests, and 2 before"
    assert due(one, US_1) == [FROM_HOME]


def test_what_one_gateway_claims_does_not_keep_others_from_sending() -> None:
    lie = replace(FROM_ADOPTER, added=1 << 48)
    one = kept(lie)
    assert one.take(US_1, FROM_HOME, mesh()) == ""
    assert one.take(AP_1, replace(FROM_HOME, recorded_by=AP_1), mesh(AP_1)) == ""
    assert "is not between 0 and" in one.take(EU_1, replace(lie, added=(1 << 63) - 1), mesh(EU_1))


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
    strict = mesh(AP_1, own=own)
    assert due(one, AP_1, strict) == []
    (why,) = one.withheld(strict)
    assert why.startswith("history of pool pd of us-1: it may not be at ap-1: policy of us-east-1: ")
    assert due(one, AP_1) == [FROM_HOME], "the policy has changed"
    assert one.withheld(mesh(AP_1)) == one.withheld(mesh(None, own=own)) == []


def test_what_an_adopter_recorded_is_only_where_its_own_policy_too_lets_it_be_and_at_the_pools_home() -> None:
    strict = policy(EU, process=rule(EU))
    one = PoolHistories(AP)
    assert "policy of eu-west-1" in one.take(EU_1, FROM_ADOPTER, mesh(EU_1, own=strict))
    one = kept(FROM_HOME, FROM_ADOPTER, place=EU)
    assert due(one, AP_1, mesh(AP_1, own=strict)) == [FROM_HOME]
    assert due(one, US_1, mesh(US_1, own=strict)) == [FROM_HOME, FROM_ADOPTER], "its requests have run there"
    assert due(one, AP_1, mesh(AP_1, own=strict)) == [FROM_HOME], "no detour by the home"


@pytest.mark.parametrize("changed", [mesh(EU_1, own=NOT_AP), PoolMesh({}, PLACES, mesh().policies)])
def test_what_may_not_be_here_any_more_or_belongs_to_no_pool_is_dropped(changed: PoolMesh) -> None:
    one = kept(FROM_HOME)
    one.look_again(mesh(None))
    assert len(one) == 1, "a pool that no gateway may serve just now is a pool"
    one.look_again(changed)
    assert len(one) == 0


def test_an_unknown_policy_allows_nothing() -> None:
    one = kept(FROM_HOME)
    assert due(one, EU_1, PoolMesh({POOL: EU_1}, PLACES, {})) == []
    assert due(one, EU_1, replace(mesh(EU_1), places={})) == []


def test_one_gateway_cannot_take_the_room_of_others_and_pools_that_are_gone_make_room() -> None:
    one = PoolHistories(US)
    names = [f"p{number}" for number in range(OF_ONE_GATEWAY_MAX + 1)]
    histories = [replace(FROM_HOME, pool=name) for name in names]
    everything = replace(mesh(), owners={(US_1, name): US_1 for name in names} | {(EU_1, "pd"): EU_1})
    faults = [one.take(US_1, each, everything) for each in histories]
    assert faults[:-1] == [""] * OF_ONE_GATEWAY_MAX
    assert faults[-1] == f"history of pool {names[-1]} of us-1: {OF_ONE_GATEWAY_MAX} histories of us-1 are here already"
    assert one.take(US_1, histories[0], everything) == "", "it replaces its own"
    assert one.take(EU_1, history_of(1, by="eu-1", home="eu-1"), everything) == ""
    fewer = replace(everything, owners={(US_1, names[-1]): US_1})
    assert one.take(US_1, histories[-1], fewer) == ""
    assert len(one) == 1


def test_the_number_of_histories_is_bounded() -> None:
    gateways = [GatewayId(f"g{number}") for number in range(HISTORIES_MAX // OF_ONE_GATEWAY_MAX)]
    names = [f"p{number}" for number in range(OF_ONE_GATEWAY_MAX)]
    owners = {(each, name): each for each in gateways for name in names} | {POOL: US_1}
    full = replace(mesh(), owners=owners, places=PLACES | dict.fromkeys(gateways, US))
    one = PoolHistories(US)
    for home, name in owners:
        if home != US_1:
            assert one.take(home, replace(FROM_HOME, home=home, pool=name, recorded_by=home), full) == ""
    assert len(one) == HISTORIES_MAX
    assert one.take(US_1, FROM_HOME, full) == f"history of pool pd of us-1: {HISTORIES_MAX} are here already"
