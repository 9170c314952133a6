"""Our replicas as last observed, with our own legs counted in: who is available, and who is least loaded.

Sets of replicas are bit masks over slots, kept up to date at each change, so that no decision visits every replica.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import assert_never

from gateway.core.attempts import Breaker, BreakerState, Ramp, Rest
from gateway.core.bits import next_slot_from, slots_of
from gateway.core.config import CoreConfig, PushingMode
from gateway.core.timers import Timer, TimerKind, Timers
from gateway.core.vocabulary import (
    LegResult,
    ModelCapacity,
    ModelName,
    Place,
    PlaceRule,
    PoolName,
    ReplicaId,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    Standing,
    Target,
    replica_target,
)

LegKey = tuple[RequestId, int, int]
"""Request, attempt, leg."""
_OUT_OF_REACH = frozenset({Standing.UNHEALTHY, Standing.STALE})
_SIGNS_MISSED_MAX = 3


class LoadLevels:
    """Slots grouped by load: the least loaded of any mask in O(distinct loads), whatever the number of slots."""

    def __init__(self) -> None:
        self._mask_at: dict[int, int] = {}
        self._loads: list[int] = []
        self._load_of: dict[int, int] = {}

    def put(self, slot: int, load: int) -> None:
        if self._load_of.get(slot) == load:
            return
        self.remove(slot)
        self._load_of[slot] = load
        if load not in self._mask_at:
            insort(self._loads, load)
            self._mask_at[load] = 0
        self._mask_at[load] |= 1 << slot

    def remove(self, slot: int) -> None:
        load = self._load_of.pop(slot, None)
        if load is None:
            return
        self._mask_at[load] &= ~(1 << slot)
        if not self._mask_at[load]:
            del self._mask_at[load]
            del self._loads[bisect_left(self._loads, load)]

    def least(self, mask: int) -> int:
        """Those of `mask` that share the lowest load; 0 when none of them is known."""
        for load in self._loads:
            if found := self._mask_at[load] & mask:
                return found
        return 0


class ReplicaState:
    """One replica: its last probe, and our attempts there."""

    __slots__ = (
        "breaker",
        "detail",
        "distrusted_since_ns",
        "healthy",
        "in_flight",
        "kv_usage",
        "listed",
        "ramp",
        "rest",
        "running",
        "sampled_ns",
        "slot",
        "spec",
        "standing",
        "target",
        "timer",
        "unreflected",
        "waiting",
    )

    def __init__(self, spec: ReplicaSpec, slot: int, config: CoreConfig) -> None:
        self.spec = spec
        self.slot = slot
        self.target: Target = replica_target(spec.replica_id)
        self.timer = Timer(TimerKind.REPLICA, spec.replica_id)
        self.healthy = False
        self.detail = "not probed yet"
        self.sampled_ns: int | None = None
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.in_flight = 0
        self.unreflected: dict[LegKey, int] = {}
        """Own pushes without a first token that the last probe cannot have seen, with the time of each."""
        self.distrusted_since_ns: int | None = None
        """An attempt failed or was turned away then: not available until a later probe says otherwise."""
        self.breaker = Breaker(config.attempt)
        self.ramp = Ramp(config.attempt)
        self.rest = Rest(config.attempt)
        self.standing = Standing.UNHEALTHY
        """As of the last change or deadline of this replica."""
        self.listed = True
        """False once it left the assignment; running attempts may still end here."""

    @property
    def load(self) -> int:
        return max(self.in_flight, self.running + self.waiting)


class Replicas:
    """All replicas of this gateway."""

    def __init__(self, config: CoreConfig, timers: Timers) -> None:
        self._config = config
        self._timers = timers
        self._by_id: dict[ReplicaId, ReplicaState] = {}
        self._by_slot: dict[int, ReplicaState] = {}
        self._free_slots: list[int] = []
        self._slots_used = 0
        self._groups: dict[tuple[ModelName, PoolName, Place], int] = {}
        self._models: dict[ModelName, None] = {}
        """Those of the groups, in order."""
        self._levels = LoadLevels()
        self._cursor = 0
        self.available = 0
        """Mask of the replicas that can take a request now."""
        self.reachable = 0
        """Mask of the replicas that answer, however full they are."""
        self.version = 0
        """Changes with the set of replicas, so that masks derived from it can be cached."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ReplicaState]:
        return iter(self._by_id.values())

    def get(self, replica_id: ReplicaId) -> ReplicaState | None:
        return self._by_id.get(replica_id)

    def at(self, slot: int) -> ReplicaState:
        return self._by_slot[slot]

    # What changes them

    def configure(self, config: CoreConfig, now_ns: int) -> None:
        self._config = config
        for state in self:
            state.breaker.configure(config.attempt)
            state.ramp.configure(config.attempt)
            state.rest.configure(config.attempt)
            self.refresh(state, now_ns)

    def assign(self, specs: Iterable[ReplicaSpec], now_ns: int) -> tuple[list[ReplicaState], list[ReplicaState]]:
        """Own exactly these replicas from now on. Gives those that joined and those that left; a changed spec does
        both, unless only its models changed: then it stays what it is, with all that is known of it."""
        wanted = {spec.replica_id: spec for spec in specs}
        for state in self:
            spec = wanted.get(state.spec.replica_id)
            if spec is not None and spec == replace(state.spec, models=spec.models):
                state.spec = spec
        left = [state for state in self if wanted.get(state.spec.replica_id) != state.spec]
        is_first_assignment = self.version == 0
        for state in left:
            self._drop(state)
        joined = [self._add(spec) for spec in wanted.values() if spec.replica_id not in self._by_id]
        if not is_first_assignment:
            for state in joined:
                state.ramp.start(now_ns)
        self._rebuild_groups()
        self.version += 1
        return joined, left

    def observe(self, observation: ReplicaObservation, now_ns: int) -> None:
        """Take in one probe. A probe older than the last one changes nothing."""
        state = self._by_id.get(observation.replica_id)
        if state is None or (state.sampled_ns is not None and observation.sampled_ns < state.sampled_ns):
            return
        returns = observation.healthy and not state.healthy and state.sampled_ns is not None
        state.sampled_ns = observation.sampled_ns
        state.healthy = observation.healthy
        state.detail = observation.detail
        state.running, state.waiting = observation.running, observation.waiting
        state.kv_usage = observation.kv_usage
        if state.distrusted_since_ns is not None and observation.sampled_ns >= state.distrusted_since_ns:
            state.distrusted_since_ns = None
        if state.unreflected:
            self._reflect(state, observation.sampled_ns)
        if returns:
            state.ramp.start(now_ns)
        if not self._stays_available(state, now_ns):
            self.refresh(state, now_ns)

    def lose(self, replica_id: ReplicaId, detail: str, now_ns: int) -> None:
        state = self._by_id.get(replica_id)
        if state is not None:
            state.healthy = False
            state.detail = detail
            self.refresh(state, now_ns)

    def started(self, state: ReplicaState, key: LegKey, now_ns: int) -> None:
        state.in_flight += 1
        state.unreflected[key] = now_ns
        self.refresh(state, now_ns)

    def first_token(self, state: ReplicaState, key: LegKey, now_ns: int) -> None:
        if state.unreflected.pop(key, None) is not None:
            self.refresh(state, now_ns)

    def ended(self, state: ReplicaState, key: LegKey, result: LegResult, now_ns: int) -> None:
        assert state.in_flight > 0, f"{state.target}: an attempt ended that was not in flight"
        state.in_flight -= 1
        state.unreflected.pop(key, None)
        if state.breaker.record(result, now_ns):
            state.ramp.start(now_ns)
        if result in (LegResult.COMPLETED, LegResult.CLIENT_ERROR):
            state.rest.proved()
        elif result is LegResult.BUSY and state.distrusted_since_ns is None and now_ns >= state.rest.until_ns:
            state.rest.turned_away(now_ns)
        if result in (LegResult.FAILED, LegResult.BUSY):
            state.distrusted_since_ns = now_ns
        self.refresh(state, now_ns)

    def wake(self, replica_id: ReplicaId, now_ns: int) -> None:
        """A deadline of this replica has come: staleness, an open breaker, or a step of its ramp."""
        state = self._by_id.get(replica_id)
        if state is not None:
            self.refresh(state, now_ns)

    def refresh(self, state: ReplicaState, now_ns: int) -> None:
        """Bring the masks into line with one replica's state, and ask to be woken when time alone may change it."""
        if not state.listed:
            return
        state.breaker.wake(now_ns)
        state.ramp.wake(now_ns)
        standing = self._standing(state, now_ns)
        if standing is not state.standing:
            state.standing = standing
            self._note_standing(state)
        self._levels.put(state.slot, state.load)
        self._arm(state, now_ns)

    # What is asked of them

    def eligible(self, model: ModelName, rule: PlaceRule) -> int:
        """Mask of the replicas that serve the model in a place the rule allows, available or not."""
        mask = 0
        for (served, _, place), members in self._groups.items():
            if served == model and rule.allows(place):
                mask |= members
        return mask

    def serves(self, model: ModelName) -> bool:
        return model in self._models

    def models(self) -> list[ModelName]:
        return list(self._models)

    def least_loaded(self, mask: int) -> int:
        """The slot of `mask` with the lowest load; equal ones take turns. `mask` must not be empty."""
        slot = next_slot_from(self._levels.least(mask), self._cursor)
        self._cursor = slot + 1
        return slot

    def few_least_loaded(self, mask: int, count: int) -> list[int]:
        """Up to `count` slots of `mask`, the least loaded first."""
        few: list[int] = []
        while mask and len(few) < count:
            level = self._levels.least(mask)
            few += [slot for slot, _ in zip(slots_of(level), range(count - len(few)), strict=False)]
            mask &= ~level
        return few

    def load_at(self, slot: int) -> int:
        return self._by_slot[slot].load

    def capacities(self) -> tuple[ModelCapacity, ...]:
        return tuple(
            ModelCapacity(model, pool, place, members.bit_count(), (members & self.available).bit_count())
            for (model, pool, place), members in self._groups.items()
        )

    # Inside

    def _add(self, spec: ReplicaSpec) -> ReplicaState:
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._slots_used
            self._slots_used += 1
        state = ReplicaState(spec, slot, self._config)
        self._by_id[spec.replica_id] = state
        self._by_slot[slot] = state
        self._levels.put(slot, 0)
        return state

    def _drop(self, state: ReplicaState) -> None:
        state.listed = False
        del self._by_id[state.spec.replica_id]
        del self._by_slot[state.slot]
        self._levels.remove(state.slot)
        self.available &= ~(1 << state.slot)
        self.reachable &= ~(1 << state.slot)
        self._free_slots.append(state.slot)
        self._timers.cancel(state.timer)

    def _stays_available(self, state: ReplicaState, now_ns: int) -> bool:
        """What `refresh` would find of most that were just probed, at a fraction of its cost: available, and nothing
        else in sight but that it falls silent. No probe takes credit away."""
        if state.standing is not Standing.AVAILABLE or not state.healthy or state.waiting or state.sampled_ns is None:
            return False
        if state.breaker.state is not BreakerState.CLOSED or state.ramp.limit is not None:
            return False
        stale_ns = state.sampled_ns + self._stale_after_ns(state)
        if now_ns >= stale_ns:
            return False
        self._levels.put(state.slot, state.load)
        self._timers.set(state.timer, stale_ns)
        return True

    def _reflect(self, state: ReplicaState, sampled_ns: int) -> None:
        """Pushes that had reached the replica when it was sampled are in what it says."""
        for key, pushed_ns in list(state.unreflected.items()):
            if pushed_ns < sampled_ns:
                del state.unreflected[key]

    def _note_standing(self, state: ReplicaState) -> None:
        bit = 1 << state.slot
        if state.standing is Standing.AVAILABLE:
            self.available |= bit
        else:
            self.available &= ~bit
        if state.standing in _OUT_OF_REACH:
            self.reachable &= ~bit
        else:
            self.reachable |= bit

    def _rebuild_groups(self) -> None:
        self._groups = {}
        for state in self:
            for model in state.spec.models:
                group = (model, state.spec.pool, state.spec.place)
                self._groups[group] = self._groups.get(group, 0) | 1 << state.slot
        self._models = dict.fromkeys(model for model, _, _ in self._groups)

    def _standing(self, state: ReplicaState, now_ns: int) -> Standing:
        if not state.healthy:
            return Standing.UNHEALTHY
        if self._is_stale(state, now_ns):
            return Standing.STALE
        if state.distrusted_since_ns is not None or now_ns < state.rest.until_ns:
            return Standing.DISTRUSTED
        if not state.breaker.allows(state.in_flight):
            return Standing.BREAKER
        if not state.ramp.allows(state.in_flight):
            return Standing.RAMP
        return self._fullness(state)

    def _fullness(self, state: ReplicaState) -> Standing:
        """What selective pushing says of a healthy replica."""
        pushing = self._config.pushing
        match _mode_for(state.spec, pushing.mode):
            case PushingMode.BLIND:
                return Standing.AVAILABLE
            case PushingMode.OUTSTANDING:
                is_full = state.in_flight >= pushing.outstanding_max
                return Standing.OUTSTANDING if is_full else Standing.AVAILABLE
            case PushingMode.PENDING:
                if state.waiting > 0:
                    return Standing.PENDING
                credit = pushing.in_band_credit
                has_credit = credit is None or len(state.unreflected) <= credit
                return Standing.AVAILABLE if has_credit else Standing.CREDIT
            case _ as never:
                assert_never(never)

    def _is_stale(self, state: ReplicaState, now_ns: int) -> bool:
        return state.sampled_ns is None or now_ns - state.sampled_ns >= self._stale_after_ns(state)

    def _stale_after_ns(self, state: ReplicaState) -> int:
        stale_ns = self._config.observation.replica_stale_ns
        sign_of_life_ns = state.spec.sign_of_life_ns
        return stale_ns if sign_of_life_ns is None else max(stale_ns, _SIGNS_MISSED_MAX * sign_of_life_ns)

    def _arm(self, state: ReplicaState, now_ns: int) -> None:
        """Be woken at the first moment at which time alone may change its standing."""
        deadlines: list[int] = []
        if state.sampled_ns is not None and now_ns < (stale_ns := state.sampled_ns + self._stale_after_ns(state)):
            deadlines.append(stale_ns)
        if now_ns < state.rest.until_ns:
            deadlines.append(state.rest.until_ns)
        if state.breaker.state is BreakerState.OPEN:
            deadlines.append(state.breaker.open_until_ns)
        if state.ramp.limit is not None:
            deadlines.append(state.ramp.next_step_ns)
        if deadlines:
            self._timers.set(state.timer, min(deadlines))
        else:
            self._timers.cancel(state.timer)


def _mode_for(spec: ReplicaSpec, mode: PushingMode) -> PushingMode:
    """Of an engine that tells no load, only our own attempts there can be counted."""
    if spec.sign_of_life_ns is not None and mode is PushingMode.PENDING:
        return PushingMode.OUTSTANDING
    return mode
