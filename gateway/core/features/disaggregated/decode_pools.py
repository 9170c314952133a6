"""Disaggregated pools of this gateway: the layer between requests and the decode tier. It counts how many prompts are
in prefill for each pool, and tells the tier's choice of decode workers.

The tier knows workers and requests by their ids; this module maps workers to replicas and their health. It starts no
leg, and the tier alone decides which worker decodes a request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from gateway.core.features.disaggregated.admissions import DecodeAdmission
from gateway.core.features.disaggregated.config import DecodeConfig, PolicySource, decode_of, policy_source
from gateway.core.features.disaggregated.policy import DecodePolicies
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.features.disaggregated.predictors.arrays import PredictorArrays
from gateway.core.features.disaggregated.predictors.fitted import FittedPredictor
from gateway.core.features.disaggregated.predictors.history import History
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.kernel.attempts import BreakerState
from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.events import LegEnded
from gateway.core.kernel.replicas import Replicas, ReplicaState
from gateway.core.kernel.timers import Timer, TimerKind, Timers
from gateway.core.nearness import Nearness
from gateway.core.vocabulary import (
    Candidate,
    DecodeLoad,
    Place,
    PlaceRule,
    PoolKind,
    PoolName,
    PoolSpec,
    ReplicaId,
    ReplicaObservation,
    ReplicaRole,
    RequestId,
    RequestProfile,
)

_BYTES_A_TOKEN = 4
"""Bytes per prompt token where no engine has counted the prompt yet."""
_ENDED_MAX = 20_000
"""Ended requests remembered by a predictor, until a restored history sets another number."""
_HISTORIES_MAX = 64
"""Predictors kept for pools that this gateway does not have at present; over it, the one that was restored first is
dropped."""
_HALF_OPEN: Final = BreakerState.HALF_OPEN


class DecodePool:
    """One disaggregated pool. Its loads and queue of prefilled requests are in the tier."""

    __slots__ = (
        "config",
        "foresees",
        "heard",
        "in_prefill",
        "predictor",
        "since_ns",
        "spec",
        "tier",
        "timer",
        "workers",
    )

    def __init__(
        self,
        spec: PoolSpec,
        rng: random.Random,
        predictor: FittedPredictor,
        since_ns: int,
        *,
        policies: DecodePolicies,
    ) -> None:
        self.spec = spec
        predictor.look_ahead(decode_of(spec).balance.horizon_steps)
        self.foresees = predictor.is_better
        """The predictor was better than none when it was last looked at."""
        self.config: DecodeConfig = decode_of(spec, foresees=self.foresees)
        self.since_ns = since_ns
        self.predictor = predictor
        """Predictor of output lengths. It records ended requests whether or not the policy uses it, and outlives the
        pool."""
        self.tier = DecodeTier(self.config, spec, rng, self.predictor, policies=policies)
        self.timer = Timer(TimerKind.FEATURE, f"decode {spec.name}")
        self.workers = 0
        """Mask of the pool's decode workers."""
        self.heard = 0
        """Mask of the decode workers whose engines were probed since they joined, so that the tier counts what runs
        there."""
        self.in_prefill = 0
        """Prompts in prefill that have no decode worker yet."""

    @property
    def is_sequential(self) -> bool:
        assert self.spec.connector is not None, "checked with the config"
        return self.spec.connector.is_sequential

    @property
    def policy_by(self) -> PolicySource:
        return policy_source(self.spec, self.config)

    def configure(self, spec: PoolSpec, now_ns: int) -> None:
        """Take in a changed description. The requests in the pool stay."""
        self.spec = spec
        self.predictor.look_ahead(decode_of(spec).balance.horizon_steps)
        self.foresees = self.predictor.is_better
        self.config = decode_of(spec, foresees=self.foresees)
        self.tier.configure(self.config, spec, now_ns)

    def look_at_predictor(self, now_ns: int) -> None:
        """Change the policy of a pool that names none where its predictor has become better than none, or is not any
        more."""
        predictor = self.predictor
        predictor.look_at_age(now_ns)
        if predictor.is_better is self.foresees:
            return
        self.foresees = predictor.is_better
        if decode_of(self.spec, foresees=self.foresees) != self.config:
            self.configure(self.spec, now_ns)

    def next_ns(self) -> int | None:
        """Time of the next tick or expiry, or of the predictor's end; None: none is due until something changes."""
        times = [each for each in (self.tier.next_ns(), self.predictor.better_until_ns()) if each is not None]
        return min(times, default=None)


