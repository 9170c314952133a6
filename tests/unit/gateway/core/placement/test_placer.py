from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy, PushingConfig
from gateway.core.kernel.effects import StartLeg
from gateway.core.kernel.events import AssignmentApplied, PolicyApplied, RequestArrived, ResponseStored
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.layered import Layered
from gateway.core.placement.policy import Choice, Policy
from gateway.core.placement.prefix_index import Match
from gateway.core.vocabulary import (
    Candidate,
    Costs,
    GatewayId,
    Hints,
    LegResult,
    PlacementReason,
    RefusalReason,
    RequestId,
    RequestProfile,
    Target,
)
from tests.support.core import EU, MS, SECOND, US, Desk, desk, of_kind, peer_spec, profile, replica_spec, started
from tests.support.core import policy as policy_of
from tests.support.placement import decisions, desk_with, desk_with_one_held


def test_the_policy_can_change_while_running() -> None:
    one = desk_with(PlacementPolicy.ROUND_ROBIN, replicas=2)
    one.ask("q")
    one.tell(ConfigApplied(CoreConfig(placement=PlacementConfig(policy=PlacementPolicy.PREFIX))))
    one.finish("q", LegResult.COMPLETED)
    one.wait(10 * MS)
    one.probe()
    (home,) = started(one.ask("a", prompt="p" * 160))
    assert started(one.ask("b", prompt="p" * 160)) == [home]


@pytest.mark.parametrize(("policy", "more"), [(PlacementPolicy.COST, 0), (PlacementPolicy.PREFIX, 4)])
def test_the_record_looks_up_those_alone_that_the_policy_did_not_compare(policy: PlacementPolicy, more: int) -> None:
    def lookups(considered_max: int) -> tuple[int, int]:
        """Index lookups for one request, and the number of replicas in its record."""
        placement = PlacementConfig(policy=policy, considered_max=considered_max)
        one = desk(replicas=4, config=CoreConfig(placement=placement))
        asked: list[int] = []

        def match(asked_about: RequestProfile, mask: int) -> Match:
            asked.append(mask)
            return one.core.placer.replica_index.match(asked_about.prefix, mask)

        one.core.placer.match_exactly(match)
        (leg,) = of_kind(StartLeg, one.ask("q", prompt="p" * 160))
        return len(asked), len(leg.decision.considered)

    bare, nobody = lookups(0)
    with_record, recorded = lookups(5)
    assert (nobody, recorded) == (0, 4)
    assert with_record - bare == more


@pytest.mark.parametrize(
    ("hints", "kept"),
    [(Hints(), True), (Hints(ends_session=True), False), (Hints(ends_session=True, comes_again=True), True)],
)
def test_the_prompt_of_an_ended_session_is_the_first_to_be_forgotten(hints: Hints, kept: bool) -> None:
    """The index has room for two prompts; the session's is the later one."""
    one = desk(replicas=1, config=CoreConfig(placement=PlacementConfig(prefix_index_bytes_max=2500)))
    first, second, third = (profile(letter, prompt=letter * 16 * 80) for letter in "abc")
    for asked in (first, replace(second, hints=hints), third):
        one.tell(RequestArrived(asked, one.now_ns + 600 * SECOND))
        one.finish(asked.request_id)
        one.wait(10 * MS)
        one.probe()
    index = one.core.placer.replica_index
    known = [index.match(asked.prefix, 1).blocks for asked in (first, second, third)]
    assert known[2] == 80
    assert (known[1] == 80) is kept
    assert (known[0] == 80) is not kept


def test_a_session_that_ends_with_the_prompt_of_others_takes_nothing_from_them() -> None:
    one = desk(replicas=1, config=CoreConfig(placement=PlacementConfig(prefix_index_bytes_max=2500)))
    shared, other, new = (profile(letter, prompt=letter * 16 * 80) for letter in "abc")
    last = replace(shared, request_id=RequestId("last"), hints=Hints(ends_session=True))
    for asked in (other, shared, last, new):
        one.tell(RequestArrived(asked, one.now_ns + 600 * SECOND))
        one.finish(asked.request_id)
        one.wait(10 * MS)
        one.probe()
    index = one.core.placer.replica_index
    assert [index.match(asked.prefix, 1).blocks for asked in (shared, new)] == [80, 80]


