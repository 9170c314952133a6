"""Replicas of this gateway: their last probe combined with this gateway's own legs, which replicas are available,
and which is least loaded. This module handles probes, models and loads; `targets` handles what replicas share with
peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from gateway.core.kernel.bits import LoadLevels, next_slot_from, slots_of, with_bit
from gateway.core.kernel.config import KernelConfig, PushingMode, pushing_mode_of
from gateway.core.kernel.replica_groups import ReplicaGroups
from gateway.core.kernel.rooms import ReplicaRooms
from gateway.core.kernel.slots import EngineSlots
from gateway.core.kernel.targets import AVAILABLE, NO_LIMIT, LegKey, Targets, TargetState
from gateway.core.kernel.timers import TimerKind, Timers
from gateway.core.vocabulary import (
    LegResult,
    ModelCapacity,
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
_OUT_OF_REACH = frozenset({Standing.UNHEALTHY, Standing.STALE, Standing.LEAVING})
_FULL = frozenset({Standing.PENDING, Standing.CREDIT, Standing.OUTSTANDING})
_PROVED = frozenset({LegResult.COMPLETED, LegResult.CLIENT_ERROR, LegResult.TOO_LONG})
_UNIFIED: Final = ReplicaRole.UNIFIED
READ_NS_PER_BYTE: Final = 20_000
"""Least time for a byte of a prompt to be taken as read where nothing waits: twice that of an 8B model on an H100."""
_SIGNS_MISSED_MAX = 3


class ReplicaState(TargetState[ReplicaSpec]):
    """One replica: its last probe, and this gateway's legs there."""

    __slots__ = (
        "answered_ns",
        "assigned_ns",
        "context_seen",
        "kv_tokens",
        "kv_usage",
        "leave_by_ns",
        "load",
        "preemptions",
        "read_from_ns",
        "retained",
        "running",
        "sampled_ns",
        "slots",
        "waiting",
        "yielding",
    )

    def __init__(self, home: Replicas, spec: ReplicaSpec, slot: int, config: KernelConfig) -> None:
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
        """Time at which the last successful probe was sent."""
        self.assigned_ns = 0
        """Time at which the replica was assigned to this gateway."""
        self.leave_by_ns: int | None = None
        """Time by which the engine was announced to be gone, and after which another may answer; None: it was not."""
        self.running = 0
        self.waiting = 0
        self.load = 0
        """Requests that count: those in flight, or those that the engine reports if there are more."""
        self.kv_usage = 0.0
        self.kv_tokens = 0
        self.context_seen = 0
        """Context window that the engine reported when it refused a request for its length, if less than the known one;
        0: not reported. Reset when the engine restarts."""
        self.preemptions: int | None = None
        """Preemptions since the engine's start, as it last reported them; None: not reported yet."""
        self.retained = 0
        """Prompts that the replica has prefilled for this gateway and keeps until a decode worker has fetched their KV
        cache."""
        self.yielding = 0
        """Own legs whose slots interactive requests are or would be given, as the feature that interrupts them says."""
        self.slots = EngineSlots(spec.slots)
        self.read_from_ns: dict[LegKey, int] = {}
        """Own legs with an answer in one piece, each with the time from which its prompt is read if nothing waits."""

    @property
    def free_tokens(self) -> int:
        return round((1 - self.kv_usage) * self.kv_tokens)

    @property
    def room(self) -> int:
        """Requests that the replica could begin at once; negative: number of requests that wait there for a slot."""
        return self.slots.room(
            running=self.running, waiting=self.waiting, unreflected=len(self.unreflected),
            in_flight=self.in_flight, kv_usage=self.kv_usage,
        )  # fmt: skip


