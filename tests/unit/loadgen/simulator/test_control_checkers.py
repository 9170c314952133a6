"""The oracle of a controller's decisions finds each forbidden one, and lets the others pass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from controller.core import effects, events
from controller.core.effects import Effect
from controller.core.vocabulary import Condition, GatewayEntry, HeardPeer
from gateway.core.config import CoreConfig
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import LegEnded, RequestArrived, TimePassed
from gateway.core.kernel.residency import LoggingRule, ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import (
    ControlVersion,
    Decision,
    GatewayId,
    Jurisdiction,
    LegResult,
    LegRole,
    ModelName,
    Place,
    PlacementReason,
    PlaceRule,
    RegionName,
    ReplicaId,
    RequestId,
    RequestProfile,
    Target,
    TargetKind,
    TenantName,
)
from loadgen.simulator.checkers import Broken
from loadgen.simulator.control_checkers import ControlWatch, Disturbed
from loadgen.simulator.control_sections import ControllerSection
from loadgen.simulator.observers import GatewaySpec
from mesh.control.vocabulary import ControlSnapshot, ReplicaGrant, ReplicaOwner
from mesh.naming.tree import Area, RecordTree
from tests.support.histories import history_of

US, EU, AP = (GatewayId(name) for name in ("us", "eu", "ap"))
SECOND = 1_000_000_000
HOMES = {ReplicaId(f"{home}-{number}"): home for home in (US, EU, AP) for number in range(4)}
OVERLAP_S = 5
DOWN = effects.TellCondition(EU, Condition.DOWN, "gone")


def place(name: GatewayId) -> Place:
    return Place(RegionName(name), Jurisdiction(name.upper()))


def policy(name: GatewayId, accept: Iterable[GatewayId] = (US, EU, AP)) -> ResidencyPolicy:
    rule = PlaceRule(regions=frozenset(map(RegionName, accept)))
    return ResidencyPolicy(place(name), rule, rule)


def tenant_at(name: GatewayId, *places: GatewayId) -> ResidencyPolicy:
    """Policy by which one tenant's requests are processed at these places alone."""
    return replace(
        policy(name), tenants={TenantName("bank"): TenantPolicy(PlaceRule(regions=frozenset(map(RegionName, places))))}
    )


class Watched:
    def __init__(self, **keys: object) -> None:
        self.watch = ControlWatch(ControllerSection.model_validate({"region": "us"} | keys), HOMES, OVERLAP_S * SECOND)
        self.clock_ns = 0
        self.watch.on_controller_start(0, 1)
        entries = tuple(GatewayEntry(name, place(name), (name,)) for name in (US, EU, AP))
        self.step(events.RegistryApplied(entries, ()))
        for name in (US, EU, AP):
            up = effects.TellCondition(name, Condition.UP, "")
            self.step(events.GatewayConnected(name, policy(name)), effects.KeepPolicy(policy(name)), up)
        self.step(events.ControllerTimePassed(), effects.KeepOwners(1, tuple(HOMES.items()), ()))

    def step(self, event: events.Event, *told: Effect, after_s: float = 0) -> None:
        self.clock_ns += round(after_s * SECOND)
        self.watch.on_controller_step(self.clock_ns, self.clock_ns, event, list(told))

    def lose(self, name: GatewayId, *, probes: int = 3) -> None:
        self.step(events.GatewayDisconnected(name, "reset"))
        for _ in range(probes):
            self.step(events.GatewayProbed(name, False))

    def give(self, owner: GatewayId, *replicas: str, after_s: float = 0) -> None:
        owners = tuple((ReplicaId(each), owner) for each in replicas)
        self.step(events.ControllerTimePassed(), effects.KeepOwners(2, owners, ()), after_s=after_s)

    def publish(self, *areas: Area) -> None:
        self.step(events.ControllerTimePassed(), effects.PublishRecords(RecordTree(1, 5, areas, ("us",))))


def area(name: GatewayId, *gateways: GatewayId) -> Area:
    return Area(RegionName(name), Jurisdiction(name.upper()), gateways, gateways)


def arrived(request_id: str) -> RequestArrived:
    profile = RequestProfile(RequestId(request_id), ModelName("m"), TenantName("t"), 0, b"", 64, "", stream=True)
    return RequestArrived(profile, SECOND)


def test_who_is_gone_is_called_down_and_what_it_had_is_given_away() -> None:
    watched = Watched()
    watched.lose(EU)
    watched.step(events.ControllerTimePassed(), DOWN)
    watched.give(US, "eu-0", "eu-1", "eu-2", "eu-3")
    watched.publish(area(EU, US))


