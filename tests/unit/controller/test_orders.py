from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import fields

from controller import orders
from controller.orders import Order, OrderRefused, changes_of, export_of, role_needed
from controller.registry import Registry, registry_of
from gateway.core.config import CoreConfig
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName, ReplicaId
from mesh.operators_config import Role
from tests.fakes.attached import hello, replica_document
from tests.support.core import AP, EU, REGIONS, US, policy


def mesh() -> Registry:
    registry = registry_of({}, REGIONS)
    for each in (hello("us-1", US), hello("eu-1", EU)):
        registry = registry.changed(registry.announce(each))
    return registry


def after(registry: Registry, *given: Order) -> Registry:
    for order in given:
        registry = registry.changed(changes_of(order, registry))
    return registry


def test_every_order_travels_as_what_it_is() -> None:
    for kind in Order.__args__:
        required = {"replicas": ("r",), "policy": policy(US), "sections": {}, "prices": {}, "documents": {}}
        told = {each.name: required.get(each.name, "x") for each in msgspec.structs.fields(kind) if each.required}
        order = kind(**told)
        assert msgspec.json.decode(msgspec.json.encode(order), type=Order) == order


def test_what_undoes_a_drain_takes_no_more_than_the_drain_and_nothing_else_does() -> None:
    for order, role in (
        (orders.DrainReplica("us-1-r0"), Role.DRAIN),
        (orders.UndrainReplica("us-1-r0"), Role.DRAIN),
        (orders.AddReplica("us-1-r1"), Role.CHANGE),
        (orders.AddReplica("us-1-r0", "us-1", replica_document("us-1-r0")), Role.CHANGE),
        (orders.DrainGateway("us-1"), Role.DRAIN),
        (orders.UndrainGateway("us-1"), Role.DRAIN),
        (orders.AddGateway("us-1", client_addresses=("192.0.2.1",)), Role.CHANGE),
        (orders.AddGateway("eu-1"), Role.CHANGE),
        (orders.FreezeAll("drill"), Role.DRAIN),
        (orders.Unfreeze(), Role.DRAIN),
        (orders.RemoveReplica("us-1-r0"), Role.CHANGE),
        (orders.MoveReplicas(("us-1-r0",)), Role.CHANGE),
        (orders.ClearPolicy("us-east-1"), Role.CHANGE),
        (orders.Import({}), Role.CHANGE),
    ):
        assert role_needed(order) is role, order


def test_what_is_drained_or_removed_comes_back_and_leaves_no_trace() -> None:
    before = mesh()
    for out, back in (
        (orders.DrainReplica("us-1-r0"), orders.UndrainReplica("us-1-r0")),
        (orders.RemoveReplica("us-1-r0"), orders.AddReplica("us-1-r0")),
    ):
        without = after(before, out)
        assert ReplicaId("us-1-r0") not in {each.replica_id for each in without.replica_entries}
        assert after(without, back).texts == before.texts
    assert after(before, orders.DrainGateway("eu-1"), orders.UndrainGateway("eu-1")).texts == before.texts


def test_a_removed_gateway_takes_with_it_what_rests_on_it() -> None:
    registry = after(
        mesh(),
        orders.MoveReplicas(("us-1-r0",), to="eu-1"),
        orders.AddReplica("extra", "eu-1", replica_document("extra")),
        orders.RemoveGateway("eu-1"),
    )
    assert list(registry.gateways) == ["us-1"]
    assert list(registry.replicas) == ["us-1-r0", "us-1-r1"]
    assert registry.replica_orders == {}
    assert registry.is_removed(GatewayId("eu-1"))


