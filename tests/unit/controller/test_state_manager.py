from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller import documents
from controller.core.config import ControllerConfig
from controller.core.events import ControllerTimePassed, GatewayDisconnected, GatewayProbed, PeersHeard
from controller.core.vocabulary import Condition, HeardPeer
from controller.orders import FreezeAll, MoveReplicas, SetPolicy, changes_of
from controller.state_manager import Naming, StateManager
from controller.store.store import StoreUnavailable, StoreUnusable
from gateway.core.vocabulary import GatewayId, Place, PlaceRule, RegionName, ReplicaId
from mesh.naming.tree import NameServer, RecordTree
from tests.fakes.attached import hello
from tests.support.clock import StillClock
from tests.support.core import EU, US, policy, rule
from tests.support.desks import MemoryStore, running_desk
from tests.support.gateways import until

HELLOS = (hello("us-1", US), hello("eu-1", EU))


async def test_what_was_written_is_what_the_next_controller_begins_with() -> None:
    store = MemoryStore()
    async with running_desk(store) as manager:
        for each in HELLOS:
            await manager.register(each)
            manager.connected(each)
        await manager.change(changes_of(MoveReplicas(("us-1-r0",), to="eu-1"), manager.registry))
        await manager.change(changes_of(FreezeAll("cables"), manager.registry))
        await until(lambda: not manager.store_writer.pending)
        owners, version = dict(manager.core.owners), manager.core.version
        assert owners[ReplicaId("us-1-r0")] == "eu-1"
    async with running_desk(store) as manager:
        assert manager.core.owners == owners
        assert manager.core.version == version
        assert manager.core.frozen == "cables"
        assert manager.core.policies.keys() == {US.region, EU.region}
        assert {each.condition for each in manager.core.health.values()} == {Condition.UNKNOWN}
        assert manager.board.newest is not None
        assert manager.board.newest.owners == owners
        assert manager.store_writer.version.term == 4


async def test_nothing_goes_out_that_is_not_written_and_nothing_is_registered_that_could_not_be() -> None:
    store = MemoryStore()
    async with running_desk(store) as manager:
        await manager.register(HELLOS[0])
        manager.connected(HELLOS[0])
        await until(lambda: not manager.store_writer.pending)
        store.failures = [StoreUnavailable("full")]
        with pytest.raises(StoreUnavailable):
            await manager.register(HELLOS[1])
        assert list(manager.registry.gateways) == ["us-1"]
        await manager.register(HELLOS[1])
        await until(lambda: not manager.store_writer.pending)
        store.gate.clear()
        seen, attempts = manager.board.newest, store.attempts
        tighter = policy(EU, accept=rule(EU))
        manager.policy_changed(GatewayId("eu-1"), tighter)
        assert manager.core.policies[EU.region] == tighter
        await until(lambda: store.attempts > attempts)
        assert manager.board.newest is seen
        store.gate.set()
        await until(lambda: manager.board.newest is not seen)
        assert manager.board.newest is not None
        assert manager.board.newest.policies[EU.region] == tighter


async def test_a_policy_that_narrows_is_what_adoption_rests_on_until_it_is_cleared() -> None:
    async with running_desk(MemoryStore()) as manager:
        for each in HELLOS:
            await manager.register(each)
            manager.connected(each)
        await manager.change(changes_of(SetPolicy(policy(US, accept=rule(US))), manager.registry))
        assert not _accepted(manager, US).allows(EU)
        assert _accepted(manager, EU).allows(US)
        assert manager.board.newest is not None
        assert not manager.board.newest.policies[US.region].accept.allows(EU)
        await manager.change({documents.NARROWING + US.region: None})
        assert _accepted(manager, US).allows(EU)


async def test_a_policy_that_narrows_holds_over_a_restart_before_anything_is_assigned() -> None:
    store = MemoryStore()
    async with running_desk(store) as manager:
        for each in HELLOS:
            await manager.register(each)
        await manager.change(changes_of(SetPolicy(policy(US, accept=rule(US))), manager.registry))
        await until(lambda: not manager.store_writer.pending)
    async with running_desk(store) as manager:
        assert not _accepted(manager, US).allows(EU)
        assert manager.core.policies[US.region] == HELLOS[0].policy, "what a region says itself is kept as it says it"
        assert manager.board.newest is not None
        assert not manager.board.newest.policies[US.region].accept.allows(EU)


def _accepted(manager: StateManager, place: Place) -> PlaceRule:
    policy = manager.core.effective_policy(place.region)
    assert policy is not None
    return policy.accept


def test_a_document_that_cannot_be_read_is_not_begun_with() -> None:
    with pytest.raises(StoreUnusable, match="document policy/x"):
        documents.policies_in({"policy/x": b"{}"})


NAMING = Naming("mesh.test.", (NameServer("ns1.mesh.test."),), {RegionName("us-east-1"): ("192.0.2.0/24",)}, 8443)