def test_the_known_share_of_a_prompt_is_that_of_available_replicas() -> None:
    one = desk_with(PlacementPolicy.PREFIX, replicas=2)
    (home,) = started(one.ask("q", prompt="p" * 160))
    request = one.core.requests[RequestId("q")]
    one.finish("q")
    one.probe()
    assert one.core.placer.known_share(request) == 1
    one.probe(home, healthy=False)
    assert one.core.placer.known_share(request) == 0


def test_the_known_share_of_a_held_prompt_is_that_of_its_replica() -> None:
    one = desk_with_one_held()
    assert one.core.placer.known_share(one.core.requests[RequestId("held")]) == 0


def test_prefixes_that_nobody_uses_are_forgotten() -> None:
    config = CoreConfig(placement=PlacementConfig(prefix_ttl_ns=2_000 * MS))
    one = desk(replicas=2, config=config)
    one.ask("q", prompt="p" * 100)
    assert one.core.placer.replica_index.blocks > 0
    one.wait(4_000 * MS)
    assert one.core.placer.replica_index.blocks == 0


class Noted(Layered):
    """Policy that takes the last of the targets offered, and records what it is told."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self.heard: list[str] = []
        self.wrong_by = 0

    def choose_replica(self, _profile: RequestProfile, mask: int, /) -> Choice:
        return Choice(mask.bit_length() - 1 + self.wrong_by)

    def choose_peer(self, _profile: RequestProfile, mask: int, is_remote: bool, /) -> Choice:
        return Choice(
            mask.bit_length() - 1 + self.wrong_by, reason=PlacementReason.REMOTE_NEAREST if is_remote else None
        )

    def configure(self, config: PlacementConfig) -> None:
        super().configure(config)
        self.heard.append(f"configured {config.policy_options}")

    def joined(self, target: Target, slot: int) -> None:
        self.heard.append(f"{target} joined {slot}")

    def left(self, target: Target, slot: int) -> None:
        self.heard.append(f"{target} left {slot}")

    def sent(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:
        self.heard.append(f"{profile.request_id} to {target} {slot} {matched_blocks}")

    def refused(self, profile: RequestProfile, target: Target, slot: int) -> None:
        self.heard.append(f"{profile.request_id} refused by {target} {slot}")

    def first_token(self, profile: RequestProfile, matched_blocks: int, took_ns: int) -> None:
        self.heard.append(f"{profile.request_id} began after {took_ns}")


class Wide(Noted):
    def falls_back_to_full(self) -> bool:
        return True


def foreign(policy: type[Policy] = Noted) -> tuple[Desk, list[Noted]]:
    """Core under a plug-in policy, and the list of the plug-in's instances."""
    made: list[Noted] = []

    def make(fleet: Fleet, config: PlacementConfig) -> Policy:
        it = policy(fleet, config)
        assert isinstance(it, Noted)
        made.append(it)
        return it

    one = Desk(GatewayCore(GatewayId("gw"), US, seed=1, plug_ins={"foreign": make}.__getitem__))
    one.tell(ConfigApplied(config()))
    one.tell(PolicyApplied(policy_of(US)))
    one.tell(AssignmentApplied(1, (replica_spec("r0"), replica_spec("r1")), (peer_spec("gw-eu", EU),)))
    one.probe()
    return one, made


def config(version: str = "1", **options: int) -> CoreConfig:
    return CoreConfig(PlacementConfig("foreign", version, dict(options)), PushingConfig(in_band_credit=None))


def test_a_policy_from_outside_decides_and_is_told() -> None:
    one, (noted,) = foreign()
    assert started(one.ask("a")) == ["r1"]
    one.now_ns += MS
    one.first_token("a")
    one.probe(waiting=1)
    one.hear("gw-eu", EU)
    assert started(one.ask("b")) == ["gw-eu"]
    one.finish("b", LegResult.REFUSED, refusal=RefusalReason.BUSY)
    one.tell(AssignmentApplied(2, (replica_spec("r0"),), ()))
    assert noted.heard == [
        "replica:r0 joined 0",
        "replica:r1 joined 1",
        "peer:gw-eu joined 0",
        "a to replica:r1 1 0",
        "a began after 1000000",
        "b to peer:gw-eu 0 0",
        "b refused by peer:gw-eu 0",
        "replica:r1 left 1",
        "peer:gw-eu left 0",
    ]
    assert decisions(one) == [PlacementReason.LOCAL_POLICY, PlacementReason.REMOTE_NEAREST]


