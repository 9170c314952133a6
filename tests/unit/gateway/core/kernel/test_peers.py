"""Cached answers about peers equal those of a look at all peers, whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.kernel.config import AttemptConfig
from gateway.core.kernel.peers import _ANSWERS_MAX, Peers, PeerState
from gateway.core.kernel.timers import Timers
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    GatewayId,
    Jurisdiction,
    LegResult,
    LoadReport,
    ModelCapacity,
    ModelName,
    ModelQueue,
    PeerObservation,
    PeerSpec,
    Place,
    PlaceRule,
    PoolName,
    RegionName,
    RequestId,
    Standing,
)

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
MODELS = [ModelName("llama"), ModelName("qwen")]
PLACES = [Place(RegionName(f"region-{number}"), Jurisdiction("EU" if number % 2 else "US")) for number in range(4)]
SPECS = [PeerSpec(GatewayId(f"{place.region}/gw"), place) for place in PLACES]
US, EU = Jurisdiction("US"), Jurisdiction("EU")
RULES = [PlaceRule(jurisdictions=frozenset({US, EU})), PlaceRule(jurisdictions=frozenset({EU}))]
LONG_QUEUE = 1_000
CONFIG = CoreConfig(attempt=AttemptConfig(breaker_failures_in_row=2, breaker_open_ns=2 * SECOND))


class Fleet:
    """Peers, and random events that change them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.timers = Timers()
        self.peers = Peers(CONFIG, self.timers)
        self.now_ns = 0
        self.sequence = 0
        self.running: list[tuple[PeerState, tuple[RequestId, int, int]]] = []
        self.peers.assign(SPECS)

    def step(self) -> None:
        happenings: list[Callable[[], None]] = [self.hear, self.hear, self.hear, self.lose, self.wait, self.reassign]
        happenings += [self.reconfigure, self.start, self.start, self.first_token, self.end, self.end]
        self.rng.choice(happenings)()

    def hear(self) -> None:
        spec, self.sequence = self.rng.choice(SPECS), self.sequence + 1
        capacities, queues = self.numbers(spec)
        accepting = self.rng.random() < 0.9
        report = LoadReport(spec.gateway_id, spec.place, self.sequence, accepting, 1, "policy", capacities, queues)
        generated_ns = max(0, self.now_ns - self.rng.randrange(200) * MILLISECOND)
        observation = PeerObservation(report, generated_ns, self.now_ns, 80 * MILLISECOND, 90 * MILLISECOND)
        self.peers.observe(observation, self.now_ns)

    def numbers(self, spec: PeerSpec) -> tuple[tuple[ModelCapacity, ...], tuple[ModelQueue, ...]]:
        """Capacities and queues of a heartbeat; half of the time they repeat the last one."""
        state = self.peers.get(spec.gateway_id)
        if state is not None and state.report is not None and self.rng.random() < 0.5:
            return state.report.capacities, state.report.queues
        capacities = tuple(
            ModelCapacity(model, PoolName("default"), spec.place, 2, self.rng.randrange(3)) for model in MODELS
        )
        return capacities, (ModelQueue(MODELS[0], self.rng.choice((0, 0, LONG_QUEUE))),)

    def lose(self) -> None:
        self.peers.lose(self.rng.choice(SPECS).gateway_id, "reset", self.now_ns)

    def wait(self) -> None:
        self.now_ns += self.rng.randrange(2_000) * MILLISECOND
        for timer in self.timers.pop_due(self.now_ns):
            self.peers.wake(GatewayId(timer.id), self.now_ns)

    def reassign(self) -> None:
        if self.rng.random() < 0.2:
            self.peers.assign(self.rng.sample(SPECS, 3))
            self.peers.assign(SPECS)

    def reconfigure(self) -> None:
        queue_length_max = self.rng.choice((CONFIG.placement.peer_queue_length_max, LONG_QUEUE))
        placement = replace(CONFIG.placement, peer_queue_length_max=queue_length_max)
        self.peers.configure(replace(CONFIG, placement=placement), self.now_ns)

    def start(self) -> None:
        state = self.rng.choice(list(self.peers))
        self.sequence += 1
        key = RequestId(f"request-{self.sequence}"), 1, 1
        self.running.append((state, key))
        self.peers.started(state, key, self.now_ns)

    def first_token(self) -> None:
        if self.running:
            self.peers.first_token(*self.rng.choice(self.running), self.now_ns)

    def end(self) -> None:
        if self.running:
            state, key = self.running.pop(self.rng.randrange(len(self.running)))
            self.peers.ended(state, key, self.rng.choice(list(LegResult)), self.now_ns, 0)

    def truth(self, model: ModelName, rule: PlaceRule) -> int:
        found = 0
        for state in self.peers:
            if self.peers.standing_for(state, model, rule) is Standing.AVAILABLE:
                found |= 1 << state.slot
        return found


@given(st.integers(0, 2**32))
def test_an_answer_is_as_good_as_a_look_at_all(seed: int) -> None:
    fleet = Fleet(seed)
    for _ in range(60):
        fleet.step()
        if fleet.rng.random() < 0.5:
            model, rule = fleet.rng.choice(MODELS), fleet.rng.choice(RULES)
            assert fleet.peers.available(model, rule) == fleet.truth(model, rule)


@given(st.integers(0, 2**32))
def test_what_a_heartbeat_changes_is_what_a_look_at_the_peer_would(seed: int) -> None:
    fleet = Fleet(seed)
    for _ in range(60):
        fleet.step()
        fleet.wait()
        for state in fleet.peers:
            before = state.standing
            fleet.peers.refresh(state, fleet.now_ns)
            assert state.standing is before


def test_a_peer_is_looked_at_again_only_when_it_has_changed() -> None:
    fleet = Fleet(1)
    for _ in range(20):
        fleet.hear()
    question = MODELS[0], RULES[0]
    before = fleet.peers.available(*question)
    answer = fleet.peers._answers[*question, ALL_CONNECTORS, None, None, False, False]
    assert answer.unsure == 0
    changed = next(state for state in fleet.peers if state.standing is Standing.AVAILABLE)
    fleet.peers.started(changed, (RequestId("one"), 1, 1), fleet.now_ns)
    assert answer.unsure == 1 << changed.slot
    assert fleet.peers.available(*question) | 1 << changed.slot == before | 1 << changed.slot
    assert answer.unsure == 0


def test_answers_are_kept_for_so_many_rules_and_no_more() -> None:
    fleet = Fleet(1)
    for number in range(3 * _ANSWERS_MAX):
        fleet.peers.available(MODELS[0], PlaceRule(jurisdictions=frozenset({Jurisdiction(f"{number}")})))
    assert len(fleet.peers._answers) <= _ANSWERS_MAX


def test_a_peer_stays_who_it_is_when_only_the_source_of_its_place_changes() -> None:
    peers = Peers(CONFIG, Timers())
    peers.assign(SPECS)
    states = list(peers)
    told = [replace(spec, place_by="controller") for spec in SPECS]
    assert peers.assign(told) == ([], [])
    assert list(peers) == states
    assert [state.spec.place_by for state in states] == ["controller"] * len(SPECS)
