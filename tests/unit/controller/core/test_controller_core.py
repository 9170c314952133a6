from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from controller.core import effects, events
from controller.core.config import ControllerConfig
from controller.core.vocabulary import Condition, GatewayEntry, GrantRefusal
from gateway.core.kernel.residency import ResidencyPolicy, closed_policy, may_accept
from gateway.core.vocabulary import GatewayId, PlaceRule, ReplicaId
from tests.support.controller import AP, EU, MS, SECOND, US, Told, gateway, mesh, policy, replicas
from tests.support.core import rule as rule_of
from tests.support.nightly import examples

EVERYTHING = 4
FURTHER = ControllerConfig(further_gateways=1)


def leave_out(told: Told, gateway_id: str, *replica_ids: str) -> None:
    left_out = tuple((ReplicaId(each), "no key") for each in replica_ids)
    told.tell(events.GrantsLeftOut(GatewayId(gateway_id), left_out))


class _Counted(dict[GatewayId, dict[ReplicaId, GrantRefusal]]):
    """Refusals that count how often they are looked through."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def values(self) -> Any:
        self.looks += 1
        return super().values()


class TestLeftOut:
    """Granted replicas that their gateway cannot serve."""

    def test_they_are_offered_to_the_next_gateway_and_to_the_first_again_after_a_while(self) -> None:
        told = mesh()
        told.kill("eu")
        assert "eu-r0" in told.owned_by("us")
        leave_out(told, "us", "eu-r0")
        assert [each for each in told.owned_by("ap") if each.startswith("eu")] == ["eu-r0"]
        leave_out(told, "ap", "eu-r0")
        assert told.last(effects.TellOrphans).replicas == 1
        assert "us left it out (no key)" in told.last(effects.TellOrphans).why
        version = told.core.version
        leave_out(told, "ap", "eu-r0")
        assert told.core.version == version, "a repeated report changes nothing"
        told.wait(told.core.config.left_out_retry_ns)
        assert told.last(effects.TellOrphans).replicas == 0
        assert "eu-r0" in told.owned_by("us")

    def test_another_process_of_a_gateway_is_offered_them_at_once(self) -> None:
        told = mesh()
        told.kill("eu")
        leave_out(told, "us", "eu-r0")
        leave_out(told, "ap", "eu-r0")
        assert told.core.orphans
        told.connect("us")
        assert not told.core.orphans
        assert "eu-r0" in told.owned_by("us")

    def test_so_is_one_that_announces_something_else(self) -> None:
        told = mesh()
        told.kill("eu")
        leave_out(told, "us", "eu-r0")
        leave_out(told, "ap", "eu-r0")
        changed = replace(told.core.gateways[GatewayId("ap")], abilities=frozenset({"connector nixl"}))
        told.register([told.core.gateways[GatewayId("us")], changed, gateway("eu", EU)], told.core.replicas.values())
        assert "eu-r0" in told.owned_by("ap")

    def test_so_is_a_replica_that_is_announced_anew(self) -> None:
        told = mesh()
        told.kill("eu")
        leave_out(told, "us", "eu-r0", "eu-r1")
        leave_out(told, "ap", "eu-r0", "eu-r1")
        same = tuple(told.core.replicas.values())
        told.register(told.core.gateways.values(), same)
        assert told.core.orphans[GatewayId("eu")][0] == 2, "nothing of it has changed"
        mended = [replace(each, digest="another") if each.replica_id == "eu-r0" else each for each in same]
        told.register(told.core.gateways.values(), mended)
        assert "eu-r0" in told.owned_by("us")
        assert told.core.orphans[GatewayId("eu")][0] == 1

    def test_refusals_are_looked_through_only_once_one_may_have_ended(self) -> None:
        told = mesh()
        told.kill("eu")
        leave_out(told, "us", "eu-r0")
        counted = _Counted(told.core.refusals)
        told.core.refusals = counted
        for _ in range(20):
            told.heard("us", "ap")
            told.core.next_wakeup_ns()
        assert counted.looks == 0
        told.wait(told.core.config.left_out_retry_ns)
        assert counted.looks > 0
        assert not told.core.refusals
        assert told.core.next_wakeup_ns() is None

    def test_a_refusal_that_is_renewed_lasts(self) -> None:
        told = mesh()
        told.kill("eu")
        leave_out(told, "us", "eu-r0")
        told.wait(told.core.config.left_out_retry_ns - 1)
        leave_out(told, "us", "eu-r0")
        told.wait(told.core.config.left_out_retry_ns - 1)
        assert "eu-r0" not in told.owned_by("us")
        told.wait(1)
        assert not told.core.refusals

    def test_a_home_keeps_what_it_leaves_out_of_its_own(self) -> None:
        told = mesh()
        leave_out(told, "us", "us-r0", "unheard-of")
        assert "us-r0" in told.owned_by("us")
        assert not told.core.refusals


class TestDown:
    def test_a_killed_gateway_is_down_and_its_replicas_are_with_the_nearest(self) -> None:
        told = mesh()
        told.kill("eu")
        assert told.condition("eu") is Condition.DOWN
        assert len(told.owned_by("us")) == 2 * EVERYTHING
        assert told.owned_by("eu") == []
        assert told.last(effects.StartRecovery).gateway_id == "eu"
        assert told.now_ns < SECOND

    def test_probes_alone_take_nothing_away(self) -> None:
        told = mesh()
        told.probe("eu", times=100)
        assert told.condition("eu") is Condition.UP

    def test_nor_does_a_broken_stream(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.wait(600 * SECOND)
        assert told.condition("eu") is Condition.UP

    def test_nor_do_both_while_a_peer_hears_it(self) -> None:
        told = mesh()
        told.disconnect("eu")
        for _ in range(100):
            told.heard("us", "eu")
            told.probe("eu")
        assert told.condition("eu") is Condition.UP

    def test_a_peer_that_we_do_not_hear_is_no_witness(self) -> None:
        told = Told()
        told.register([gateway(name) for name in ("a", "b", "c", "d")], replicas("a", 2))
        told.connect("a", "b", "c", "d")
        told.heard("b", "a")
        told.heard("c", "a", is_broken=True)
        told.heard("d", "a", is_broken=True)
        told.disconnect("b")
        told.disconnect("a")
        told.probe("a", times=3)
        assert told.condition("a") is Condition.DOWN

    def test_a_host_that_fell_silent_takes_the_stale_time_more(self) -> None:
        told = mesh()
        told.heard("us", "eu")
        told.heard("ap", "eu")
        heard_ns = told.now_ns
        told.disconnect("eu")
        told.probe("eu", times=5)
        assert told.condition("eu") is Condition.UP
        told.wait(60 * SECOND)
        assert told.condition("eu") is Condition.DOWN
        down = [each for each in told.all(effects.TellCondition) if each.condition is Condition.DOWN]
        assert len(down) == 1
        assert told.core.config.silence_ns >= 3 * SECOND
        assert told.core.health[GatewayId("eu")].said_by[GatewayId("us")].heard_ns == heard_ns

    def test_a_report_without_a_gateway_is_newer_than_the_silence_of_that_gateway(self) -> None:
        told = mesh()
        told.heard("us", "eu")
        told.disconnect("eu")
        told.probe("eu", times=3)
        for _ in range(4):
            told.wait(SECOND)
            told.heard("us", "ap")
        assert told.condition("eu") is Condition.DOWN

    def test_one_that_was_never_heard_of_is_left_alone_for_a_while(self) -> None:
        told = Told()
        told.register([gateway("us", US), gateway("eu", EU)], [*replicas("us", 1), *replicas("eu", 3)])
        told.connect("us", policies={"us": policy(US)})
        told.tell(events.PolicyAccepted(GatewayId("eu"), policy(EU)))
        told.probe("eu", times=3)
        told.wait(20 * SECOND)
        assert told.owned_by("eu") == ["eu-r0", "eu-r1", "eu-r2"]
        told.wait(20 * SECOND)
        assert told.condition("eu") is Condition.DOWN
        assert len(told.owned_by("us")) == 4

    def test_a_controller_that_hears_no_gateway_calls_none_down(self) -> None:
        told = Told()
        gateways = [gateway("us", US), gateway("eu", EU), gateway("ap", AP)]
        told.register(gateways, [each for entry in gateways for each in replicas(entry.gateway_id, 2)])
        for each in gateways:
            told.tell(events.PolicyAccepted(each.gateway_id, policy(each.place)))
        for each in gateways:
            told.probe(each.gateway_id, times=3)
        owners = dict(told.core.owners)
        told.wait(600 * SECOND)
        told.connect("us")
        told.wait(20 * SECOND)
        assert not told.all(effects.StartRecovery)
        assert dict(told.core.owners) == owners
        told.wait(20 * SECOND)
        assert [told.condition(each.gateway_id) for each in gateways] == [Condition.UP, *[Condition.DOWN] * 2]

    def test_one_that_has_never_announced_itself_is_neither_named_nor_called_down(self) -> None:
        told = mesh()
        added = replace(gateway("us-2", US), is_announced=False)
        told.register([*told.core.gateways.values(), added], told.core.replicas.values())
        told.heard("us", "us-2", is_broken=True)
        told.probe("us-2", times=3, was_refused=True)
        told.wait(600 * SECOND)
        assert told.condition("us-2") is Condition.UNKNOWN
        assert "us-2" not in {name for area in told.last(effects.PublishRecords).tree.areas for name in area.gateways}
        told.connect("us-2")
        assert "us-2" in {name for area in told.last(effects.PublishRecords).tree.areas for name in area.gateways}

    def test_one_that_died_while_nobody_looked_is_down_as_soon_as_that_is_proven(self) -> None:
        told = Told()
        told.register([gateway("us", US), gateway("eu", EU)], [*replicas("us", 1), *replicas("eu", 3)])
        told.connect("us", policies={"us": policy(US)})
        told.tell(events.PolicyAccepted(GatewayId("eu"), policy(EU)))
        told.heard("us", "eu", is_broken=True)
        told.probe("eu", times=3, was_refused=True)
        assert told.condition("eu") is Condition.DOWN
        assert len(told.owned_by("us")) == 4


class TestReturn:
    def test_it_is_watched_before_it_gets_anything_back_and_then_step_by_step(self) -> None:
        told = mesh(ControllerConfig(step_share=0.5))
        told.kill("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        assert told.condition("eu") is Condition.RETURNING
        assert told.owned_by("eu") == []
        told.wait(told.core.config.return_after_ns)
        assert told.condition("eu") is Condition.UP
        assert len(told.owned_by("eu")) == 2
        told.wait(told.core.config.step_ns)
        assert len(told.owned_by("eu")) == EVERYTHING

    def test_one_that_was_cut_off_once_is_up_at_once_and_is_watched_from_the_second_time_on(self) -> None:
        told = mesh(ControllerConfig(step_share=0.5))
        told.cut_off("eu")
        assert told.condition("eu") is Condition.DOWN
        told.connect("eu")
        assert told.condition("eu") is Condition.RETURNING
        told.probe("eu", healthy=True)
        assert told.condition("eu") is Condition.UP
        assert len(told.owned_by("eu")) == 2
        told.cut_off("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        assert told.condition("eu") is Condition.RETURNING
        assert told.owned_by("eu") == []

    def test_whoever_flaps_waits_twice_as_long_each_time_up_to_a_limit(self) -> None:
        told = mesh(ControllerConfig(return_after_max_ns=20 * SECOND))
        waits = []
        for _ in range(5):
            told.kill("eu")
            told.connect("eu")
            back_ns = told.core.health[GatewayId("eu")].back_at_ns(told.core.config)
            assert back_ns is not None
            waits.append((back_ns - told.now_ns) // SECOND)
            told.wait(back_ns - told.now_ns)
        assert waits == [5, 10, 20, 20, 20]

    def test_what_was_steady_has_earned_the_short_time_again(self) -> None:
        told = mesh()
        for _ in range(3):
            told.kill("eu")
            told.connect("eu")
            told.wait(60 * SECOND)
        told.wait(told.core.config.steady_after_ns)
        told.kill("eu")
        assert told.core.health[GatewayId("eu")].falls == 1

    def test_one_that_breaks_off_while_it_is_watched_is_down_again(self) -> None:
        told = mesh()
        told.kill("eu")
        told.connect("eu")
        told.disconnect("eu")
        assert told.condition("eu") is Condition.DOWN
        assert told.owned_by("eu") == []

    def test_one_whose_clients_may_be_sent_to_no_other_serves_them_while_it_is_watched_and_nobody_else(self) -> None:
        told = self.closed_mesh()
        for fall in range(3):
            told.kill("eu")
            assert self.named(told) == ()
            told.connect("eu")
            assert self.named(told) == (), "it has not answered yet"
            told.probe("eu", healthy=True)
            assert told.condition("eu") is Condition.ALONE
            assert self.named(told) == ("eu",)
            tree = told.last(effects.PublishRecords).tree
            assert set(tree.anywhere).isdisjoint(told.core.gateways[GatewayId("eu")].addresses)
            assert all("eu" not in area.gateways for area in tree.areas if area.region != EU.region)
            told.wait(3 * told.core.config.step_ns)
            assert told.owned_by("eu") == [f"eu-r{number}" for number in range(EVERYTHING)]
            told.kill("us")
            assert not any(each.startswith("us") for each in told.owned_by("eu")), "it adopts nothing"
            told.connect("us")
            told.probe("us", healthy=True)
            told.wait(told.core.config.return_after_ns << fall)
            assert told.condition("eu") is Condition.UP

    def test_one_that_is_alone_is_down_only_as_one_that_was_up_would_be(self) -> None:
        told = self.alone_mesh()
        told.wait(3 * told.core.config.step_ns)
        told.probe("eu")
        assert self.named(told) == ("eu",)
        told.disconnect("eu")
        for _ in range(told.core.config.probe_failures_min):
            told.heard("us", "eu")
            told.probe("eu")
        assert (told.condition("eu"), self.named(told)) == (Condition.ALONE, ("eu",)), "a peer hears it"
        assert len(told.owned_by("eu")) == EVERYTHING
        told.kill("eu")
        assert (told.condition("eu"), self.named(told)) == (Condition.DOWN, ())
        assert told.owned_by("eu") == []
        assert [each.gateway_id for each in told.all(effects.StartRecovery)] == ["eu", "eu"]
        assert told.core.health[GatewayId("eu")].falls == 2
        told.connect("eu")
        assert self.named(told) == (), "another process may have come back"

    @pytest.mark.parametrize("is_ordered", [True, False])
    def test_a_freeze_protects_one_that_is_alone(self, *, is_ordered: bool) -> None:
        told = self.alone_mesh()
        if is_ordered:
            told.tell(events.FreezeOrdered("maintenance"))
        else:
            told.disconnect("us")
            told.disconnect("ap")
        assert told.core.frozen
        told.disconnect("eu")
        told.probe("eu", times=told.core.config.probe_failures_min, was_refused=True)
        assert (told.condition("eu"), self.named(told)) == (Condition.ALONE, ("eu",))

    def test_an_answer_counts_until_the_stream_breaks_also_for_one_that_is_alone_later(self) -> None:
        told = self.closed_mesh(gateway("eu2", EU))
        told.kill("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        told.probe("eu")
        assert told.condition("eu") is Condition.RETURNING
        told.kill("eu2")
        assert (told.condition("eu"), self.named(told)) == (Condition.ALONE, ("eu",))

    def test_of_those_that_return_a_drained_one_is_named_only_by_itself(self) -> None:
        told = self.closed_mesh(gateway("eu2", EU))
        for name in ("eu", "eu2"):
            told.kill(name)
        drained = [replace(each, is_drained=each.gateway_id == "eu") for each in told.core.gateways.values()]
        told.register(drained, told.core.replicas.values())
        for name, named in (("eu", ("eu",)), ("eu2", ("eu2",))):
            told.connect(name)
            told.probe(name, healthy=True)
            assert self.named(told) == named

    def test_one_that_another_stands_in_for_has_nothing_while_it_is_watched(self) -> None:
        told = self.closed_mesh(gateway("eu2", EU))
        told.kill("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        assert self.named(told) == ("eu2",)
        assert told.owned_by("eu") == []
        told.kill("eu2")
        assert self.named(told) == ("eu",)

    def test_one_that_was_alone_keeps_what_it_has_once_another_stands_in_for_it(self) -> None:
        told = self.closed_mesh(gateway("eu2", EU))
        told.kill("eu")
        told.connect("eu")
        told.wait(told.core.config.return_after_ns)
        for name in ("eu", "eu2"):
            told.kill(name)
        for name in ("eu", "eu2"):
            told.connect(name)
            told.probe(name, healthy=True)
        told.wait(3 * told.core.config.step_ns)
        own = told.owned_by("eu")
        assert len(own) == EVERYTHING
        told.wait(told.core.config.return_after_ns - 3 * told.core.config.step_ns)
        assert (told.condition("eu2"), told.condition("eu")) == (Condition.UP, Condition.ALONE)
        assert self.named(told) == ("eu2",)
        assert told.owned_by("eu") == own
        told.wait(told.core.config.return_after_ns)
        assert told.condition("eu") is Condition.UP
        assert told.owned_by("eu") == own

    def test_two_that_return_together_are_named_together(self) -> None:
        told = self.closed_mesh(gateway("eu2", EU))
        for name in ("eu", "eu2"):
            told.kill(name)
        for name in ("eu", "eu2"):
            told.connect(name)
            told.probe(name, healthy=True)
        assert self.named(told) == ("eu", "eu2")

    def test_one_without_addresses_stands_in_for_nobody(self) -> None:
        told = self.closed_mesh(replace(gateway("eu2", EU), addresses=()))
        told.kill("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        assert self.named(told) == ("eu",)

    def test_of_all_that_return_each_is_named_to_its_own_clients_and_the_last_records_stay_for_others(self) -> None:
        told = self.dead_mesh()
        before = told.core.tree
        assert before is not None
        named = dict.fromkeys((US.region, EU.region, AP.region), ("ap",))
        for name, place in (("us", US), ("eu", EU), ("ap", AP)):
            assert told.condition(name) is Condition.DOWN
            told.connect(name)
            told.probe(name, healthy=True)
            named[place.region] = (name,)
            assert told.core.tree is not None
            assert {each.region: each.gateways for each in told.core.tree.areas} == named
            assert told.core.tree.anywhere == before.anywhere
            assert len(told.owned_by(name)) <= EVERYTHING

    def test_the_last_records_lead_no_client_where_it_may_not_be_sent_any_more_nor_to_who_was_removed(self) -> None:
        told = self.dead_mesh()
        (us, eu, ap), owned = told.core.gateways.values(), told.core.replicas.values()
        closed = ControllerConfig(closed_jurisdictions=frozenset({EU.jurisdiction}))
        told.tell(events.ControllerConfigApplied(closed))
        told.connect("us")
        told.probe("us", healthy=True)
        named = {each.region: each.gateways for each in told.last(effects.PublishRecords).tree.areas}
        assert named == {US.region: ("us",), EU.region: (), AP.region: ("ap",)}
        told.register([us, eu], [each for each in owned if each.home != "ap"])
        told.probe("us")
        tree = told.last(effects.PublishRecords).tree
        assert {each.region: each.gateways for each in tree.areas} == {US.region: ("us",), EU.region: ()}
        assert tree.anywhere == ap.addresses, "nothing else is known of clients from anywhere"

    def test_one_without_addresses_has_its_own_while_it_is_watched(self) -> None:
        told = self.closed_mesh()
        nameless = [replace(each, addresses=()) for each in told.core.gateways.values()]
        told.register(nameless, told.core.replicas.values())
        told.kill("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        assert told.condition("eu") is Condition.ALONE

    def test_an_answer_of_the_process_before_is_none_of_a_newer_stream(self) -> None:
        told = self.closed_mesh(gateway("eu2", EU))
        told.kill("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        told.connect("eu")
        told.kill("eu2")
        assert (told.condition("eu"), self.named(told)) == (Condition.RETURNING, ())

    def test_a_drained_one_is_named_and_has_no_replicas(self) -> None:
        told = self.closed_mesh()
        told.kill("eu")
        drained = [replace(each, is_drained=each.gateway_id == "eu") for each in told.core.gateways.values()]
        told.register(drained, told.core.replicas.values())
        told.connect("eu")
        told.probe("eu", healthy=True)
        assert self.named(told) == ("eu",)
        assert told.owned_by("eu") == []

    @staticmethod
    def dead_mesh() -> Told:
        """A mesh whose gateways were killed one after the other, `ap` as the last."""
        told = mesh()
        told.tell(events.FreezeLifted())
        for name in ("us", "eu", "ap"):
            told.kill(name)
        told.tell(events.FreezeLifted())
        told.probe("ap", times=3, was_refused=True)
        return told

    def alone_mesh(self) -> Told:
        """A mesh whose EU is closed, with one gateway there, which has come back."""
        told = self.closed_mesh()
        told.kill("eu")
        told.connect("eu")
        told.probe("eu", healthy=True)
        assert told.condition("eu") is Condition.ALONE
        return told

    @staticmethod
    def closed_mesh(*more: GatewayEntry) -> Told:
        """A mesh whose EU is closed, with one gateway there and these."""
        told = Told(ControllerConfig(closed_jurisdictions=frozenset({EU.jurisdiction})))
        gateways = [gateway("us", US), gateway("eu", EU), gateway("ap", AP), *more]
        told.register(gateways, [each for entry in gateways for each in replicas(entry.gateway_id, 4)])
        told.connect(*(each.gateway_id for each in gateways))
        return told

    @staticmethod
    def named(told: Told) -> tuple[str, ...]:
        """Gateways that the name leads the EU's clients to."""
        tree = told.last(effects.PublishRecords).tree
        (area,) = [each for each in tree.areas if each.region == EU.region]
        return area.gateways


