"""A decode tier under any order of events: its accounts equal those of a plain count."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.config import LATE_POLICIES, BalanceConfig, DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.features.expert_locality.catalogue import BY_EXPERTS
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId
from tests.support.nightly import examples

BATCH = 3
ROOM = 2_000
TTL_NS = 1_000
WORKERS = [ReplicaId(f"w{number}") for number in range(4)]
GROUPS = ["", "a", "b"]


class Moody(Predictor):
    """Predictor with random estimates, some of them nonsense."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def is_ready(self, now_ns: int) -> bool:
        return self.rng.random() < 0.9

    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        assert len(ages) == len(facts)
        share = [self.rng.choice([0.0, 0.3, 0.7, 1.0, float("nan")]) for _ in facts]
        mean = [self.rng.choice([0.5, 1.0, 3.0, 99.0, float("nan"), float("inf")]) for _ in facts]
        return np.array(share), np.array(mean)


@dataclass
class Sent:
    worker: str
    """Worker that has the request; a placeholder once that worker has left."""
    tokens: int
    generated: int = 0


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(list(DecodePolicyName)),
        bypass=st.booleans(),
        has_room=st.booleans(),
        seed=st.integers(0, 99),
    )
    def begin(self, policy: DecodePolicyName, bypass: bool, has_room: bool, seed: int) -> None:
        self.config = DecodeConfig(
            policy,
            tick_interval_ns=10,
            admissions_max=4,
            pool_ttl_ns=TTL_NS,
            room_margin=2,
            bypass=bypass and policy not in LATE_POLICIES,
            in_flight_margin=1,
            balance=BalanceConfig(horizon_steps=4, refresh_tokens=2, window=4),
        )
        self.slots = BATCH + self.config.sends_at_once
        self.kv_tokens = ROOM if has_room else 0
        spec = PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, BATCH, self.kv_tokens)
        moody, policies = Moody(random.Random(seed)), BUILT_IN | BY_EXPERTS
        self.tier = DecodeTier(self.config, spec, random.Random(seed), moody, policies=policies)
        self.now_ns = self.serial = 0
        self.groups: dict[str, str] = {}
        self.closed: set[str] = set()
        self.pooled: dict[str, tuple[int, int]] = {}
        self.sent: dict[str, Sent] = {}

    def plain_load(self, worker: str) -> int:
        return sum(each.tokens + each.generated for each in self.sent.values() if each.worker == worker)

    def in_flight(self, worker: str) -> int:
        return sum(each.worker == worker for each in self.sent.values())

    def free(self, worker: str) -> int:
        return 0 if worker in self.closed else self.slots - self.in_flight(worker)

    def now_at(self, key: str, worker: str, tokens: int) -> None:
        assert key not in self.sent, "sent twice"
        assert self.free(worker) > 0, "more than it may have"
        if self.kv_tokens and self.in_flight(worker):
            assert self.plain_load(worker) + tokens <= self.kv_tokens, "more than its cache holds"
        self.sent[key] = Sent(worker, tokens)

    @rule(worker=st.sampled_from(WORKERS), group=st.sampled_from(GROUPS), is_open=st.booleans())
    def join(self, worker: ReplicaId, group: str, is_open: bool) -> None:
        self.tier.join(worker, group, self.now_ns, is_open)
        if worker not in self.groups and not is_open:
            self.closed.add(worker)
        self.groups[worker] = group or f"alone {worker}"

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: ReplicaId) -> None:
        self.tier.leave(worker)
        self.groups.pop(worker, None)
        self.closed.discard(worker)
        for each in self.sent.values():
            if each.worker == worker:
                each.worker = "nobody"

    @rule(worker=st.sampled_from(WORKERS), is_open=st.booleans())
    def set_open(self, worker: ReplicaId, is_open: bool) -> None:
        self.tier.set_open(worker, is_open, self.now_ns)
        if worker in self.groups:
            self.closed.discard(worker)
            if not is_open:
                self.closed.add(worker)

    @rule(tokens=st.integers(0, 1_500), lease_ns=st.integers(1, 2 * TTL_NS))
    def add(self, tokens: int, lease_ns: int) -> None:
        self.serial += 1
        key = f"q{self.serial}"
        waited = bool(self.pooled)
        admission = self.tier.add(Facts(RequestId(key), tokens), self.now_ns, self.now_ns + lease_ns)
        if admission is not None:
            assert self.config.sends_at_once
            assert not waited, "somebody waited before it"
            self.now_at(key, admission.worker_id, tokens)
        else:
            self.pooled[key] = tokens, self.now_ns + min(lease_ns, TTL_NS)

    @precondition(lambda self: self.pooled)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.pooled)))
        assert self.tier.withdraw(RequestId(key))
        del self.pooled[key]

    @rule(after_ns=st.integers(0, 600))
    def tick(self, after_ns: int) -> None:
        self.now_ns += after_ns
        expired = self.tier.expired(self.now_ns)
        assert set(expired) == {key for key, (_, at_ns) in self.pooled.items() if at_ns <= self.now_ns}
        for key in expired:
            del self.pooled[key]
        due_ns = self.tier.next_ns()
        admissions = self.tier.tick(self.now_ns)
        for admission in admissions:
            tokens, _ = self.pooled.pop(admission.key)
            self.now_at(admission.key, admission.worker_id, tokens)
            assert admission.considered[0].worker_id == admission.worker_id
        if due_ns is not None and due_ns <= self.now_ns:
            self.served_somebody(len(admissions))

    def served_somebody(self, admitted: int) -> None:
        """Assert that after a tick no request waits beside a free slot, except for lack of room or for the next
        tick.
        """
        assert admitted <= 4
        if admitted < 4 and not self.kv_tokens:
            assert not self.pooled or not any(self.free(worker) > 0 for worker in self.groups)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), more=st.integers(0, 5))
    def progress(self, data: st.DataObject, more: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.sent)))
        self.sent[key].generated += more
        self.tier.progressed(RequestId(key), self.sent[key].generated)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), is_told=st.booleans())
    def end(self, data: st.DataObject, is_told: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.sent)))
        generated = self.sent.pop(key).generated
        self.tier.ended(RequestId(key), self.now_ns, generated if is_told else None)

    @rule(policy=st.sampled_from([DecodePolicyName.JOIN_SHORTEST_QUEUE, DecodePolicyName.BR_0]))
    def configure(self, policy: DecodePolicyName) -> None:
        self.config = DecodeConfig(
            policy,
            tick_interval_ns=10,
            admissions_max=4,
            pool_ttl_ns=TTL_NS,
            room_margin=2,
            bypass=self.config.bypass,
            in_flight_margin=1,
        )
        spec = PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, Connector.NIXL, BATCH, self.kv_tokens)
        self.tier.configure(self.config, spec, self.now_ns)

    @invariant()
    def books_are_those_of_anybody_who_counts(self) -> None:
        if not hasattr(self, "tier"):
            return
        figures = self.tier.figures(self.now_ns)
        assert figures.pooled == len(self.pooled)
        assert figures.running + figures.dispatched == sum(self.in_flight(worker) for worker in self.groups)
        assert {group.name: group.load_max for group in figures.groups} == {
            name: max(self.plain_load(worker) for worker, group in self.groups.items() if group == name)
            for name in set(self.groups.values())
        }
        open_ = [worker for worker in self.groups if worker not in self.closed]
        in_batches = sum(max(0, BATCH - self.in_flight(worker)) for worker in open_)
        assert figures.free_slots == in_batches
        assert self.tier.has_room(in_batches + 1 - len(self.pooled)) == bool(open_)
        assert not self.tier.has_room(in_batches + 2 - len(self.pooled))

    @invariant()
    def whoever_waits_is_woken(self) -> None:
        if not hasattr(self, "tier"):
            return
        next_ns = self.tier.next_ns()
        if self.pooled:
            assert next_ns is not None
            assert next_ns <= min(at_ns for _, at_ns in self.pooled.values())
        else:
            assert next_ns is None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(few=30, night=200), stateful_step_count=60)
