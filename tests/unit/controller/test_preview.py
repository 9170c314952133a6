from __future__ import annotations

from controller import orders
from controller.core import events
from controller.orders import changes_of
from controller.preview import Preview, StillLed, preview
from controller.registry import Registry, registry_of
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Place
from tests.fakes.attached import hello
from tests.support.controller import Told
from tests.support.core import AP, EU, REGIONS, US, policy, rule


def told(own: dict[Place, ResidencyPolicy] | None = None) -> tuple[Told, Registry]:
    """Three regions; by default the US accepts requests from the EU alone."""
    registry, mesh = registry_of({}, REGIONS), Told()
    own = own or {US: policy(US, accept=rule(EU)), EU: policy(EU), AP: policy(AP)}
    for name, place in (("us", US), ("eu", EU), ("ap", AP)):
        registry = registry.changed(registry.announce(hello(name, place, own=own[place])))
    mesh.tell(events.RegistryApplied(registry.gateway_entries, registry.replica_entries))
    mesh.connect("us", "eu", "ap", policies={"us": own[US], "ap": own[AP]})
    return mesh, registry


def look(mesh: Told, registry: Registry, order: orders.Order) -> Preview:
    changed = registry.changed(changes_of(order, registry))
    before = dict(mesh.core.owners), mesh.core.version, mesh.core.tree
    seen = preview(mesh.core, registry, changed, {}, mesh.now_ns)
    assert (dict(mesh.core.owners), mesh.core.version, mesh.core.tree) == before, "nothing is changed by asking"
    return seen


def test_what_it_says_is_what_happens_in_all_steps_together() -> None:
    mesh, registry = told()
    order = orders.DrainGateway("us")
    seen = look(mesh, registry, order)
    assert [(each.replica, each.before, each.after) for each in seen.moves] == [
        ("us-r0", "us", "eu"),
        ("us-r1", "us", "eu"),
    ]
    assert all(
        "policy policy-of-us-east-1 of us-east-1: accept names region eu-west-1" in each.why for each in seen.moves
    )
    assert seen.names, "clients are led elsewhere"
    changed = registry.changed(changes_of(order, registry))
    mesh.tell(events.RegistryApplied(changed.gateway_entries, changed.replica_entries))
    mesh.wait(10 * 10**9)
    assert mesh.owned_by("eu") == ["eu-r0", "eu-r1", "us-r0", "us-r1"]


def test_who_may_not_go_where_it_was_ordered_is_told_with_the_policy_that_says_so() -> None:
    mesh, registry = told()
    seen = look(mesh, registry, orders.MoveReplicas(("us-r0", "us-r1"), to="ap"))
    assert seen.moves == ()
    assert [each.why for each in seen.stays] == [
        f"{name} does not go to ap: policy policy-of-us-east-1 of us-east-1: "
        "accept names neither region ap-northeast-1 nor jurisdiction JP"
        for name in ("us-r0", "us-r1")
    ]
    mesh.kill("ap")
    (stay,) = look(mesh, registry, orders.MoveReplicas(("eu-r0",), to="ap")).stays[-1:]
    assert stay.why == "eu-r0 does not go to ap: ap is down"


def test_of_a_gateway_that_goes_its_replicas_go_too() -> None:
    mesh, registry = told()
    seen = look(mesh, registry, orders.RemoveGateway("ap"))
    assert [(each.replica, each.after, each.why) for each in seen.moves] == [
        ("ap-r0", None, "no gateway is to serve it"),
        ("ap-r1", None, "no gateway is to serve it"),
    ]
    assert GatewayId("ap") in mesh.core.gateways


def test_what_clients_would_reach_no_more_is_told_with_what_stands_against_it() -> None:
    """Replicas of the US may only go to Europe, while its clients are led to Japan, which forwards no requests
    elsewhere."""
    mesh, registry = told({US: policy(US, accept=rule(EU)), EU: policy(EU), AP: policy(AP, process=rule(AP))})
    seen = look(mesh, registry, orders.DrainGateway("us"))
    closed = "policy policy-of-ap-northeast-1 of ap-northeast-1: process names neither region eu-west-1"
    assert [(each.region, each.gateways, each.home, each.owner, each.replicas) for each in seen.unreachable] == [
        ("us-east-1", ("ap",), "us", "eu", 2),
        ("us-east-1", ("ap",), "eu", "eu", 2),
    ]
    assert all(each.why.startswith(closed) for each in seen.unreachable)


def test_where_everybody_sends_and_takes_everything_a_drain_leaves_nothing_unreachable() -> None:
    mesh, registry = told({US: policy(US), EU: policy(EU), AP: policy(AP)})
    seen = look(mesh, registry, orders.DrainGateway("us"))
    assert (seen.moves_in_all, seen.unreachable) == (2, ())


def test_a_drained_gateway_that_clients_and_replicas_cannot_leave_is_told() -> None:
    closed = {place: policy(place, accept=rule(place), process=rule(place)) for place in (US, EU, AP)}
    mesh, registry = told(closed)
    seen = look(mesh, registry, orders.DrainGateway("us"))
    assert seen.moves == ()
    assert seen.still_led == (StillLed(GatewayId("us"), (US.region,), 2),)
    open_mesh, open_registry = told({US: policy(US), EU: policy(EU), AP: policy(AP)})
    assert look(open_mesh, open_registry, orders.DrainGateway("us")).still_led == ()


def test_while_it_is_frozen_nothing_would_move() -> None:
    mesh, registry = told()
    frozen = registry.changed(changes_of(orders.FreezeAll("cables"), registry))
    mesh.tell(events.FreezeOrdered("cables"))
    seen = look(mesh, frozen, orders.DrainGateway("us"))
    assert (seen.moves, seen.frozen, seen.still_led) == ((), "cables", ())