def test_nobody_is_called_down_whose_stream_is_open() -> None:
    with pytest.raises(Broken, match="whose stream is open"):
        Watched().step(events.ControllerTimePassed(), DOWN)


def test_nor_who_answered_a_probe() -> None:
    watched = Watched()
    watched.lose(EU, probes=2)
    with pytest.raises(Broken, match="did not answer probes"):
        watched.step(events.ControllerTimePassed(), DOWN)


def test_nor_whom_a_peer_hears() -> None:
    watched = Watched()
    watched.lose(EU)
    watched.step(events.PeersHeard(US, (HeardPeer(EU, watched.clock_ns, is_broken=False),)))
    with pytest.raises(Broken, match="that a peer hears"):
        watched.step(events.ControllerTimePassed(), DOWN)


def test_nor_anybody_while_most_are_missing_unless_they_are_known_to_be_gone() -> None:
    watched = Watched()
    watched.lose(EU)
    watched.lose(AP)
    with pytest.raises(Broken, match="when most are missing at once"):
        watched.step(events.ControllerTimePassed(), DOWN)
    for name in (EU, AP):
        watched.step(events.PeersHeard(US, (HeardPeer(name, None, is_broken=True),)))
        watched.step(events.GatewayProbed(name, False, "refused", was_refused=True))
    watched.step(events.ControllerTimePassed(), DOWN)


def test_who_was_down_when_the_controller_began_is_named_to_nobody_and_is_not_missing() -> None:
    watched = Watched()
    watched.watch.on_controller_start(0, 2)
    watched.step(events.StateRestored(1, tuple(HOMES.items()), (policy(EU, [EU]),), (EU, AP)))
    entries = tuple(GatewayEntry(name, place(name), (name,)) for name in (US, EU, AP))
    watched.step(events.RegistryApplied(entries, ()))
    watched.publish(area(EU), area(US, US))
    with pytest.raises(Broken, match="leads to a gateway that is down"):
        watched.publish(area(EU, EU))


def test_one_alone_that_is_missing_is_not_most() -> None:
    watched = Watched()
    watched.watch.on_controller_start(0, 2)
    watched.step(events.RegistryApplied((GatewayEntry(EU, place(EU), (EU,)),), ()))
    watched.step(events.GatewayConnected(EU, policy(EU)), effects.TellCondition(EU, Condition.UP, ""))
    watched.lose(EU)
    watched.step(events.ControllerTimePassed(), DOWN)


class TestReturn:
    """Time for which a gateway that returns is watched, of which one that was silent once needs none."""

    def falls(self, watched: Watched) -> None:
        watched.lose(EU)
        watched.step(events.ControllerTimePassed(), DOWN)

    def dies(self, watched: Watched) -> None:
        watched.step(events.PeersHeard(US, (HeardPeer(EU, None, is_broken=True),)))
        watched.step(events.GatewayDisconnected(EU, "reset"))
        for _ in range(3):
            watched.step(events.GatewayProbed(EU, False, "refused", was_refused=True))

    def connects(self, watched: Watched) -> None:
        watched.step(events.GatewayConnected(EU, policy(EU)), effects.TellCondition(EU, Condition.RETURNING, ""))

    def is_up(self, watched: Watched, *, after_s: float = 0) -> None:
        watched.step(events.GatewayProbed(EU, True), effects.TellCondition(EU, Condition.UP, ""), after_s=after_s)

    def test_one_that_was_silent_once_may_be_up_as_soon_as_it_answers(self) -> None:
        watched = Watched()
        self.falls(watched)
        self.connects(watched)
        self.is_up(watched)

    def test_but_not_unprobed(self) -> None:
        watched = Watched()
        self.falls(watched)
        self.connects(watched)
        up = effects.TellCondition(EU, Condition.UP, "")
        with pytest.raises(Broken, match="is watched"):
            watched.step(events.ControllerTimePassed(), up, after_s=4)

    def test_nor_while_a_probe_fails(self) -> None:
        watched = Watched()
        self.falls(watched)
        self.connects(watched)
        with pytest.raises(Broken, match="is watched"):
            watched.step(events.GatewayProbed(EU, False), effects.TellCondition(EU, Condition.UP, ""), after_s=9)

    @pytest.mark.parametrize("too_soon_s", [0, 9.5])
    def test_one_that_is_silent_again_is_watched_twice_as_long(self, too_soon_s: float) -> None:
        watched = Watched()
        self.falls(watched)
        self.connects(watched)
        self.is_up(watched)
        self.falls(watched)
        self.connects(watched)
        with pytest.raises(Broken, match="is watched"):
            self.is_up(watched, after_s=too_soon_s)
        watched.step(events.GatewayProbed(EU, True), effects.TellCondition(EU, Condition.UP, ""), after_s=10)

    def test_one_that_was_steady_in_between_was_silent_once(self) -> None:
        watched = Watched(steady_after="1m")
        self.falls(watched)
        self.connects(watched)
        self.is_up(watched)
        watched.step(events.ControllerTimePassed(), after_s=60)
        self.falls(watched)
        self.connects(watched)
        self.is_up(watched)

    @pytest.mark.parametrize("is_proven_first", [True, False])
    def test_one_that_died_is_watched(self, is_proven_first: bool) -> None:
        watched = Watched()
        for step in [self.dies, self.falls] if is_proven_first else [self.falls, self.dies]:
            step(watched)
        self.connects(watched)
        with pytest.raises(Broken, match="is watched"):
            self.is_up(watched, after_s=4)

    def test_one_that_was_down_when_the_controller_began_is_watched(self) -> None:
        watched = Watched()
        watched.watch.on_controller_start(0, 2)
        watched.step(events.StateRestored(1, tuple(HOMES.items()), (policy(EU, [EU]),), (EU,)))
        watched.step(events.RegistryApplied((GatewayEntry(EU, place(EU), (EU,)),), ()))
        self.connects(watched)
        with pytest.raises(Broken, match="is watched"):
            self.is_up(watched, after_s=4)


