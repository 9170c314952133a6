from __future__ import annotations

from msgspec.structs import replace

from controller.core.assignment import Assigner
from controller.core.health import GatewayHealth
from controller.core.state import MeshState
from controller.core.vocabulary import Condition
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
