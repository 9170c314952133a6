from __future__ import annotations

import json

from controller import orders
from controller.registry import registry_of
from controller.snapshots import snapshot_for
from controller.views import View
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy
from gateway.core.vocabulary import ControlVersion, GatewayId, PlaceRule, ReplicaId
from mesh.control.codec import read_from_controller, said_by_controller
from mesh.control.vocabulary import NO_GATEWAY, ReplicaOwner
from tests.fakes.attached import hello
from tests.support.core import AP, EU, REGIONS, US, policy, rule


def view_of(owners: dict[str, str], *given: orders.Order, policies: tuple[ResidencyPolicy, ...] = ()) -> View:
    registry = registry_of({}, REGIONS)
    for each in (hello("us-1", US), hello("eu-1", EU)):
        registry = registry.changed(registry.announce(each))
    for order in given:
        registry = registry.changed(orders.changes_of(order, registry))
    owned = {ReplicaId(replica): GatewayId(owner) for replica, owner in owners.items()}
    return View(ControlVersion(2, 9), registry, owned, {each.place.region: each for each in policies}, None)


HOME = {"us-1-r0": "us-1", "us-1-r1": "us-1", "eu-1-r0": "eu-1", "eu-1-r1": "eu-1"}


def test_a_gateway_is_told_what_it_has_and_who_else_there_is() -> None:
    snapshot = snapshot_for(GatewayId("us-1"), view_of(HOME))
    assert snapshot.version == ControlVersion(2, 9)
    assert [json.loads(each.document)["id"] for each in snapshot.replicas] == ["us-1-r0", "us-1-r1"]
    assert all(each.accepts is None for each in snapshot.replicas)
    assert [each.gateway_id for each in snapshot.peers] == ["eu-1"]
    assert (snapshot.away, snapshot.narrowing, snapshot.parameters) == ((), None, "")
    assert read_from_controller(said_by_controller(snapshot)) == snapshot


def test_a_price_list_goes_to_every_gateway() -> None:
    view = view_of(HOME, orders.SetPrices({"version": 1}))
    told = {snapshot_for(GatewayId(name), view).documents for name in ("us-1", "eu-1")}
    assert told == {(("prices", '{"version":1}'),)}


def test_what_is_adopted_comes_with_its_home_and_what_that_accepts() -> None:
    own = policy(US, accept=rule(EU))
    view = view_of(HOME | {"us-1-r0": "eu-1"}, policies=(own,))
    snapshot = snapshot_for(GatewayId("eu-1"), view)
    (adopted,) = [each for each in snapshot.replicas if each.home == "us-1"]
    assert (adopted.home_place, json.loads(adopted.document)["region"]) == (US, "us-east-1")
    assert adopted.accepts is not None
    assert [adopted.accepts.allows(place) for place in (US, EU, AP)] == [True, True, False]
    assert snapshot.away == (ReplicaOwner(ReplicaId("us-1-r0"), GatewayId("us-1"), GatewayId("eu-1")),)
    unknown = snapshot_for(GatewayId("eu-1"), view_of(HOME | {"us-1-r0": "eu-1"}))
    assert [each.accepts for each in unknown.replicas if each.home == "us-1"] == [PlaceRule()]


def test_of_a_home_whose_policy_is_closed_nothing_may_be_taken() -> None:
    view = view_of(HOME | {"us-1-r0": "eu-1"}, policies=(closed_policy(US, "no file"),))
    (accepts,) = [each.accepts for each in snapshot_for(GatewayId("eu-1"), view).replicas if each.home == "us-1"]
    assert accepts is not None
    assert not any(accepts.allows(place) for place in (US, EU, AP))


def test_what_an_operator_took_out_is_nobodys_and_what_merely_nobody_may_have_stays_with_its_home() -> None:
    owners = {name: owner for name, owner in HOME.items() if name != "us-1-r1"}
    view = view_of(owners, orders.DrainReplica("us-1-r0"))
    snapshot = snapshot_for(GatewayId("us-1"), view)
    assert snapshot.replicas == ()
    assert snapshot.away == (ReplicaOwner(ReplicaId("us-1-r0"), GatewayId("us-1"), NO_GATEWAY),)


def test_an_owner_that_is_not_registered_any_more_is_none() -> None:
    view = view_of(HOME | {"us-1-r0": "eu-1"}, orders.RemoveGateway("eu-1"))
    assert view.away == ()
    assert list(view.owned) == ["us-1"]