async def test_what_the_name_says_is_told_at_once_and_its_version_rises_over_restarts() -> None:
    store = MemoryStore()
    heard: list[RecordTree] = []
    async with running_desk(store, NAMING) as manager:
        manager.on_records(heard.append)
        store.gate.clear()
        writing = manager.register(HELLOS[0])
        store.gate.set()
        await writing
        assert (heard[-1].zone, heard[-1].port, heard[-1].areas[0].networks) == ("mesh.test.", 8443, ("192.0.2.0/24",))
        first = heard[-1].version
        await manager.register(HELLOS[1])
        assert heard[-1].version == first + 1
        await until(lambda: not manager.store_writer.pending)
    async with running_desk(store, NAMING) as manager:
        again: list[RecordTree] = []
        manager.on_records(again.append)
        assert again == [replace(heard[-1], version=first + 2)], "nobody knows what was said and not written"
        manager.configure(ControllerConfig(), NAMING)
        assert len(again) == 1, "the same words have the same version"
        manager.configure(ControllerConfig(), Naming("other.test."))
        assert (again[-1].zone, again[-1].version) == ("other.test.", first + 3)


async def store_with_us_down() -> MemoryStore:
    """Store of a controller whose gateway `us-1` was killed."""
    store, us = MemoryStore(), GatewayId("us-1")
    async with running_desk(store, NAMING) as manager:
        for each in HELLOS:
            await manager.register(each)
            manager.connected(each)
        manager.driver.submit(GatewayDisconnected(us, "it was killed"))
        manager.driver.submit(PeersHeard(GatewayId("eu-1"), (HeardPeer(us, None, is_broken=True),)))
        for _ in range(3):
            manager.driver.submit(GatewayProbed(us, healthy=False, was_refused=True))
        assert manager.core.health[us].condition is Condition.DOWN
        await until(lambda: not manager.store_writer.pending)
    return store


async def test_who_was_down_is_not_named_by_the_next_controller_until_it_answers() -> None:
    store, us = await store_with_us_down(), GatewayId("us-1")
    clock = StillClock(1)
    async with running_desk(store, NAMING, clock=clock) as manager:
        assert manager.core.health[us].condition is Condition.DOWN
        assert manager.records is not None
        named = {name for area in manager.records.areas for name in area.gateways}
        assert named == {"eu-1"}
        manager.connected(HELLOS[1])
        assert not manager.core.frozen, "it is not missing: it was known to be gone"
        manager.connected(HELLOS[0])
        assert manager.core.health[us].condition is Condition.RETURNING
        clock.now += 60 * 10**9
        manager.driver.submit(ControllerTimePassed())
        assert manager.core.health[us].condition is Condition.UP
        await until(lambda: not manager.store_writer.pending)
        assert not documents.down_in(store.documents)


async def test_one_that_its_clients_rely_on_is_not_remembered_as_down() -> None:
    store, us = await store_with_us_down(), GatewayId("us-1")
    assert documents.down_in(store.documents)
    async with running_desk(store, NAMING) as manager:
        manager.configure(ControllerConfig(closed_jurisdictions=frozenset({US.jurisdiction})), NAMING)
        for each in HELLOS:
            manager.connected(each)
        manager.driver.submit(GatewayProbed(us, healthy=True))
        assert manager.core.health[us].condition is Condition.ALONE
        await until(lambda: not manager.store_writer.pending)
        assert not documents.down_in(store.documents)


async def test_one_that_is_removed_is_not_remembered_as_down() -> None:
    store = MemoryStore({documents.DOWN + "us-9": b""})
    async with running_desk(store) as manager:
        await until(lambda: not manager.store_writer.pending)
        assert not documents.down_in(store.documents)


async def test_a_zones_serial_never_goes_back_with_a_store_that_was_lost_or_took_nothing() -> None:
    store = MemoryStore()
    async with running_desk(store, NAMING, wall_s=1_790_000_000) as manager:
        heard: list[RecordTree] = []
        manager.on_records(heard.append)
        await manager.register(HELLOS[0])
        await until(lambda: not manager.store_writer.pending)
        written = dict(store.documents)
        await manager.register(HELLOS[1])
        assert [each.version for each in heard] == [1_790_000_000, 1_790_000_001]
    for found in ({}, written):
        async with running_desk(MemoryStore(found), NAMING, wall_s=1_790_000_007) as manager:
            manager.on_records(heard.append)
            await manager.register(HELLOS[0])
            assert heard[-1].version >= 1_790_000_007
            assert heard[-1].areas


async def test_a_gateway_whose_words_are_known_writes_nothing() -> None:
    store = MemoryStore()
    async with running_desk(store) as manager:
        await manager.register(HELLOS[0])
        await until(lambda: not manager.store_writer.pending)
        writes = len(store.writes)
        await manager.register(HELLOS[0])
        assert len(store.writes) == writes
        assert manager.registry.gateways.keys() == {GatewayId("us-1")}
