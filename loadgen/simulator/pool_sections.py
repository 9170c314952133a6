"""What a scenario says of a disaggregated pool in one of its regions: who reads prompts there, who writes answers, and
what it takes to get from the one to the other.

It decides nothing.
"""

from __future__ import annotations

from gateway.core.vocabulary import (
    Connector,
    ModelName,
    Place,
    PoolKind,
    PoolName,
    PoolSpec,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
)
from loadgen.engine.decode_group import DecodeGroupConfig
from loadgen.engine.model import EngineConfig
from loadgen.simulator.decode_workers import TransferConfig
from loadgen.simulator.sections import Count, CountOrNone, Duration, Moment, Section

_MILLISECOND_NS = 1_000_000


class DisaggregatedSection(Section):
    """A pool beside the region's other replicas, all of it with one gateway."""

    prefill: Count
    """Prefill workers: engines of the region's size."""
    decode: Count
    """Decode workers of one group, which step in time: G."""
    groups: Count = 1
    batch: Count = 32
    """Requests that a decode worker runs at once: B."""
    connector: Connector = Connector.NIXL
    step: Duration = 20 * _MILLISECOND_NS
    """What a step of a group takes whatever it reads, ..."""
    kv_token: Duration = 50
    """... and for each token whose keys and values the fullest of its workers reads."""
    transfer: Moment = 2 * _MILLISECOND_NS
    """What it takes to bring a prompt's keys and values over, ..."""
    transfer_token: Moment = 0
    """... and for each of its tokens."""
    kv_tokens: CountOrNone = 0
    """Room in the cache of a decode worker; 0: what an engine of the region has."""
    lease: Duration = 30_000 * _MILLISECOND_NS
    """How long a prefill worker keeps what nobody has fetched."""

    def room(self, engine: EngineConfig) -> int:
        return self.kv_tokens or engine.kv_tokens

    def pool_of(self, region: str, engine: EngineConfig) -> PoolSpec:
        return PoolSpec(
            pool_name(region),
            PoolKind.DISAGGREGATED,
            self.connector,
            self.batch,
            self.room(engine),
            engine.context_tokens_max,
            self.lease,
        )

    def group_config(self, engine: EngineConfig) -> DecodeGroupConfig:
        return DecodeGroupConfig(self.decode, self.batch, self.step, self.kv_token, self.room(engine))

    def transfer_config(self) -> TransferConfig:
        return TransferConfig(self.transfer, self.transfer_token)

    def replicas(self, region: str, place: Place, model: ModelName) -> list[ReplicaSpec]:
        """Prefill workers first, then the groups, each with its workers in order."""
        pool = pool_name(region)
        readers = [
            ReplicaSpec(ReplicaId(f"{region}/prefill{number}"), place, (model,), pool, role=ReplicaRole.PREFILL)
            for number in range(self.prefill)
        ]
        writers = [
            ReplicaSpec(
                ReplicaId(f"{region}/decode{group}.{rank}"),
                place,
                (model,),
                pool,
                role=ReplicaRole.DECODE,
                group=f"{region}/decode{group}",
            )
            for group in range(self.groups)
            for rank in range(self.decode)
        ]
        return [*readers, *writers]


def pool_name(region: str) -> PoolName:
    return PoolName(f"{region}/disaggregated")