def test_nothing_moves_while_frozen() -> None:
    watched = Watched()
    watched.step(events.ControllerTimePassed(), effects.TellFrozen("most are missing"))
    with pytest.raises(Broken, match="nothing moves while frozen"):
        watched.give(US, "eu-0")


def test_nothing_is_assigned_against_a_policy() -> None:
    watched = Watched()
    watched.step(events.PolicyAccepted(EU, policy(EU, [EU])), effects.KeepPolicy(policy(EU, [EU])))
    with pytest.raises(Broken, match="against a policy"):
        watched.give(US, "eu-0")


def test_what_moves_without_need_moves_in_steps() -> None:
    watched = Watched(step_share=0.25, step="1s")
    watched.give(US, "eu-0")
    watched.give(US, "eu-1", after_s=1)
    with pytest.raises(Broken, match="moves in steps"):
        watched.give(US, "eu-2", after_s=0.5)


def test_no_name_is_without_an_answer_nor_leads_to_the_dead() -> None:
    with pytest.raises(Broken, match="no name is without an answer"):
        Watched().publish(area(EU))
    watched = Watched()
    watched.lose(EU)
    watched.step(events.ControllerTimePassed(), DOWN)
    with pytest.raises(Broken, match="leads to a gateway that is down"):
        watched.publish(area(EU, EU))


def test_a_closed_jurisdictions_name_leads_nobody_out_of_it() -> None:
    watched = Watched(closed_jurisdictions=["EU"])
    watched.lose(EU)
    watched.step(events.ControllerTimePassed(), DOWN)
    watched.publish(area(EU))
    with pytest.raises(Broken, match="down or not allowed"):
        watched.publish(area(EU, US))


class TestFurther:
    """Answers that name a gateway of a further region."""

    def watched(self, **changes: ResidencyPolicy) -> Watched:
        watched = Watched(further_gateways=1)
        for name, changed in changes.items():
            watched.step(events.PolicyAccepted(GatewayId(name), changed), effects.KeepPolicy(changed))
        return watched

    def test_one_is_taken_that_treats_each_tenant_alike(self) -> None:
        self.watched().publish(area(EU, EU, US))
        narrow = policy(EU, [US, EU])
        self.watched(eu=narrow, us=replace(policy(US), process=narrow.process)).publish(area(EU, EU, US))

    def test_no_more_than_are_wanted(self) -> None:
        for wanted, area_said in ((0, area(EU, EU, US)), (1, area(EU, EU, US, AP))):
            with pytest.raises(Broken, match="no more further gateways than are wanted"):
                Watched(further_gateways=wanted).publish(area_said)
        Watched(further_gateways=2).publish(area(EU, EU, US, AP))

    def test_none_before_the_clients_own(self) -> None:
        with pytest.raises(Broken, match="own region first"):
            self.watched().publish(area(EU, US, EU))

    @pytest.mark.parametrize(
        "changes",
        [
            {"eu": policy(EU, [US, EU])},
            {"us": replace(policy(US), process=PlaceRule(regions=frozenset({RegionName(EU)})))},
            {"eu": tenant_at(EU, US, EU)},
            {"us": tenant_at(US, EU)},
            {"us": closed_policy(place(US), "no file")},
            {"us": replace(policy(US), logging=LoggingRule(client_address=True))},
            {"eu": replace(policy(EU), logging=LoggingRule(tenant=False))},
        ],
        ids=[
            "goes on to a third region",
            "is not processed there",
            "a tenant goes on to a third region",
            "a tenant is not processed there",
            "closed",
            "logs more",
            "logs more than its own",
        ],
    )
    def test_none_that_treats_requests_otherwise_than_their_own_region(
        self, changes: dict[str, ResidencyPolicy]
    ) -> None:
        with pytest.raises(Broken, match="get no further"):
            self.watched(**changes).publish(area(EU, EU, US))


