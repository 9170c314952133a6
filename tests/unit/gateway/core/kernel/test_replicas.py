"""Loads and availability masks of replicas, and the effect of observations on them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import PushingConfig, PushingMode
from gateway.core.kernel.replicas import Replicas, ReplicaState
from gateway.core.kernel.timers import Timers
from gateway.core.vocabulary import LegResult, ModelName, ReplicaId, ReplicaObservation, RequestId, Standing
from tests.support.core import ANYWHERE, AP, EU, MODEL, SECOND, US, replica_spec, rule

OTHER = ModelName("other")


def replicas(config: CoreConfig | None = None, count: int = 1) -> Replicas:
    made = Replicas(config or CoreConfig(), Timers())
    made.assign([replica_spec(f"r{i}") for i in range(count)], 0)
    for state in list(made):
        made.observe(ReplicaObservation(state.spec.replica_id, 0, healthy=True), 0)
    return made


def test_an_older_probe_changes_nothing() -> None:
    some = replicas()
    some.observe(ReplicaObservation(ReplicaId("r0"), 10, healthy=True, waiting=1), 10)
    some.observe(ReplicaObservation(ReplicaId("r0"), 5, healthy=True, waiting=0), 11)
    assert some.available == 0


def test_one_that_turns_attempts_away_rests_longer_each_time_whatever_its_probes_say() -> None:
    some = replicas()
    state = some.at(0)
    looks = [turned_away(some, now_ns) for now_ns in (0, 1 * SECOND, 2 * SECOND, 3 * SECOND)]
    assert looks == [Standing.AVAILABLE, *[Standing.DISTRUSTED] * 3]
    some.observe(ReplicaObservation(ReplicaId("r0"), 5 * SECOND, healthy=True), 5 * SECOND)
    assert state.standing is Standing.AVAILABLE


def turned_away(some: Replicas, now_ns: int) -> Standing:
    """End two attempts as busy at once, then observe an idle engine; return the standing."""
    state = some.at(0)
    for number in range(2):
        some.started(state, (RequestId("q"), number, 1), now_ns)
    for number in range(2):
        some.ended(state, (RequestId("q"), number, 1), LegResult.BUSY, now_ns, 0)
    some.observe(ReplicaObservation(ReplicaId("r0"), now_ns + 1, healthy=True), now_ns + 1)
    return state.standing


def test_outstanding_mode_counts_our_own_attempts() -> None:
    some = replicas(CoreConfig(pushing=PushingConfig(PushingMode.OUTSTANDING, outstanding_max=2)))
    state = some.at(0)
    for number in range(2):
        assert some.available
        some.started(state, (RequestId("q"), number, 1), 0)
    assert not some.available
    some.ended(state, (RequestId("q"), 0, 1), LegResult.COMPLETED, 0, 0)
    assert some.available


def test_blind_mode_pushes_whatever_waits_but_not_to_the_sick() -> None:
    some = replicas(CoreConfig(pushing=PushingConfig(PushingMode.BLIND)))
    some.observe(ReplicaObservation(ReplicaId("r0"), 1, healthy=True, waiting=99), 1)
    assert some.available
    some.observe(ReplicaObservation(ReplicaId("r0"), 2, healthy=False), 2)
    assert not some.available


def test_eligible_is_by_model_and_place() -> None:
    some = Replicas(CoreConfig(), Timers())
    some.assign([replica_spec("us", US), replica_spec("eu", EU), replica_spec("other", US, ["mistral"])], 0)  # type: ignore[list-item]
    assert [some.at(slot).spec.replica_id for slot in slots_of(some.groups.eligible(MODEL, ANYWHERE))] == ["us", "eu"]
    assert [some.at(slot).spec.replica_id for slot in slots_of(some.groups.eligible(MODEL, rule(US)))] == ["us"]
    assert some.groups.eligible(MODEL, rule(AP)) == 0


def test_capacities_count_the_available_by_model_pool_and_place() -> None:
    some = replicas(count=3)
    some.observe(ReplicaObservation(ReplicaId("r1"), 1, healthy=True, waiting=2), 1)
    (capacity,) = some.capacities()
    assert (capacity.replicas, capacity.available) == (3, 2)


def test_equal_loads_take_turns() -> None:
    some = replicas(count=3)
    assert [some.least_loaded(0b111) for _ in range(4)] == [0, 1, 2, 0]


def test_a_replica_whose_models_alone_changed_stays_what_it_is() -> None:
    some = replicas(count=2)
    state = some.at(0)
    some.started(state, (RequestId("q"), 1, 1), 0)
    joined, left = some.assign([replica_spec("r0", models=(MODEL, OTHER)), replica_spec("r1", EU)], 5)
    assert [each.spec.replica_id for each in (*joined, *left)] == ["r1", "r1"]
    assert (some.at(0) is state, state.in_flight, state.ramp.limit) == (True, 1, None)
    assert list(slots_of(some.groups.eligible(OTHER, ANYWHERE) & some.available)) == [0]
    some.assign([replica_spec("r0"), replica_spec("r1", EU)], 6)
    assert some.groups.eligible(OTHER, ANYWHERE) == 0


def test_an_engine_that_tells_no_load_takes_as_many_as_may_be_outstanding() -> None:
    config = CoreConfig(pushing=PushingConfig(PushingMode.PENDING, in_band_credit=0, outstanding_max=3))
    some = Replicas(config, Timers())
    some.assign([replace(replica_spec("r0"), sign_of_life_ns=2 * SECOND)], 0)
    some.observe(ReplicaObservation(ReplicaId("r0"), 0, healthy=True), 0)
    for number in range(3):
        assert some.available
        some.started(some.at(0), (RequestId("q"), number, 1), 0)
    assert some.at(0).standing is Standing.OUTSTANDING


def test_blind_mode_stays_blind_to_it() -> None:
    some = Replicas(CoreConfig(pushing=PushingConfig(PushingMode.BLIND, outstanding_max=1)), Timers())
    some.assign([replace(replica_spec("r0"), sign_of_life_ns=2 * SECOND)], 0)
    some.observe(ReplicaObservation(ReplicaId("r0"), 0, healthy=True), 0)
    some.started(some.at(0), (RequestId("q"), 1, 1), 0)
    assert some.available


def test_it_is_stale_only_when_three_signs_of_life_are_missing() -> None:
    some = Replicas(CoreConfig(), Timers())
    some.assign([replace(replica_spec("r0"), sign_of_life_ns=2 * SECOND), replica_spec("r1")], 0)
    for state in some:
        some.observe(ReplicaObservation(state.spec.replica_id, 0, healthy=True), 0)
    standing = []
    for now_ns in (6 * SECOND - 1, 6 * SECOND):
        for name in ("r0", "r1"):
            some.wake(ReplicaId(name), now_ns)
        standing.append([state.standing for state in some])
    assert standing == [[Standing.AVAILABLE, Standing.STALE], [Standing.STALE, Standing.STALE]]


HAPPENINGS = st.tuples(
    st.sampled_from(["probe", "probe", "probe", "start", "first_token", *LegResult]),
    st.integers(0, 2),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 1_500),
    st.integers(0, 2_500),
    st.booleans(),
)


BUSIER = [("probe", 0, running, True, 0, 0, True) for running in (0, 2)]
LATE_BEFORE_ITS_TIMER = [("probe", 0, 0, True, 1_000, 1_000, True), ("probe", 0, 0, True, 1_500, 2_000, False)]


@given(st.sampled_from(PushingMode), st.lists(HAPPENINGS, max_size=40))
@example(PushingMode.PENDING, BUSIER)
@example(PushingMode.PENDING, LATE_BEFORE_ITS_TIMER)
def test_what_a_probe_changes_is_what_a_look_at_the_replica_would(
    mode: PushingMode, steps: list[tuple[str, int, int, bool, int, int, bool]]
) -> None:
    """Probes that were long on their way, or that come before a due timer, are included."""
    timers, now_ns = Timers(), 0
    some = Replicas(CoreConfig(pushing=PushingConfig(mode=mode)), timers)
    some.assign([replica_spec("r0")], 0)
    state = some.at(0)
    ours: list[tuple[RequestId, int, int]] = []
    for number, (what, waiting, running, healthy, later_ms, lag_ms, is_woken) in enumerate(steps):
        now_ns += later_ms * 1_000_000
        sampled_ns = max(0, now_ns - lag_ms * 1_000_000)
        is_taken_in = what == "probe" and sampled_ns >= (state.sampled_ns or 0)
        for _ in timers.pop_due(now_ns) if is_woken or not is_taken_in else ():
            some.wake(ReplicaId("r0"), now_ns)
        if what == "probe":
            probe = ReplicaObservation(ReplicaId("r0"), sampled_ns, healthy, running, max(0, waiting - 1))
            some.observe(probe, now_ns)
        elif what == "start":
            ours.append((RequestId(f"{number}"), 1, 1))
            some.started(state, ours[-1], now_ns)
        elif ours and what == "first_token":
            some.first_token(state, ours[-1], now_ns)
        elif ours:
            some.ended(state, ours.pop(), LegResult(what), now_ns, 0)
        before = found(some, timers)
        some.refresh(state, now_ns)
        assert found(some, timers) == before


def found(some: Replicas, timers: Timers) -> tuple[object, ...]:
    """State that a refresh of the first replica may change."""
    return some.at(0).standing, some.available, some.reachable, timers.next_ns(), dict(some._levels._load_of)


FLEET = ("r0", "r1", "r2")
CHANGES = st.tuples(
    st.sampled_from(["probe", "start", "first_token", "assign", *LegResult]),
    st.sampled_from(FLEET),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([0, 4]),
    st.integers(1, 7),
)


ANSWERED = [("probe", "r0", 1, 0, 4, 7), ("start", "r0", 0, 0, 0, 7), ("first_token", "r0", 0, 0, 0, 7)]


@given(st.lists(CHANGES, max_size=40))
@example([*ANSWERED, (LegResult.COMPLETED, "r0", 0, 0, 0, 7)])
@example([*ANSWERED, ("assign", "r0", 0, 0, 0, 7), (LegResult.COMPLETED, "r0", 0, 0, 0, 7)])
def test_sums_of_room_and_of_releases_are_those_of_the_replicas_themselves(
    steps: list[tuple[str, str, int, int, int, int]],
) -> None:
    some = replicas(count=3)
    ours: dict[str, list[tuple[ReplicaState, tuple[RequestId, int, int]]]] = {name: [] for name in FLEET}
    for number, (what, name, running, waiting, slots, mask) in enumerate(steps):
        now_ns = (number + 1) * SECOND
        state = some.get(name)
        if what == "assign":
            kept = FLEET if state is None else [each for each in FLEET if each != name]
            some.assign([replica_spec(each) for each in kept], now_ns)
        elif what == "probe":
            some.observe(ReplicaObservation(ReplicaId(name), now_ns, True, running, waiting, slots=slots), now_ns)
        elif what == "start" and state is not None:
            ours[name].append((state, (RequestId(f"{number}"), 1, 1)))
            some.started(*ours[name][-1], now_ns)
        elif ours[name] and what == "first_token":
            some.first_token(*ours[name][-1], now_ns)
        elif ours[name] and isinstance(what, LegResult):
            some.ended(*ours[name].pop(), LegResult(what), now_ns, (waiting + 1) * SECOND)
        assert some.rooms.total(mask) == room_by_hand(some, mask)
        assert some.rooms.release_ns(mask & some.pushable) == release_ns_by_hand(some, mask)


def room_by_hand(some: Replicas, mask: int) -> int:
    rooms = [state.room for state in some if 1 << state.slot & mask]
    return sum(room for room in rooms if room > 0) or sum(rooms)


def release_ns_by_hand(some: Replicas, mask: int) -> int:
    taking = [state for state in some if 1 << state.slot & mask & some.pushable]
    per_ns = sum(1 / each for state in sorted(taking, key=lambda each: each.slot) if (each := state.slots.release_ns()))
    return round(1 / per_ns) if per_ns else 0


def test_a_replica_stays_who_it_is_when_only_the_source_of_its_place_changes() -> None:
    some = replicas()
    state = some.at(0)
    assert some.assign([replace(replica_spec("r0"), place_by="announced_by:eu-1")], 5) == ([], [])
    assert some.at(0) is state
    assert state.spec.place_by == "announced_by:eu-1"
