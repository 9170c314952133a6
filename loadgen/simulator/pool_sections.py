"""Sections of a scenario about a region's pools. A disaggregated pool has prefill workers, decode workers and a
transfer time between them; other pools have a context length and the lengths of requests meant for them.

Values only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, Strict

from gateway.core.features.disaggregated.config import DecodeConfig
from gateway.core.nearness import CLUSTERS_MAX
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
from gateway.features.sections import PoolSections
from loadgen.engine.decode_group import DecodeGroupConfig
from loadgen.engine.model import EngineConfig
from loadgen.simulator.decode_workers import TransferConfig
from loadgen.simulator.sections import Count, CountOrNone, Duration, Moment, ScenarioSection
from mesh.settings import Section

_MILLISECOND_NS = 1_000_000

DecodeSection = Annotated[DecodeConfig, Section(frozenset({"considered_max"}))]


class UnifiedSection(ScenarioSection):
    """Pool of engines that run whole requests."""

    replicas: Count
    slots: Count | None = None
    """Requests that one engine runs at once, if that differs from the region's."""
    kv_tokens: Count | None = None
    """KV cache of one engine in tokens, if that is less than its preset has."""
    context_tokens_max: Count | None = None
    """Context of its engines in tokens, if that is less than their preset has."""
    told_context_tokens_max: Count | None = None
    """Context that gateways are told, if it differs: a mistake in the configuration."""
    threshold_tokens: CountOrNone = 0
    """Maximum tokens of requests that are meant for it; 0: all that fit."""

    def engine_of(self, engine: EngineConfig) -> EngineConfig:
        blocks = engine.kv_blocks
        if self.kv_tokens is not None:
            blocks = min(blocks, max(1, self.kv_tokens // engine.block_tokens))
        context = min(self.context_tokens_max or engine.context_tokens_max, blocks * engine.block_tokens)
        return replace(
            engine, kv_blocks=blocks, context_tokens_max=context, sequences_max=self.slots or engine.sequences_max
        )

    def spec_of(self, region: str, name: str, engine: EngineConfig) -> PoolSpec:
        told = self.told_context_tokens_max or self.engine_of(engine).context_tokens_max
        return PoolSpec(
            unified_pool_name(region, name), context_tokens_max=told, threshold_tokens=self.threshold_tokens
        )

    def specs(self, region: str, name: str, place: Place, model: ModelName) -> list[ReplicaSpec]:
        pool = unified_pool_name(region, name)
        return [ReplicaSpec(ReplicaId(f"{pool}{number}"), place, (model,), pool) for number in range(self.replicas)]


class SimPredictionSection(ScenarioSection):
    """Predictor of output lengths that each gateway fits to the requests that its pool has decoded."""

    kind: Literal["survival", "exact_match"] = "exact_match"
    """Method of predicting; `exact_match` goes by the prompt's length."""
    requests_min: Count = 200
    """Requests below which nothing is fitted."""
    refit_interval: Duration = 600_000 * _MILLISECOND_NS
    """Interval of fitting."""


class DisaggregatedSection(ScenarioSection):
    """Pool beside the region's other replicas, all of it with one gateway."""

    prefill_workers: Count
    """Engines of the region's size."""
    decode_workers: Count
    """Decode workers of one group, which step in lockstep: G."""
    groups: Count = 1
    batch: Count = 32
    """Requests that a decode worker runs at once: B."""
    connector: Connector = Connector.NIXL
    step: Duration = 20 * _MILLISECOND_NS
    """Duration of a group's step, plus `kv_token` for each KV token that its fullest worker reads."""
    kv_token: Duration = 50
    """Duration added to a step for each of those tokens."""
    transfer: Moment = 2 * _MILLISECOND_NS
    """Duration of the transfer of a prompt's KV cache, plus `transfer_token` for each token."""
    transfer_token: Moment = 0
    """Duration added to a transfer for each token."""
    kv_tokens: CountOrNone = 0
    """KV cache of a decode worker in tokens; 0: that of an engine of the region."""
    lease: Duration = 30_000 * _MILLISECOND_NS
    """Time for which a prefill worker keeps a KV cache that has not been fetched."""
    decode: DecodeSection = DecodeConfig()
    """Admission to decode workers, as in a pool of a region file."""
    prediction: SimPredictionSection | None = None
    """Predictor of output lengths. None: there are no predictions, and `br_h` decides as `br_0` does."""
    expert_clusters: Annotated[int, Strict(), Field(ge=0, le=CLUSTERS_MAX)] = 0
    """Clusters of a simulated artifact of expert locality; 0: there is no artifact, and `eldr` goes by queues."""

    def room(self, engine: EngineConfig) -> int:
        return self.kv_tokens or engine.kv_tokens

    def pool_of(self, region: str, engine: EngineConfig, decode: DecodeConfig | None = None) -> PoolSpec:
        """Spec of the pool, with `decode` in place of its own settings."""
        return PoolSpec(
            pool_name(region),
            PoolKind.DISAGGREGATED,
            self.connector,
            self.batch,
            self.room(engine),
            engine.context_tokens_max,
            self.lease,
            features=PoolSections(decode=decode or self.decode).texts(),
        )

    def group_config(self, engine: EngineConfig) -> DecodeGroupConfig:
        return DecodeGroupConfig(self.decode_workers, self.batch, self.step, self.kv_token, self.room(engine))

    def transfer_config(self) -> TransferConfig:
        return TransferConfig(self.transfer, self.transfer_token)

    def replicas(self, region: str, place: Place, model: ModelName) -> list[ReplicaSpec]:
        """Prefill workers first, then the groups, each with its workers in order."""
        pool = pool_name(region)
        readers = [
            ReplicaSpec(ReplicaId(f"{region}/prefill{number}"), place, (model,), pool, role=ReplicaRole.PREFILL)
            for number in range(self.prefill_workers)
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
            for rank in range(self.decode_workers)
        ]
        return [*readers, *writers]


def unified_pool_name(region: str, name: str) -> PoolName:
    return PoolName(f"{region}/{name}")


def pool_name(region: str) -> PoolName:
    return PoolName(f"{region}/disaggregated")
