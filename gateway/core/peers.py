"""Other gateways as their heartbeats describe them, with our own recent forwards counted against what they
advertised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gateway.core.attempts import Breaker, BreakerState, Ramp
from gateway.core.bits import slots_of
from gateway.core.config import CoreConfig
from gateway.core.replicas import LegKey
from gateway.core.timers import Timer, TimerKind, Timers
from gateway.core.vocabulary import (
    GatewayId,
    LegResult,
    LoadReport,
    ModelName,
    PeerObservation,
    PeerSpec,
    PlaceRule,
    Standing,
    Target,
    peer_target,
)

_ANSWERS_MAX = 64
"""Models with rules about which somebody asked of late."""


class PeerState:
    """One peer: its last heartbeat, and our forwards there."""

    __slots__ = (
        "breaker",
        "detail",
        "distrusted_since_ns",
        "in_flight",
        "listed",
        "lost",
        "observation",
        "queue_lengths",
        "ramp",
        "slot",
        "spec",
        "standing",
        "target",
        "timer",
        "unreflected",
    )

    def __init__(self, spec: PeerSpec, slot: int, config: CoreConfig) -> None:
        self.spec = spec
        self.slot = slot
        self.target: Target = peer_target(spec.gateway_id)
        self.timer = Timer(TimerKind.PEER, spec.gateway_id)
        self.observation: PeerObservation | None = None
        self.queue_lengths: dict[ModelName, int] = {}
        self.lost = True
        self.detail = "not heard yet"
        self.in_flight = 0
        self.unreflected: dict[LegKey, int] = {}
        """Own forwards without a first byte that no heartbeat can have counted yet, with the time of each."""
        self.distrusted_since_ns: int | None = None
        """It refused or failed a forward then: no target until a later heartbeat."""
        self.breaker = Breaker(config.attempt)
        self.ramp = Ramp(config.attempt)
        self.standing = Standing.LOST
        """As of the last change or deadline of this peer."""
        self.listed = True

    @property
    def report(self) -> LoadReport | None:
        return self.observation.report if self.observation else None

    @property
    def rtt_ns(self) -> int:
        return self.observation.rtt_ns if self.observation else 0


@dataclass(slots=True)
class _Answer:
    """Who was available for one model and rule when last asked, and who has changed since."""

    available: int
    unsure: int


class Peers:
    """All peers of this gateway. What was answered about them is kept, so that a question visits those that changed
    since it was last asked, and never all."""

    def __init__(self, config: CoreConfig, timers: Timers) -> None:
        self._config = config
        self._timers = timers
        self._by_id: dict[GatewayId, PeerState] = {}
        self._by_slot: dict[int, PeerState] = {}
        self._free_slots: list[int] = []
        self._slots_used = 0
        self.usable = 0
        """Mask of the peers that are fresh, accepting and trusted: the part of availability that no request changes."""
        self.version = 0
        """Changes with anything that may make a peer more or less available; a heartbeat that says what the last one
        said changes nothing."""
        self._answers: dict[tuple[ModelName, PlaceRule], _Answer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[PeerState]:
        return iter(self._by_id.values())

    def get(self, gateway_id: GatewayId) -> PeerState | None:
        return self._by_id.get(gateway_id)

    def at(self, slot: int) -> PeerState:
        return self._by_slot[slot]

    # What changes them

    def configure(self, config: CoreConfig, now_ns: int) -> None:
        self._config = config
        self._forget_answers()
        for state in self:
            state.breaker.configure(config.attempt)
            state.ramp.configure(config.attempt)
            self.refresh(state, now_ns)

    def assign(self, specs: Iterable[PeerSpec]) -> tuple[list[PeerState], list[PeerState]]:
        """Know exactly these peers from now on. Gives those that joined and those that left; a changed spec does
        both."""
        wanted = {spec.gateway_id: spec for spec in specs}
        left = [state for state in self if wanted.get(state.spec.gateway_id) != state.spec]
        for state in left:
            self._drop(state)
        joined = [self._add(spec) for spec in wanted.values() if spec.gateway_id not in self._by_id]
        self._forget_answers()
        return joined, left

    def observe(self, observation: PeerObservation, now_ns: int) -> None:
        """Take in one heartbeat. One that is older than the last, or claims another place than we were told, gives
        nothing."""
        state = self._by_id.get(observation.report.gateway_id)
        if state is None or _is_overtaken(observation, state.observation):
            return
        if observation.report.place != state.spec.place:
            self._distrust_claim(state, observation, now_ns)
            return
        if state.lost and state.observation is not None:
            state.ramp.start(now_ns)
        if not _says_the_same(observation.report, state.report):
            state.queue_lengths = {queue.model: queue.length for queue in observation.report.queues}
            self._note_change(state)
        state.observation = observation
        state.lost = False
        state.detail = ""
        if state.distrusted_since_ns is not None and observation.generated_ns >= state.distrusted_since_ns:
            state.distrusted_since_ns = None
        if state.unreflected:
            self._reflect(state, observation)
        if not self._stays_available(state, observation, now_ns):
            self.refresh(state, now_ns)

    def lose(self, gateway_id: GatewayId, detail: str, now_ns: int) -> None:
        state = self._by_id.get(gateway_id)
        if state is not None:
            state.lost = True
            state.detail = detail
            self.refresh(state, now_ns)

    def started(self, state: PeerState, key: LegKey, now_ns: int) -> None:
        state.in_flight += 1
        state.unreflected[key] = now_ns
        self._note_change(state)
        self.refresh(state, now_ns)

    def first_token(self, state: PeerState, key: LegKey, now_ns: int) -> None:
        if state.unreflected.pop(key, None) is not None:
            self._note_change(state)
            self.refresh(state, now_ns)

    def ended(self, state: PeerState, key: LegKey, result: LegResult, now_ns: int) -> None:
        assert state.in_flight > 0, f"{state.target}: an attempt ended that was not in flight"
        state.in_flight -= 1
        if state.unreflected.pop(key, None) is not None:
            self._note_change(state)
        if state.breaker.record(result, now_ns):
            state.ramp.start(now_ns)
        if result in (LegResult.FAILED, LegResult.BUSY, LegResult.REFUSED):
            state.distrusted_since_ns = now_ns
        self.refresh(state, now_ns)

    def wake(self, gateway_id: GatewayId, now_ns: int) -> None:
        """A deadline of this peer has come: staleness, an open breaker, or a step of its ramp."""
        state = self._by_id.get(gateway_id)
        if state is not None:
            self.refresh(state, now_ns)

    def refresh(self, state: PeerState, now_ns: int) -> None:
        if not state.listed:
            return
        state.breaker.wake(now_ns)
        state.ramp.wake(now_ns)
        standing = self._standing(state, now_ns)
        if standing is not state.standing:
            state.standing = standing
            self._note_usable(state)
        self._arm(state, now_ns)

    # What is asked of them

    def available(self, model: ModelName, rule: PlaceRule) -> int:
        """Mask of the peers that can take one more request for the model, at a place the rule allows (SkyWalker §3.3).

        O(peers that changed since the same was last asked).
        """
        answer = self._answers.get((model, rule))
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[model, rule] = _Answer(0, self.usable)
        answer.available &= ~answer.unsure
        for slot in slots_of(answer.unsure & self.usable):
            if self.standing_for(self._by_slot[slot], model, rule) is Standing.AVAILABLE:
                answer.available |= 1 << slot
        answer.unsure = 0
        return answer.available

    def eligible(self, model: ModelName, rule: PlaceRule) -> int:
        """Mask of the peers that serve the model where the rule allows, as far as we ever heard, available or not."""
        mask = 0
        for state in self:
            if rule.allows(state.spec.place) and _advertises(state, model, rule):
                mask |= 1 << state.slot
        return mask

    def serves(self, model: ModelName) -> bool:
        return any(model == capacity.model for state in self if state.report for capacity in state.report.capacities)

    def models(self) -> list[ModelName]:
        reports = [state.report for state in self if state.report and not state.lost]
        return list(dict.fromkeys(capacity.model for report in reports for capacity in report.capacities))

    def queue_length(self, state: PeerState, model: ModelName) -> int:
        return state.queue_lengths.get(model, 0)

    # Inside

    def _add(self, spec: PeerSpec) -> PeerState:
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._slots_used
            self._slots_used += 1
        state = PeerState(spec, slot, self._config)
        self._by_id[spec.gateway_id] = state
        self._by_slot[slot] = state
        return state

    def _drop(self, state: PeerState) -> None:
        state.listed = False
        del self._by_id[state.spec.gateway_id]
        del self._by_slot[state.slot]
        self.usable &= ~(1 << state.slot)
        self._free_slots.append(state.slot)
        self._timers.cancel(state.timer)

    def _note_usable(self, state: PeerState) -> None:
        bit = 1 << state.slot
        if state.standing is Standing.AVAILABLE:
            self.usable |= bit
        else:
            self.usable &= ~bit
        self._note_change(state)

    def _note_change(self, state: PeerState) -> None:
        """It may be more or less available than was last answered."""
        self.version += 1
        bit = 1 << state.slot
        for answer in self._answers.values():
            answer.unsure |= bit

    def _forget_answers(self) -> None:
        self.version += 1
        self._answers.clear()

    def _reflect(self, state: PeerState, observation: PeerObservation) -> None:
        """Forwards that had reached the peer when it counted are in what it says."""
        for key, sent_ns in list(state.unreflected.items()):
            if sent_ns + observation.rtt_ns // 2 < observation.generated_ns:
                del state.unreflected[key]
                self._note_change(state)

    def _distrust_claim(self, state: PeerState, observation: PeerObservation, now_ns: int) -> None:
        claimed = observation.report.place
        told = state.spec.place
        detail = f"claims {claimed.region}/{claimed.jurisdiction}, configured as {told.region}/{told.jurisdiction}"
        self.lose(state.spec.gateway_id, detail, now_ns)

    def _standing(self, state: PeerState, now_ns: int) -> Standing:
        """The part of a peer's standing that no request changes."""
        if state.lost or state.observation is None:
            return Standing.LOST
        if now_ns >= self._stale_at_ns(state.observation):
            return Standing.STALE
        if not state.observation.report.accepting:
            return Standing.NOT_ACCEPTING
        if state.distrusted_since_ns is not None:
            return Standing.DISTRUSTED
        if not state.breaker.allows(state.in_flight):
            return Standing.BREAKER
        return Standing.AVAILABLE if state.ramp.allows(state.in_flight) else Standing.RAMP

    def _stays_available(self, state: PeerState, observation: PeerObservation, now_ns: int) -> bool:
        """What `refresh` would find of most, at a fraction of its cost: available, and nothing else in sight but that
        it falls silent."""
        if state.standing is not Standing.AVAILABLE or not observation.report.accepting:
            return False
        if state.breaker.state is not BreakerState.CLOSED or state.ramp.limit is not None:
            return False
        stale_ns = self._stale_at_ns(observation)
        if now_ns >= stale_ns:
            return False
        self._timers.set(state.timer, stale_ns)
        return True

    def _stale_at_ns(self, observation: PeerObservation) -> int:
        """One lost packet on a long path must not flap a peer: three keep-alives, or two worst round trips if
        longer."""
        keep_alive_ns = self._config.observation.keep_alive_ns
        return observation.generated_ns + max(3 * keep_alive_ns, 2 * observation.rtt_p99_ns)

    def standing_for(self, state: PeerState, model: ModelName, rule: PlaceRule) -> Standing:
        """Could it take one more request for the model at a place the rule allows, and if not, why not?"""
        if not rule.allows(state.spec.place):
            return Standing.NOT_ALLOWED
        if state.standing is not Standing.AVAILABLE or state.report is None:
            return state.standing
        if self.queue_length(state, model) > self._config.placement.peer_queue_length_max:
            return Standing.QUEUE
        advertised = sum(
            capacity.available
            for capacity in state.report.capacities
            if capacity.model == model and rule.allows(capacity.place)
        )
        return Standing.AVAILABLE if advertised > len(state.unreflected) else Standing.BUSY

    def _arm(self, state: PeerState, now_ns: int) -> None:
        """Be woken at the first moment at which time alone may change its standing."""
        deadlines: list[int] = []
        if state.observation is not None and now_ns < (stale_ns := self._stale_at_ns(state.observation)):
            deadlines.append(stale_ns)
        if state.breaker.state is BreakerState.OPEN:
            deadlines.append(state.breaker.open_until_ns)
        if state.ramp.limit is not None:
            deadlines.append(state.ramp.next_step_ns)
        if deadlines:
            self._timers.set(state.timer, min(deadlines))
        else:
            self._timers.cancel(state.timer)


def _advertises(state: PeerState, model: ModelName, rule: PlaceRule) -> bool:
    if state.report is None:
        return False
    return any(capacity.model == model and rule.allows(capacity.place) for capacity in state.report.capacities)


def _says_the_same(report: LoadReport, last: LoadReport | None) -> bool:
    """But for its number and what no placement rests on."""
    return last is not None and report.capacities == last.capacities and report.queues == last.queues


def _is_overtaken(observation: PeerObservation, last: PeerObservation | None) -> bool:
    """A restarted peer counts from the start again, so a lower sequence is old only if it was also measured earlier."""
    if last is None:
        return False
    if observation.report.sequence >= last.report.sequence:
        return False
    return observation.generated_ns <= last.generated_ns
