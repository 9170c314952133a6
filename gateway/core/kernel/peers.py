"""Peers as their heartbeats describe them, with this gateway's recent forwards counted against what they advertised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import KernelConfig, PeerAvailability
from gateway.core.kernel.pools import PoolBounds, PoolFit, bounds_in
from gateway.core.kernel.request_class import RequestClass
from gateway.core.kernel.slots import wait_for_slot_ns
from gateway.core.kernel.targets import AVAILABLE, LegKey, Targets, TargetState
from gateway.core.kernel.timers import TimerKind, Timers
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    GatewayId,
    LoadReport,
    ModelCapacity,
    ModelName,
    NeededIdentity,
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
"""Factor on the requests that may wait at a peer, under a policy that weighs that wait: multiples of those that leave
slots in one round trip and heartbeat."""
_ANSWERS_MAX = 64
"""Combinations of model and rule whose answers are cached."""


class PeerState(TargetState[PeerSpec]):
    """One peer: its last heartbeat, and the forwards of this gateway there."""

    __slots__ = ("appending", "observation", "pool_queues", "queue_lengths", "served")

    def __init__(self, home: Peers, spec: PeerSpec, slot: int, config: KernelConfig) -> None:
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
        self.appending: dict[ModelName, int] = {}
        """Requests that wait there whose answer has begun, by model."""
        self.pool_queues: dict[tuple[ModelName, PoolName], int] = {}
        """Queue lengths by pool, where the peer tells its pools apart."""
        self.served: tuple[ModelCapacity, ...] = ()
        """Capacities by the last report that named any. An empty report comes from a peer that has only started and is
        still to find its replicas, so requests that wait for it are not told that it has none."""

    @property
    def report(self) -> LoadReport | None:
        return self.observation.report if self.observation else None

    @property
    def rtt_ns(self) -> int:
        return self.observation.rtt_ns if self.observation else 0


@dataclass(slots=True)
class _Answer:
    """Cached answer for one question: the peers available when last asked, and those that changed since."""

    available: int
    unsure: int


class Peers(Targets[PeerState, PeerSpec]):
    """All peers of this gateway. Answers are cached, so that a question visits only peers that changed since it was
    last asked. The version changes with anything that may make a peer more or less available; a heartbeat equal to the
    last one changes nothing."""

    def __init__(self, config: KernelConfig, timers: Timers) -> None:
        super().__init__(config, timers)
        self._answers: dict[
            tuple[ModelName, PlaceRule, frozenset[Connector], PoolFit | None, NeededIdentity | None, bool, bool],
            _Answer,
        ] = {}
        self.thresholds: dict[ModelName, None] = {}
        """Models with a pool that has a threshold, at any peer, by their reports so far."""
        self.served_version = 0
        """Version of what peers serve and where, as far as is known; it never changes with how busy they are."""
        self.weighs_waits = False
        """True if the placement policy in force weighs the cost of a wait at a peer."""

    # Changes

    def configure(self, config: KernelConfig, now_ns: int) -> None:
        self._forget_answers()
        super().configure(config, now_ns)

    def assign(self, specs: Iterable[PeerSpec]) -> tuple[list[PeerState], list[PeerState]]:
        """Replace the known peers. Returns those that joined and those that left; a peer with a changed specification
        does both, unless only the source of its place changed."""
        wanted: dict[str, PeerSpec] = {spec.gateway_id: spec for spec in specs}
        for state in self:
            spec = wanted.get(state.spec.gateway_id)
            if spec is not None and spec.place == state.spec.place:
                state.spec = spec
        changed = self._own(wanted)
        self._forget_answers()
        self._served_changed()
        return changed

    def observe(self, observation: PeerObservation, now_ns: int) -> None:
        """Take in one heartbeat. An overtaken one is ignored; one that claims another place than configured makes the
        peer lost."""
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
            state.appending = {queue.model: queue.appending for queue in queues if queue.appending}
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
        identity: NeededIdentity | None = None,
        appends: bool = False,
        goes_first: bool = False,
    ) -> int:
        """Mask of the peers that can take one more request for the model, at a place the rule allows (SkyWalker §3.3).
        `connectors`: ways in which it can be handed from a prefill to a decode worker. `fit`: pools it fits into.
        `identity`: identity of the model that it is bound to; None: any. `appends`: its answer has begun, so that what
        is new there is not ahead of it. `goes_first`: it is given slots of requests that yield.

        O(peers that changed since the same was last asked).
        """
        question = (model, rule, connectors, fit, identity, appends, goes_first)
        answer = self._answers.get(question)
        if answer is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[question] = _Answer(0, self.usable)
        answer.available &= ~answer.unsure
        for slot in slots_of(answer.unsure & self.usable):
            state = self._by_slot[slot]
            standing = self.standing_for(
                state,
                model,
                rule,
                connectors=connectors,
                fit=fit,
                identity=identity,
                appends=appends,
                goes_first=goes_first,
            )
            if standing is AVAILABLE:
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
        identity: NeededIdentity | None = None,
    ) -> int:
        """Mask of the peers that serve the model where the rule allows, by their reports so far, available or not."""
        mask = 0
        for state in self:
            if rule.allows(state.spec.place) and any(
                _fits(each, model, rule, connectors)
                and (fit is None or fit.is_taken_by(each))
                and (identity is None or identity.takes(each.identity))
                for each in state.served
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
        """Bounds of the pools at peers that such requests may be forwarded to, in this region (`may_stay`) and in
        others (`may_cross`), by their reports so far."""
        found: list[PoolBounds] = []
        for state in self:
            is_within_reach = may_stay if state.spec.place.region == home else may_cross
            if is_within_reach and rule.allows(state.spec.place):
                found += bounds_in([each for each in state.served if _fits(each, model, rule, connectors)], model)
        return found

    def unheard(self, rule: PlaceRule) -> int:
        """Mask of the peers in allowed places that have not yet reported what they serve."""
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
        identity: NeededIdentity | None = None,
        appends: bool = False,
        goes_first: bool = False,
    ) -> Standing:
        """Standing of a peer for one more request of the model at a place the rule allows: available, or why not."""
        if not rule.allows(state.spec.place):
            return Standing.NOT_ALLOWED
        if state.standing is not AVAILABLE or state.report is None:
            return state.standing
        fitting = [capacity for capacity in state.report.capacities if _fits(capacity, model, rule, connectors)]
        if identity is not None:
            alike = [capacity for capacity in fitting if identity.takes(capacity.identity)]
            if fitting and not alike:
                return Standing.OTHER_IDENTITY
            fitting = alike
        if fit is not None:
            fitting = fit.preferred_among(fitting)
            if not fitting:
                return Standing.TOO_SHORT
        queue_length = self._queue_length_for(state, fitting, model, fit, appends=appends)
        if self._config.placement.peer_availability is PeerAvailability.FREE_REPLICA:
            if queue_length > self._config.placement.peer_queue_length_max:
                return Standing.QUEUE
            return AVAILABLE if any(capacity.available for capacity in fitting) else BUSY
        ahead_max = self._ahead_max(state, _release_ns(fitting))
        given = _yielding(fitting) if goes_first else 0
        return AVAILABLE if self._position(state, fitting, queue_length) - given <= ahead_max else BUSY

    def standing_of(self, state: PeerState, wanted: RequestClass) -> Standing:
        """Standing of a peer for one more request of a class."""
        return self.standing_for(
            state,
            wanted.model,
            wanted.rule,
            connectors=wanted.connectors,
            fit=wanted.fit,
            identity=wanted.identity,
            appends=wanted.appends,
            goes_first=wanted.goes_first,
        )

    def ahead_max(self, gateway_id: GatewayId, release_ns: float) -> float:
        """Most requests beyond this gateway's room that a peer may forward to it, where one request leaves every
        `release_ns`."""
        state = self._by_id.get(gateway_id)
        return 0.0 if state is None else self._ahead_max(state, release_ns)

    def wait_ns(
        self,
        state: PeerState,
        model: ModelName,
        fit: PoolFit | None,
        *,
        appends: bool = False,
        goes_first: bool = False,
    ) -> float:
        """Time that one more request waits at the peer for a slot once it has arrived, by the last heartbeat; 0 where a
        slot is free by then. `appends`: its answer has begun, so that what is new there is not ahead of it.
        `goes_first`: it is given slots of requests that yield, which counts as a short wait."""
        if state.report is None:
            return 0.0
        fitting = [each for each in state.report.capacities if each.model == model]
        if fit is not None:
            fitting = fit.preferred_among(fitting)
        waiting = state.appending.get(model, 0) if appends else self.queue_length(state, model)
        given = _yielding(fitting) if goes_first else 0
        position, release_ns = self._position(state, fitting, waiting), _release_ns(fitting)
        if position <= given:
            return wait_for_slot_ns(position, given, release_ns)
        return max(0.0, (position - given) * release_ns - state.rtt_ns)

    def spare(self, state: PeerState, wanted: RequestClass, *, is_idle: bool) -> int:
        """Requests of a class that yields which the peer would begin at once, by its last heartbeat and less the
        forwards since; 0 where requests wait there. `is_idle`: 0 also if any request runs there."""
        if state.report is None or self.queue_length(state, wanted.model):
            return 0
        fitting = _fitting(state.report, wanted)
        if is_idle and (state.unreflected or any(each.load for each in fitting)):
            return 0
        return max(0, sum([each.spare for each in fitting]) - len(state.unreflected))

    def free_slots(self, state: PeerState, wanted: RequestClass) -> tuple[int, int]:
        """Free slots of the peer's replicas for a class, by its last heartbeat and less the forwards since, and all
        slots of these."""
        fitting = [] if state.report is None else _fitting(state.report, wanted)
        free = sum([each.room for each in fitting])
        return max(0, free - len(state.unreflected)), free + sum([each.load for each in fitting])

    def room(self, state: PeerState, wanted: RequestClass) -> int:
        """Requests of a class that the peer could begin at once, by its last heartbeat and less the forwards since and
        the requests that wait there ahead of them."""
        if state.report is None:
            return 0
        fitting = _fitting(state.report, wanted)
        ahead = self._queue_length_for(state, fitting, wanted.model, wanted.fit, appends=wanted.appends)
        given = _yielding(fitting) if wanted.goes_first else 0
        return max(0, 1 + given - self._position(state, fitting, ahead))

    # Inside

    def _queue_length_for(
        self, state: PeerState, fitting: list[ModelCapacity], model: ModelName, fit: PoolFit | None, *, appends: bool
    ) -> int:
        """Requests that wait there ahead of one more for these pools, by the last heartbeat: of one whose answer has
        begun, only other such ones."""
        if appends:
            return state.appending.get(model, 0)
        length = self.queue_length(state, model)
        return length if fit is None else _pool_queue(state, fitting, length)

    def _position(self, state: PeerState, capacities: list[ModelCapacity], queue_length: int) -> int:
        """Place of one more request among those that wait for a slot there; 0 or less: a slot is free for it."""
        room = sum([capacity.room for capacity in capacities])
        return queue_length + len(state.unreflected) + 1 - room

    def _ahead_max(self, state: PeerState, release_ns: float) -> float:
        """Requests that may be forwarded beyond the advertised room: as many as leave slots while a heartbeat and the
        forward that answers it are on their way, or slots would stand empty for a round trip. Under a policy that
        weighs the wait it is `_AHEAD_FACTOR` times as many: a session can wait where its cache is, rather than take the
        next free slot elsewhere."""
        factor = _AHEAD_FACTOR if self.weighs_waits else 1
        interval_ns = self._config.observation.publish_interval_ns
        return factor * (state.rtt_ns + interval_ns) / release_ns if release_ns else 0.0

    def first_token(self, state: PeerState, key: LegKey, now_ns: int) -> None:  # noqa: ARG002
        """Take in a first token. The forward still counts against the advertised room until a heartbeat counts it."""
        state.backlog_bytes -= state.prefilling.pop(key, 0)

    def _served_changed(self) -> None:
        self.served_version += 1
        self.thresholds = dict.fromkeys(
            [capacity.model for state in self for capacity in state.served if capacity.threshold_tokens]
        )

    def _changes_what_is_served(self, state: PeerState, report: LoadReport) -> bool:
        """True if a report changes what the peer serves. A first report always does: until then the peer might have
        served anything."""
        if state.report is None:
            return True
        return bool(report.capacities) and not _serves_the_same(report, state.served)

    def _make(self, spec: PeerSpec, slot: int) -> PeerState:
        return PeerState(self, spec, slot, self._config)

    def _note_change(self, state: PeerState) -> None:
        """Mark the peer in every cached answer as changed."""
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
        """Time at which the peer becomes stale: three keep-alives after its last heartbeat, or two worst round trips if
        longer, since one lost packet on a long path must not make it unavailable."""
        if state.observation is None:
            return 0
        keep_alive_ns = self._config.observation.keep_alive_ns
        return state.observation.generated_ns + max(3 * keep_alive_ns, 2 * state.observation.rtt_p99_ns)


def _fitting(report: LoadReport, wanted: RequestClass) -> list[ModelCapacity]:
    """Capacities that a class of requests would run on."""
    identity, fit = wanted.identity, wanted.fit
    fitting = [
        each
        for each in report.capacities
        if _fits(each, wanted.model, wanted.rule, wanted.connectors)
        and (identity is None or identity.takes(each.identity))
    ]
    return fitting if fit is None else fit.preferred_among(fitting)


def _yielding(capacities: list[ModelCapacity]) -> int:
    """Slots that requests which go first would be given."""
    return sum([capacity.yielding for capacity in capacities])


def _release_ns(capacities: list[ModelCapacity]) -> float:
    """Mean time between two requests that leave the slots of all of these; 0: not known."""
    per_ns = sum([1 / capacity.release_ns for capacity in capacities if capacity.release_ns])
    return 1 / per_ns if per_ns else 0.0


def _fits(capacity: ModelCapacity, model: ModelName, rule: PlaceRule, connectors: frozenset[Connector]) -> bool:
    if capacity.model != model or not rule.allows(capacity.place):
        return False
    return capacity.connector is None or capacity.connector in connectors


def _pool_queue(state: PeerState, capacities: list[ModelCapacity], length: int) -> int:
    """Requests waiting there ahead of a request for these pools; all that wait for the model where pools are not told
    apart."""
    if not state.pool_queues:
        return length
    pools = dict.fromkeys([(each.model, each.pool) for each in capacities])
    return sum([state.pool_queues.get(pool, 0) for pool in pools])


def _says_the_same(report: LoadReport, last: LoadReport | None) -> bool:
    """True if both reports say the same of all that placement rests on, whatever their sequence numbers."""
    return last is not None and report.capacities == last.capacities and report.queues == last.queues


def _serves_the_same(report: LoadReport, served: tuple[ModelCapacity, ...]) -> bool:
    """True if the same models are served in the same places and pools, however busy."""
    if len(report.capacities) != len(served):
        return False
    return all(
        now.model == before.model
        and now.place == before.place
        and now.connector is before.connector
        and (now.pool, now.context_tokens_max, now.threshold_tokens, now.identity)
        == (before.pool, before.context_tokens_max, before.threshold_tokens, before.identity)
        for now, before in zip(report.capacities, served, strict=True)
    )


def _is_overtaken(observation: PeerObservation, last: PeerObservation | None) -> bool:
    """True if a heartbeat is older than the last one. A restarted peer counts from the start again, so a lower sequence
    is old only if it was also measured earlier."""
    if last is None:
        return False
    if observation.report.sequence >= last.report.sequence:
        return False
    return observation.generated_ns <= last.generated_ns