def test_everything_comes_home() -> None:
    watched = Watched()
    serving = {name: tuple(each for each, home in HOMES.items() if home == name) for name in (US, EU, AP)}
    watched.watch.expect_home(0, serving)
    watched.give(US, "eu-0")
    with pytest.raises(Broken, match="everything comes home"):
        watched.watch.expect_home(0, serving)


class Pushing:
    """Gateway that sends to a replica, whatever its snapshots say."""

    def __init__(self, replica: str) -> None:
        self.watch = Watched().watch
        self.replica = ReplicaId(replica)
        self.begin(EU)

    def begin(self, name: GatewayId) -> None:
        spec = GatewaySpec(name, place(name), (), (), policy(name), CoreConfig())
        self.watch.on_start(spec, policy(name), GatewayCore(name, place(name), seed=1))

    def push(self, at_s: float) -> None:
        target = Target(TargetKind.REPLICA, self.replica)
        decision = Decision(PlacementReason.LOCAL_POLICY, 0, 0, 1, 0)
        leg = StartLeg(RequestId("r"), 1, 1, LegRole.WHOLE, target, decision, SECOND)
        self.watch.on_step(round(at_s * SECOND), EU, TimePassed(), [leg])

    def send(
        self, version: int, *, at_s: float = 0, take: bool = True, away: GatewayId = US, to: GatewayId = EU
    ) -> None:
        owners = (ReplicaOwner(self.replica, EU, away),)
        snapshot = ControlSnapshot(ControlVersion(1, version), to, away=owners)
        self.watch.on_snapshot_sent(round(at_s * SECOND), snapshot, {})
        if take:
            self.watch.on_snapshot_taken(round(at_s * SECOND), to, snapshot.version)

    def adopt(self, stored: ResidencyPolicy) -> None:
        """Receive one request, and be given the replica of `us` while the store has this policy of its region."""
        self.watch.on_step(0, EU, arrived("r"), [])
        grant = ReplicaGrant(str(self.replica), US, place(US))
        owners = (ReplicaOwner(self.replica, US, EU),)
        snapshot = ControlSnapshot(ControlVersion(1, 1), EU, replicas=(grant,), away=owners)
        self.watch.on_snapshot_sent(0, snapshot, {RegionName(US): stored})
        self.watch.on_snapshot_taken(0, EU, snapshot.version)


def test_an_adopted_replica_takes_what_the_stored_policy_of_its_home_accepts() -> None:
    """A policy that the controller has accepted counts once it is stored: snapshots are made of stored state."""
    pushing = Pushing("us-0")
    closed = closed_policy(place(US), "its file cannot be read")
    pushing.watch.on_controller_step(0, 0, events.ControllerTimePassed(), [effects.KeepPolicy(closed)])
    pushing.adopt(policy(US))
    pushing.push(0)


@pytest.mark.parametrize(
    "stored",
    [closed_policy(place(US), "its file cannot be read"), policy(US, (US, AP))],
    ids=["closed", "not_accepted"],
)
def test_an_adopted_replica_takes_nothing_that_the_stored_policy_of_its_home_refuses(stored: ResidencyPolicy) -> None:
    pushing = Pushing("us-0")
    pushing.adopt(stored)
    with pytest.raises(Broken, match="takes what its home accepts"):
        pushing.push(0)


def test_nobody_pushes_to_what_its_own_snapshot_gives_another() -> None:
    pushing = Pushing("eu-0")
    pushing.push(0)
    pushing.send(1)
    with pytest.raises(Broken, match="its own snapshot gives another"):
        pushing.push(0)


