"""The disaggregated pools of this gateway, between requests and the decode tier: how many prompts are being read for
each, and which decode worker takes over from there.

The tier knows workers and requests by their ids; here workers are replicas, with their health. It starts no leg, and
the tier alone says who goes where.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gateway.core.attempts import BreakerState
from gateway.core.bits import slots_of
from gateway.core.decode.admissions import Admission
from gateway.core.decode.config import DecodeConfig
from gateway.core.decode.locality.nearness import Nearness
from gateway.core.decode.predictor import Facts
from gateway.core.decode.predictors.arrays import PredictorArrays
from gateway.core.decode.predictors.fitted import FittedPredictor
from gateway.core.decode.predictors.history import History
from gateway.core.decode.tier import DecodeTier
from gateway.core.events import LegEnded
from gateway.core.replicas import Replicas, ReplicaState
from gateway.core.timers import Timer, TimerKind, Timers
from gateway.core.vocabulary import (
    Candidate,
    DecodeLoad,
    Place,
    PlaceRule,
    PoolKind,
    PoolName,
    PoolSpec,
    ReplicaObservation,
    ReplicaRole,
    RequestId,
    RequestProfile,
)

_BYTES_A_TOKEN = 4
"""Where an engine did not count the prompt that it read, or has not read it yet."""
_ENDED_MAX = 20_000
"""Requests that are remembered until somebody says otherwise."""
_HISTORIES_MAX = 64
"""Of pools that are not here: their predictors are kept for when they are. Whoever was told of first goes first."""
_HALF_OPEN: Final = BreakerState.HALF_OPEN


class DecodePool:
    """One of them: its books are the tier's."""

    __slots__ = ("heard", "in_prefill", "predictor", "since_ns", "spec", "tier", "timer", "workers")

    def __init__(
        self, spec: PoolSpec, config: DecodeConfig, rng: random.Random, predictor: FittedPredictor, since_ns: int
    ) -> None:
        self.spec = spec
        self.since_ns = since_ns
        self.predictor = predictor
        """It remembers what ended, whether or not the policy asks it anything, and outlives the pool."""
        self.tier = DecodeTier(config, spec, rng, self.predictor)
        self.timer = Timer(TimerKind.DECODE, spec.name)
        self.workers = 0
        """Mask of its decode workers."""
        self.heard = 0
        """Mask of those whose engine was asked since they joined: what runs there is in the books."""
        self.in_prefill = 0
        """Prompts that are being read, and go to no decode worker yet."""

    @property
    def is_sequential(self) -> bool:
        assert self.spec.connector is not None, "checked with the config"
        return self.spec.connector.is_sequential


