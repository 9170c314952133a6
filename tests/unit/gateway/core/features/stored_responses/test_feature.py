"""Requests that refer to a stored response go to the target that has it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.config import OverflowMode, PlacementConfig, PlacementPolicy, PushingConfig, PushingMode
from gateway.core.kernel.effects import Effect
from gateway.core.vocabulary import (
    LegResult,
    RefusalReason,
    RequestId,
)
from tests.support.core import (
    BOTH,
    EU,
    EU_PEER,
    MS,
    SECOND,
    US,
    Desk,
    busy_desk,
    desk,
    ended,
    home_of,
    occupy,
    of_kind,
    policy,
    profile,
    reading,
    replica_spec,
    rule,
    started,
    words,
)

under_both = pytest.mark.parametrize("placement", BOTH)


@under_both
class TestStoredResponses:
    def stored(self, one: Desk, request_id: str = "first", key: str = "key") -> str:
        (home,) = started(one.ask(request_id))
        one.tell(events.ResponseStored(RequestId(request_id), 1, 1, key))
        one.finish(request_id)
        return home

    def follow(self, one: Desk, request_id: str, *, key: str = "key", is_control: bool = False) -> list[Effect]:
        asked = replace(profile(request_id), follows=key, is_control=is_control)
        return one.tell(events.RequestArrived(asked, one.now_ns + 60 * SECOND))

    def test_what_follows_goes_to_the_replica_that_made_it(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=4, placement=placement)
        home = self.stored(one)
        for i in range(5):
            assert started(self.follow(one, f"next{i}")) == [home]
            one.finish(f"next{i}")

    def test_it_waits_for_that_replica(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        home = self.stored(one)
        one.wait(1 * MS)
        occupy(one, home)
        assert started(self.follow(one, "next")) == []
        one.wait(1 * MS)
        assert started(one.probe(home)) == [home]

    def test_while_it_waits_it_casts_no_shadow(self, placement: PlacementPolicy) -> None:
        config = CoreConfig(placement=PlacementConfig(overflow=OverflowMode.SHADOW))
        one = desk(replicas=2, peers=[EU_PEER], config=config, placement=placement)
        one.hear("gw-eu", EU)
        home = self.stored(one)
        one.wait(1 * MS)
        occupy(one, home)
        assert of_kind(ordered.RecordShadow, self.follow(one, "next")) == []

    def test_a_control_request_needs_no_free_replica(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        home = self.stored(one)
        one.wait(1 * MS)
        one.probe(waiting=9)
        assert started(self.follow(one, "cancel", is_control=True)) == [home]

    def test_it_follows_across_a_forward(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        assert self.stored(one) == "gw-eu"
        one.wait(1 * MS)
        one.probe()
        one.hear("gw-eu", EU)
        assert started(self.follow(one, "next")) == ["gw-eu"]

    def test_what_nobody_remembers_is_refused(self, placement: PlacementPolicy) -> None:
        assert ended(self.follow(desk(placement=placement), "next")) == [("next", "rejected_unknown_response")]

    def test_only_so_many_are_remembered(self, placement: PlacementPolicy) -> None:
        one = desk(config=CoreConfig(placement=PlacementConfig(stored_responses_max=2)), placement=placement)
        for i in range(3):
            self.stored(one, f"q{i}", f"key{i}")
        assert ended(self.follow(one, "old", key="key0")) == [("old", "rejected_unknown_response")]
        assert len(started(self.follow(one, "new", key="key2"))) == 1

    def test_a_policy_that_no_longer_allows_the_place_wins(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        self.stored(one)
        one.tell(events.PolicyApplied(policy(US, process=rule(US))))
        assert ended(self.follow(one, "next")) == [("next", "rejected_unknown_response")]

    def test_it_stays_pinned_though_the_memory_of_it_is_gone_meanwhile(self, placement: PlacementPolicy) -> None:
        one = desk(
            replicas=4, config=CoreConfig(placement=PlacementConfig(stored_responses_max=1)), placement=placement
        )
        home = self.stored(one)
        one.wait(1 * MS)
        occupy(one, home)
        self.follow(one, "next")
        self.stored(one, "other", "another-key")
        one.tell(events.PolicyApplied(policy(US)))
        assert "next" in one.core.requests
        one.wait(1 * MS)
        assert started(one.probe(home)) == [home]

    def test_it_waits_for_no_replica_that_left(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        home = self.stored(one)
        one.wait(1 * MS)
        occupy(one, home)
        self.follow(one, "next")
        left = tuple(replica_spec(name) for name in ("r0", "r1") if name != home)
        assert ended(one.tell(events.AssignmentApplied(2, left, ()))) == [("next", "rejected_unknown_response")]

    def test_a_peer_that_does_not_know_it_ends_the_search(self, placement: PlacementPolicy) -> None:
        one = busy_desk(placement)
        self.stored(one)
        one.wait(1 * MS)
        one.hear("gw-eu", EU)
        self.follow(one, "next")
        effects = one.finish("next", LegResult.REFUSED, refusal=RefusalReason.UNKNOWN_RESPONSE)
        assert ended(effects) == [("next", "rejected_unknown_response")]


class TestWhileRequestsAreHeld:
    def follow(self, one: Desk, request_id: str, prompt: str, *, is_control: bool = False) -> list[Effect]:
        """Request that follows the response to `first` at the replica that made it."""
        asked = replace(profile(request_id, prompt=prompt), follows="key", is_control=is_control)
        return one.tell(events.RequestArrived(asked, one.now_ns + 60 * SECOND))

    def followed(self, **more: object) -> Desk:
        """`waits` waits while `first` is read; other requests will follow the response to `first`."""
        one = reading(**more)
        one.tell(events.ResponseStored(RequestId("first"), 1, 1, "key"))
        return one

    def test_a_stored_response_is_followed_at_its_own_time(self) -> None:
        """The books on caches were updated later than the time of the last request that was weighed."""
        one = desk(replicas=1)
        one.ask("first")
        one.tell(events.ResponseStored(RequestId("first"), 1, 1, "key"))
        one.finish("first")
        for _ in range(30):
            one.wait(SECOND)
            one.probe()
        follows = replace(profile("next"), follows="key")
        assert started(one.tell(events.RequestArrived(follows, one.now_ns + 60 * SECOND))) == ["r0"]

    def test_a_stored_response_is_followed_past_those_who_are_held(self) -> None:
        one = reading()
        one.tell(events.ResponseStored(RequestId("first"), 1, 1, "key"))
        one.probe(running=1, waiting=3)
        follows = replace(profile("next"), follows="key")
        assert started(one.tell(events.RequestArrived(follows, 60 * SECOND))) == ["r0"], "it could go nowhere else"

    def test_what_follows_a_stored_response_overtakes_by_no_more_than_others(self) -> None:
        """All of them have the same text, but it continues a stored response and begins no prompt: it is read each
        time."""
        one, text = self.followed(), words("go on", 100)
        passed: list[str] = []
        for i in range(100):
            one.wait(MS)
            passed += started(self.follow(one, f"next{i}", text))
        assert home_of(one) == "r0"
        assert {home_of(one, f"next{i}") for i in range(len(passed), 100)} == {"r0"}, "they take turns behind it"
        bound = 2 * profile("waits", prompt=words("waits")).prompt_bytes
        assert 0 < len(passed) <= bound // profile("q", prompt=text).prompt_bytes + 1

    def test_whoever_is_held_goes_though_one_after_another_follows_a_stored_response(self) -> None:
        """The replica always has something to read, and never less than a request is held for."""
        one, text = self.followed(), words("go on", 700)
        unread = [leg.request_id for leg in of_kind(ordered.StartLeg, one.effects)]
        for i in range(20):
            one.wait(50 * MS)
            told = self.follow(one, f"next{i}", text) + self.follow(one, f"more{i}", text)
            told += one.first_token(unread.pop(0))
            unread += [leg.request_id for leg in of_kind(ordered.StartLeg, told)]
            assert unread, "it reads all the time"
            if "waits" in unread:
                break
        assert "waits" in unread

    def test_what_follows_a_stored_response_and_is_held_goes_in_its_turn(self) -> None:
        one = self.followed()
        assert started(self.follow(one, "next", words("next"))) == []
        assert home_of(one, "next") == "r0"
        assert "held for it: it reads what was sent before" in one.core.why_it_waits(RequestId("next"))
        assert [leg.request_id for leg in of_kind(ordered.StartLeg, one.first_token("first"))] == ["waits"]
        assert [leg.request_id for leg in of_kind(ordered.StartLeg, one.first_token("waits"))] == ["next"]
        (leg,) = [leg for leg in of_kind(ordered.StartLeg, one.effects) if leg.request_id == "next"]
        assert leg.decision.reason == "stored_response"

    def test_what_follows_a_stored_response_may_be_left_alone_by_its_replica_while_held(self) -> None:
        one = self.followed()
        self.follow(one, "next", words("next"))
        assert ended(one.tell(events.AssignmentApplied(2, (replica_spec("other"),), ()))) == [
            ("next", "rejected_unknown_response")
        ]
        assert started(one.probe()) == ["other"]

    def test_what_only_asks_of_a_stored_response_waits_for_no_turn(self) -> None:
        one = self.followed()
        for i in range(40):
            assert started(self.follow(one, f"cancel{i}", "", is_control=True)) == ["r0"]

    def test_where_only_our_own_legs_count_those_who_follow_take_turns_for_a_place_as_well(self) -> None:
        places = PushingConfig(mode=PushingMode.OUTSTANDING, outstanding_max=2)
        one = self.followed(config=CoreConfig(pushing=places))
        one.first_token("first")
        one.first_token("waits")
        one.ask("third", prompt=words("third"))
        for i in range(3):
            assert started(self.follow(one, f"next{i}", "hi")) == []
        begun: list[str] = []
        for name in ("first", "waits", "third"):
            told = one.finish(name) + [effect for each in begun[-1:] for effect in one.first_token(each)]
            begun += [leg.request_id for leg in of_kind(ordered.StartLeg, told)]
        assert begun == ["third", "next0", "next1"]