def test_it_is_told_of_what_follows_a_stored_response_as_well() -> None:
    one, (noted,) = foreign()
    one.probe(waiting=1)
    one.hear("gw-eu", EU)
    one.ask("a")
    one.tell(ResponseStored(RequestId("a"), 1, 1, "key"))
    one.finish("a")
    one.tell(RequestArrived(replace(profile("b"), follows="key"), 60 * SECOND))
    one.finish("b", LegResult.REFUSED, refusal=RefusalReason.BUSY)
    assert decisions(one) == [PlacementReason.REMOTE_NEAREST, PlacementReason.STORED_RESPONSE]
    assert noted.heard[-2:] == ["b to peer:gw-eu 0 0", "b refused by peer:gw-eu 0"]


def test_other_options_are_told_and_another_version_begins_afresh() -> None:
    one, made = foreign()
    one.tell(ConfigApplied(config(limit=3)))
    assert made[0].heard[-1] == "configured {'limit': 3}"
    one.tell(ConfigApplied(config(version="2")))
    assert made[1].heard == ["replica:r0 joined 0", "replica:r1 joined 1", "peer:gw-eu joined 0"]


def test_nobody_gets_a_request_who_was_not_offered_to_the_policy() -> None:
    """Residency depends on this check, whatever a policy returns."""
    one, (noted,) = foreign()
    noted.wrong_by = 1
    with pytest.raises(AssertionError, match="foreign chose a replica that it was not offered"):
        one.ask("q")
    one, (noted,) = foreign()
    noted.wrong_by = 1
    one.probe(waiting=1)
    one.hear("gw-eu", EU)
    with pytest.raises(AssertionError, match="foreign chose a gateway that it was not offered"):
        one.ask("q")


def test_only_a_policy_that_says_so_is_asked_about_full_replicas() -> None:
    for policy, expected in ((Noted, []), (Wide, ["r1"])):
        one, _ = foreign(policy)
        one.probe(waiting=1)
        assert started(one.ask("q")) == expected


def test_a_name_that_nobody_handed_in_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="no placement policy foreign"):
        desk(config=config())


class TestCostsOnRecord:
    def considered(self, policy: PlacementPolicy) -> tuple[Candidate, ...]:
        config = CoreConfig(placement=PlacementConfig(policy=policy))
        one = desk(replicas=2, peers=[peer_spec("gw-eu", EU)], config=config)
        one.hear("gw-eu", EU, rtt_ms=70)
        (start,) = of_kind(StartLeg, one.ask("q"))
        return start.decision.considered

    def test_everybody_s_are_told_where_they_were_compared(self) -> None:
        asked = profile("q")
        chosen, other, peer = self.considered(PlacementPolicy.COST)
        assert chosen.costs == other.costs == Costs(reading_ns=10_000.0 * asked.prompt_bytes)
        assert peer.costs == Costs(reading_ns=10_000.0 * asked.prompt_bytes, distance_ns=70 * MS)

    def test_nobody_s_where_they_were_not(self) -> None:
        assert [each.costs for each in self.considered(PlacementPolicy.PREFIX)] == [None, None, None]

    def test_nor_for_whom_only_one_would_do(self) -> None:
        one = desk_with(PlacementPolicy.COST, replicas=2)
        one.ask("first")
        one.tell(ResponseStored(RequestId("first"), 1, 1, "key"))
        one.finish("first")
        follows = replace(profile("q"), follows="key")
        (start,) = of_kind(StartLeg, one.tell(RequestArrived(follows, 600 * SECOND)))
        assert [each.costs for each in start.decision.considered] == [None, None]

    def test_whoever_is_held_is_not_behind_itself(self) -> None:
        one = desk_with_one_held()
        one.wait(MS)
        (start,) = of_kind(StartLeg, one.first_token("first"))
        assert (start.request_id, start.decision.waited_ns) == ("held", MS)
        (own,) = start.decision.considered
        assert own.costs is not None
        assert own.costs.waiting_ns == 0
