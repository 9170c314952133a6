"""Disaggregated pools: one leg of an attempt prefills the prompt, another decodes the answer at a worker that the
decode tier chooses (BR-0, BR-H, ELDR).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from gateway.core.features.disaggregated.admissions import DecodeAdmission, DecodeFigures
from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.decode_pools import DecodePool, DecodePools
from gateway.core.features.disaggregated.events import DecodeHistoryRestored, PredictorFitted
from gateway.core.features.disaggregated.policy import DecodePolicies
from gateway.core.features.disaggregated.predictors.history import History
from gateway.core.kernel.effects import SampleProgress
from gateway.core.kernel.events import AssignmentApplied, FeatureEvent, LegEnded, ProgressSampled
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import AttemptState, LegEnd, LegPart, LegState, Phase, Plan, RequestState
from gateway.core.placement.placer import Placement
from gateway.core.vocabulary import (
    LegResult,
    LegRole,
    PlacementReason,
    PoolName,
    ReplicaObservation,
    ReplicaRole,
    ReplicaSpec,
    Standing,
    TargetKind,
)

_DEAD = frozenset({Standing.UNHEALTHY, Standing.STALE})


class Passage(Plan):
    """Way of an attempt through a pool."""

    __slots__ = ("is_retained", "pool", "prefill")

    def __init__(self, pool: DecodePool, prefill: ReplicaState) -> None:
        self.pool = pool
        self.prefill = prefill
        """Prefill worker of the attempt."""
        self.is_retained = False
        """The prefill worker keeps the prompt's KV cache until the decode worker has begun."""

    def release(self) -> None:
        """Stop counting the KV cache that the prefill worker kept."""
        if self.is_retained:
            self.is_retained = False
            self.prefill.retained -= 1


class DecodePolicySource(Feature):
    """Feature that adds decode policies."""

    def decode_policies(self) -> DecodePolicies:
        raise NotImplementedError


