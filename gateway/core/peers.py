"""Other gateways as their heartbeats describe them, with our own recent forwards counted against what they
advertised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.core.bits import slots_of
from gateway.core.config import CoreConfig, PeerAvailability
from gateway.core.pools import PoolBounds, PoolFit, bounds_in
from gateway.core.targets import AVAILABLE, LegKey, Targets, TargetState
from gateway.core.timers import TimerKind, Timers
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    GatewayId,
    LoadReport,
    ModelCapacity,
    ModelName,
    PeerObservation,
    PeerSpec,
    PlaceRule,
    PoolName,
    RegionName,
    Standing,
    peer_target,
)

BUSY: Final = Standing.BUSY
_AHEAD_FACTOR: Final = 4
"""Of requests that leave slots in one round trip and heartbeat, how many may wait at a peer, where the policy weighs
that wait."""
_ANSWERS_MAX = 64
"""Models with rules about which somebody asked of late."""


class PeerState(TargetState[PeerSpec]):
    """One peer: its last heartbeat, and our forwards there."""

    __slots__ = ("observation", "pool_queues", "queue_lengths", "served")

    def __init__(self, home: Peers, spec: PeerSpec, slot: int, config: CoreConfig) -> None:
        super().__init__(
            home,
            spec,
            slot,
            target=peer_target(spec.gateway_id),
            timer_kind=TimerKind.PEER,
            standing_when_lost=Standing.LOST,
            config=config,
        )
        self.detail = "not heard yet"
        self.observation: PeerObservation | None = None
        self.queue_lengths: dict[ModelName, int] = {}
        self.pool_queues: dict[tuple[ModelName, PoolName], int] = {}
        """Of these, those that wait for one pool, where it tells them apart."""
        self.served: tuple[ModelCapacity, ...] = ()
        """What it last said that it serves. One that names nothing at all has only begun: its replicas are still to be
        found, and nobody who waits for it is to be told that there are none."""

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


class Peers(Targets[PeerState, PeerSpec]):
    """All peers of this gateway. What was answered about them is kept, so that a question visits those that changed
    since it was last asked, and never all. Their version changes with anything that may make one more or less
    available; a heartbeat that says what the last one said changes nothing."""

    def __init__(self, config: CoreConfig, timers: Timers) -> None:
        super().__init__(config, timers)
        self._answers: dict[tuple[ModelName, PlaceRule, frozenset[Connector], PoolFit | None], _Answer] = {}
        self.thresholds: dict[ModelName, None] = {}
        """Models of which some pool of theirs has one, as far as we ever heard."""
        self.served_version = 0
        """Changes with what anybody among them serves, and where, as far as is known; never with how busy they are."""
        self.weighs_waits = False
        """Does the policy in force count what a wait at a peer costs?"""

    # Changes

    def configure(self, config: CoreConfig, now_ns: int) -> None:
        self._forget_answers()
        super().configure(config, now_ns)

    def assign(self, specs: Iterable[PeerSpec]) -> tuple[list[PeerState], list[PeerState]]:
        """Know exactly these peers from now on. Gives those that joined and those that left; a changed spec does
        both."""
        changed = self._own({spec.gateway_id: spec for spec in specs})
        self._forget_answers()
        self._served_changed()
        return changed

    def observe(self, observation: PeerObservation, now_ns: int) -> None:
        """Take in one heartbeat. One that is older than the last, or claims another place than we were told, gives
        nothing."""
        state = self._by_id.get(observation.report.gateway_id)
        if state is None or _is_overtaken(observation, state.observation):
            return
        if observation.report.place != state.spec.place:
            self._distrust_claim(state, observation, now_ns)
            return
        if not state.healthy and state.observation is not None:
            state.ramp.start(now_ns)
        if not _says_the_same(observation.report, state.report):
            is_other = self._changes_what_is_served(state, observation.report)
            state.served = observation.report.capacities or state.served
            if is_other:
                self._served_changed()
            queues = observation.report.queues
            state.queue_lengths = {queue.model: queue.length for queue in queues if queue.pool is None}
            state.pool_queues = {(queue.model, queue.pool): queue.length for queue in queues if queue.pool is not None}
            self._note_change(state)
        state.observation = observation
        state.healthy = True
        state.accepting = observation.report.accepting
        state.detail = ""
        self._believe(state, observation.generated_ns, observation.rtt_ns // 2)
        if not (state.accepting and self._stays_available(state, now_ns)):
            self.refresh(state, now_ns)

    # Queries

    def available(
        self,
        model: ModelName,
        rule: PlaceRule,
        *,
        connectors: frozenset[Connector] = ALL_CONNECTORS,
        fit: PoolFit | None = None,
    ) -> int:
        """Mask of the peers that can take one more request for the model, at a place the rule allows (SkyWalker §3.3).
        `connectors`: by which it can be handed from a prefill to a decode worker. `fit`: into which pools it fits.

        O(peers that changed since the same was last asked).
        """
        question = (model, rule, connectors, fit)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[question] = _Answer(0, self.usable)
        answer.available &= ~answer.unsure
        for slot in slots_of(answer.unsure & self.usable):
            if self.standing_for(self._by_slot[slot], model, rule, connectors=connectors, fit=fit) is AVAILABLE:
                answer.available |= 1 << slot
        answer.unsure = 0
        return answer.available

    def eligible(
        self,
        model: ModelName,
        rule: PlaceRule,
        *,
        connectors: frozenset[Connector] = ALL_CONNECTORS,
        fit: PoolFit | None = None,
    ) -> int:
        """Mask of the peers that serve the model where the rule allows, as far as we ever heard, available or not."""
        mask = 0
        for state in self:
            if rule.allows(state.spec.place) and any(
                _fits(each, model, rule, connectors) and (fit is None or fit.is_taken_by(each)) for each in state.served
            ):
                mask |= 1 << state.slot
        return mask

    def bounds(
        self,
        model: ModelName,
        rule: PlaceRule,
        connectors: frozenset[Connector],
        *,
        home: RegionName,
        may_stay: bool,
        may_cross: bool,
    ) -> list[PoolBounds]:
        """Of the pools that such requests may be forwarded to, in our own region and in others, as far as we ever
        heard."""
        found: list[PoolBounds] = []
        for state in self:
            is_within_reach = may_stay if state.spec.place.region == home else may_cross
            if is_within_reach and rule.allows(state.spec.place):
                found += bounds_in([each for each in state.served if _fits(each, model, rule, connectors)], model)
        return found

    def unheard(self, rule: PlaceRule) -> int:
        """Mask of the peers where the rule allows that have not said yet what they serve."""
        mask = 0
        for state in self:
            if state.report is None and rule.allows(state.spec.place):
                mask |= 1 << state.slot
        return mask

    def serves(self, model: ModelName) -> bool:
        return any(model == capacity.model for state in self for capacity in state.served)

    def contexts(self, model: ModelName) -> list[int]:
        """Context of the model at each peer that serves it, in tokens; 0 where the peer states none."""
        return [capacity.context_tokens_max for state in self for capacity in state.served if capacity.model == model]

    def models(self) -> list[ModelName]:
        reports = [state.report for state in self if state.report and state.healthy]
        return list(dict.fromkeys(capacity.model for report in reports for capacity in report.capacities))

    def queue_length(self, state: PeerState, model: ModelName) -> int:
        return state.queue_lengths.get(model, 0)

    def standing_for(
        self,
        state: PeerState,
        model: ModelName,
        rule: PlaceRule,
        *,
        connectors: frozenset[Connector] = ALL_CONNECTORS,
        fit: PoolFit | None = None,
    ) -> Standing:
        """Could it take one more request for the model at a place the rule allows, and if not, why not?"""
        if not rule.allows(state.spec.place):
            return Standing.NOT_ALLOWED
        if state.standing is not AVAILABLE or state.report is None:
            return state.standing
        fitting = [capacity for capacity in state.report.capacities if _fits(capacity, model, rule, connectors)]
        queue_length = self.queue_length(state, model)
        if fit is not None:
            fitting = fit.preferred_among(fitting)
            if not fitting:
                return Standing.TOO_SHORT
            queue_length = _pool_queue(state, fitting, queue_length)
        if self._config.placement.peer_availability is PeerAvailability.FREE_REPLICA:
            if queue_length > self._config.placement.peer_queue_length_max:
                return Standing.QUEUE
            return AVAILABLE if any(capacity.available for capacity in fitting) else BUSY
        ahead_max = self._ahead_max(state, _release_ns(fitting))
        return AVAILABLE if self._position(state, fitting, queue_length) <= ahead_max else BUSY

    def ahead_max(self, gateway_id: GatewayId, release_ns: float) -> float:
        """How many requests beyond our room that peer may forward to us, where one leaves us every `release_ns`."""
        state = self._by_id.get(gateway_id)
        return 0.0 if state is None else self._ahead_max(state, release_ns)

    def wait_ns(self, state: PeerState, model: ModelName, fit: PoolFit | None) -> float:
        """Time that one more request waits there for a slot once it has arrived, as far as the last heartbeat tells;
        0 where a slot is free by then."""
        if state.report is None:
            return 0.0
        fitting = [each for each in state.report.capacities if each.model == model]
        if fit is not None:
            fitting = fit.preferred_among(fitting)
        position = self._position(state, fitting, self.queue_length(state, model))
        return max(0.0, position * _release_ns(fitting) - state.rtt_ns)

    def spare(self, state: PeerState, model: ModelName, rule: PlaceRule, *, is_idle: bool) -> float:
        """Share of its slots for the model that is free, by its last heartbeat and less the forwards since; 0 where
        requests wait there. `is_idle`: only if nothing runs there at all."""
        if state.report is None or self.queue_length(state, model):
            return 0.0
        room = load = 0
        for each in state.report.capacities:
            if each.model == model and rule.allows(each.place):
                room += each.room
                load += each.load
        if room <= 0 or (is_idle and (load or state.unreflected)):
            return 0.0
        return (room - len(state.unreflected)) / (room + load)

    # Inside

    def _position(self, state: PeerState, capacities: list[ModelCapacity], queue_length: int) -> int:
        """Place of one more request among those that wait for a slot there; 0 or less: a slot is free for it."""
        room = sum([capacity.room for capacity in capacities])
        return queue_length + len(state.unreflected) + 1 - room

    def _ahead_max(self, state: PeerState, release_ns: float) -> float:
        """Requests that may be forwarded beyond the room that was told: as many as leave slots while a heartbeat and a
        forward that answers it are on their way, or slots would stand empty for a round trip. Under a policy that
        weighs the wait it is `_AHEAD_FACTOR` times as many: a session can wait where its cache is, rather than take the
        next slot that is free elsewhere."""
        factor = _AHEAD_FACTOR if self.weighs_waits else 1
        interval_ns = self._config.observation.publish_interval_ns
        return factor * (state.rtt_ns + interval_ns) / release_ns if release_ns else 0.0

    def first_token(self, state: PeerState, key: LegKey, now_ns: int) -> None:  # noqa: ARG002
        """A forward counts against the room that was told until a heartbeat counts it, whatever it has answered."""
        state.backlog_bytes -= state.prefilling.pop(key, 0)

    def _served_changed(self) -> None:
        self.served_version += 1
        self.thresholds = dict.fromkeys(
            [capacity.model for state in self for capacity in state.served if capacity.threshold_tokens]
        )

    def _changes_what_is_served(self, state: PeerState, report: LoadReport) -> bool:
        """Also with the first word of one that names nothing: it might have served anything until then."""
        if state.report is None:
            return True
        return bool(report.capacities) and not _serves_the_same(report, state.served)

    def _make(self, spec: PeerSpec, slot: int) -> PeerState:
        return PeerState(self, spec, slot, self._config)

    def _note_change(self, state: PeerState) -> None:
        """It may be more or less available than was last answered."""
        self.version += 1
        bit = 1 << state.slot
        for answer in self._answers.values():
            answer.unsure |= bit

    def _forget_answers(self) -> None:
        self.version += 1
        self._answers.clear()

    def _distrust_claim(self, state: PeerState, observation: PeerObservation, now_ns: int) -> None:
        claimed = observation.report.place
        told = state.spec.place
        detail = f"claims {claimed.region}/{claimed.jurisdiction}, configured as {told.region}/{told.jurisdiction}"
        self.lose(state.spec.gateway_id, detail, now_ns)

    def _stale_ns(self, state: PeerState) -> int:
        """One lost packet on a long path must not flap a peer: three keep-alives, or two worst round trips if
        longer."""
        if state.observation is None:
            return 0
        keep_alive_ns = self._config.observation.keep_alive_ns
        return state.observation.generated_ns + max(3 * keep_alive_ns, 2 * state.observation.rtt_p99_ns)


def _release_ns(capacities: list[ModelCapacity]) -> float:
    """Mean time between two requests leaving the slots of all of them; 0: not known."""
    per_ns = sum([1 / capacity.release_ns for capacity in capacities if capacity.release_ns])
    return 1 / per_ns if per_ns else 0.0


def _fits(capacity: ModelCapacity, model: ModelName, rule: PlaceRule, connectors: frozenset[Connector]) -> bool:
    if capacity.model != model or not rule.allows(capacity.place):
        return False
    return capacity.connector is None or capacity.connector in connectors


def _pool_queue(state: PeerState, capacities: list[ModelCapacity], length: int) -> int:
    """Of those who wait there, those before whom a request for these pools would come to stand; where they are not told
    apart, all."""
    if not state.pool_queues:
        return length
    pools = dict.fromkeys([(each.model, each.pool) for each in capacities])
    return sum([state.pool_queues.get(pool, 0) for pool in pools])


def _says_the_same(report: LoadReport, last: LoadReport | None) -> bool:
    """But for its number and what no placement rests on."""
    return last is not None and report.capacities == last.capacities and report.queues == last.queues


def _serves_the_same(report: LoadReport, served: tuple[ModelCapacity, ...]) -> bool:
    """Where which models are, whatever is free of them."""
    if len(report.capacities) != len(served):
        return False
    return all(
        now.model == before.model
        and now.place == before.place
        and now.connector is before.connector
        and (now.pool, now.context_tokens_max, now.threshold_tokens)
        == (before.pool, before.context_tokens_max, before.threshold_tokens)
        for now, before in zip(report.capacities, served, strict=True)
    )


def _is_overtaken(observation: PeerObservation, last: PeerObservation | None) -> bool:
    """A restarted peer counts from the start again, so a lower sequence is old only if it was also measured earlier."""
    if last is None:
        return False
    if observation.report.sequence >= last.report.sequence:
        return False
    return observation.generated_ns <= last.generated_ns
