"""Replicas that were announced to leave are sent nothing more, and what runs there moves in time, batch first."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.features.leaving.config import LeavingConfig
from gateway.core.kernel import take_backs
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.config import AttemptConfig, PlacementPolicy, PushingConfig, PushingMode
from gateway.core.kernel.effects import Effect, EndRequest, PublishLoad, StartLeg, TakeBackLeg
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.vocabulary import (
    LegResult,
    ModelName,
    Outcome,
    ReplicaId,
    RequestId,
    RequestProfile,
    ServiceClass,
    Standing,
    replica_target,
)
from tests.support.core import (
    BOTH,
    EU,
    EU_PEER,
    MODEL,
    MS,
    SECOND,
    US,
    Desk,
    desk,
    ended,
    forward,
    home_of,
    of_kind,
    profile,
    reading,
    replica_spec,
    started,
)
from tests.support.disaggregated import decoding, leg_ended, pair, read, roles, workers

under_both = pytest.mark.parametrize("placement", BOTH)


def rest(name: str) -> RequestProfile:
    """Rest of a request whose answer has begun."""
    return replace(profile(name, prompt="hello and what was said"), appends=True)


def leaves(one: Desk, within_s: float | None = 30, name: str = "r0") -> list[Effect]:
    """Announce that a replica leaves, or with None that it stays."""
    leave_by_ns = None if within_s is None else one.now_ns + round(within_s * SECOND)
    return one.tell(events.ReplicaLeaves(ReplicaId(name), leave_by_ns)) + one.wait(0)


def ask(one: Desk, name: str, service_class: ServiceClass = ServiceClass.INTERACTIVE) -> list[str]:
    asked = replace(profile(name), service_class=service_class)
    return started(one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND)))


def running(*interactive: str, batch: Iterable[str] = (), config: CoreConfig | None = None) -> Desk:
    """Desk at whose replica r0 these requests run; r1 is down."""
    config = config or CoreConfig()
    one = desk(replicas=2, config=replace(config, attempt=replace(config.attempt, ramp_limit=1)))
    one.probe("r1", healthy=False)
    for name in batch:
        assert ask(one, name, ServiceClass.BATCH) == ["r0"]
        one.first_token(name)
        one.wait(1 * MS)
        one.probe("r0", running=1)
    for name in interactive:
        assert ask(one, name) == ["r0"]
    return one


def up(one: Desk, name: str = "r1") -> list[Effect]:
    """Let the other replica answer, with room for any number of requests."""
    one.wait(1 * MS)
    effects = one.probe(name)
    return effects + one.wait(1 * SECOND) + one.probe(name)


def moved(effects: Iterable[Effect]) -> list[str]:
    """Requests whose legs were to be taken back, in the order of the first orders."""
    return list(dict.fromkeys([each.request_id for each in of_kind(TakeBackLeg, effects)]))


def wait(one: Desk, seconds: float) -> list[Effect]:
    """Let time pass while both replicas answer their probes."""
    effects: list[Effect] = []
    for _ in range(round(seconds * 2)):
        effects += one.wait(SECOND // 2)
        effects += one.probe()
    return effects


def assign(one: Desk, name: str, **changes: object) -> None:
    """Describe one of both replicas otherwise."""
    specs = [state.spec for state in one.core.replicas]
    changed = [replace(spec, **changes) if spec.replica_id == name else spec for spec in specs]
    one.tell(events.AssignmentApplied(one.core.assignment_version + 1, tuple(changed), ()))


def state_of(one: Desk, name: str = "r0") -> ReplicaState:
    state = one.core.replicas.get(name)
    assert state is not None
    return state


@under_both
class TestFromTheNoticeOn:
    def test_nothing_is_sent_there(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=2, placement=placement)
        leaves(one)
        assert state_of(one).standing is Standing.LEAVING
        assert {target for name in "abcd" for target in ask(one, name)} == {"r1"}

    def test_requests_wait_for_the_only_one_as_if_it_were_down_until_the_notice_is_withdrawn(
        self, placement: PlacementPolicy
    ) -> None:
        one = desk(replicas=1, placement=placement)
        leaves(one)
        assert ask(one, "q") == []
        assert "leaving" in one.core.why_it_waits(RequestId("q"))
        assert started(leaves(one, None)) == ["r0"]

    def test_or_go_to_a_peer(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], placement=placement)
        one.hear("gw-eu", EU)
        leaves(one)
        assert ask(one, "q") == ["gw-eu"]

    def test_peers_are_told_of_no_room(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, peers=[EU_PEER], placement=placement)
        (before,) = of_kind(PublishLoad, one.wait(200 * MS) + one.probe() + one.wait(200 * MS))[-1].report.capacities
        (after,) = of_kind(PublishLoad, leaves(one) + one.wait(200 * MS))[-1].report.capacities
        assert (before.available, before.room > 0) == (1, True)
        assert (after.replicas, after.available, after.room) == (1, 0, 0)

    def test_batches_find_no_room_there(self, placement: PlacementPolicy) -> None:
        one = desk(replicas=1, placement=placement)
        model, tenant = profile("a").model, profile("a").tenant
        assert one.core.batch_rooms(model, tenant, None)[US.region] > 0
        leaves(one)
        assert one.core.batch_rooms(model, tenant, None) == {US.region: 0}


def test_what_is_held_for_it_is_released() -> None:
    one = reading()
    assert home_of(one) == "r0"
    leaves(one)
    assert home_of(one) is None


class TestWhatRunsThere:
    def test_batch_moves_at_once_and_interactive_requests_run_on_until_the_margin(self) -> None:
        one = running("talk", batch=["line"])
        up(one)
        assert moved(leaves(one)) == ["line"]
        assert started(one.finish("line", LegResult.TAKEN_BACK, remainder=rest("line"))) == ["r1"]
        assert moved(wait(one, 24.5)) == []
        assert moved(wait(one, 1)) == ["talk"]
        assert started(one.finish("talk", LegResult.TAKEN_BACK)) == ["r1"]

    def test_answers_that_have_begun_go_first_at_the_margin(self) -> None:
        one = running("new", "begun", "newer")
        up(one)
        leaves(one)
        one.first_token("begun")
        assert moved(wait(one, 25.5)) == ["begun", "new", "newer"]

    def test_a_notice_shorter_than_the_margin_moves_all_at_once(self) -> None:
        one = running("q")
        up(one)
        assert moved(leaves(one, 4)) == ["q"]

    def test_the_margin_is_configured(self) -> None:
        one = running("q", config=CoreConfig(leaving=LeavingConfig(margin_ns=60 * SECOND)))
        up(one)
        assert moved(leaves(one)) == ["q"]

    def test_what_has_no_room_elsewhere_is_looked_at_again_until_the_end(self) -> None:
        one = running("a", "b")
        assert moved(leaves(one, 3)) == []
        assert sorted(moved(up(one) + one.wait(SECOND // 2))) == ["a", "b"]
        for name in "ab":
            one.finish(name, LegResult.TAKEN_BACK)
        assert moved(wait(one, 5)) == []

    def test_nothing_is_ordered_after_the_end(self) -> None:
        """The request breaks with the engine, if that ends at all."""
        one = running("q")
        leaves(one, 3)
        one.wait(3 * SECOND)
        assert moved(up(one) + wait(one, 5)) == []
        assert ended(one.finish("q")) == [("q", Outcome.COMPLETED)]

    def test_what_is_kept_does_not_hold_up_others(self) -> None:
        """The request's side may keep a leg, since a slow client has not taken what has arrived."""
        one = running("kept", "a", "b", "c")
        for name in ("kept", "a", "b", "c"):
            one.first_token(name)
        assign(one, "r1", slots=1)
        up(one)
        leaves(one, 4)
        gone: list[str] = []
        for _ in range(12):
            for order in of_kind(TakeBackLeg, one.effects):
                if order.request_id not in ("kept", *gone):
                    gone.append(order.request_id)
                    one.finish(order.request_id, LegResult.TAKEN_BACK, remainder=rest(order.request_id))
                    one.finish(order.request_id, attempt=2)
            one.wait(SECOND // 4)
            one.probe()
        assert gone == ["a", "b", "c"]
        assert len([each for each in of_kind(TakeBackLeg, one.effects) if each.request_id == "kept"]) > 1

    @pytest.mark.parametrize(("slots", "ordered"), [(1, ["a"]), (3, ["a", "b"])])
    def test_no_leg_is_ordered_again_and_its_room_is_kept_until_that_is_carried_out(
        self, slots: int, ordered: list[str]
    ) -> None:
        one = running("a", "b")
        assign(one, "r1", slots=slots)
        up(one)
        assert moved(leaves(one, 4)) == ordered
        one.wait(100 * MS)
        assert moved(leaves(one, 3)) == []

    def test_no_room_is_promised_that_waiting_requests_take(self) -> None:
        """The replica's ramp may grow by the event at which legs are looked at."""
        one = desk(replicas=2)
        one.probe("r1", healthy=False)
        for number in range(12):
            one.wait(1 * MS)
            ask(one, f"q{number}")
        one.wait(1 * MS)
        one.probe("r1")
        assert one.core.waiting.count
        leaves(one, 4.9)
        for _ in range(100):  # the checker counts the room
            one.wait(50 * MS)
            one.probe()

    def test_as_many_move_at_once_as_may_be_outstanding(self) -> None:
        names = [f"q{number}" for number in range(6)]
        mode = PushingConfig(mode=PushingMode.OUTSTANDING, outstanding_max=len(names))
        one = running(*names, config=CoreConfig(pushing=mode))
        up(one)
        assert ask(one, "other") == ["r1"]
        assert moved(leaves(one, 4)) == names[:-1]

    def test_or_as_a_ramp_allows(self) -> None:
        one = running("a", "b", "c", "d")
        one.tell(events.ConfigApplied(CoreConfig(attempt=AttemptConfig(ramp_limit=8))))
        up(one)
        assert state_of(one, "r1").ramp.limit == 2
        assert moved(leaves(one, 4)) == ["a", "b"]

    def test_no_look_is_taken_before_the_margin_where_nothing_yields(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = running("q")
        up(one)
        ordered: list[int] = []
        monkeypatch.setattr(one.core, "take_back_legs", lambda _legs, _details, now_ns: ordered.append(now_ns))
        begins_ns = one.now_ns
        leaves(one, 8)
        wait(one, 3.5)
        assert min(ordered) == begins_ns + 3 * SECOND

    def test_what_comes_late_in_a_look_without_room_comes_first_in_the_next(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(take_backs, "_MISSES_MAX", 2)
        other = ModelName("other")
        both = [replica_spec("r0", models=[MODEL, other]), replica_spec("r1", models=[other])]
        one = desk(replicas=both, config=CoreConfig(attempt=AttemptConfig(ramp_limit=1)))
        one.probe("r1", healthy=False)
        for name in ("a", "b", "c"):
            asked = profile(name, model=other if name == "c" else MODEL)
            assert started(one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND))) == ["r0"]
        up(one)
        assert moved(leaves(one, 4)) == []
        assert moved(one.wait(SECOND // 4)) == ["c"]

    def test_it_moves_though_its_replica_is_described_otherwise_meanwhile(self) -> None:
        one = running("q")
        up(one)
        leaves(one, 10)
        assign(one, "r0", slots=3)
        one.probe()
        assert moved(wait(one, 6)) == ["q"]

    def test_a_request_of_another_gateway_moves_too(self) -> None:
        one = desk(replicas=2, peers=[EU_PEER], config=CoreConfig(attempt=AttemptConfig(ramp_limit=1)))
        one.probe("r1", healthy=False)
        assert started(one.tell(forward("f"))) == ["r0"]
        one.first_token("f")
        up(one)
        assert moved(leaves(one, 4)) == ["f"]
        (order,) = of_kind(StartLeg, one.finish("f", LegResult.TAKEN_BACK, remainder=rest("f")))
        assert (order.target.id, order.segment) == ("r1", 1)

    def test_it_is_moved_however_often_its_replicas_leave(self) -> None:
        one = running("q", config=CoreConfig(attempt=AttemptConfig(attempts_max=1)))
        up(one)
        assert moved(leaves(one, 4)) == ["q"]
        one.finish("q", LegResult.TAKEN_BACK)
        leaves(one, None)
        assert moved(leaves(one, 4, "r1")) == ["q"]

    def test_nothing_of_it_counts_against_anybody(self) -> None:
        config = AttemptConfig(retry_budget_min=0, retry_budget_share=0.0, breaker_failures_in_row=1, ramp_limit=1)
        one = running("a", "b", config=CoreConfig(attempt=config))
        up(one)
        leaves(one, 4)
        for name in "ab":
            assert started(one.finish(name, LegResult.TAKEN_BACK)) == ["r1"]
            assert one.core.requests[RequestId(name)].failures == 0
        state = state_of(one)
        assert (state.breaker.state, state.distrusted_since_ns) == (BreakerState.CLOSED, None)
        leaves(one, None)
        one.probe()
        assert state.standing is Standing.AVAILABLE


class TestEndOfANotice:
    def test_an_engine_that_comes_back_afterwards_is_another_one(self) -> None:
        one = desk(replicas=1)
        leaves(one, 3)
        wait(one, 3)
        one.probe(healthy=False)
        one.wait(SECOND)
        one.probe()
        assert state_of(one).standing in (Standing.AVAILABLE, Standing.RAMP)

    def test_one_that_is_down_before_has_not_left(self) -> None:
        one = desk(replicas=1)
        leaves(one, 3)
        one.probe(healthy=False)
        one.wait(SECOND)
        one.probe()
        assert state_of(one).standing is Standing.LEAVING

    def test_but_has_if_it_stays_down(self) -> None:
        one = desk(replicas=1)
        leaves(one, 3)
        for _ in range(8):
            one.probe(healthy=False)
            one.wait(SECOND // 2)
        one.probe()
        assert state_of(one).standing in (Standing.AVAILABLE, Standing.RAMP)

    def test_or_if_it_was_down_at_the_time(self) -> None:
        one = desk(replicas=1)
        leaves(one, 3)
        wait(one, 2)
        one.probe(healthy=False)
        one.wait(2 * SECOND)
        one.probe()
        assert state_of(one).standing in (Standing.AVAILABLE, Standing.RAMP)

    def test_or_if_its_loss_was_told_after_that_time(self) -> None:
        one = desk(replicas=1)
        leaves(one, 3)
        wait(one, 3)
        one.tell(events.TargetLost(replica_target(ReplicaId("r0")), "its connection broke"))
        one.wait(SECOND)
        one.probe()
        assert state_of(one).standing in (Standing.AVAILABLE, Standing.RAMP)

    def test_but_not_if_it_was_told_before(self) -> None:
        one = desk(replicas=1)
        leaves(one, 3)
        one.tell(events.TargetLost(replica_target(ReplicaId("r0")), "its connection broke"))
        one.wait(SECOND)
        one.probe()
        assert state_of(one).standing is Standing.LEAVING

    def test_one_that_lives_on_stays_out(self) -> None:
        one = desk(replicas=1)
        leaves(one, 3)
        wait(one, 60)
        assert state_of(one).standing is Standing.LEAVING
        assert ask(one, "q") == []

    def test_a_replica_that_is_assigned_anew_does_not_leave(self) -> None:
        one = desk(replicas=1)
        leaves(one)
        one.tell(events.AssignmentApplied(2, (), ()))
        one.tell(events.AssignmentApplied(3, (replica_spec("r0"),), ()))
        one.probe()
        assert state_of(one).leave_by_ns is None

    def test_one_that_is_only_described_otherwise_does(self) -> None:
        one = desk(replicas=1)
        leaves(one)
        one.tell(events.AssignmentApplied(2, (replace(replica_spec("r0"), slots=3),), ()))
        one.probe()
        assert state_of(one).standing is Standing.LEAVING

    def test_others_are_not_known(self) -> None:
        one = desk(replicas=1)
        assert leaves(one, 3, "elsewhere") == []
        assert started(one.ask("q")) == ["r0"]


class TestDisaggregatedPools:
    def test_a_decode_worker_that_leaves_is_given_nothing(self) -> None:
        one = pair()
        leaves(one, name="d0")
        for name in "ab":
            read(one, name)
        assert {target for _, role, target in roles(one.effects) if role == "decode"} == {"d1"}

    def test_nor_is_a_prefill_worker(self) -> None:
        one = pair(workers(prefill=2))
        leaves(one, name="p0")
        assert {started(one.ask(name))[0] for name in "abcd"} == {"p1"}

    def test_an_answer_at_a_decode_worker_moves(self) -> None:
        one = pair(workers(decode=2))
        assert decoding(read(one, "q")) == ["q"]
        (worker,) = [target for _, role, target in roles(one.effects) if role == "decode"]
        one.tell(events.FirstToken(RequestId("q"), 1, 2))
        assert moved(leaves(one, 4, worker)) == ["q"]
        leg_ended(one, "q", 2, LegResult.TAKEN_BACK, remainder=rest("q"))
        leg_ended(one, "q", 1, attempt=2, prompt_tokens=100)
        one.wait(20 * MS)
        (again,) = [target for _, role, target in roles(one.effects)[2:] if role == "decode"]
        assert again != worker
        assert not of_kind(EndRequest, one.effects)