def test_a_move_is_to_a_gateway_or_home() -> None:
    moved = after(mesh(), orders.MoveReplicas(("us-1-r0", "us-1-r1"), to="eu-1"))
    assert {each.pinned_to for each in moved.replica_entries if each.home == "us-1"} == {"eu-1"}
    for home in (orders.MoveReplicas(("us-1-r0", "us-1-r1")), orders.MoveReplicas(("us-1-r0", "us-1-r1"), to="us-1")):
        assert after(moved, home).texts == mesh().texts


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (orders.DrainReplica("nobody"), "replica 'nobody' is not registered"),
        (orders.AddReplica("nobody"), "replica 'nobody' is not registered"),
        (orders.AddReplica("x", "nobody", replica_document("x")), "gateway 'nobody', whose it would be"),
        (orders.AddReplica("x", "us-1", replica_document("y")), "calls itself y, not x"),
        (orders.AddReplica("eu-1-r0", "us-1", replica_document("eu-1-r0")), "replica eu-1-r0 is eu-1's already"),
        (orders.AddReplica("x", "us-1", "{"), "no JSON object"),
        (orders.MoveReplicas(("us-1-r0",), to="nobody"), "gateway 'nobody' is not registered"),
        (orders.MoveReplicas((), to="us-1"), "1 to 1000 replicas"),
        (orders.AddGateway("new"), "say in which region and jurisdiction"),
        (orders.AddGateway("new", "us-east-1", "EU"), "table has region us-east-1 in US, not in EU"),
        (orders.AddGateway("new", "us-east-1", ""), "written together"),
        (orders.AddGateway("a b", "us-east-1", "US"), "'a b' should be 1 to 64"),
        (orders.AddGateway("us-1", "us-east-1", "US"), "has announced itself"),
        (
            orders.AddGateway("us-9", "us-east-1", "US", ("0.0.0.0",)),
            "client_addresses: '0.0.0.0' is not an address of one",
        ),
        (orders.AddGateway("us-9", "us-east-1", "US", ("us-9",)), "client_addresses: 'us-9' is not an IP address"),
        (orders.RemoveGateway("nobody"), "gateway 'nobody' is not registered"),
        (orders.DrainGateway("nobody"), "gateway 'nobody' is not registered"),
        (
            orders.SetPolicy(policy(Place(RegionName("mars"), Jurisdiction("X")))),
            "region mars is not in the operators' table",
        ),
        (orders.SetPolicy(policy(Place(US.region, Jurisdiction("EU")))), "table has region us-east-1 in US, not in EU"),
        (orders.ClearPolicy("us-east-1"), "there is no policy for us-east-1"),
        (orders.SetParameters({"listen": {}}), "listen: only placement"),
        (orders.SetParameters({"queue": {"x": "y" * 70_000}}), "at most 65536"),
        (orders.SetPrices({"regions": "y" * 300_000}), "at most 262144"),
        (orders.Import({"owner/r": "us-1"}), "'owner/r' is no document that can be imported"),
        (orders.Import({"announced/us-1": "{}"}), "document announced/us-1 in the store cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_in_words(order: Order, why: str) -> None:
    with pytest.raises(OrderRefused, match=why):
        changes_of(order, mesh())


def test_every_section_that_the_page_names_can_be_set_for_all_gateways() -> None:
    page = (Path(__file__).parents[3] / "docs/concepts/controller.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| parameters |"))
    listed = re.findall(r"`(\w+)`", row.partition("sections ")[2].partition(":")[0])
    assert len(listed) > 5
    assert set(listed) == set(orders.PARAMETER_SECTIONS) == {each.name for each in fields(CoreConfig)}
    assert after(mesh(), orders.SetParameters({name: {} for name in listed})).parameters


def test_a_gateway_is_known_before_it_announces_itself_and_then_speaks_for_itself() -> None:
    place = AP
    added = after(
        mesh(), orders.AddGateway("ap-1", place.region, place.jurisdiction, ("192.0.2.9",), latitude=1.0, longitude=2.0)
    )
    entry = added.gateways[GatewayId("ap-1")].entry
    assert (entry.place, entry.addresses, entry.location is not None) == (place, ("192.0.2.9",), True)
    said = hello("ap-1", place, address="192.0.2.10")
    spoken = added.changed(added.announce(said))
    assert spoken.gateways[GatewayId("ap-1")].entry.addresses == ("192.0.2.10",)


def test_what_is_exported_makes_an_empty_controller_know_the_same() -> None:
    registry = after(
        mesh(),
        orders.MoveReplicas(("us-1-r0",), to="eu-1"),
        orders.SetPolicy(policy(US)),
        orders.SetParameters({"queue": {"length_max": 7}}),
        orders.SetPrices({"version": 1}),
        orders.FreezeAll("cables"),
    )
    exported = export_of(dict(registry.texts))
    assert after(registry_of({}, REGIONS), orders.Import(exported)).texts == registry.texts
    newer = after(mesh(), orders.DrainGateway("us-1"))
    imported = after(newer, orders.Import(exported))
    assert imported.texts == registry.texts, "orders are replaced whole"


def test_an_order_that_is_cleared_is_gone() -> None:
    given = (
        orders.SetPolicy(policy(US)),
        orders.SetParameters({"queue": {}}),
        orders.SetPrices({"version": 1}),
        orders.FreezeAll(),
    )
    cleared = (orders.ClearPolicy("us-east-1"), orders.ClearParameters(), orders.ClearPrices(), orders.Unfreeze())
    assert after(mesh(), *given, *cleared).texts == mesh().texts