class Replicas(Targets[ReplicaState, ReplicaSpec]):
    """All replicas assigned to this gateway."""

    def __init__(self, config: KernelConfig, timers: Timers) -> None:
        super().__init__(config, timers)
        self.groups = ReplicaGroups()
        """Groups of the replicas, available or not, by what they serve."""
        self.preempted: dict[PoolName, int] = {}
        """Preemptions (sequences put back for want of KV cache) of each pool's engines since assigned here."""
        self.appending = 0
        """Mask of the replicas that can append to an answer that another replica began, as the feature that asks for it
        says."""
        self._full_pools: set[PoolName] = set()
        """Disaggregated pools without a free decode slot for further prefilled prompts."""
        self._prefill_kv_bounds: dict[PoolName, float] = {}
        """KV cache usage of each disaggregated pool's prefill workers above which they are sent no requests."""
        self._levels = LoadLevels()
        self._cursor = 0
        self.reachable = 0
        """Mask of the replicas that answer and were not announced to leave, however full they are."""
        self.open = 0
        """Mask of the replicas that are available or only too full to be."""
        self.pushable = 0
        """Mask of the open replicas that take requests even when full: not those whose load own legs alone tell."""
        self.giving = 0
        """Mask of the replicas with legs whose slots interactive requests are or would be given."""
        self.loads_version = 0
        """Changes with every change of a load."""
        self.changed = 0
        """Mask of the replicas with any change since a reader last reset this to 0."""
        self.rooms = ReplicaRooms(self._by_slot)
        self.read_ns_per_byte = READ_NS_PER_BYTE
        """Time after which an engine where nothing waits is taken to have read a byte of a prompt."""

    @property
    def available(self) -> int:
        """Mask of the replicas that can take a request."""
        return self.usable

    # Changes

    def assign(
        self, specs: Iterable[ReplicaSpec], now_ns: int, pools: Iterable[PoolSpec] = ()
    ) -> tuple[list[ReplicaState], list[ReplicaState]]:
        """Own exactly these replicas. Return those that joined and those that left; a replica whose spec changed does
        both, unless only its models, their identities, its `accepts` rule or the source of its place changed: then it
        keeps its slot and state."""
        wanted: dict[str, ReplicaSpec] = {spec.replica_id: spec for spec in specs}
        pools = list(pools)
        self.groups.describe(pools)
        named = {spec.pool for spec in wanted.values()}
        self.preempted = {pool: count for pool, count in self.preempted.items() if pool in named}
        for state in self:
            spec = wanted.get(state.spec.replica_id)
            if spec is not None and spec == replace(
                state.spec,
                models=spec.models,
                accepts=spec.accepts,
                place_by=spec.place_by,
                identity=spec.identity,
                roots=spec.roots,
            ):
                self.changed |= 1 << state.slot if spec != state.spec else 0
                state.spec = spec
        is_first_assignment = self.version == 0
        joined, left = self._own(wanted)
        for state in joined:
            self._levels.put(state.slot, 0)
            self.rooms.changed |= 1 << state.slot
            state.assigned_ns = now_ns
            if not is_first_assignment:
                state.ramp.start(now_ns)
        self._rebuild_groups()
        return joined, left

    def observe(self, observation: ReplicaObservation, now_ns: int) -> None:
        """Apply one probe. A probe older than the last one is ignored."""
        state = self._by_id.get(observation.replica_id)
        if state is None or (state.sampled_ns is not None and observation.sampled_ns < state.sampled_ns):
            return
        returns = observation.healthy and not state.healthy and state.sampled_ns is not None
        if returns:
            state.ramp.start(now_ns)
            state.slots.forget()
            self._forget_context(state)
        if state.leave_by_ns is not None and now_ns >= state.leave_by_ns and (returns or not observation.healthy):
            state.leave_by_ns = None
        state.sampled_ns = observation.sampled_ns
        state.healthy = observation.healthy
        if observation.healthy:
            state.answered_ns = observation.sampled_ns
        state.detail = observation.detail
        self.changed |= 1 << state.slot
        self.rooms.changed |= 1 << state.slot
        waiting = observation.waiting
        if state.spec.role is ReplicaRole.PREFILL:
            waiting -= observation.deferred
        self.loads_version += state.waiting != waiting or state.running != observation.running
        state.running, state.waiting = observation.running, waiting
        state.load = max(state.in_flight, state.running + waiting)
        state.kv_usage = observation.kv_usage
        state.kv_tokens = observation.kv_tokens
        if observation.healthy and observation.preemptions != state.preemptions:
            self._count_preemptions(state, observation.preemptions)
        self._believe(state, observation.sampled_ns)
        if state.read_from_ns and observation.healthy and not waiting:
            self._note_read(state, observation.sampled_ns, now_ns)
        state.slots.observe(
            observation.running,
            waiting,
            told=observation.slots,
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
        state.read_from_ns.pop(key, None)
        super().first_token(state, key, now_ns)

    def started(
        self, state: ReplicaState, key: LegKey, now_ns: int, uncached_bytes: int = 0, *, is_whole: bool = False
    ) -> None:
        super().started(state, key, now_ns, uncached_bytes)
        if is_whole and state.spec.role is _UNIFIED:
            state.read_from_ns[key] = now_ns + self.read_ns_per_byte * uncached_bytes
        state.slots.started(state.in_flight)

    def take_as_read(self, state: ReplicaState, now_ns: int) -> None:
        """Take the prompts of answers in one piece to be read by now, if nothing waited at the last probe."""
        if state.healthy and not state.waiting:
            self.changed |= 1 << state.slot
            self.loads_version += 1
            for key in [key for key, from_ns in state.read_from_ns.items() if from_ns <= now_ns]:
                state.backlog_bytes -= state.prefilling.pop(key, 0)

    def _note_read(self, state: ReplicaState, sampled_ns: int, now_ns: int) -> None:
        """Take the prompts of answers in one piece to be read by an engine at which nothing waited at this time."""
        for key in [key for key, from_ns in state.read_from_ns.items() if from_ns <= sampled_ns]:
            self.first_token(state, key, now_ns)
            self.loads_version += 1

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
        self.rooms.changed |= 1 << state.slot
        state.read_from_ns.pop(key, None)
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

    def configure(self, config: KernelConfig, now_ns: int) -> None:
        for state in self:
            _set_credit(state, config)
        super().configure(config, now_ns)

    def _legs_changed(self, state: ReplicaState, now_ns: int) -> None:
        state.load = max(state.in_flight, state.running + state.waiting)
        if state.listed:
            self._levels.put(state.slot, state.load)
        super()._legs_changed(state, now_ns)

    def _count_preemptions(self, state: ReplicaState, total: int) -> None:
        """Add newly reported preemptions to the pool's count. A restarted engine counts from zero, and preemptions
        before the first report are not counted."""
        seen, state.preemptions = state.preemptions, total
        if seen is not None and total > seen:
            pool = state.spec.pool
            self.preempted[pool] = self.preempted.get(pool, 0) + total - seen

    def learn_context(self, state: ReplicaState, tokens: int) -> bool:
        """Lower the replica's context window to what its engine reported. True: the known window became smaller."""
        if not state.listed or tokens <= 0 or ((known := self.context_of(state)) and tokens >= known):
            return False
        state.context_seen = tokens
        self._context_changed()
        return True

    def _forget_context(self, state: ReplicaState) -> None:
        """Forget the context window that a restarted engine reported: it may have a different one."""
        if state.context_seen:
            state.context_seen = 0
            self._context_changed()

    def _context_changed(self) -> None:
        self._rebuild_groups()
        self.version += 1

    def pool_is_full(self, pool: PoolName, now_ns: int, *, is_full: bool) -> None:
        """Mark whether requests in prefill plus prefilled requests without a decode worker reach the pool's decode
        capacity."""
        if is_full is (pool in self._full_pools):
            return
        self._full_pools ^= {pool}
        for state in self:
            if state.spec.pool == pool and state.spec.role is ReplicaRole.PREFILL:
                self.refresh(state, now_ns)

    def limit_prefill_kv(self, pool: PoolName, max_share: float | None, now_ns: int) -> None:
        """Set the KV cache usage above which the pool's prefill workers are sent no requests; None: no limit."""
        if max_share == self._prefill_kv_bounds.get(pool):
            return
        if max_share is None:
            del self._prefill_kv_bounds[pool]
        else:
            self._prefill_kv_bounds[pool] = max_share
        for state in self:
            if state.spec.pool == pool and state.spec.role is ReplicaRole.PREFILL:
                self.refresh(state, now_ns)

    # Queries

    def context_of(self, state: ReplicaState) -> int:
        """Known context window of the replica, in tokens; 0: no limit is known."""
        return self.groups.context_of(state.spec.pool, state.context_seen)

    def retune(self, pool: PoolName, tokens: int) -> None:
        """Set the pool's threshold to `tokens`. A pool that is not assigned, or has no threshold, is ignored."""
        self.version += self.groups.retune(pool, tokens)

    def any_answers(self) -> bool:
        """Return whether reachable engines could serve any request."""
        return self.groups.can_answer(self.reachable)

    def least_loaded(self, mask: int) -> int:
        """Slot of `mask` with the lowest load; equally loaded slots take turns. `mask` must not be empty."""
        slot = next_slot_from(self._levels.least(mask), self._cursor)
        self._cursor = slot + 1
        return slot

    def few_least_loaded(self, mask: int, count: int, first: int = 0) -> list[int]:
        """Up to `count` slots of `mask`, the least loaded first; equally loaded ones in order from slot `first` on,
        wrapping."""
        return self._levels.few(mask, count, first)

    def idle(self, mask: int) -> int:
        """Mask of the slots of `mask` with no running or waiting request."""
        return self._levels.at_zero(mask)

    def total_load(self, mask: int) -> int:
        """Sum of the loads in the mask. O(distinct loads)."""
        return self._levels.total(mask)

    def capacities(self) -> tuple[ModelCapacity, ...]:
        return tuple([capacity for capacity, _ in self._counted()])

    def loads(self, taking: int) -> tuple[ModelCapacity, ...]:
        """Capacities with their load figures, as peers are told. `taking`: mask of the replicas that may be sent a
        request; only these count towards `room`."""
        return tuple([self._with_load(capacity, members, taking) for capacity, members in self._counted()])

    def _counted(self) -> Iterator[tuple[ModelCapacity, int]]:
        for (model, pool, place, accepts, connector, context, identity), members in self.groups.told():
            capacity = ModelCapacity(
                model,
                pool,
                place,
                members.bit_count(),
                (members & self.available).bit_count(),
                accepts,
                connector=connector,
                context_tokens_max=context,
                threshold_tokens=self.groups.threshold_of(pool),
                identity=identity,
            )
            yield capacity, members

    def _with_load(self, capacity: ModelCapacity, members: int, taking: int) -> ModelCapacity:
        states = [self._by_slot[slot] for slot in slots_of(members)]
        return replace(
            capacity,
            load=sum(state.load for state in states),
            backlog_bytes=min(state.backlog_bytes for state in states),
            free_tokens=max((state.free_tokens for state in states if state.kv_tokens), default=None),
            room=self.rooms.total(members & taking),
            release_ns=self.rooms.release_ns(members & self.pushable),
            yielding=self.rooms.yielding(members & taking & self.giving),
            spare=self.rooms.spare(members & taking & self.available).bit_count(),
        )

    # Internals

    def _make(self, spec: ReplicaSpec, slot: int) -> ReplicaState:
        state = ReplicaState(self, spec, slot, self._config)
        _set_credit(state, self._config)
        return state

    def _drop(self, state: ReplicaState) -> None:
        super()._drop(state)
        self._levels.remove(state.slot)
        self.rooms.remove(state.slot)
        self.reachable &= ~(1 << state.slot)
        self.open &= ~(1 << state.slot)
        self.pushable &= ~(1 << state.slot)
        self.giving &= ~(1 << state.slot)

    def _note_change(self, state: ReplicaState) -> None:
        self.changed |= 1 << state.slot
        self.rooms.changed |= 1 << state.slot
        self.loads_version += 1

    def _note_standing(self, state: ReplicaState) -> None:
        super()._note_standing(state)
        bit = 1 << state.slot
        is_open = state.standing is AVAILABLE or state.standing in _FULL
        self.open = with_bit(self.open, bit, is_set=is_open)
        self.pushable = with_bit(self.pushable, bit, is_set=is_open and state.standing is not Standing.OUTSTANDING)
        self.reachable = with_bit(self.reachable, bit, is_set=state.standing not in _OUT_OF_REACH)

    def _rebuild_groups(self) -> None:
        self.groups.rebuild([(state.slot, state.spec, self.context_of(state)) for state in self])

    def _standing(self, state: ReplicaState, now_ns: int) -> Standing:
        standing = super()._standing(state, now_ns)
        if state.leave_by_ns is not None and standing not in _OUT_OF_REACH:
            return Standing.LEAVING
        return self._fullness(state) if standing is AVAILABLE else standing

    def _fullness(self, state: ReplicaState) -> Standing:
        """Standing of a healthy replica under selective pushing."""
        role = state.spec.role
        if role is not _UNIFIED:
            if role is ReplicaRole.DECODE:
                return AVAILABLE  # the decode tier limits what a decode worker is given
            if state.spec.pool in self._full_pools:
                return Standing.DECODE_FULL
            if state.kv_usage > self._prefill_kv_bounds.get(state.spec.pool, 1.0):
                return Standing.KV_FULL
        pushing = self._config.pushing
        mode = pushing_mode_of(state.spec, pushing.mode)
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
        signs_ns = _SIGNS_MISSED_MAX * (state.spec.sign_of_life_ns or 0)
        return state.sampled_ns + max(self._config.observation.replica_stale_ns, signs_ns)


def _set_credit(state: ReplicaState, config: KernelConfig) -> None:
    """Set how own legs make the replica full: by the pushing mode, or as part of a disaggregated pool."""
    mode, credit = pushing_mode_of(state.spec, config.pushing.mode), config.pushing.in_band_credit
    state.counts_legs = mode is _OUTSTANDING or state.spec.role is not _UNIFIED
    state.credit = credit if mode is _PENDING and credit is not None else NO_LIMIT
    state.legs_max = config.pushing.outstanding_max if mode is _OUTSTANDING else NO_LIMIT
