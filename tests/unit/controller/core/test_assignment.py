from __future__ import annotations

from msgspec.structs import replace

from controller.core.assignment import Assigner
from controller.core.health import GatewayHealth
from controller.core.state import MeshState
from controller.core.vocabulary import Condition, GrantRefusal
from gateway.core.kernel.residency import closed_policy
from gateway.core.vocabulary import GatewayId, ReplicaId
from tests.support.controller import AP, EU, SECOND, US, gateway, policy, replicas


def mesh_of(**conditions: Condition) -> MeshState:
    mesh = MeshState()
    places = {"us": US, "eu": EU, "ap": AP}
    for name, condition in conditions.items():
        mesh.gateways[GatewayId(name)] = gateway(name, places[name[:2]])
        health = mesh.health[GatewayId(name)] = GatewayHealth(0)
        health.condition = condition
    mesh.policies = {place.region: policy(place) for place in places.values()}
    return mesh


def own(mesh: MeshState, home: str, count: int) -> dict[ReplicaId, GatewayId]:
    added = replicas(home, count)
    mesh.replicas |= {each.replica_id: each for each in added}
    return {each.replica_id: each.home for each in added}


class TestWanted:
    def test_what_is_equally_near_is_shared(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, us3=Condition.UP)
        own(mesh, "us1", 10)
        owners = Assigner(mesh).wanted({}, 0).owners
        assert sorted(list(owners.values()).count(GatewayId(each)) for each in ("us2", "us3")) == [5, 5]

    def test_nobody_is_given_more_of_others_replicas_than_it_may_have_and_the_next_nearest_has_the_rest(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, eu1=Condition.UP)
        mesh.config = replace(mesh.config, adopted_max=3)
        own(mesh, "us1", 8)
        own(mesh, "us2", 5)
        wanted = Assigner(mesh).wanted({}, 0)
        served = [owner for each, owner in wanted.owners.items() if each.startswith("us1")]
        assert [served.count(GatewayId(each)) for each in ("us2", "eu1")] == [3, 3]
        why = "every gateway that may have it serves decisions.adopted_max of others' already"
        assert wanted.orphans == {"us1": (2, why)}
        again = Assigner(mesh).wanted(wanted.owners, 1)
        assert again == wanted, "who has it keeps it"

    def test_a_home_not_heard_of_yet_has_what_nobody_else_has_and_takes_nothing_from_others(self) -> None:
        mesh = mesh_of(us1=Condition.UNKNOWN, us2=Condition.UP)
        own(mesh, "us1", 2)
        taken = {ReplicaId("us1-r0"): GatewayId("us2")}
        assert Assigner(mesh).wanted(taken, 0).owners == {"us1-r0": "us2", "us1-r1": "us1"}

    def test_only_what_moves_without_need_moves_in_steps(self) -> None:
        mesh = mesh_of(us1=Condition.UP, us2=Condition.UP, eu1=Condition.DOWN)
        own(mesh, "us1", 8)
        own(mesh, "eu1", 8)
        assigner = Assigner(mesh)
        owners = dict.fromkeys(mesh.replicas, GatewayId("us2")) | own(mesh, "eu1", 8)
        moved = assigner.wanted(owners, 0).owners
        assert [each for each, owner in moved.items() if each.startswith("us1") and owner == "us1"] == [
            "us1-r0",
            "us1-r1",
        ]
        assert GatewayId("eu1") not in moved.values()
        assert assigner.next_step_ns() == SECOND
        assert assigner.wanted(moved, SECOND - 1).owners == moved

    def test_it_forgets_steps_that_are_no_longer_to_be_taken(self) -> None:
        mesh = mesh_of(us1=Condition.UP, us2=Condition.UP)
        own(mesh, "us1", 8)
        assigner = Assigner(mesh)
        assigner.wanted(dict.fromkeys(mesh.replicas, GatewayId("us2")), 0)
        assigner.wanted(dict.fromkeys(mesh.replicas, GatewayId("us1")), 1)
        assert assigner.next_step_ns() is None


