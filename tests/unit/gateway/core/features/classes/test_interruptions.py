"""Running requests of classes that yield give their slots to interactive requests that find none free."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.classes.config import ClassesConfig, InteractiveConfig
from gateway.core.kernel.config import PlacementPolicy, PushingMode
from gateway.core.kernel.effects import Effect, PublishLoad, RefuseForward, TakeBackLeg
from gateway.core.vocabulary import LegResult, ModelName, RequestId, ServiceClass
from tests.support.core import (
    AP,
    EU,
    LAYERED,
    MODEL,
    MS,
    SECOND,
    Desk,
    desk,
    ended,
    forward,
    of_kind,
    peer_spec,
    profile,
    replica_spec,
    started,
)

SLOTS = 4
BATCH = ("b1", "b2", "b3")
"""Requests that a replica takes which keeps a tenth of its four slots free."""


def arrive(
    one: Desk, name: str, service_class: ServiceClass = ServiceClass.INTERACTIVE, *, prompt: str = "hello"
) -> list[Effect]:
    asked = replace(profile(name, prompt=prompt), service_class=service_class, stream=False)
    return one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND))


def busy(
    *interactive: str,
    replicas: int = 1,
    config: CoreConfig | None = None,
    placement: PlacementPolicy | None = None,
    peers: bool = False,
    yielding: ServiceClass = ServiceClass.BATCH,
    batch: Iterable[str] = BATCH,
) -> Desk:
    """Desk at whose only replica, r0, these requests run after three that yield."""
    one = desk(
        replicas=[replace(replica_spec(f"r{number}"), slots=SLOTS) for number in range(replicas)],
        peers=[peer_spec("gw-eu", EU)] if peers else (),
        config=config,
        placement=placement,
    )
    for name in batch:
        assert started(arrive(one, name, yielding)) == ["r0"], name
        one.wait(10 * MS)
        one.probe("r0", running=one.core.replicas.at(0).in_flight)
    for name in interactive:
        assert started(arrive(one, name)) == ["r0"], name
    return one


def interrupted(effects: Iterable[Effect]) -> list[str]:
    return [each.request_id for each in of_kind(TakeBackLeg, effects)]


def give(one: Desk, name: str, attempt: int = 1) -> list[Effect]:
    """End an interrupted leg."""
    return one.finish(name, LegResult.TAKEN_BACK, attempt)


def turns_take(one: Desk, turn_ns: int) -> None:
    """Have the core know that one waiting interactive request starts in this time."""
    drain = one.core.drain_rates._of(MODEL).interactive
    drain.count, drain.busy_ns = 10, 10.0 * turn_ns


def with_most(interruptions_max: int) -> CoreConfig:
    return replace(CoreConfig(), classes=ClassesConfig(interruptions_max=interruptions_max))


class TestInterruptions:
    def test_the_request_that_began_last_gives_its_slot_to_an_interactive_one(self) -> None:
        one = busy("i1")
        effects = arrive(one, "i2")
        assert interrupted(effects) == ["b3"]
        assert started(effects) == ["r0"], "it need not wait here for the end of the leg"

    def test_nothing_is_interrupted_while_a_slot_is_free(self) -> None:
        one = busy()
        assert not interrupted(arrive(one, "i1"))

    def test_each_further_interactive_request_interrupts_one_more(self) -> None:
        one = busy("i1", "i2")
        assert interrupted(one.effects) == ["b3"]
        assert interrupted(arrive(one, "i3")) == ["b2"]
        assert interrupted(arrive(one, "i4")) == ["b1"]
        assert not interrupted(arrive(one, "i5")), "nothing is left that would yield"

    def test_a_request_held_for_the_reading_starts_once_that_is_taken_to_be_over(self) -> None:
        one = busy("i0", batch=())
        one.core.replicas.read_ns_per_byte = 1000
        for name in ("b1", "b2"):
            assert not started(arrive(one, name, ServiceClass.BATCH, prompt="x" * 10_000)), "a prompt is read there"
        assert started(one.finish("i0")) == ["r0"], "the other one has it looked at after the reading"
        assert not started(arrive(one, "i1", prompt="y" * 10_000)), "it is held"
        assert started(one.wait(11 * MS)) == ["r0"]

    def test_a_request_held_here_starts_with_the_end_of_the_leg(self) -> None:
        one = busy("i1", "i2")
        assert not started(arrive(one, "i3")), "one waits in the engine already"
        assert started(give(one, "b3")) == ["r0"]
        assert not started(give(one, "b2"))
        assert one.core.goodput.interrupted == {ServiceClass.BATCH: 2}

    def test_an_interrupted_request_begins_anew_where_there_is_room_to_spare(self) -> None:
        one = busy("i1", "i2")
        assert not started(give(one, "b3"))
        one.finish("i1")
        assert started(one.probe("r0", running=3)) == []
        one.finish("i2")
        assert started(one.probe("r0", running=2)) == ["r0"]
        assert ended(one.finish("b3", attempt=2)) == [("b3", "completed")]

    def test_it_begins_anew_at_another_replica_at_once(self) -> None:
        one = busy()
        one.tell(
            events.AssignmentApplied(
                one.core.assignment_version + 1,
                tuple(replace(replica_spec(name), slots=SLOTS) for name in ("r0", "r1")),
                (),
            )
        )
        for name in ("i1", "i2"):
            arrive(one, name)
        assert interrupted(one.effects) == ["b3"]
        one.probe("r1")
        assert started(give(one, "b3")) == ["r1"]

    def test_best_effort_is_interrupted_too(self) -> None:
        one = busy("i1", "i2", "i3", yielding=ServiceClass.BEST_EFFORT, batch=["b1"])
        assert interrupted(arrive(one, "i4")) == ["b1"]

    def test_requests_that_yield_interrupt_nothing(self) -> None:
        one = busy("i1")
        assert not interrupted(arrive(one, "b4", ServiceClass.BATCH) + one.wait(SECOND) + one.probe("r0", running=4))

    def test_a_request_that_waited_so_long_that_it_is_served_as_interactive_interrupts_nothing(self) -> None:
        one = busy("i1")
        arrive(one, "b4", ServiceClass.BATCH)
        for _ in range(130):
            one.wait(SECOND)
            one.probe("r0", running=4)
        assert one.core.requests[RequestId("b4")].request_class.service_class is ServiceClass.INTERACTIVE
        assert not interrupted(one.effects)


class TestWhatIsNotInterrupted:
    def test_an_answer_that_has_begun(self) -> None:
        one = busy("i1")
        one.first_token("b3")
        assert one.core.replicas.at(0).yielding == 2
        assert interrupted(arrive(one, "i2")) == ["b2"]

    def test_a_request_that_was_interrupted_as_often_as_allowed(self) -> None:
        one = busy("i1", "i2", config=with_most(1), batch=BATCH)
        give(one, "b3")
        one.finish("i1")
        one.finish("i2")
        assert started(one.probe("r0", running=2)) == ["r0"], "b3 runs again"
        for name in ("i3", "i4"):
            arrive(one, name)
        assert interrupted(one.effects) == ["b3", "b2"]

    def test_none_where_the_config_says_so(self) -> None:
        one = busy("i1", "i2", config=with_most(0))
        assert not interrupted(one.effects)
        assert one.core.replicas.at(0).yielding == 0

    def test_a_request_that_has_used_more_time_than_it_has_left(self) -> None:
        one = busy("i1")
        one.wait(290 * SECOND)
        one.probe("r0", running=4)
        arrive(one, "i2")
        one.finish("i1")
        one.finish("i2")
        give(one, "b3")
        one.wait(20 * SECOND)
        for name in ("i3", "i4"):
            arrive(one, name)
        assert interrupted(one.effects) == ["b3"]


class TestLegsThatAreKept:
    def test_another_one_is_interrupted_after_a_while(self) -> None:
        one = busy("i1", "i2")
        arrive(one, "i3")
        assert interrupted(one.effects) == ["b3", "b2"]
        one.wait(100 * MS)
        assert not interrupted(one.probe("r0", running=4, waiting=1)), "they may still end"
        one.wait(150 * MS)
        assert interrupted(one.probe("r0", running=4, waiting=1)) == ["b1"]

    def test_none_is_asked_twice(self) -> None:
        one = busy("i1", "i2", batch=BATCH)
        for _ in range(10):
            one.wait(SECOND)
            arrive(one, f"more{one.now_ns}")
            one.probe("r0", running=4, waiting=1)
        assert sorted(interrupted(one.effects)) == list(BATCH)


class TestForwards:
    def test_an_interrupted_forward_waits_here_only_briefly(self) -> None:
        one = desk(replicas=[replace(replica_spec("r0"), slots=SLOTS)], peers=[peer_spec("gw-eu", EU)])
        asked = forward("f1", deadline_ns=600 * SECOND)
        asked = replace(asked, profile=replace(asked.profile, service_class=ServiceClass.BATCH, stream=False))
        assert started(one.tell(asked)) == ["r0"]
        for name in ("i1", "i2", "i3", "i4"):
            arrive(one, name)
        assert interrupted(one.effects) == ["f1"]
        assert not ended(give(one, "f1"))
        effects: list[Effect] = []
        for _ in range(31):
            effects += one.probe("r0", running=SLOTS)
            effects += one.wait(SECOND)
        assert ended(effects) == [("f1", "expired_in_queue")]


class TestPlacement:
    def test_an_interactive_request_stays_where_it_would_be_given_a_slot(self) -> None:
        one = busy("i1", peers=True)
        one.hear("gw-eu", EU, room=8, rtt_ms=150)
        for name in ("i2", "i3"):
            assert "gw-eu" not in started(arrive(one, name))
        assert interrupted(one.effects) == ["b3", "b2"]

    def test_a_policy_that_waits_for_any_replica_has_a_slot_freed_too(self) -> None:
        one = busy("i1", placement=LAYERED)
        one.first_token("i1")
        assert not interrupted(one.probe("r0", running=4, waiting=1)), "no interactive request of this gateway waits"
        effects = arrive(one, "i2")
        assert not started(effects)
        assert interrupted(effects) == ["b3"]


def test_a_replica_that_leaves_the_fleet_is_forgotten_with_its_legs() -> None:
    one = busy("i1")
    one.tell(events.AssignmentApplied(one.core.assignment_version + 1, (replica_spec("r9"),), ()))
    for name in (*BATCH, "i1"):
        one.finish(name)
    assert not one.core.requests


@pytest.mark.parametrize("name", BATCH)
def test_a_leg_that_completes_all_the_same_ends_its_request(name: str) -> None:
    one = busy("i1", "i2")
    for each in ("i3", "i4"):
        arrive(one, each)
    assert sorted(interrupted(one.effects)) == list(BATCH)
    assert ended(one.finish(name)) == [(name, "completed")]
    for each in BATCH:
        if each != name:
            give(one, each)
    assert one.core.replicas.at(0).yielding == 0


class TestOtherRegions:
    def test_a_heartbeat_tells_how_many_slots_would_be_given_away(self) -> None:
        one = busy("i1")
        one.wait(200 * MS)
        told = of_kind(PublishLoad, one.probe("r0", running=4) + one.wait(200 * MS))[-1].report.capacities
        assert [(each.room, each.yielding) for each in told] == [(0, 3)]
        told = of_kind(PublishLoad, arrive(one, "i2") + one.wait(150 * MS))[-1].report.capacities
        assert [(each.room, each.yielding) for each in told] == [(-1, 3)]

    @pytest.mark.parametrize(("yielding", "target"), [(0, []), (2, ["gw-eu"])])
    def test_requests_overflow_to_a_region_that_is_full_of_batches(self, yielding: int, target: list[str]) -> None:
        one = desk(replicas=0, peers=[peer_spec("gw-eu", EU)])
        one.hear("gw-eu", EU, room=-1, yielding=yielding)
        assert started(arrive(one, "i1")) == target
        assert started(arrive(one, "b1", ServiceClass.BATCH)) == []

    def test_no_more_are_sent_than_would_be_given_slots(self) -> None:
        one = desk(replicas=0, peers=[peer_spec("gw-eu", EU)])
        one.hear("gw-eu", EU, room=0, yielding=2)
        assert [started(arrive(one, f"i{number}")) for number in range(3)] == [["gw-eu"], ["gw-eu"], []]

    @pytest.mark.parametrize(("batch", "taken"), [((), 0), (BATCH, 3)])
    def test_a_full_region_takes_as_many_forwards_as_it_has_slots_to_give(
        self, batch: tuple[str, ...], taken: int
    ) -> None:
        one = busy(*[f"i{number}" for number in range(5 - len(batch))], peers=True, batch=batch)
        one.core.replicas.at(0).slots.duration_ns = SLOTS * SECOND
        one.probe("r0", running=SLOTS)
        arrivals = [one.tell(forward(f"f{number}", deadline_ns=600 * SECOND)) for number in range(9)]
        assert [not of_kind(RefuseForward, effects) for effects in arrivals] == [True] * taken + [False] * (9 - taken)
        assert len(interrupted(one.effects)) == len(batch)

    def test_forwards_for_another_model_are_taken_as_where_nothing_gives_slots(self) -> None:
        other = ModelName("mistral")
        specs = [replace(replica_spec("r0"), slots=SLOTS), replace(replica_spec("r1", models=(other,)), slots=1)]
        one = desk(replicas=specs, peers=[peer_spec("gw-eu", EU)])
        assert started(arrive(one, "b1", ServiceClass.BATCH)) == ["r0"]
        arrivals: list[Effect] = []
        for number in range(4):
            asked = forward(f"f{number}", deadline_ns=600 * SECOND)
            arrivals += one.tell(replace(asked, profile=replace(asked.profile, model=other)))
        assert not of_kind(RefuseForward, arrivals)


class TestWhoInterrupts:
    def test_a_promoted_request_in_the_engine_interrupts_nothing_while_another_batch_request_waits(self) -> None:
        one = busy("i1")
        arrive(one, "b4", ServiceClass.BATCH)
        for _ in range(125):
            one.wait(SECOND)
            one.probe("r0", running=SLOTS)
        arrive(one, "b5", ServiceClass.BATCH)
        assert one.core.replicas.at(0).room == -1, "b4 waits in the engine"
        one.wait(SECOND)
        assert not interrupted([*one.effects, *one.probe("r0", running=SLOTS, waiting=1)])

    def test_an_interrupted_request_is_not_promoted_at_once(self) -> None:
        one = busy("i1")
        for _ in range(125):
            one.wait(SECOND)
            one.probe("r0", running=SLOTS)
        for name in ("i2", "i3"):
            arrive(one, name)
        assert interrupted(one.effects) == ["b3", "b2"]
        assert started(give(one, "b3")) == ["r0"]
        assert not started(give(one, "b2") + one.probe("r0", running=SLOTS))
        assert one.core.requests[RequestId("b3")].request_class.service_class is ServiceClass.BATCH

    @pytest.mark.parametrize(("free", "words", "target"), [(True, 100, "r1"), (True, 1000, "r0"), (False, 60, "r0")])
    def test_a_free_slot_next_door_is_taken_unless_much_more_of_the_prompt_is_cached_where_one_is_given(
        self, free: bool, words: int, target: str
    ) -> None:
        one = busy(replicas=2, batch=())
        one.probe("r1", healthy=False)
        for name in BATCH:
            assert started(arrive(one, name, ServiceClass.BATCH)) == ["r0"]
            one.wait(10 * MS)
            one.probe("r0", running=one.core.replicas.at(0).in_flight)
        cached = "a prompt that is long" * words
        assert started(arrive(one, "i1", prompt=cached)) == ["r0"]
        one.first_token("i1")
        one.core.replicas.at(0).slots.duration_ns = one.core.replicas.at(1).slots.duration_ns = SLOTS * SECOND
        one.probe("r0", running=SLOTS)
        one.probe("r1", running=0 if free else SLOTS)
        assert [each.room for each in one.core.replicas] == [0, SLOTS if free else 0]
        effects = arrive(one, "i2", prompt=cached)
        assert started(effects) == [target]
        assert interrupted(effects) == (["b3"] if target == "r0" else [])

    def test_a_request_that_is_rejected_at_once_interrupts_nothing(self) -> None:
        config = replace(CoreConfig(), queue=replace(CoreConfig().queue, tenant_length_max=1))
        one = busy("i1", "i2", config=config)
        for name in ("i3", "i4", "i5"):
            arrive(one, name)
        rejected = [name for name, outcome in ended(one.effects) if outcome.startswith("rejected")]
        assert rejected
        assert len(interrupted(one.effects)) == 4 - len(rejected)

    def test_a_call_about_a_stored_response_interrupts_nothing(self) -> None:
        one = busy("i1")
        asked = replace(profile("c1"), is_control=True, follows="resp_1", stream=False)
        one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND))
        assert not interrupted(one.effects)

    def test_a_request_in_the_engine_is_looked_at_again_where_the_first_leg_was_kept(self) -> None:
        one = busy("i1", "i2")
        assert interrupted(one.effects) == ["b3"]
        for _ in range(4):
            one.wait(300 * MS)
            one.probe("r0", running=SLOTS, waiting=1)
        assert interrupted(one.effects) == ["b3", "b2", "b1"]

    def test_an_engine_that_turns_out_to_be_full_gives_a_slot(self) -> None:
        one = busy("i1")
        assert not interrupted(one.effects)
        assert interrupted(one.probe("r0", running=SLOTS, waiting=1)) == ["b3"], "others send requests there, too"

    def test_a_request_that_a_slot_is_given_is_not_called_late(self) -> None:
        classes = replace(ClassesConfig(), interactive=InteractiveConfig(first_token_ns=SECOND))
        one = busy("i1", "i2", config=replace(CoreConfig(), classes=classes))
        turns_take(one, 2 * SECOND)
        assert not ended(arrive(one, "i3"))
        assert interrupted(one.effects) == ["b3", "b2"]


def test_interruptions_leave_the_moves_from_silent_targets() -> None:
    one = busy("i1", "i2", replicas=1)
    give(one, "b3")
    one.finish("i1")
    one.finish("i2")
    one.probe("r0", running=2)
    for name in ("i3", "i4"):
        arrive(one, name)
    give(one, "b3", 2)
    request = one.core.requests[RequestId("b3")]
    assert [leg.result for leg in request.record.legs] == [LegResult.TAKEN_BACK] * 2
    assert one.core._take_backs._may_move_again(request)


def test_a_config_that_forbids_it_forgets_what_would_yield() -> None:
    one = busy("i1")
    one.tell(events.ConfigApplied(with_most(0)))
    assert one.core.replicas.at(0).yielding == 0
    assert not interrupted(arrive(one, "i2"))


class TestPromoted:
    """Requests that have yielded for so long that they are served as interactive are given nothing."""

    def promoted(self, one: Desk, name: str = "b9") -> None:
        arrive(one, name, ServiceClass.BATCH)
        for _ in range(125):
            one.wait(SECOND)
            for state in one.core.replicas:
                one.probe("r0", running=min(SLOTS, state.in_flight), waiting=max(0, state.in_flight - SLOTS))
        assert one.core.requests[RequestId(name)].request_class.service_class is ServiceClass.INTERACTIVE

    def test_one_waits_where_only_slots_to_give_are_told(self) -> None:
        one = desk(replicas=0, peers=[peer_spec("gw-eu", EU)])
        one.hear("gw-eu", EU, room=0, yielding=8)
        self.promoted(one)
        assert not started([*one.effects, *one.hear("gw-eu", EU, room=0, yielding=8)])

    def test_one_in_the_engine_takes_no_slot_while_an_interactive_prompt_is_read_in_its_own(self) -> None:
        one = busy()
        asked = replace(profile("s1", prompt="a long prompt" * 1000), stream=True)
        assert started(one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND))) == ["r0"]
        self.promoted(one)
        assert one.core.replicas.at(0).room == -1
        assert not interrupted([*one.effects, *one.probe("r0", running=SLOTS, waiting=1)])

    def test_interactive_requests_behind_one_are_given_slots(self) -> None:
        one = busy("i1", placement=LAYERED)
        one.first_token("i1")
        one.probe("r0", running=SLOTS, waiting=1)
        arrive(one, "b9", ServiceClass.BATCH)
        for _ in range(125):
            one.wait(SECOND)
            one.probe("r0", running=SLOTS, waiting=1)
        assert not interrupted(one.effects)
        assert interrupted(arrive(one, "i2")) == ["b3"]


class TestHowMany:
    def test_a_peer_with_a_free_slot_is_preferred_to_one_as_near_that_gives_slots(self) -> None:
        one = desk(replicas=0, peers=[peer_spec("gw-eu", EU), peer_spec("gw-ap", AP)])
        one.hear("gw-eu", EU, room=0, yielding=8, rtt_ms=100, release_ns=SECOND)
        one.hear("gw-ap", AP, room=8, rtt_ms=101, release_ns=SECOND)
        assert started(arrive(one, "i1")) == ["gw-ap"]

    def test_more_requests_than_slots_to_give_are_rejected_as_late(self) -> None:
        classes = replace(ClassesConfig(), interactive=InteractiveConfig(first_token_ns=SECOND))
        one = busy("i1", config=replace(CoreConfig(), classes=classes))
        turns_take(one, 2 * SECOND)
        for number in range(12):
            arrive(one, f"more{number}")
        late = [name for name, outcome in ended(one.effects) if outcome == "rejected_deadline"]
        assert len(late) >= 12 - SLOTS - 1
        assert sorted(interrupted(one.effects)) == list(BATCH)

    def test_requests_that_yield_do_not_fill_an_engine_whose_slots_are_not_known(self) -> None:
        one = desk(replicas=1)
        for number in range(40):
            arrive(one, f"b{number}", ServiceClass.BATCH)
        one.wait(90 * MS)
        assert one.core.replicas.at(0).in_flight <= 9

    def test_a_limit_on_own_legs_counts_as_slots(self) -> None:
        pushing = replace(CoreConfig().pushing, mode=PushingMode.OUTSTANDING, outstanding_max=3)
        one = busy(config=replace(CoreConfig(), pushing=pushing))
        assert interrupted(arrive(one, "i1")) == ["b3"]

    def test_a_leg_that_is_kept_blocks_no_other_where_requests_wait_for_any_replica(self) -> None:
        one = busy("i1", placement=LAYERED)
        one.first_token("i1")
        one.probe("r0", running=SLOTS, waiting=1)
        arrive(one, "i2")
        for _ in range(3):
            one.wait(300 * MS)
            one.probe("r0", running=SLOTS, waiting=1)
        assert interrupted(one.effects) == ["b3", "b2", "b1"]

    def test_a_leg_that_ended_counts_although_the_last_probe_found_the_cache_full(self) -> None:
        one = busy("i1")
        one.probe("r0", running=SLOTS, waiting=1, kv_usage=0.95)
        assert interrupted(one.effects) == ["b3"]
        give(one, "b3")
        arrive(one, "i2")
        assert interrupted(one.effects) == ["b3", "b2"]