class Disaggregated(Feature):
    """Plans the two legs of requests that are placed at a prefill worker."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        rng = random.Random(core.seed)
        self._pools = DecodePools(core.replicas, core.timers, rng, lambda: decode_policies_of(core))
        self._gone: list[DecodePool] = []
        """Pools that the latest assignment has taken away, until their requests are queued again."""

    @property
    def pools(self) -> DecodePools:
        return self._pools

    def is_on(self) -> bool:
        return bool(self._pools)

    # Inputs

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:
        """Take in what teaches the decode tier: history, predictors and progress."""
        match event:
            case DecodeHistoryRestored():
                self._pools.restore(event.pool, History(event.ended_max, event.ended, event.added), event.horizon_steps)
            case PredictorFitted():
                self._pools.take(event.pool, event.arrays, event.until_ns, now_ns, is_better=event.is_better)
            case ProgressSampled():
                self._progressed(event)
            case _:
                return False
        return True

    def _progressed(self, event: ProgressSampled) -> None:
        pool = self._pools.get(event.pool)
        for each in event.progress:
            if pool is not None and self._core.attempt_of(each.request_id, each.attempt) is not None:
                pool.tier.progressed(each.request_id, each.output_tokens)
                request = self._core.requests[each.request_id]
                for feature in self._core.hooks.progressed:
                    feature.progressed(request, each.output_tokens)

    def assign(
        self, event: AssignmentApplied, joined: list[ReplicaState], left: list[ReplicaState], now_ns: int, /
    ) -> None:
        self._gone = self._pools.assign(event.pools, joined, left, now_ns)

    def assigned(self, now_ns: int, /) -> None:
        """Queue again the requests that waited in pools which this gateway has lost; they may go to targets that have
        just joined."""
        gone, self._gone = self._gone, []
        for pool in gone:
            for request in list(self._core.requests.values()):
                attempt = request.attempt
                if attempt is None or not attempt.is_between_legs:
                    continue
                passage = _passage_of(attempt)
                if passage is not None and passage.pool is pool:
                    self._core.lapse(request, attempt, self.why_it_stopped(attempt), now_ns)

    def observe(self, observations: Sequence[ReplicaObservation], now_ns: int, /) -> None:
        self._pools.observe(observations, now_ns)

    # Prefill

    def plan_legs(self, request: RequestState, attempt: AttemptState, placement: Placement, now_ns: int, /) -> bool:
        """Open the prefill leg, and under a connector that starts both parts together the decode leg too."""
        state = placement.state
        if state.target.kind is not TargetKind.REPLICA:
            return False
        spec = state.spec
        assert isinstance(spec, ReplicaSpec), "a replica"
        pool = self._pools.get(spec.pool) if spec.role is ReplicaRole.PREFILL else None
        if pool is None:
            return False
        assert isinstance(state, ReplicaState), "only replicas read prompts for others"
        attempt.planner, attempt.plan = self, Passage(pool, state)
        self._core.open_leg(request, attempt, LegRole.PREFILL, placement, now_ns)
        if pool.is_sequential:
            pool.in_prefill += 1
        else:
            self._start_decode(request, attempt, self._pools.commit(pool, request.profile, now_ns), now_ns)
        self._pools.look_again(now_ns)  # placing it may have filled the pool for the next request
        return True

    def part_of(self, attempt: AttemptState, leg: LegState, /) -> LegPart:
        passage = _passage(attempt)
        spec = passage.pool.spec
        return LegPart(spec.connector, spec.name, passage.prefill.target if leg.role is LegRole.DECODE else None)

    # Decode

    def before_placing(self, now_ns: int, /) -> None:
        """Send prefilled requests to decode workers in each pool whose tick is due. Requests whose lease has expired
        are queued again for another prefill."""
        for pool in self._pools:
            next_ns = pool.tier.next_ns()
            if next_ns is None or now_ns < next_ns:
                continue
            self._pools.look_again(now_ns)  # the event may have closed a worker
            for request_id in pool.tier.expired(now_ns):
                request = self._core.requests[request_id]
                assert request.attempt is not None, "it stands in a pool"
                self._core.lapse(request, request.attempt, "no decode worker was free within its lease", now_ns)
            if pool.tier.wants_progress(now_ns):
                # The event that answers it at once runs the tick.
                self._core.effects.append(SampleProgress(pool.spec.name))
                continue
            for admission in pool.tier.tick(now_ns):
                self._admit_to(pool, admission, now_ns)
        self._pools.look_again(now_ns)

    def _admit_to(self, pool: DecodePool, admission: DecodeAdmission, now_ns: int) -> None:
        """Start decoding an admitted request. If its prefill worker is gone, so is the KV cache: the request is queued
        again, without blame for the decode worker."""
        request = self._core.requests[admission.key]
        attempt = request.attempt
        assert attempt is not None, "it stands in a pool"
        prefill = _passage(attempt).prefill
        if prefill.listed and prefill.standing in _DEAD:
            pool.tier.ended(admission.key, now_ns)
            self._core.lapse(request, attempt, "the prefill worker that has read it is gone", now_ns)
        else:
            self._start_decode(request, attempt, admission, now_ns)

    def _start_decode(
        self, request: RequestState, attempt: AttemptState, admission: DecodeAdmission, now_ns: int
    ) -> None:
        """Open the decode leg at the worker that the decode tier chose."""
        attempt.is_between_legs = False
        state = self._core.replicas.get(admission.worker_id)
        assert state is not None, "only workers that are ours are sent anything"
        considered = self._pools.considered(admission)
        placement = Placement(state, PlacementReason.DECODE_POLICY, 0, len(considered), considered, uncached_bytes=0)
        self._core.open_leg(request, attempt, LegRole.DECODE, placement, now_ns)

    def first_token(self, request: RequestState, leg: LegState, /) -> bool:
        """Note that decoding has begun: the KV cache has been fetched, and the prefill worker need not keep it."""
        if leg.role is not LegRole.DECODE:
            return False
        attempt = request.attempt
        passage = None if attempt is None else _passage_of(attempt)
        if passage is not None:
            passage.pool.tier.running(request.request_id)
            passage.release()
        return True

    # Ends

    def leg_ended(
        self, request: RequestState, attempt: AttemptState, leg: LegState, event: LegEnded, now_ns: int, /
    ) -> None:
        """Take in the end of a prefill or decode leg. A prefilled request goes to its pool, unless it has ended or its
        attempt has failed meanwhile."""
        passage = _passage(attempt)
        pool = passage.pool
        if leg.role is LegRole.DECODE:
            passage.release()
            is_whole = event.result is LegResult.COMPLETED
            pool.tier.ended(request.request_id, now_ns, event.output_tokens if is_whole else None)
            return
        if event.result is LegResult.COMPLETED:
            self._core.placer.learn_first_token(request, leg, now_ns)
        if not pool.is_sequential:
            return
        pool.in_prefill -= 1
        if event.result is LegResult.COMPLETED and leg.stop_detail:  # too late: the request is tried again elsewhere
            attempt.failures.append(LegEnd(leg, LegResult.FAILED, leg.stop_detail, event))
            return
        is_wanted = request.phase is Phase.RUNNING and not attempt.failures
        is_ours = self._pools.get(pool.spec.name) is pool
        if event.result is not LegResult.COMPLETED or not (is_wanted and is_ours):
            return
        attempt.is_between_legs = passage.is_retained = True
        passage.prefill.retained += 1
        admission = self._pools.read(pool, request.profile, event, now_ns)
        if admission is not None:
            self._start_decode(request, attempt, admission, now_ns)

    def withdraw(self, request: RequestState, attempt: AttemptState, /) -> None:
        """Take a prefilled request out of its pool, and release its KV cache."""
        passage = _passage(attempt)
        attempt.is_between_legs = False
        passage.release()
        passage.pool.tier.withdraw(request.request_id)

    def what_it_lacks(self) -> str:
        return "no decode worker was free"

    def why_it_stopped(self, attempt: AttemptState, /) -> str:
        return f"pool {_passage(attempt).pool.spec.name} is not this gateway's any more"

    def describe(self, now_ns: int, /) -> dict[str, object]:
        return {"decode_pools": [_describe(pool, now_ns) for pool in self._pools]}

    def violations(self) -> list[tuple[str, str]]:
        """Check that each pool's books equal the attempts in it, and that what is retained is what waits to be
        fetched."""
        pools, found = list(self._pools), list[tuple[str, str]]()
        if not pools:
            return found
        attempts = [each.attempt for each in self._core.requests.values() if each.attempt is not None]
        passages = [passage for attempt in attempts if (passage := _passage_of(attempt)) is not None]
        for pool in pools:
            counted, alive = _books_of(pool), _alive_in(pool, attempts)
            if counted != alive:
                found.append(("a pool's books equal the attempts in it", f"{pool.spec.name}: {counted}, {alive}"))
        for state in self._core.replicas:
            kept = sum([each.is_retained and each.prefill is state for each in passages])
            if state.retained != kept:
                found.append(("what is retained is what waits to be fetched", str(state.target)))
        return found


def decode_pools_of(core: Kernel) -> DecodePools:
    """Disaggregated pools of a core that was made with the feature."""
    return next(each.pools for each in core.features if isinstance(each, Disaggregated))


def decode_policies_of(core: Kernel) -> DecodePolicies:
    """Decode policies that there are, by their config name."""
    found = dict(BUILT_IN)
    for feature in core.features:
        if isinstance(feature, DecodePolicySource):
            found.update(feature.decode_policies())
    return found


def decode_figures_of(core: Kernel, now_ns: int) -> dict[PoolName, DecodeFigures]:
    """Figures of each disaggregated pool, by name."""
    return {pool.spec.name: pool.tier.figures(now_ns) for pool in decode_pools_of(core)}


def _passage_of(attempt: AttemptState) -> Passage | None:
    plan = attempt.plan
    return plan if isinstance(plan, Passage) else None


def _passage(attempt: AttemptState) -> Passage:
    plan = attempt.plan
    assert isinstance(plan, Passage), "it is in a pool"
    return plan


def _books_of(pool: DecodePool) -> tuple[int, int, int]:
    """Attempts that the pool counts: those that prefill, that wait for a decode worker, and that decode."""
    figures = pool.tier.figures(0)
    return pool.in_prefill, figures.pooled, figures.dispatched + figures.running


def _alive_in(pool: DecodePool, attempts: list[AttemptState]) -> tuple[int, int, int]:
    """The same numbers, by the attempts themselves."""
    ours = [attempt for attempt in attempts if (passage := _passage_of(attempt)) is not None and passage.pool is pool]
    legs = [
        leg.role for attempt in ours for leg in attempt.legs.values() if leg.state.listed or leg.role is LegRole.PREFILL
    ]
    reading = legs.count(LegRole.PREFILL) if pool.is_sequential else 0
    return reading, sum(attempt.is_between_legs for attempt in ours), legs.count(LegRole.DECODE)


def _describe(pool: DecodePool, now_ns: int) -> dict[str, object]:
    figures = pool.tier.figures(now_ns)
    return {
        "name": pool.spec.name,
        "connector": pool.spec.connector,
        "policy": pool.config.policy,
        "policy_by": pool.policy_by,
        "in_prefill": pool.in_prefill,
        "pooled": figures.pooled,
        "oldest_age_ms": figures.oldest_age_ns / 1e6,
        "dispatched": figures.dispatched,
        "running": figures.running,
        "free_slots": figures.free_slots,
        "groups": [
            {
                "name": group.name,
                "workers": group.workers,
                "free_slots": group.free_slots,
                "load_max": group.load_max,
                "imbalance": group.imbalance,
                "seat": pool.tier.seats.seat_of(group.name),
            }
            for group in figures.groups
        ],
    }