class TestFrozen:
    def test_losing_most_at_once_is_taken_for_our_own_fault(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.disconnect("ap")
        for name in ("eu", "ap"):
            told.heard("us", name, is_broken=True)
            told.probe(name, times=10)
        assert "ap, eu are missing" in told.core.frozen
        assert len(told.owned_by("eu")) == EVERYTHING
        assert told.condition("eu") is Condition.UP

    def test_it_ends_when_they_are_there_again(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.disconnect("ap")
        told.connect("ap")
        assert told.core.frozen == ""
        assert told.last(effects.TellFrozen).reason == ""

    def test_it_is_believed_at_last_where_somebody_who_is_heard_says_the_same(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.disconnect("ap")
        for name in ("eu", "ap"):
            told.heard("us", name, is_broken=True)
            told.probe(name, times=10)
        told.wait(told.core.config.freeze_max_ns)
        assert told.core.frozen == ""
        assert len(told.owned_by("us")) == 3 * EVERYTHING

    def test_proof_that_they_are_gone_is_believed_at_once_however_many_they_are(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.disconnect("ap")
        assert told.core.frozen
        for name in ("eu", "ap"):
            told.heard("us", name, is_broken=True)
            told.probe(name, times=told.core.config.probe_failures_min, was_refused=True)
        assert told.core.frozen == ""
        assert told.now_ns < SECOND
        assert len(told.owned_by("us")) == 3 * EVERYTHING

    def test_one_witness_is_no_proof(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.disconnect("ap")
        for name in ("eu", "ap"):
            told.probe(name, times=10, was_refused=True)
        assert told.core.frozen
        assert len(told.owned_by("eu")) == EVERYTHING

    def test_nor_is_a_peer_that_hears_it(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.disconnect("ap")
        for name in ("eu", "ap"):
            told.heard("us", name)
            told.probe(name, times=10, was_refused=True)
        assert told.core.frozen

    def test_what_was_proven_gone_does_not_count_once_it_was_heard_again(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.heard("us", "eu", is_broken=True)
        told.probe("eu", times=3, was_refused=True)
        assert told.condition("eu") is Condition.DOWN
        told.connect("eu")
        told.disconnect("eu")
        told.disconnect("ap")
        assert "ap, eu are missing" in told.core.frozen

    def test_with_nobody_left_it_never_ends_by_itself(self) -> None:
        told = mesh()
        for name in ("us", "eu", "ap"):
            told.disconnect(name)
        for name in ("us", "eu", "ap"):
            told.probe(name, times=10)
        told.wait(3600 * SECOND)
        assert told.core.frozen
        assert all(len(told.owned_by(name)) == EVERYTHING for name in ("us", "eu", "ap"))

    def test_an_operator_lifts_it(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.disconnect("ap")
        for name in ("eu", "ap"):
            told.heard("us", name, is_broken=True)
            told.probe(name, times=10)
        told.tell(events.FreezeLifted())
        assert len(told.owned_by("us")) == 3 * EVERYTHING

    def test_by_order_nothing_moves_until_it_is_lifted(self) -> None:
        told = mesh()
        told.tell(events.FreezeOrdered("maintenance of the network"))
        told.kill("eu")
        told.wait(3600 * SECOND)
        assert len(told.owned_by("eu")) == EVERYTHING
        told.tell(events.FreezeLifted())
        assert told.owned_by("eu") == []

    def test_the_only_gateway_of_a_mesh_cannot_freeze_it(self) -> None:
        told = Told()
        told.register([gateway("us")], replicas("us", 1))
        told.connect("us")
        told.disconnect("us")
        assert told.core.frozen == ""


class TestResidency:
    def test_a_home_that_accepts_nobodys_traffic_is_adopted_by_nobody(self) -> None:
        told = mesh()
        told.tell(events.PolicyAccepted(GatewayId("eu"), policy(EU, accept=PlaceRule())))
        told.kill("eu")
        assert told.owned_by("us") == ["us-r0", "us-r1", "us-r2", "us-r3"]
        orphans = told.last(effects.TellOrphans)
        assert (orphans.gateway_id, orphans.replicas) == ("eu", EVERYTHING)
        assert "eu-west-1" in orphans.why

    def test_the_nearest_that_is_allowed_and_not_the_nearest(self) -> None:
        told = mesh()
        told.tell(events.PolicyAccepted(GatewayId("eu"), policy(EU, accept=PlaceRule(regions=frozenset({AP.region})))))
        told.kill("eu")
        assert len(told.owned_by("ap")) == 2 * EVERYTHING

    def test_a_policy_that_changes_takes_back_what_it_no_longer_allows(self) -> None:
        told = Told()
        told.register([gateway("eu1", EU), gateway("eu2", EU), gateway("us", US)], replicas("eu1", 2))
        told.connect("us", "eu2", "eu1")
        told.kill("eu1")
        assert told.owned_by("eu2") == ["eu1-r0", "eu1-r1"]
        told.tell(events.PolicyAccepted(GatewayId("eu2"), closed_policy(EU, "unreadable")))
        assert told.owned_by("eu2") == []

    def test_while_a_file_is_rolled_out_only_what_all_gateways_of_the_region_report_is_allowed(self) -> None:
        wide, narrow = policy(EU), replace(policy(EU, accept=PlaceRule()), digest="narrow")
        told = Told()
        told.register([gateway("eu1", EU), gateway("eu2", EU)], [])
        for each, reported, is_wide in (
            ("eu1", wide, True), ("eu2", wide, True), ("eu1", narrow, False), ("eu2", wide, False),
            ("eu2", narrow, False), ("eu2", wide, False), ("eu1", wide, True),
        ):  # fmt: skip
            told.tell(events.PolicyAccepted(GatewayId(each), reported))
            assert told.core.policies[EU.region].accept == (wide.accept if is_wide else PlaceRule())
            assert told.last(effects.KeepPolicy).policy == told.core.policies[EU.region]

    def test_a_stored_policy_counts_until_each_gateway_of_the_region_has_reported_its_own(self) -> None:
        told, narrow = Told(), policy(EU, accept=PlaceRule())
        told.tell(events.StateRestored(1, (), (narrow,), ()))
        told.register([gateway("eu1", EU), gateway("eu2", EU), replace(gateway("eu3", EU), is_announced=False)], [])
        told.connect("eu1")
        assert told.core.policies[EU.region].accept == PlaceRule()
        told.connect("eu2")
        assert told.core.policies[EU.region] == policy(EU)

    def test_a_policy_widens_once_the_gateway_that_narrowed_it_is_removed(self) -> None:
        told = Told()
        told.register([gateway("eu1", EU), gateway("eu2", EU)], [])
        told.connect("eu1", "eu2", policies={"eu2": policy(EU, accept=PlaceRule())})
        assert told.core.policies[EU.region].accept == PlaceRule()
        told.register([gateway("eu1", EU)], [])
        assert told.core.policies[EU.region] == told.last(effects.KeepPolicy).policy == policy(EU)

    def test_a_policy_of_the_region_that_a_gateway_has_left_counts_nowhere(self) -> None:
        told = Told()
        told.register([gateway("a", US), gateway("b", EU)], [])
        told.connect("a", "b")
        told.register([gateway("a", EU), gateway("b", EU)], [])
        told.tell(events.PolicyAccepted(GatewayId("b"), policy(EU, accept=PlaceRule())))
        assert told.core.policies[EU.region] == policy(EU, accept=PlaceRule())

    def test_an_unknown_policy_allows_nobody(self) -> None:
        told = Told()
        told.register([gateway("us", US), gateway("eu", EU)], replicas("eu", 1))
        told.connect("us")
        told.probe("eu", times=3)
        told.wait(60 * SECOND)
        assert told.core.owners == {}
        assert "not known" in told.last(effects.TellOrphans).why

    def test_what_narrows_a_region_takes_back_what_it_no_longer_allows_and_gives_it_again(self) -> None:
        told = mesh()
        told.kill("eu")
        assert len(told.owned_by("us")) == 2 * EVERYTHING
        shut = policy(EU, accept=PlaceRule(), process=rule_of(EU))
        told.tell(events.NarrowingApplied((shut,)))
        assert len(told.owned_by("us")) == EVERYTHING
        orphans = told.last(effects.TellOrphans)
        assert (orphans.gateway_id, orphans.replicas) == ("eu", EVERYTHING)
        assert "as the controller narrows it" in orphans.why
        (area,) = (each for each in told.last(effects.PublishRecords).tree.areas if each.region == EU.region)
        assert (area.gateways, "as the controller narrows it" in area.why) == ((), True)
        told.tell(events.NarrowingApplied(()))
        assert told.last(effects.TellOrphans) == effects.TellOrphans(GatewayId("eu"), 0, "")
        assert len(told.owned_by("us") + told.owned_by("ap")) == 3 * EVERYTHING

    def test_it_never_widens_what_the_region_says_and_stands_for_none_that_is_not_known(self) -> None:
        told = mesh()
        told.tell(events.PolicyAccepted(GatewayId("eu"), policy(EU, accept=PlaceRule())))
        told.tell(events.NarrowingApplied((policy(EU),)))
        told.kill("eu")
        assert told.owned_by("us") == ["us-r0", "us-r1", "us-r2", "us-r3"]
        unheard = Told()
        unheard.tell(events.NarrowingApplied((policy(EU),)))
        unheard.register([gateway("us", US), gateway("eu", EU)], replicas("eu", 1))
        unheard.connect("us")
        unheard.probe("eu", times=3)
        unheard.wait(60 * SECOND)
        assert unheard.core.owners == {}
        assert unheard.core.accepted_origins(GatewayId("eu")) == PlaceRule()

    def test_an_adopter_is_told_of_exactly_the_origins_that_the_home_accepts(self) -> None:
        told = mesh()
        told.tell(events.NarrowingApplied((policy(EU, accept=rule_of(AP)),)))
        accepts = told.core.accepted_origins(GatewayId("eu"))
        assert [accepts.allows(place) for place in (EU, US, AP)] == [True, False, True]
        assert told.core.accepted_origins(GatewayId("nobody")) == PlaceRule()

    def test_a_gateway_speaks_for_its_own_region_alone(self) -> None:
        told = mesh()
        told.tell(events.PolicyAccepted(GatewayId("us"), policy(EU, accept=PlaceRule())))
        told.kill("eu")
        assert len(told.owned_by("us")) == 2 * EVERYTHING


class TestOrders:
    def test_a_drained_gateway_gives_what_it_has_away_step_by_step(self) -> None:
        told = mesh(ControllerConfig(step_share=0.25))
        gateways = [replace(each, is_drained=each.gateway_id == "eu") for each in told.core.gateways.values()]
        told.register(gateways, told.core.replicas.values())
        assert len(told.owned_by("eu")) == 3
        told.wait(10 * SECOND)
        assert told.owned_by("eu") == []

    def test_but_keeps_what_nobody_else_may_have(self) -> None:
        told = mesh()
        told.tell(events.PolicyAccepted(GatewayId("eu"), policy(EU, accept=PlaceRule())))
        gateways = [replace(each, is_drained=each.gateway_id == "eu") for each in told.core.gateways.values()]
        told.register(gateways, told.core.replicas.values())
        told.wait(10 * SECOND)
        assert len(told.owned_by("eu")) == EVERYTHING

    def test_a_pinned_replica_goes_where_it_was_moved_and_home_when_that_one_dies(self) -> None:
        told = mesh()
        moved = [
            replace(each, pinned_to=GatewayId("us")) if each.replica_id == "eu-r0" else each
            for each in told.core.replicas.values()
        ]
        told.register(told.core.gateways.values(), moved)
        assert "eu-r0" in told.owned_by("us")
        told.kill("us")
        assert "eu-r0" in told.owned_by("eu")

    def test_what_is_registered_no_more_is_nobodys(self) -> None:
        told = mesh()
        told.register(told.core.gateways.values(), replicas("us", 4))
        assert told.owned_by("eu") == []
        assert len(told.last(effects.KeepOwners).orphans) == 2 * EVERYTHING

    def test_a_gateway_that_is_registered_no_more_is_forgotten(self) -> None:
        told = mesh()
        left = [each for each in told.core.gateways.values() if each.gateway_id != "eu"]
        told.register(left, told.core.replicas.values())
        assert GatewayId("eu") not in told.core.health
        assert all("eu" not in health.said_by for health in told.core.health.values())
        assert "not registered" in told.last(effects.TellOrphans).why


class TestDifferences:
    def test_owners_are_written_down_before_anybody_is_told(self) -> None:
        told = mesh()
        told.kill("eu")
        kinds = [type(each) for each in told.effects]
        assert kinds.index(effects.KeepOwners) < kinds.index(effects.Assign)

    def test_nothing_new_orders_nothing(self) -> None:
        told = mesh()
        before = len(told.history)
        told.wait(60 * SECOND)
        told.tell(events.ControllerTimePassed())
        told.heard("us", "eu")
        told.probe("us", healthy=True)
        assert told.history[before:] == []

    def test_whoever_connects_anew_is_told_what_it_has(self) -> None:
        told = mesh()
        told.disconnect("eu")
        told.connect("eu")
        assigned = [each for each in told.effects if isinstance(each, effects.Assign)]
        assert [(each.gateway_id, len(each.replicas)) for each in assigned] == [("eu", EVERYTHING)]

    def test_what_was_written_down_is_kept_over_a_restart(self) -> None:
        before = mesh()
        before.kill("eu")
        after = Told()
        owners = tuple(before.core.owners.items())
        policies = tuple(before.core.policies.values())
        assert [each.policy for each in before.all(effects.KeepPolicy)] == list(policies)
        after.tell(events.StateRestored(before.core.version, owners, policies))
        after.register(before.core.gateways.values(), before.core.replicas.values())
        after.connect("us", "ap")
        assert after.core.version >= before.core.version
        assert len(after.owned_by("us")) == 2 * EVERYTHING

    def test_versions_rise(self) -> None:
        told = mesh()
        told.kill("eu")
        told.connect("eu")
        told.wait(60 * SECOND)
        versions = [each.version for each in told.all(effects.KeepOwners)]
        assert versions == sorted(set(versions))

    def test_time_never_goes_backwards(self) -> None:
        told = mesh()
        with pytest.raises(AssertionError):
            told.core.handle(events.ControllerTimePassed(), told.now_ns - 1)


class TestRecords:
    def test_the_name_leads_to_each_regions_own_gateway(self) -> None:
        tree = mesh().last(effects.PublishRecords).tree
        assert {area.region: area.gateways for area in tree.areas} == {
            US.region: ("us",),
            EU.region: ("eu",),
            AP.region: ("ap",),
        }

    def test_and_to_a_further_one(self) -> None:
        told = mesh(FURTHER)
        tree = told.last(effects.PublishRecords).tree
        assert {area.region: area.gateways for area in tree.areas} == {
            US.region: ("us", "eu"),
            EU.region: ("eu", "us"),
            AP.region: ("ap", "eu"),
        }
        assert len(tree.anywhere) == 3

    def test_and_elsewhere_once_that_is_down(self) -> None:
        told = mesh(FURTHER)
        told.kill("eu")
        tree = told.last(effects.PublishRecords).tree
        assert {area.region: area.gateways for area in tree.areas}[EU.region] == ("us", "ap")
        assert len(tree.anywhere) == 2

    def test_the_further_region_is_chosen_anew_by_first_round_trips_and_then_kept(self) -> None:
        told = mesh(FURTHER)

        def further() -> str:
            areas = told.last(effects.PublishRecords).tree.areas
            return next(each for each in areas if each.region == EU.region).gateways[-1]

        assert further() == "us", "by the globe"
        told.heard("eu", "us", rtt_ns=120 * MS)
        assert further() == "ap", "of which light alone would take 96 ms"
        told.heard("eu", "ap", rtt_ns=130 * MS)
        assert further() == "us", "though it is not clearly nearer"
        for ap_ms, kept in ((110, "us"), (90, "ap"), (130, "ap"), (160, "us")):
            told.heard("eu", "ap", rtt_ns=ap_ms * MS)
            told.connect("us")
            assert further() == kept

    def test_clients_of_a_lost_region_are_led_anew_once_a_distance_is_measured(self) -> None:
        told = mesh()
        told.kill("eu")

        def stand_in() -> str:
            areas = told.last(effects.PublishRecords).tree.areas
            return next(each for each in areas if each.region == EU.region).gateways[0]

        before = stand_in()
        nearer, farther = ("ap", "us") if before == "us" else ("us", "ap")
        told.heard(farther, "eu", rtt_ns=900 * MS)
        told.heard(nearer, "eu", rtt_ns=MS)
        assert stand_in() == nearer

    def test_a_closed_jurisdiction_is_never_led_out_of_itself(self) -> None:
        told = mesh(ControllerConfig(closed_jurisdictions=frozenset({EU.jurisdiction})))
        told.kill("eu")
        area = next(each for each in told.last(effects.PublishRecords).tree.areas if each.region == EU.region)
        assert area.gateways == ()
        assert "EU" in area.why

    def test_nothing_at_all_is_never_published(self) -> None:
        told = mesh()
        for name in ("us", "eu", "ap"):
            told.disconnect(name)
        told.tell(events.FreezeLifted())
        for name in ("us", "eu", "ap"):
            told.probe(name, times=3)
        assert {told.condition(name) for name in ("us", "eu", "ap")} == {Condition.DOWN}
        assert told.last(effects.PublishRecords).tree.anywhere


class AnyStory(RuleBasedStateMachine):
    """Invariants that hold for any events in any order."""

    names = st.sampled_from(["us1", "us2", "eu1", "eu2", "ap1"])
    policies = st.sampled_from(["open", "regional", "closed"])

    @initialize(are_heard=st.booleans())
    def begin(self, are_heard: bool) -> None:
        self.told = Told(ControllerConfig(step_share=0.5, freeze_max_ns=5 * SECOND))
        self.places = {"us1": US, "us2": US, "eu1": EU, "eu2": EU, "ap1": AP}
        gateways = [gateway(name, place) for name, place in self.places.items()]
        self.told.register(gateways, [each for name in self.places for each in replicas(name, 3)])
        if are_heard:
            self.told.connect(*self.places)

    def _policy(self, name: str, how: str) -> ResidencyPolicy:
        place = self.places[name]
        if how == "closed":
            return closed_policy(place, "unreadable")
        return policy(place) if how == "open" else policy(place, accept=PlaceRule(), process=rule_of(place))

    @rule(name=names, how=policies)
    def connect(self, name: str, how: str) -> None:
        self.told.connect(name, policies={name: self._policy(name, how)})

    @rule(name=names, how=policies)
    def change_policy(self, name: str, how: str) -> None:
        self.told.tell(events.PolicyAccepted(GatewayId(name), self._policy(name, how)))

    @rule(narrowed=st.dictionaries(names, policies, max_size=3))
    def narrow(self, narrowed: dict[str, str]) -> None:
        ours = {self.places[name].region: self._policy(name, how) for name, how in narrowed.items()}
        self.told.tell(events.NarrowingApplied(tuple(ours.values())))

    @rule(name=names)
    def disconnect(self, name: str) -> None:
        self.told.disconnect(name)

    @rule(name=names)
    def kill(self, name: str) -> None:
        self.told.kill(name)

    @rule(name=names, how=policies, ours=policies)
    def kill_one_that_we_narrow(self, name: str, how: str, ours: str) -> None:
        """Kill a region's gateways while both their own policy and the controller's narrower one limit adopters. Random
        walks seldom get here."""
        region = self.places[name].region
        near = [each for each, place in self.places.items() if place.region == region]
        for each in self.places:
            self.told.connect(each, policies={each: self._policy(each, how if each in near else "open")})
        self.told.wait(10 * SECOND)
        self.told.tell(events.NarrowingApplied((self._policy(name, ours),)))
        for each in near:
            self.told.kill(each)

    @rule(name=names, healthy=st.booleans(), times=st.integers(1, 4))
    def probe(self, name: str, healthy: bool, times: int) -> None:
        self.told.probe(name, healthy=healthy, times=times)

    @rule(by=names, of=names, is_broken=st.booleans(), ago_ns=st.integers(0, 10 * SECOND))
    def hear(self, by: str, of: str, is_broken: bool, ago_ns: int) -> None:
        self.told.heard(by, of, ago_ns=ago_ns, is_broken=is_broken)

    @rule(name=names, is_drained=st.booleans())
    def drain(self, name: str, is_drained: bool) -> None:
        core = self.told.core
        gateways = [
            replace(each, is_drained=is_drained) if each.gateway_id == name else each for each in core.gateways.values()
        ]
        self.told.register(gateways, core.replicas.values())

    @rule(name=names, replica=st.integers(0, 2), to=st.none() | names)
    def pin(self, name: str, replica: int, to: str | None) -> None:
        core = self.told.core
        wanted = ReplicaId(f"{name}-r{replica}")
        owned = [
            replace(each, pinned_to=None if to is None else GatewayId(to)) if each.replica_id == wanted else each
            for each in core.replicas.values()
        ]
        self.told.register(core.gateways.values(), owned)

    @rule(lift=st.booleans())
    def freeze(self, lift: bool) -> None:
        self.told.tell(events.FreezeLifted() if lift else events.FreezeOrdered("by order"))

    @rule(duration_ns=st.integers(0, 30 * SECOND))
    def wait(self, duration_ns: int) -> None:
        self.told.wait(duration_ns)

    @invariant()
    def nobody_has_what_a_policy_does_not_allow(self) -> None:
        core = getattr(self, "told", None) and self.told.core
        if core is None:
            return
        for replica_id, owner in core.owners.items():
            home = core.replicas[replica_id].home
            if owner != home:
                region = core.gateways[home].place.region
                for each in (core.policies[region], core.narrowings.get(region, core.policies[region])):
                    assert may_accept(each, core.gateways[owner].place).allowed

    @invariant()
    def nobody_is_led_where_a_policy_does_not_let_its_requests_be_processed(self) -> None:
        core = getattr(self, "told", None) and self.told.core
        if core is None or core.tree is None or not core.living():
            return
        for area in core.tree.areas:
            for name in area.gateways:
                to = core.gateways[GatewayId(name)].place
                own, ours = core.policies.get(area.region), core.narrowings.get(area.region)
                for each in () if to.region == area.region else (own, ours or own):
                    assert each is not None
                    assert each.process.allows(to)

    @invariant()
    def whoever_is_connected_knows_exactly_what_it_has(self) -> None:
        core = getattr(self, "told", None) and self.told.core
        if core is None:
            return
        last = {each.gateway_id: each.replicas for each in self.told.all(effects.Assign)}
        for name, health in core.health.items():
            if health.connected:
                assert list(last.get(name, ())) == self.told.owned_by(name)

    @invariant()
    def nobody_who_is_heard_is_called_down(self) -> None:
        core = getattr(self, "told", None) and self.told.core
        if core is None:
            return
        for each in self.told.effects:
            if isinstance(each, effects.TellCondition) and each.condition is Condition.DOWN:
                assert not core.health[each.gateway_id].connected

    @invariant()
    def nothing_is_taken_from_the_living_while_frozen(self) -> None:
        core = getattr(self, "told", None) and self.told.core
        if core is None or not core.frozen:
            return
        assert not [each for each in self.told.effects if isinstance(each, effects.StartRecovery)]

    @invariant()
    def there_is_no_wake_up_in_the_past(self) -> None:
        told = getattr(self, "told", None)
        if told is not None:
            wake_ns = told.core.next_wakeup_ns()
            assert wake_ns is None or wake_ns > told.now_ns


AnyStory.TestCase.settings = settings(max_examples=examples(few=20, night=200), stateful_step_count=40)
TestAnyStory = AnyStory.TestCase