class TestPools:
    """Pools whose prefill and decode workers must stay together."""

    def pooled(self, mesh: MeshState, home: str, count: int) -> dict[ReplicaId, GatewayId]:
        owned = own(mesh, home, count)
        mesh.replicas |= {each: replace(mesh.replicas[each], pool="chat") for each in owned}
        return owned

    def test_a_pool_moves_as_a_whole_to_one_of_those_equally_near(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, us3=Condition.UP)
        self.pooled(mesh, "us1", 9)
        owners = Assigner(mesh).wanted({}, 0).owners
        assert len(owners) == 9
        assert len(set(owners.values())) == 1

    def split(self, mesh: MeshState, home: str) -> tuple[list[ReplicaId], list[ReplicaId]]:
        """Add a pool of two prefill and two decode workers that needs a connector."""
        names = sorted(self.pooled(mesh, home, 4))
        for number, each in enumerate(names):
            part = "prefill" if number < 2 else "decode"
            mesh.replicas[each] = replace(mesh.replicas[each], part=part, needs=frozenset({"connector nixl"}))
        return names[:2], names[2:]

    def able(self, mesh: MeshState, *names: str) -> None:
        for name in map(GatewayId, names):
            mesh.gateways[name] = replace(mesh.gateways[name], abilities=frozenset({"connector nixl"}))

    def test_it_goes_only_to_a_gateway_that_can_serve_it(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, eu1=Condition.UP)
        self.split(mesh, "us1")
        self.able(mesh, "eu1")
        wanted = Assigner(mesh).wanted({}, 0)
        assert wanted.orphans == {}
        assert set(wanted.owners.values()) == {GatewayId("eu1")}

    def test_what_no_gateway_can_serve_is_told_and_assigned_once_one_can(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP)
        self.split(mesh, "us1")
        wanted = Assigner(mesh).wanted({}, 0)
        why = "no gateway that may have it can serve it: us2 lacks connector nixl"
        assert (wanted.owners, wanted.orphans) == ({}, {"us1": (4, why)})
        self.able(mesh, "us2")
        assert set(Assigner(mesh).wanted({}, 1).owners.values()) == {GatewayId("us2")}

    def test_what_one_gateway_left_out_goes_to_the_next_and_stays_there(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, eu1=Condition.UP)
        readers, writers = self.split(mesh, "us1")
        self.able(mesh, "us2", "eu1")
        owners = Assigner(mesh).wanted({}, 0).owners
        assert set(owners.values()) == {GatewayId("us2")}
        mesh.refusals = {GatewayId("us2"): {readers[0]: GrantRefusal("no key", SECOND)}}
        assert Assigner(mesh).wanted(owners, 1).owners == owners, "another worker of that part is served"
        mesh.refusals[GatewayId("us2")][readers[1]] = GrantRefusal("no key", SECOND)
        moved = Assigner(mesh).wanted(owners, 2).owners
        assert set(moved.values()) == {GatewayId("eu1")}
        mesh.refusals[GatewayId("eu1")] = {each: GrantRefusal("no place", SECOND) for each in writers}
        lost = Assigner(mesh).wanted(moved, 3)
        assert lost.owners == {}
        assert "eu1 left it out (no place); us2 left it out (no key)" in lost.orphans[GatewayId("us1")][1]
        del mesh.refusals[GatewayId("us2")]
        again = Assigner(mesh).wanted({}, 4).owners
        assert set(again.values()) == {GatewayId("us2")}, "it is offered again"

    def test_a_gateway_that_announces_no_abilities_keeps_what_it_has_and_is_given_nothing(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, eu1=Condition.UP)
        readers, writers = self.split(mesh, "us1")
        self.able(mesh, "eu1")
        owned = dict.fromkeys((*readers, *writers), GatewayId("us2"))
        assert Assigner(mesh).wanted(owned, 0).owners == owned
        mesh.replicas[readers[0]] = replace(mesh.replicas[readers[0]], pinned_to=GatewayId("us2"))
        assert Assigner(mesh).wanted(owned, 0).owners == owned, "nor does a pin to its owner ask"
        assert set(Assigner(mesh).wanted({}, 1).owners.values()) == {GatewayId("eu1")}

    def test_a_frozen_mesh_asks_for_residency_alone(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, eu1=Condition.UP)
        owned = dict.fromkeys((name for part in self.split(mesh, "us1") for name in part), GatewayId("us2"))
        mesh.refusals = {GatewayId("us2"): {each: GrantRefusal("no key", SECOND) for each in owned}}
        mesh.frozen = "by order"
        assert Assigner(mesh).wanted(owned, 0).owners == owned
        mesh.frozen = ""
        self.able(mesh, "eu1")
        assert set(Assigner(mesh).wanted(owned, 1).owners.values()) == {GatewayId("eu1")}
        mesh.frozen = "by order"
        mesh.policies[US.region] = closed_policy(US, "unreadable")
        assert Assigner(mesh).wanted(owned, 2).owners == {}

    def test_an_operator_cannot_move_it_to_a_gateway_that_cannot_serve_it(self) -> None:
        mesh = mesh_of(us1=Condition.UP, us2=Condition.UP)
        readers, _ = self.split(mesh, "us1")
        mesh.replicas[readers[0]] = replace(mesh.replicas[readers[0]], pinned_to=GatewayId("us2"))
        owners = Assigner(mesh).wanted(dict.fromkeys(mesh.replicas, GatewayId("us1")), 0).owners
        assert set(owners.values()) == {GatewayId("us1")}

    def test_it_goes_home_in_one_step(self) -> None:
        mesh = mesh_of(us1=Condition.UP, us2=Condition.UP)
        self.pooled(mesh, "us1", 9)
        moved = Assigner(mesh).wanted(dict.fromkeys(mesh.replicas, GatewayId("us2")), 0).owners
        assert set(moved.values()) == {GatewayId("us1")}

    def test_who_joins_a_pool_goes_where_most_of_it_is(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN, us2=Condition.UP, us3=Condition.UP)
        owned = list(self.pooled(mesh, "us1", 4))
        owners = Assigner(mesh).wanted(dict.fromkeys(owned[:3], GatewayId("us3")), 0).owners
        assert owners == dict.fromkeys(owned, GatewayId("us3"))

    def test_an_operator_who_moves_one_of_it_moves_all_of_it(self) -> None:
        mesh = mesh_of(us1=Condition.UP, us2=Condition.UP)
        owned = list(self.pooled(mesh, "us1", 4))
        mesh.replicas[owned[2]] = replace(mesh.replicas[owned[2]], pinned_to=GatewayId("us2"))
        moved = Assigner(mesh).wanted(dict.fromkeys(owned, GatewayId("us1")), 0).owners
        assert set(moved.values()) == {GatewayId("us2")}

    def test_what_nobody_may_have_is_counted_whole(self) -> None:
        mesh = mesh_of(us1=Condition.DOWN)
        self.pooled(mesh, "us1", 4)
        wanted = Assigner(mesh).wanted({}, 0)
        assert wanted.owners == {}
        assert wanted.orphans[GatewayId("us1")][0] == 4