class DecodePools:
    """All of them, by name. Empty in a gateway whose pools are unified, and then it costs nothing."""

    def __init__(self, config: DecodeConfig, replicas: Replicas, timers: Timers, rng: random.Random) -> None:
        self._config = config
        self._replicas = replicas
        self._timers = timers
        self._rng = rng
        self._pools: dict[PoolName, DecodePool] = {}
        self._open = 0
        """Mask of the decode workers that may be sent something, as the tiers were told."""
        self._proving = 0
        """Mask of those that may be sent only so many, or of which something was heard since they were looked at."""
        self._predictors: dict[PoolName, FittedPredictor] = {}
        """Of each pool, and of those that are gone, or not here yet, whose history was told."""
        self._artifacts: dict[PoolName, tuple[str, int]] = {}
        """Digest and clusters of those in force, also of pools that come later."""

    def __bool__(self) -> bool:
        return bool(self._pools)

    def __iter__(self) -> Iterator[DecodePool]:
        return iter(self._pools.values())

    def get(self, name: PoolName) -> DecodePool | None:
        return self._pools.get(name)

    def history_of(self, name: PoolName) -> History | None:
        """As it is now; another one once it has been restored. None: nothing is known of this pool."""
        predictor = self._predictors.get(name)
        return None if predictor is None else predictor.history

    # What changes them

    def configure(self, config: DecodeConfig, now_ns: int) -> None:
        if config == self._config:
            return
        self._config = config
        for predictor in self._predictors.values():
            predictor.look_ahead(config.balance.horizon_steps)
        for pool in self:
            pool.tier.configure(config, pool.spec, now_ns)
        self.look_again(now_ns)

    def assign(
        self, specs: Iterable[PoolSpec], joined: list[ReplicaState], left: list[ReplicaState], now_ns: int
    ) -> list[DecodePool]:
        """Have exactly these from now on. Gives those that are gone, with whatever stands in them. One of which
        only sizes changed stays, with all that it knows."""
        wanted = {spec.name: spec for spec in specs if spec.kind is PoolKind.DISAGGREGATED}
        gone = [pool for name, pool in self._pools.items() if not _is_same(pool.spec, wanted.get(name))]
        for pool in gone:
            self._timers.cancel(pool.timer)
            del self._pools[pool.spec.name]
            self._replicas.pool_is_full(pool.spec.name, now_ns, is_full=False)
        for pool in self:
            if pool.spec != (spec := wanted[pool.spec.name]):
                pool.spec = spec
                pool.tier.configure(self._config, spec, now_ns)
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
            self._pools[name] = DecodePool(wanted[name], self._config, self._rng, predictor, now_ns)
            self._pools[name].tier.seats.take(*self._artifacts.get(name, ("", 0)))
        self._forget_predictors()
        is_changed = bool(fresh) or any(state.spec.role is not ReplicaRole.UNIFIED for state in joined)
        readers = self._readers() if is_changed else {}
        for state in self._replicas if is_changed else ():
            into = self._decoding_for(state)
            if into is None or into.workers >> state.slot & 1:
                continue
            if readers.get(into.spec.name) == {(state.spec.place, state.spec.accepts)}:
                into.tier.join(state.spec.replica_id, state.spec.group, now_ns, is_open=False)
                into.workers |= 1 << state.slot
                self._open &= ~(1 << state.slot)
        self.look_again(now_ns)
        return gone

    def restore(self, name: PoolName, history: History) -> None:
        """What was remembered before this process began, of a pool that may come later. Told again, it is what the
        predictor knows already."""
        predictor = self._predictor_of(name)
        if not predictor.is_restored:
            predictor.restore(history)
            self._forget_predictors()

    def take(self, name: PoolName, arrays: PredictorArrays, until_ns: int) -> None:
        """Raises UnusableArrays."""
        predictor = self._predictors.get(name)
        if predictor is not None:
            predictor.take(arrays, until_ns)

    def take_artifact(self, name: PoolName, digest: str, clusters: int, now_ns: int) -> None:
        """Who is near to whose experts is told by this one from now on; an empty digest: by none."""
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
        """What decode workers say of themselves: all that a gateway knows of requests that it took over. What they were
        asked before they joined tells nothing of what they were sent until then."""
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
        """Decode workers may have come back or gone, and slots become free: whether more may be read for a pool, and
        when its tier is to be asked, may have changed."""
        for pool in self:
            may_be_sent = self._replicas.available & pool.heard
            for slot in slots_of((may_be_sent ^ self._open) & pool.workers):
                is_open = bool(may_be_sent >> slot & 1)
                pool.tier.set_open(self._replicas.at(slot).spec.replica_id, is_open, now_ns)
                self._open ^= 1 << slot
                self._proving |= 1 << slot
            for slot in slots_of(self._proving & pool.workers):
                self._limit(pool, slot, now_ns)
            self._replicas.pool_is_full(pool.spec.name, now_ns, is_full=not pool.tier.has_room(pool.in_prefill))
            next_ns = pool.tier.next_ns()
            if next_ns is None:
                self._timers.cancel(pool.timer)
            else:
                self._timers.set(pool.timer, max(next_ns, now_ns))

    # A request passes through

    def read(self, pool: DecodePool, profile: RequestProfile, prefilled: LegEnded, now_ns: int) -> Admission | None:
        """Its prompt has been read, and the prefill worker keeps it for the lease's time. Whoever is sent on at once is
        told of; anybody else waits for a tick."""
        facts = _facts_of(profile, prefilled.prompt_tokens, prefilled.nearness)
        return pool.tier.add(facts, now_ns, now_ns + pool.spec.lease_ns)

    def commit(self, pool: DecodePool, profile: RequestProfile, now_ns: int) -> Admission:
        """Both of its legs start now. There is room, or it would not have been placed."""
        admission = pool.tier.commit(_facts_of(profile, None), now_ns)
        assert admission is not None, f"{pool.spec.name}: nobody decodes what was placed there"
        return admission

    # For the record

    def considered(self, admission: Admission) -> tuple[Candidate, ...]:
        """The chosen worker first, then others that were looked at."""
        return tuple(self._candidates(admission))

    def _candidates(self, admission: Admission) -> Iterator[Candidate]:
        for view in admission.considered:
            state = self._replicas.get(view.worker_id)
            if state is not None:
                load = DecodeLoad(view.group, view.free_slots, view.load_tokens, view.margin_tokens)
                yield Candidate(state.target, state.standing, 0, state.load, decode=load)

    # Inside

    def _limit(self, pool: DecodePool, slot: int, now_ns: int) -> None:
        """A tick sends many at once: it has to know how many a worker may have that has yet to prove itself."""
        state = self._replicas.at(slot)
        legs_max = _legs_max(state)
        more = None if legs_max is None else max(0, legs_max - state.in_flight)
        pool.tier.limit(state.spec.replica_id, more, now_ns)
        if legs_max is None:
            self._proving &= ~(1 << slot)

    def _predictor_of(self, name: PoolName) -> FittedPredictor:
        predictor = self._predictors.get(name)
        if predictor is None:
            predictor = FittedPredictor(self._config.balance.horizon_steps, History(_ENDED_MAX))
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
        """Where prompts are read for each pool, and from where they may have come: who writes their answers elsewhere
        would see what it may not."""
        homes: dict[PoolName, set[tuple[Place, PlaceRule | None]]] = {}
        for state in self._replicas:
            if state.spec.role is ReplicaRole.PREFILL:
                homes.setdefault(state.spec.pool, set()).add((state.spec.place, state.spec.accepts))
        return homes

    def _decoding_for(self, state: ReplicaState) -> DecodePool | None:
        return self._pools.get(state.spec.pool) if state.spec.role is ReplicaRole.DECODE else None


def _is_same(spec: PoolSpec, wanted: PoolSpec | None) -> bool:
    """But for its sizes, which a tier may be told of."""
    return wanted is not None and spec == replace(
        wanted,
        decode_batch_max=spec.decode_batch_max,
        kv_tokens=spec.kv_tokens,
        context_tokens_max=spec.context_tokens_max,
        lease_ns=spec.lease_ns,
    )


def _legs_max(state: ReplicaState) -> int | None:
    """None: its breaker and its ramp set no limit."""
    return 1 if state.breaker.state is _HALF_OPEN else state.ramp.limit


def _facts_of(profile: RequestProfile, prompt_tokens: int | None, nearness: Nearness | None = None) -> Facts:
    tokens = prompt_tokens or max(1, profile.prompt_bytes // _BYTES_A_TOKEN)
    return Facts(RequestId(profile.request_id), tokens, profile.prompt_key, nearness)