@pytest.mark.parametrize("what", ["eu", "controller", frozenset(("eu", "controller"))])
def test_who_is_told_of_a_newer_owner_may_go_on_for_a_while_unless_something_keeps_the_news(
    what: Disturbed,
) -> None:
    pushing = Pushing("eu-0")
    pushing.send(1, take=False)
    pushing.push(4)
    pushing.watch.disturbed(what, 1, 4 * SECOND)
    pushing.watch.disturbed("ap", 1, 4 * SECOND)
    pushing.push(30)
    pushing.watch.disturbed(what, -1, 30 * SECOND)
    pushing.push(34)
    with pytest.raises(Broken, match="hears of a newer owner"):
        pushing.push(36)


def test_news_that_was_sent_before_a_fault_was_over_may_come_late() -> None:
    pushing = Pushing("eu-0")
    pushing.watch.disturbed("eu", 1, 0)
    pushing.send(1, take=False)
    pushing.watch.disturbed("eu", -1, 9 * SECOND)
    pushing.push(13)
    with pytest.raises(Broken, match="hears of a newer owner"):
        pushing.push(15)


class TestWhatAPeerKnows:
    def pushing(self) -> Pushing:
        """Gateway that has heard that its peer serves by a snapshot which gives the replica to the peer."""
        pushing = Pushing("eu-0")
        pushing.begin(US)
        pushing.send(1, to=US)
        pushing.watch.on_newer_heard(0, EU, US, ControlVersion(1, 1))
        return pushing

    def test_is_asked_for_and_believed_soon(self) -> None:
        pushing = self.pushing()
        pushing.push(5)
        with pytest.raises(Broken, match="hears of a newer owner"):
            pushing.push(6)

    def test_is_out_of_reach_once_it_is_dead(self) -> None:
        pushing = self.pushing()
        pushing.watch.on_struck(SECOND, US)
        pushing.push(6)

    def test_does_not_count_any_more_once_somebody_knows_better(self) -> None:
        pushing = self.pushing()
        pushing.send(2, at_s=4, away=EU, take=False)
        pushing.push(6)

    def test_is_nothing_where_it_is_older_than_what_somebody_else_knows(self) -> None:
        pushing = Pushing("eu-0")
        pushing.begin(US)
        pushing.begin(AP)
        pushing.send(1, to=AP, away=US)
        pushing.send(2, to=US, away=EU)
        pushing.watch.on_newer_heard(0, EU, US, ControlVersion(1, 2))
        pushing.watch.on_newer_heard(0, EU, AP, ControlVersion(1, 1))
        pushing.push(9)

    def test_is_kept_back_by_a_cut_between_the_two_alone(self) -> None:
        pushing = self.pushing()
        pushing.watch.disturbed(frozenset(("eu", "ap")), 1, 0)
        pushing.watch.disturbed(frozenset(("us", "eu")), 1, 0)
        pushing.push(9)
        pushing.watch.disturbed(frozenset(("us", "eu")), -1, 9 * SECOND)
        pushing.push(14)
        with pytest.raises(Broken, match="hears of a newer owner"):
            pushing.push(15)


def test_nobody_serves_what_is_anothers_without_having_been_given_it() -> None:
    pushing = Pushing("us-0")
    pushing.watch.on_step(0, EU, arrived("r"), [])
    pushing.send(1, away=EU)
    with pytest.raises(Broken, match="only what was assigned"):
        pushing.push(1)


def ended(request_id: str, output_tokens: int) -> LegEnded:
    return LegEnded(RequestId(request_id), 1, 1, LegResult.COMPLETED, output_tokens=output_tokens)


def test_a_history_names_a_recorder_whose_policy_allows_it_and_is_judged_by_where_its_requests_ran() -> None:
    watched = Watched()
    watch = watched.watch
    policies = {RegionName(name): policy(name) for name in (US, AP)} | {RegionName(EU): tenant_at(EU, EU, US)}
    for name in (US, EU):
        watch.on_start(
            GatewaySpec(name, place(name), (), (), policy(name), CoreConfig()),
            policy(name),
            GatewayCore(name, place(name), seed=1),
        )
    watch.on_step(0, US, ended("a", 50), [])
    watch.on_step(0, EU, ended("b", 70), [])
    relayed = history_of(50, 70, by="us", home="us")
    watch.on_history_sent(0, US, relayed, policies)
    watch.on_history_sent(0, AP, history_of(50, by="us", home="us"), policies)
    with pytest.raises(Broken, match="a history is only where the policies"):
        watch.on_history_sent(0, AP, relayed, policies)
    with pytest.raises(Broken, match="a history is only where the policies"):
        watch.on_history_sent(0, AP, history_of(50, by="us", home="us"), policies | {RegionName(US): tenant_at(US, US)})
