"""Builders for a decode tier."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gateway.core.features.disaggregated.admissions import DecodeAdmission
from gateway.core.features.disaggregated.catalogue import BUILT_IN
from gateway.core.features.disaggregated.config import DecodeConfig, DecodePolicyName
from gateway.core.features.disaggregated.predictor import Facts, Predictor
from gateway.core.features.disaggregated.tier import DecodeTier
from gateway.core.features.expert_locality.catalogue import BY_EXPERTS
from gateway.core.vocabulary import Connector, PoolKind, PoolName, PoolSpec, ReplicaId, RequestId

MS = 1_000_000
SECOND = 1_000 * MS


def pool_spec(batch: int = 4, connector: Connector = Connector.NIXL, kv_tokens: int = 0) -> PoolSpec:
    return PoolSpec(PoolName("pd"), PoolKind.DISAGGREGATED, connector, batch, kv_tokens)


@dataclass
class Bench:
    """A tier and its current time."""

    tier: DecodeTier
    now_ns: int = 0
    admitted: dict[str, DecodeAdmission] = field(default_factory=dict)

    def add(self, key: str, tokens: int = 100, lease_ns: int = 30 * SECOND) -> DecodeAdmission | None:
        return self.tier.add(Facts(RequestId(key), tokens), self.now_ns, self.now_ns + lease_ns)

    def tick(self, after_ns: int = 10 * MS) -> list[tuple[str, str]]:
        """Requests and their workers, as admitted by the next tick."""
        self.now_ns += after_ns
        admissions = self.tier.tick(self.now_ns)
        self.admitted |= {admission.key: admission for admission in admissions}
        return [(admission.key, admission.worker_id) for admission in admissions]

    def end(self, key: str, output_tokens: int | None = None) -> None:
        self.tier.ended(RequestId(key), self.now_ns, output_tokens)

    def grow(self, key: str, generated: int) -> None:
        self.tier.progressed(RequestId(key), generated)

    def observe(self, worker: str, *, running: int = 0, waiting: int = 0, kv_tokens: int = 0, room: int = 0) -> None:
        self.tier.observe(
            ReplicaId(worker), self.now_ns, running=running, waiting=waiting, kv_tokens=kv_tokens, room_tokens=room
        )

    def loads(self) -> dict[str, tuple[int, int]]:
        """Largest and smallest load of each group."""
        return {each.name: (each.load_max, each.load_min) for each in self.tier.figures(self.now_ns).groups}


def bench(
    workers: int | dict[str, str] = 2,
    *,
    config: DecodeConfig | None = None,
    spec: PoolSpec | None = None,
    predictor: Predictor | None = None,
    seed: int = 1,
) -> Bench:
    """Tier with workers w0, w1, … in one group, or with the given workers and their groups."""
    config = config or DecodeConfig(policy=DecodePolicyName.JOIN_SHORTEST_QUEUE)
    tier = DecodeTier(config, spec or pool_spec(), random.Random(seed), predictor, policies=BUILT_IN | BY_EXPERTS)
    named = workers if isinstance(workers, dict) else {f"w{number}": "dp" for number in range(workers)}
    for worker, group in named.items():
        tier.join(ReplicaId(worker), group, 0)
    return Bench(tier)
