"""Our replicas as last observed, with our own legs counted in: who is available, and who is least loaded. It knows
probes, models and loads; what it shares with every other target is in `targets`."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gateway.core.bits import next_slot_from, slots_of
from gateway.core.config import CoreConfig, PushingMode
from gateway.core.pools import PoolBounds, PoolFit
from gateway.core.slots import EngineSlots
from gateway.core.targets import AVAILABLE, NO_LIMIT, LegKey, Targets, TargetState
from gateway.core.timers import TimerKind, Timers
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    LegResult,
    ModelCapacity,
    ModelName,
    Place,
    PlaceRule,
    PoolName,
    PoolSpec,
    ReplicaObservation,
    ReplicaRole,
    ReplicaSpec,
    Standing,
    replica_target,
)

_PENDING: Final = PushingMode.PENDING
_OUTSTANDING: Final = PushingMode.OUTSTANDING
_OUT_OF_REACH = frozenset({Standing.UNHEALTHY, Standing.STALE})
_FULL = frozenset({Standing.PENDING, Standing.CREDIT, Standing.OUTSTANDING})
_PROVED = frozenset({LegResult.COMPLETED, LegResult.CLIENT_ERROR, LegResult.TOO_LONG})
_UNIFIED: Final = ReplicaRole.UNIFIED
_Group = tuple[ModelName, PoolName, Place, PlaceRule | None, Connector | None, int]
"""The last: tokens that one request may come to; 0: no limit is known."""
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

    def total(self, mask: int) -> int:
        """Of all loads in the mask."""
        return sum([load * (slots & mask).bit_count() for load, slots in self._mask_at.items()])

    def at_zero(self, mask: int) -> int:
        return self._mask_at.get(0, 0) & mask

    def least(self, mask: int) -> int:
        """Those of `mask` that share the lowest load; 0 when none of them is known."""
        for load in self._loads:
            if found := self._mask_at[load] & mask:
                return found
        return 0


class ReplicaState(TargetState[ReplicaSpec]):
    """One replica: its last probe, and our legs there."""

    __slots__ = (
        "answered_ns",
        "assigned_ns",
        "context_seen",
        "kv_tokens",
        "kv_usage",
        "preemptions",
        "retained",
        "running",
        "sampled_ns",
        "slots",
        "waiting",
    )

    def __init__(self, home: Replicas, spec: ReplicaSpec, slot: int, config: CoreConfig) -> None:
        super().__init__(
            home,
            spec,
            slot,
            target=replica_target(spec.replica_id),
            timer_kind=TimerKind.REPLICA,
            standing_when_lost=Standing.UNHEALTHY,
            config=config,
        )
        self.detail = "not probed yet"
        self.sampled_ns: int | None = None
        self.answered_ns: int | None = None
        """When the last probe was sent that found it well."""
        self.assigned_ns = 0
        """Since when it is ours."""
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.kv_tokens = 0
        self.context_seen = 0
        """What it said that it takes when it refused a request for its length, where that is less than was known; 0:
        nothing. A life of its engine long."""
        self.preemptions: int | None = None
        """Since its engine started, as it told last; None: it has not yet."""
        self.retained = 0
        """Prompts that it has read for us and keeps until a decode worker has fetched them."""
        self.slots = EngineSlots(spec.slots)

    @property
    def free_tokens(self) -> int:
        return round((1 - self.kv_usage) * self.kv_tokens)

    @property
    def load(self) -> int:
        return max(self.in_flight, self.running + self.waiting)

    @property
    def room(self) -> int:
        """Requests that it could begin at once; negative: as many wait in it for a slot."""
        return self.slots.room(
            running=self.running,
            waiting=self.waiting,
            unreflected=len(self.unreflected),
            in_flight=self.in_flight,
            kv_usage=self.kv_usage,
        )


class Replicas(Targets[ReplicaState, ReplicaSpec]):
    """All replicas of this gateway."""

    def __init__(self, config: CoreConfig, timers: Timers) -> None:
        super().__init__(config, timers)
        self._groups: dict[_Group, int] = {}
        """Without decode workers, which nobody is placed at, and whose prefill workers stand for them."""
        self._connectors: dict[PoolName, Connector] = {}
        """Of disaggregated pools."""
        self._decoding: dict[PoolName, int] = {}
        """Masks of their decode workers."""
        self._bounds: dict[PoolName, PoolBounds] = {}
        self._told: dict[PoolName, tuple[int, int]] = {}
        """Threshold and window of the pools that have one, as they were set."""
        """Of pools that are described."""
        self.thresholds: dict[ModelName, None] = {}
        """Models of which some pool of ours has one."""
        self.preempted: dict[PoolName, int] = {}
        """Sequences that engines put back for want of room, since this gateway has had them."""
        self._unresumed: frozenset[PoolName] = frozenset()
        """Pools whose answers are not to go on elsewhere, nor others' there."""
        self.continuing = 0
        """Mask of the replicas that go on with what others began."""
        self._full_pools: set[PoolName] = set()
        """Disaggregated ones that have no decode slot for what they would read."""
        self._models: dict[ModelName, None] = {}
        """Those of the groups, in order."""
        self.ask_origins = False
        """Some of them take only what arrived where their home accepts, so it counts where a request arrived."""
        self._levels = LoadLevels()
        self._cursor = 0
        self.reachable = 0
        """Mask of the replicas that answer, however full they are."""
        self.open = 0
        """Mask of those that are available but for what they have to do."""
        self.pushable = 0
        """Mask of those among them that may be sent something all the same: all but those whose load only we count."""
        self.loads_version = 0
        """Changes with any load."""
        self.changed = 0
        """Mask of those about which anything has changed since somebody last put this to 0."""

    @property
    def available(self) -> int:
        """Mask of the replicas that can take a request now."""
        return self.usable

    # What changes them

    def assign(
        self, specs: Iterable[ReplicaSpec], now_ns: int, pools: Iterable[PoolSpec] = ()
    ) -> tuple[list[ReplicaState], list[ReplicaState]]:
        """Own exactly these replicas from now on. Gives those that joined and those that left; a changed spec does
        both, unless only its models changed, or what it accepts: then it stays what it is, with all that is known of
        it."""
        wanted: dict[str, ReplicaSpec] = {spec.replica_id: spec for spec in specs}
        pools = list(pools)
        self._connectors = {pool.name: pool.connector for pool in pools if pool.connector is not None}
        named = {spec.pool for spec in wanted.values()}
        self.preempted = {pool: count for pool, count in self.preempted.items() if pool in named}
        self._bounds = {
            pool.name: PoolBounds(pool.name, pool.context_tokens_max, pool.threshold_tokens) for pool in pools
        }
        self._told = {
            pool.name: (pool.threshold_tokens, pool.context_tokens_max) for pool in pools if pool.threshold_tokens
        }
        self._unresumed = frozenset(pool.name for pool in pools if not pool.resumes)
        for state in self:
            spec = wanted.get(state.spec.replica_id)
            if spec is not None and spec == replace(state.spec, models=spec.models, accepts=spec.accepts):
                self.changed |= 1 << state.slot if spec != state.spec else 0
                state.spec = spec
        is_first_assignment = self.version == 0
        joined, left = self._own(wanted)
        for state in joined:
            self._levels.put(state.slot, 0)
            state.assigned_ns = now_ns
            if not is_first_assignment:
                state.ramp.start(now_ns)
        self._rebuild_groups()
        self.continuing = sum(1 << state.slot for state in self if self.continues(state.spec))
        return joined, left

    def observe(self, observation: ReplicaObservation, now_ns: int) -> None:
        """Take in one probe. A probe older than the last one changes nothing."""
        state = self._by_id.get(observation.replica_id)
        if state is None or (state.sampled_ns is not None and observation.sampled_ns < state.sampled_ns):
            return
        if observation.healthy and not state.healthy and state.sampled_ns is not None:
            state.ramp.start(now_ns)
            state.slots.forget()
            self._forget_context(state)
        state.sampled_ns = observation.sampled_ns
        state.healthy = observation.healthy
        if observation.healthy:
            state.answered_ns = observation.sampled_ns
        state.detail = observation.detail
        self.changed |= 1 << state.slot
        waiting = observation.waiting
        if state.spec.role is ReplicaRole.PREFILL:
            waiting -= observation.deferred
        self.loads_version += state.waiting != waiting or state.running != observation.running
        state.running, state.waiting = observation.running, waiting
        state.kv_usage = observation.kv_usage
        state.kv_tokens = observation.kv_tokens
        if observation.healthy and observation.preemptions != state.preemptions:
            self._count_preemptions(state, observation.preemptions)
        self._believe(state, observation.sampled_ns)
        slots = state.slots
        slots.told = observation.slots
        slots.observe(
            observation.running,
            waiting,
            unread=len(state.prefilling),
            in_flight=state.in_flight,
            kv_usage=observation.kv_usage,
        )
        is_simple = state.healthy and not state.waiting and state.spec.role is _UNIFIED
        if is_simple and self._stays_available(state, now_ns):
            self._levels.put(state.slot, state.load)
        else:
            self.refresh(state, now_ns)

    def first_token(self, state: ReplicaState, key: LegKey, now_ns: int) -> None:
        self.changed |= 1 << state.slot
        super().first_token(state, key, now_ns)

    def started(self, state: ReplicaState, key: LegKey, now_ns: int, uncached_bytes: int = 0) -> None:
        super().started(state, key, now_ns, uncached_bytes)
        state.slots.started(state.in_flight)

    def ended(
        self,
        state: ReplicaState,
        key: LegKey,
        result: LegResult,
        now_ns: int,
        took_ns: int,
        *,
        has_failed_elsewhere: bool = False,
    ) -> None:
        self.changed |= 1 << state.slot
        if result is LegResult.COMPLETED:
            state.slots.ended(took_ns)
        self.loads_version += 1
        if result in _PROVED:
            state.rest.proved()
        elif result is LegResult.BUSY and state.distrusted_since_ns is None and now_ns >= state.rest.until_ns:
            state.rest.turned_away(now_ns)
        super().ended(state, key, result, now_ns, took_ns, has_failed_elsewhere=has_failed_elsewhere)

    def refresh(self, state: ReplicaState, now_ns: int) -> None:
        super().refresh(state, now_ns)
        if state.listed:
            self._levels.put(state.slot, state.load)

    def configure(self, config: CoreConfig, now_ns: int) -> None:
        for state in self:
            _set_credit(state, config)
        super().configure(config, now_ns)

    def _legs_changed(self, state: ReplicaState, now_ns: int) -> None:
        if state.listed:
            self._levels.put(state.slot, state.load)
        super()._legs_changed(state, now_ns)

    def _count_preemptions(self, state: ReplicaState, total: int) -> None:
        """An engine that has begun anew counts from nothing; what it did before it was ours is not our pool's."""
        seen, state.preemptions = state.preemptions, total
        if seen is not None and total > seen:
            pool = state.spec.pool
            self.preempted[pool] = self.preempted.get(pool, 0) + total - seen

    def learn_context(self, state: ReplicaState, tokens: int) -> bool:
        """Its engine takes no more than so many, whatever was written down. True: that is news."""
        if not state.listed or tokens <= 0 or ((known := self.context_of(state)) and tokens >= known):
            return False
        state.context_seen = tokens
        self._context_changed()
        return True

    def _forget_context(self, state: ReplicaState) -> None:
        """It may have been started with another one."""
        if state.context_seen:
            state.context_seen = 0
            self._context_changed()

    def _context_changed(self) -> None:
        self._rebuild_groups()
        self.version += 1

    def pool_is_full(self, pool: PoolName, now_ns: int, *, is_full: bool) -> None:
        """Are there as many requests in prefill, or read and not yet decoding, as the pool can decode?"""
        if is_full is (pool in self._full_pools):
            return
        if is_full:
            self._full_pools.add(pool)
        else:
            self._full_pools.discard(pool)
        for state in self:
            if state.spec.pool == pool and state.spec.role is ReplicaRole.PREFILL:
                self.refresh(state, now_ns)

    # What is asked of them

    def eligible(
        self,
        model: ModelName,
        rule: PlaceRule,
        origin: Place | None = None,
        *,
        connectors: frozenset[Connector] = ALL_CONNECTORS,
        fit: PoolFit | None = None,
    ) -> int:
        """Mask of the replicas that serve the model in a place the rule allows and take what arrived at `origin`,
        available or not. None: nobody asks. `connectors`: by which it can be handed over, besides those that
        run all of it. `fit`: into which pools it fits; None: into all."""
        mask = 0
        for (served, pool, place, accepts, connector, context), members in self._groups.items():
            if served != model or (connector is not None and connector not in connectors):
                continue
            if fit is not None and (pool not in fit.pools or 0 < context < fit.need_tokens):
                continue
            if rule.allows(place) and _takes_from(origin, accepts):
                mask |= members
        return mask

    def in_pool(self, pool: PoolName) -> int:
        """Mask of all of its replicas, whatever they serve."""
        mask = 0
        for (_, name, _, _, _, _), members in self._groups.items():
            if name == pool:
                mask |= members
        return mask

    def bounds(
        self, model: ModelName, rule: PlaceRule, origin: Place | None, connectors: frozenset[Connector]
    ) -> list[PoolBounds]:
        """Of the pools that such requests may go to; several of one where its engines do not take the same."""
        found: list[PoolBounds] = []
        for served, pool, place, accepts, connector, context in self._groups:
            if served != model or (connector is not None and connector not in connectors):
                continue
            if rule.allows(place) and _takes_from(origin, accepts):
                found.append(PoolBounds(pool, context, self._threshold_of(pool)))
        return found

    def contexts(self, model: ModelName) -> list[int]:
        """Contexts of the model on the replicas that serve it, in tokens; 0 where none is known."""
        return [context for served, _, _, _, _, context in self._groups if served == model]

    def context_of(self, state: ReplicaState) -> int:
        """What one request may come to there, as far as is known; 0: no limit is."""
        bounds = self._bounds.get(state.spec.pool)
        told = 0 if bounds is None else bounds.context_tokens_max
        return min(told, state.context_seen) if told and state.context_seen else told or state.context_seen

    def told_thresholds(self) -> dict[PoolName, tuple[int, int]]:
        """Of our pools that were set one: it, and the window; 0 where no window was told."""
        return dict(self._told)

    def retune(self, pool: PoolName, tokens: int) -> None:
        """From now on requests of so many are meant for that pool. One that is gone is none of ours."""
        bounds = self._bounds.get(pool)
        if bounds is not None and bounds.threshold_tokens and bounds.threshold_tokens != tokens:
            self._bounds[pool] = PoolBounds(pool, bounds.context_tokens_max, tokens)
            self.version += 1

    def is_longer(self, pool: PoolName, window_tokens: int) -> bool:
        """Does that pool take more than this? One that says nothing does."""
        bounds = self._bounds.get(pool)
        return bounds is None or bounds.limit > window_tokens

    def _threshold_of(self, pool: PoolName) -> int:
        bounds = self._bounds.get(pool)
        return 0 if bounds is None else bounds.threshold_tokens

    def closed_to(self, model: ModelName, rule: PlaceRule, origin: Place | None = None) -> int:
        """Mask of those that would be eligible but for where it arrived."""
        mask = 0
        if self.ask_origins:
            for (served, _, place, accepts, _, _), members in self._groups.items():
                if served == model and rule.allows(place) and not _takes_from(origin, accepts):
                    mask |= members
        return mask

    def continues(self, spec: ReplicaSpec) -> bool:
        """May it go on with what another one began, and another one with what it began?"""
        return spec.continues and spec.pool not in self._unresumed

    def somebody_answers(self) -> bool:
        """Could anybody be served, as far as engines answer? In a disaggregated pool it takes both parts."""
        return any(
            members & self.reachable and (connector is None or self._decoding[pool] & self.reachable)
            for (_, pool, _, _, connector, _), members in self._groups.items()
        )

    def serves(self, model: ModelName) -> bool:
        return model in self._models

    def models(self) -> list[ModelName]:
        return list(self._models)

    def least_loaded(self, mask: int) -> int:
        """The slot of `mask` with the lowest load; equal ones take turns. `mask` must not be empty."""
        slot = next_slot_from(self._levels.least(mask), self._cursor)
        self._cursor = slot + 1
        return slot

    def few_least_loaded(self, mask: int, count: int, first: int = 0) -> list[int]:
        """Up to `count` slots of `mask`, the least loaded first; of equal ones, those from slot `first` on."""
        few: list[int] = []
        while mask and len(few) < count:
            level = self._levels.least(mask)
            mask &= ~level
            while level and len(few) < count:
                slot = next_slot_from(level, first)
                level ^= 1 << slot
                few.append(slot)
        return few

    def idle(self, mask: int) -> int:
        """Those of the mask where nothing runs or waits."""
        return self._levels.at_zero(mask)

    def total_load(self, mask: int) -> int:
        """O(distinct loads)."""
        return self._levels.total(mask)

    def load_at(self, slot: int) -> int:
        return self._by_slot[slot].load

    def capacities(self) -> tuple[ModelCapacity, ...]:
        return tuple([capacity for capacity, _ in self._counted()])

    def loads(self, taking: int) -> tuple[ModelCapacity, ...]:
        """Capacities with how busy they are, as peers are told. `taking`: mask of the replicas that may be sent a
        request; only these have room."""
        return tuple([self._with_load(capacity, members, taking) for capacity, members in self._counted()])

    def _counted(self) -> Iterator[tuple[ModelCapacity, int]]:
        for (model, pool, place, accepts, connector, context), members in self._groups.items():
            capacity = ModelCapacity(
                model,
                pool,
                place,
                members.bit_count(),
                (members & self.available).bit_count(),
                accepts,
                connector=connector,
                context_tokens_max=context,
                threshold_tokens=self._threshold_of(pool),
            )
            yield capacity, members

    def _with_load(self, capacity: ModelCapacity, members: int, taking: int) -> ModelCapacity:
        states = [self._by_slot[slot] for slot in slots_of(members)]
        return replace(
            capacity,
            load=sum(state.load for state in states),
            backlog_bytes=min(state.backlog_bytes for state in states),
            free_tokens=max((state.free_tokens for state in states if state.kv_tokens), default=None),
            room=self.room_of(members & taking),
            release_ns=self.release_ns_of(members),
        )

    def room_of(self, mask: int) -> int:
        """Requests that replicas of the mask could begin at once; negative: none of them could, and as many wait in
        their engines for a slot."""
        room = overfull = 0
        for slot in slots_of(mask):
            free = self._by_slot[slot].room
            if free > 0:
                room += free
            else:
                overfull += free
        return room or overfull

    def release_ns_of(self, mask: int) -> int:
        """Mean time between two requests leaving replicas of the mask while all of their slots are taken; 0: not
        known."""
        per_ns = 0.0
        for slot in slots_of(mask & self.pushable):
            if release_ns := self._by_slot[slot].slots.release_ns():
                per_ns += 1 / release_ns
        return round(1 / per_ns) if per_ns else 0

    # Inside

    def _make(self, spec: ReplicaSpec, slot: int) -> ReplicaState:
        state = ReplicaState(self, spec, slot, self._config)
        _set_credit(state, self._config)
        return state

    def _drop(self, state: ReplicaState) -> None:
        super()._drop(state)
        self._levels.remove(state.slot)
        self.reachable &= ~(1 << state.slot)
        self.open &= ~(1 << state.slot)
        self.pushable &= ~(1 << state.slot)

    def _note_change(self, state: ReplicaState) -> None:
        self.changed |= 1 << state.slot
        self.loads_version += 1

    def _note_standing(self, state: ReplicaState) -> None:
        super()._note_standing(state)
        bit = 1 << state.slot
        if state.standing is AVAILABLE or state.standing in _FULL:
            self.open |= bit
        else:
            self.open &= ~bit
        if self.open & bit and state.standing is not Standing.OUTSTANDING:
            self.pushable |= bit
        else:
            self.pushable &= ~bit
        if state.standing in _OUT_OF_REACH:
            self.reachable &= ~bit
        else:
            self.reachable |= bit

    def _rebuild_groups(self) -> None:
        """Prefill workers serve nothing in a pool that has no decode worker, or that nothing is known of."""
        self._groups = {}
        self._decoding = {}
        for state in self:
            if state.spec.role is ReplicaRole.DECODE:
                self._decoding[state.spec.pool] = self._decoding.get(state.spec.pool, 0) | 1 << state.slot
        for state in self:
            spec = state.spec
            connector = None
            if spec.role is not _UNIFIED:
                connector = self._connectors.get(spec.pool)
                if spec.role is ReplicaRole.DECODE or spec.pool not in self._decoding or connector is None:
                    continue
            for model in spec.models:
                group = (model, spec.pool, spec.place, spec.accepts, connector, self.context_of(state))
                self._groups[group] = self._groups.get(group, 0) | 1 << state.slot
        self._models = dict.fromkeys(model for model, *_ in self._groups)
        self.ask_origins = any(accepts is not None for _, _, _, accepts, _, _ in self._groups)
        self.thresholds = dict.fromkeys(model for model, pool, *_ in self._groups if self._threshold_of(pool))

    def _standing(self, state: ReplicaState, now_ns: int) -> Standing:
        standing = super()._standing(state, now_ns)
        return self._fullness(state) if standing is AVAILABLE else standing

    def _fullness(self, state: ReplicaState) -> Standing:
        """What selective pushing says of a healthy replica."""
        role = state.spec.role
        if role is not _UNIFIED:
            if role is ReplicaRole.DECODE:
                return AVAILABLE  # how much it is given is the decode tier's affair
            if state.spec.pool in self._full_pools:
                return Standing.DECODE_FULL
            if state.kv_usage > self._config.decode.prefill_kv_max_share:
                return Standing.KV_FULL
        pushing = self._config.pushing
        mode = _mode_for(state.spec, pushing.mode)
        if mode is _PENDING:
            if state.waiting > 0:
                return Standing.PENDING
            credit = pushing.in_band_credit
            has_credit = credit is None or len(state.unreflected) <= credit
            return AVAILABLE if has_credit else Standing.CREDIT
        if mode is _OUTSTANDING:
            is_full = state.in_flight >= pushing.outstanding_max
            return Standing.OUTSTANDING if is_full else AVAILABLE
        return AVAILABLE

    def _stale_ns(self, state: ReplicaState) -> int:
        if state.sampled_ns is None:
            return 0
        stale_ns = self._config.observation.replica_stale_ns
        sign_of_life_ns = state.spec.sign_of_life_ns
        if sign_of_life_ns is not None:
            stale_ns = max(stale_ns, _SIGNS_MISSED_MAX * sign_of_life_ns)
        return state.sampled_ns + stale_ns


def _takes_from(origin: Place | None, accepts: PlaceRule | None) -> bool:
    return accepts is None or (origin is not None and accepts.allows(origin))


def _set_credit(state: ReplicaState, config: CoreConfig) -> None:
    """Set how own legs may fill the replica, by selective pushing or as part of a disaggregated pool."""
    mode, credit = _mode_for(state.spec, config.pushing.mode), config.pushing.in_band_credit
    state.counts_legs = mode is _OUTSTANDING or state.spec.role is not _UNIFIED
    state.credit = credit if mode is _PENDING and credit is not None else NO_LIMIT


def _mode_for(spec: ReplicaSpec, mode: PushingMode) -> PushingMode:
    """Of an engine that tells no load, only our own legs there can be counted."""
    if spec.sign_of_life_ns is not None and mode is _PENDING:
        return _OUTSTANDING
    return mode
