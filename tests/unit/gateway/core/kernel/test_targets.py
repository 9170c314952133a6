"""Common behaviour of both kinds of target: slots, wake-ups, and responsibility for failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import ObservationConfig
from gateway.core.kernel.peers import Peers
from gateway.core.kernel.replicas import Replicas
from gateway.core.kernel.targets import Targets
from gateway.core.kernel.timers import Timers
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LoadReport,
    PeerObservation,
    ReplicaId,
    ReplicaObservation,
    RequestId,
    Standing,
    Target,
    TargetKind,
)
from tests.support.core import EU, MS, SECOND, peer_spec, replica_spec

KEY = (RequestId("q"), 1, 1)


@dataclass
class Some:
    """Targets of one kind, all of them assigned and heard at time 0."""

    names: Iterable[str] = ("a", "b")
    timers: Timers = field(default_factory=Timers)
    config: CoreConfig = field(default_factory=lambda: CoreConfig(observation=ObservationConfig(keep_alive_ns=SECOND)))

    def __post_init__(self) -> None:
        self.targets = self.made()
        self.assign(*self.names)
        for name in self.names:
            self.hear(name, 0)

    def made(self) -> Targets[Any, Any]:
        raise NotImplementedError

    def assign(self, *names: str) -> None:
        raise NotImplementedError

    def hear(self, name: str, now_ns: int) -> None:
        raise NotImplementedError

    def state(self, name: str) -> Any:
        state = self.targets.get(name)
        assert state is not None
        return state

    @property
    def usable(self) -> set[str]:
        return {state.target.id for state in self.targets if self.targets.usable >> state.slot & 1}


class SomeReplicas(Some):
    kind, standing_when_lost, stale_after_ns = TargetKind.REPLICA, Standing.UNHEALTHY, 2 * SECOND

    def made(self) -> Targets[Any, Any]:
        self.replicas = Replicas(self.config, self.timers)
        return self.replicas

    def assign(self, *names: str) -> None:
        self.replicas.assign([replica_spec(name) for name in names], 0)

    def hear(self, name: str, now_ns: int) -> None:
        self.replicas.observe(ReplicaObservation(ReplicaId(name), now_ns, healthy=True), now_ns)


class SomePeers(Some):
    kind, standing_when_lost, stale_after_ns = TargetKind.PEER, Standing.LOST, 3 * SECOND

    def made(self) -> Targets[Any, Any]:
        self.peers = Peers(self.config, self.timers)
        return self.peers

    def assign(self, *names: str) -> None:
        self.peers.assign([peer_spec(name, EU) for name in names])

    def hear(self, name: str, now_ns: int) -> None:
        report = LoadReport(GatewayId(name), EU, now_ns, True, 1, "policy")
        self.peers.observe(PeerObservation(report, now_ns, now_ns, MS, MS), now_ns)


both = pytest.mark.parametrize("make", [SomeReplicas, SomePeers])
Make = Callable[..., SomeReplicas | SomePeers]


@both
def test_a_word_of_an_unknown_target_changes_nothing(make: Make) -> None:
    some = make()
    some.hear("stranger", 10)
    assert (len(some.targets), some.usable) == (2, {"a", "b"})


@both
def test_a_slot_is_used_again_after_its_target_left(make: Make) -> None:
    some = make()
    some.assign("b", "c")
    assert sorted(state.slot for state in some.targets) == [0, 1]
    assert some.usable == {"b"}, "whoever takes over a slot takes over nothing else"


@both
def test_failures_are_found_by_name_wherever_their_slot_is(make: Make) -> None:
    some = make()
    a, b = Target(some.kind, "a"), Target(some.kind, "b")
    assert some.targets.mask_of((a, b)) == 0b11
    some.assign("fresh", "b")
    assert some.targets.mask_of((a,)) == 0
    some.assign("fresh", "a")
    assert some.targets.mask_of((a, b)) == 1 << some.state("a").slot


@both
def test_one_of_another_kind_with_the_same_name_is_another(make: Make) -> None:
    some = make()
    assert some.targets.mask_of(Target(kind, "a") for kind in TargetKind if kind is not some.kind) == 0


@both
def test_one_that_fails_an_attempt_is_distrusted_until_it_is_heard_again(make: Make) -> None:
    some = make()
    state = some.state("a")
    some.targets.started(state, KEY, 10)
    some.targets.ended(state, KEY, LegResult.FAILED, 20, 0)
    assert (state.standing, some.usable) == (Standing.DISTRUSTED, {"b"})
    some.hear("a", 30)
    assert some.usable == {"a", "b"}


@both
def test_an_attempt_may_end_at_one_that_left_and_moves_no_mask(make: Make) -> None:
    some = make()
    state = some.state("a")
    some.targets.started(state, KEY, 10)
    some.assign("b", "in its slot")
    some.hear("in its slot", 15)
    some.targets.ended(state, KEY, LegResult.FAILED, 20, 0)
    assert (state.in_flight, some.usable) == (0, {"b", "in its slot"})


@both
def test_a_backlog_is_what_our_own_legs_without_a_first_token_have_to_read(make: Make) -> None:
    some = make()
    state, other = some.state("a"), (RequestId("other"), 1, 1)
    some.targets.started(state, KEY, 10, 700)
    some.targets.started(state, other, 10, 30)
    assert (state.backlog_bytes, some.state("b").backlog_bytes) == (730, 0)
    some.targets.first_token(state, KEY, 20)
    some.hear("a", 25)
    assert state.backlog_bytes == 30, "a word of its own says nothing of what is left to read"
    some.targets.first_token(state, KEY, 30)
    some.targets.ended(state, KEY, LegResult.COMPLETED, 40, 0)
    assert state.backlog_bytes == 30, "nothing is taken off twice"
    some.targets.ended(state, other, LegResult.FAILED, 50, 0)
    assert (state.backlog_bytes, state.prefilling) == (0, {})


@both
def test_one_that_is_lost_is_not_used_until_it_is_heard_again_and_then_ramps_up(make: Make) -> None:
    some = make()
    some.targets.lose("a", "reset", 10)
    assert (some.state("a").standing, some.usable) == (some.standing_when_lost, {"b"})
    some.hear("a", 20)
    assert (some.state("a").ramp.limit, some.usable) == (1, {"a", "b"})


@both
def test_nobody_is_woken_for_one_that_goes_on_talking(make: Make) -> None:
    some = make(names=("a",))
    for now_ns in range(0, 60 * SECOND, SECOND):
        assert list(some.timers.pop_due(now_ns)) == []
        some.hear("a", now_ns)
    assert some.timers.next_ns() == 59 * SECOND + some.stale_after_ns