class DecodePools:
    """All disaggregated pools, by name. Empty in a gateway whose pools are unified, which then pays nothing for it."""

    def __init__(
        self,
        replicas: Replicas,
        timers: Timers,
        rng: random.Random,
        policies: Callable[[], DecodePolicies],
    ) -> None:
        """`policies` tells the decode policies that there are, whenever a pool is made."""
        self._policies = policies
        self._replicas = replicas
        self._timers = timers
        self._rng = rng
        self._pools: dict[PoolName, DecodePool] = {}
        self._open = 0
        """Mask of the open decode workers, as last told to the tiers."""
        self._proving = 0
        """Mask of the decode workers whose limit must be told again: those with a limit on their legs, and those that
        changed since the last look."""
        self._predictors: dict[PoolName, FittedPredictor] = {}
        """Predictors of each pool, and of pools that are gone or not assigned yet but whose history was restored."""
        self._artifacts: dict[PoolName, tuple[str, int]] = {}
        """Digest and number of clusters of the locality artifact in force, by pool, also for pools assigned later."""

    def __bool__(self) -> bool:
        return bool(self._pools)

    def __iter__(self) -> Iterator[DecodePool]:
        return iter(self._pools.values())

    def get(self, name: PoolName) -> DecodePool | None:
        return self._pools.get(name)

    def history_of(self, name: PoolName) -> History | None:
        """History of a pool; a later restore replaces the object. None: no history of this pool is known."""
        predictor = self._predictors.get(name)
        return None if predictor is None else predictor.history

    def horizon_of(self, name: PoolName) -> int | None:
        """Horizon that arrays for a pool's predictor are fitted for, in steps. None: the pool has no predictor."""
        predictor = self._predictors.get(name)
        return None if predictor is None else predictor.horizon

    # Changes

    def assign(
        self,
        specs: Iterable[PoolSpec],
        joined: list[ReplicaState],
        left: list[ReplicaState],
        own_legs: Mapping[ReplicaId, int],
        now_ns: int,
    ) -> list[DecodePool]:
        """Replace the pools and their workers. Returns the pools that are gone, with the requests still in them. A pool
        of which only sizes or settings changed is kept with all that it knows. `own_legs`: own decode legs that are
        open, by worker, since a worker may come back while it still runs requests from before."""
        wanted = {spec.name: spec for spec in specs if spec.kind is PoolKind.DISAGGREGATED}
        gone = [pool for name, pool in self._pools.items() if not _is_same(pool.spec, wanted.get(name))]
        for pool in gone:
            self._timers.cancel(pool.timer)
            del self._pools[pool.spec.name]
            self._replicas.pool_is_full(pool.spec.name, now_ns, is_full=False)
            self._replicas.limit_prefill_kv(pool.spec.name, None, now_ns)
        for pool in self:
            if pool.spec != (spec := wanted[pool.spec.name]):
                pool.configure(spec, now_ns)
                self._replicas.limit_prefill_kv(spec.name, pool.config.prefill_kv_max_share, now_ns)
        for state in left:
            if (kept := self._decoding_for(state)) is not None:
                kept.tier.leave(state.spec.replica_id)
                kept.workers &= ~(1 << state.slot)
                kept.heard &= ~(1 << state.slot)
            self._open &= ~(1 << state.slot)
            self._proving &= ~(1 << state.slot)
        fresh = [name for name in wanted if name not in self._pools]
        for name in fresh:
            predictor = self._predictor_of(name)
            predictor.look_at_age(now_ns)
            pool = DecodePool(wanted[name], self._rng, predictor, now_ns, policies=self._policies())
            self._replicas.limit_prefill_kv(name, pool.config.prefill_kv_max_share, now_ns)
            self._pools[name] = pool
            pool.tier.seats.take(*self._artifacts.get(name, ("", 0)))
        self._forget_predictors()
        is_changed = bool(fresh) or any(state.spec.role is not ReplicaRole.UNIFIED for state in joined)
        readers = self._readers() if is_changed else {}
        for state in self._replicas if is_changed else ():
            into = self._decoding_for(state)
            if into is None or into.workers >> state.slot & 1:
                continue
            if readers.get(into.spec.name) == {(state.spec.place, state.spec.accepts)}:
                worker_id = state.spec.replica_id
                into.tier.join(worker_id, state.spec.group, now_ns, is_open=False, earlier=own_legs.get(worker_id, 0))
                into.workers |= 1 << state.slot
                self._open &= ~(1 << state.slot)
        self.look_again(now_ns)
        return gone

    def restore(self, name: PoolName, history: History, horizon_steps: int) -> None:
        """Restore the history that was recorded before this process began, for a pool that may be assigned later. A
        second one is ignored unless it has more requests than the pool's: the first was lost, or is older."""
        predictor = self._predictor_of(name)
        if name not in self._pools:
            predictor.look_ahead(horizon_steps)
        if not predictor.is_restored or history.added > predictor.history.added:
            predictor.restore(history)
            self._forget_predictors()

    def take(
        self, name: PoolName, arrays: PredictorArrays, until_ns: int, now_ns: int, *, is_better: bool = False
    ) -> None:
        """Hand fitted arrays to a pool's predictor, valid until `until_ns`. A pool that names no policy looks ahead
        with arrays that are better than none. Raises UnusableArrays."""
        predictor = self._predictors.get(name)
        if predictor is None:
            return
        predictor.take(arrays, until_ns, is_better=is_better)
        pool = self._pools.get(name)
        if pool is not None:
            pool.tier.forget_degradation()
            self.look_again(now_ns)

    def take_artifact(self, name: PoolName, digest: str, clusters: int, now_ns: int) -> None:
        """Replace the artifact that tells how near a request's experts are to each decode worker's; an empty digest
        removes it."""
        self._artifacts.pop(name, None)
        if digest:
            self._artifacts[name] = digest, clusters
            for oldest in list(self._artifacts)[: max(0, len(self._artifacts) - _HISTORIES_MAX - len(self._pools))]:
                del self._artifacts[oldest]
        pool = self._pools.get(name)
        if pool is not None:
            pool.tier.take_artifact(digest, clusters, now_ns)
            self.look_again(now_ns)

    def observe(self, observations: Iterable[ReplicaObservation], now_ns: int) -> None:
        """Take in probes of decode workers, the only knowledge of requests taken over from another gateway. A probe
        sent before the worker joined says nothing of what was sent to it since, and does not count."""
        for seen in observations:
            state = self._replicas.get(seen.replica_id)
            pool = None if state is None else self._decoding_for(state)
            if state is None or pool is None:
                continue
            self._proving |= 1 << state.slot
            if seen.healthy and seen.sampled_ns >= max(pool.since_ns, state.assigned_ns):
                pool.heard |= 1 << state.slot
                room = pool.spec.kv_tokens or seen.kv_tokens
                in_use = round(seen.kv_usage * room)
                pool.tier.observe(
                    seen.replica_id,
                    now_ns,
                    running=seen.running,
                    waiting=seen.waiting,
                    kv_tokens=in_use,
                    room_tokens=room,
                )

    def look_again(self, now_ns: int) -> None:
        """Bring the tiers up to date with the workers' standings, tell whether each pool has room for more prefill, and
        set the timer of its next tick. Called after anything that opens or closes workers or frees slots."""
        for pool in self:
            pool.look_at_predictor(now_ns)
            may_be_sent = self._replicas.available & pool.heard
            for slot in slots_of((may_be_sent ^ self._open) & pool.workers):
                is_open = bool(may_be_sent >> slot & 1)
                pool.tier.set_open(self._replicas.at(slot).spec.replica_id, is_open, now_ns)
                self._open ^= 1 << slot
                self._proving |= 1 << slot
            for slot in slots_of(self._proving & pool.workers):
                self._limit(pool, slot, now_ns)
            self._replicas.pool_is_full(pool.spec.name, now_ns, is_full=not pool.tier.has_room(pool.in_prefill))
            next_ns = pool.next_ns()
            if next_ns is None:
                self._timers.cancel(pool.timer)
            else:
                self._timers.set(pool.timer, max(next_ns, now_ns))

    # A request passes through

    def read(
        self, pool: DecodePool, profile: RequestProfile, prefilled: LegEnded, now_ns: int
    ) -> DecodeAdmission | None:
        """Queue a request whose prompt has been prefilled; the prefill worker keeps the KV cache for the lease's time.
        Returns an admission if the policy sends the request at once; otherwise it waits for a tick."""
        facts = _facts_of(profile, prefilled.prompt_tokens, prefilled.nearness)
        return pool.tier.add(facts, now_ns, now_ns + pool.spec.lease_ns)

    def commit(self, pool: DecodePool, profile: RequestProfile, now_ns: int) -> DecodeAdmission:
        """Choose the decode worker of a request whose prefill and decode legs start together. The pool has room, or the
        request would not have been placed there."""
        admission = pool.tier.commit(_facts_of(profile, None), now_ns)
        assert admission is not None, f"{pool.spec.name}: no decode admission for a request that was placed there"
        return admission

    # Records

    def considered(self, admission: DecodeAdmission) -> tuple[Candidate, ...]:
        """Candidates for the record: the chosen worker first, then others that were compared."""
        return tuple(self._candidates(admission))

    def _candidates(self, admission: DecodeAdmission) -> Iterator[Candidate]:
        for view in admission.considered:
            state = self._replicas.get(view.worker_id)
            if state is not None:
                load = DecodeLoad(view.group, view.free_slots, view.load_tokens, view.margin_tokens)
                yield Candidate(state.target, state.standing, 0, state.load, decode=load)

    # Inside

    def _limit(self, pool: DecodePool, slot: int, now_ns: int) -> None:
        """Tell the tier how many more legs a half-open or ramping worker may get, since one tick sends many at once."""
        state = self._replicas.at(slot)
        legs_max = _legs_max(state)
        more = None if legs_max is None else max(0, legs_max - state.in_flight)
        pool.tier.limit(state.spec.replica_id, more, now_ns)
        if legs_max is None:
            self._proving &= ~(1 << slot)

    def _predictor_of(self, name: PoolName) -> FittedPredictor:
        predictor = self._predictors.get(name)
        if predictor is None:
            predictor = FittedPredictor(DecodeConfig().balance.horizon_steps, History(_ENDED_MAX))
            self._predictors[name] = predictor
        return predictor

    def _forget_predictors(self) -> None:
        idle = [name for name in self._predictors if name not in self._pools]
        told = [name for name in idle if self._predictors[name].is_restored]
        kept = told[max(0, len(told) - _HISTORIES_MAX) :]
        for name in idle:
            if name not in kept:
                del self._predictors[name]

    def _readers(self) -> dict[PoolName, set[tuple[Place, PlaceRule | None]]]:
        """Places of each pool's prefill workers, with the origins they accept. A decode worker joins only where all of
        these equal its own: a worker elsewhere would see content that it may not see."""
        homes: dict[PoolName, set[tuple[Place, PlaceRule | None]]] = {}
        for state in self._replicas:
            if state.spec.role is ReplicaRole.PREFILL:
                homes.setdefault(state.spec.pool, set()).add((state.spec.place, state.spec.accepts))
        return homes

    def _decoding_for(self, state: ReplicaState) -> DecodePool | None:
        return self._pools.get(state.spec.pool) if state.spec.role is ReplicaRole.DECODE else None


def _is_same(spec: PoolSpec, wanted: PoolSpec | None) -> bool:
    """True if the specs differ in nothing but sizes and settings, which a tier can be told of."""
    return wanted is not None and spec == replace(
        wanted,
        decode_batch_max=spec.decode_batch_max,
        kv_tokens=spec.kv_tokens,
        context_tokens_max=spec.context_tokens_max,
        lease_ns=spec.lease_ns,
        features=spec.features,
    )


def _legs_max(state: ReplicaState) -> int | None:
    """Most legs that a worker may have by its breaker and its ramp; None: no limit."""
    return 1 if state.breaker.state is _HALF_OPEN else state.ramp.limit


def _facts_of(profile: RequestProfile, prompt_tokens: int | None, nearness: Nearness | None = None) -> Facts:
    tokens = prompt_tokens or max(1, profile.prompt_bytes // _BYTES_A_TOKEN)
    expected = profile.hints.output_within(profile.output_tokens_max)
    return Facts(RequestId(profile.request_id), tokens, profile.prompt_key, nearness, expected)
