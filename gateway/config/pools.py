"""Pools of a region file, and checks between them and the replicas that name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Generic, Self

from msgspec import Struct
from pydantic import StrictBool, model_validator

from gateway.config.names import ModelIdentity
from gateway.config.targets import Dialect
from gateway.core.vocabulary import DEFAULT_POOL, Connector, PoolKind, PoolName, PoolSpec, ReplicaRole
from gateway.features.sections import POOL_CHECKS, PoolSections
from mesh.faults import FileFault, KeyFaults
from mesh.settings import AnySections, SectionsFile
from mesh.values import Count, Duration, Id

_LEASE_NS = PoolSpec(DEFAULT_POOL).lease_ns
_DIALECTS = {Connector.SGLANG: Dialect.SGLANG}
"""Dialect of the engines that support a connector, where it is not vLLM's."""


class _PoolKeys(SectionsFile[AnySections], Generic[AnySections]):
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"considered_max"})


class PoolFile(_PoolKeys[PoolSections]):
    """Pool of replicas with settings of its own; a pool that is only named by replicas is unified and has no
    settings."""

    name: Id
    """Name of the pool, by which replicas refer to it."""
    kind: PoolKind = PoolKind.UNIFIED
    """Kind of the pool."""
    connector: Connector | None = None
    """Connector of a disaggregated pool, which decides what the gateway sends to each engine. None: only for a unified
    pool."""
    decode_batch_max: Count | None = None
    """Requests that one decode worker, or each of its ranks, runs at once (vLLM's `--max-num-seqs`). None: only for a
    unified pool."""
    kv_tokens: Count | None = None
    """KV cache capacity of one decode worker, in tokens. None: as the engine reports."""
    context_tokens_max: Count | None = None
    """Longest request in tokens, prompt and output together. None: not limited by the pool."""
    threshold_tokens: Count | None = None
    """Number of tokens up to which requests are meant for this pool before a longer one. None: the pool takes requests
    of any length."""
    lease: Duration = _LEASE_NS
    """Time for which a prefill worker keeps a KV cache that no decode worker has fetched."""
    resumes: StrictBool = True
    """Resume broken answers of this pool elsewhere, and those of other pools here."""
    identity: ModelIdentity | None = None
    """Identity of the models of each replica in the pool that declares none. None: the engines' own word."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        is_disaggregated = self.kind is PoolKind.DISAGGREGATED
        for key in ("connector", "decode_batch_max"):
            if is_disaggregated and getattr(self, key) is None:
                raise KeyFaults(FileFault(key, "a disaggregated pool needs it"))
        for key in ("connector", "decode_batch_max", "kv_tokens"):
            if not is_disaggregated and getattr(self, key) is not None:
                raise KeyFaults(FileFault(key, "belongs to a disaggregated pool"))
        context, threshold = self.context_tokens_max, self.threshold_tokens
        if threshold is not None and context is not None and threshold > context:
            raise KeyFaults(
                FileFault("threshold_tokens", f"is above context_tokens_max, {context}: nothing so long fits")
            )
        if not is_disaggregated and self.lease != _LEASE_NS:
            raise KeyFaults(FileFault("lease", "belongs to a disaggregated pool"))
        if not is_disaggregated and (texts := self.sections.texts()):
            raise KeyFaults(*(FileFault(key, "belongs to a disaggregated pool") for key, _ in texts))
        return self

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        spec = self.as_spec()
        if faults := [fault for check in POOL_CHECKS for fault in check(spec)]:
            raise KeyFaults(*faults)
        return self

    @property
    def sections(self) -> PoolSections:
        return self.take(PoolSections)

    def as_spec(self) -> PoolSpec:
        return PoolSpec(
            PoolName(self.name),
            self.kind,
            self.connector,
            self.decode_batch_max or 0,
            self.kv_tokens or 0,
            self.context_tokens_max or 0,
            self.lease,
            self.threshold_tokens or 0,
            self.resumes,
            self.sections.texts(),
        )


class PoolMember(Struct, frozen=True):
    """A replica, or a template of discovered ones, as far as its pool is concerned."""

    path: str
    """Key of its entry in the file."""
    pool: PoolName
    role: ReplicaRole
    group: str | None
    dialect: Dialect
    region: str
    models: frozenset[str]
    identity: str | None = None
    """Declared identity of its models, its own or its pool's; None: not declared."""


def pool_faults(pools: Mapping[PoolName, PoolSpec], members: Iterable[PoolMember]) -> Iterator[FileFault]:
    """Faults of described pools, and of the replicas that name them."""
    places: dict[PoolName, str] = {}
    models: dict[PoolName, frozenset[str]] = {}
    roles: dict[PoolName, set[ReplicaRole]] = {}
    identities: dict[PoolName, str | None] = {}
    for member in members:
        spec = pools.get(member.pool, PoolSpec(member.pool))
        yield from _member_faults(member, spec)
        roles.setdefault(member.pool, set()).add(member.role)
        if spec.kind is not PoolKind.DISAGGREGATED:
            continue
        if places.setdefault(member.pool, member.region) != member.region:
            yield FileFault(f"{member.path}.region", f"the disaggregated pool {member.pool} stands in one region")
        if models.setdefault(member.pool, member.models) != member.models:
            yield FileFault(
                f"{member.path}.models", f"all of the disaggregated pool {member.pool} serve the same models"
            )
        if identities.setdefault(member.pool, member.identity) != member.identity:
            yield FileFault(
                f"{member.path}.identity", f"all of the disaggregated pool {member.pool} have the same identity"
            )
    for index, (name, spec) in enumerate(pools.items()):
        missing = {ReplicaRole.PREFILL, ReplicaRole.DECODE} - roles.get(name, set())
        if spec.kind is PoolKind.DISAGGREGATED and missing:
            yield FileFault(f"pools[{index}]", f"{name} has no {' and no '.join(sorted(missing))} worker")


def _member_faults(member: PoolMember, spec: PoolSpec) -> Iterator[FileFault]:
    if spec.kind is PoolKind.UNIFIED:
        if member.role is not ReplicaRole.UNIFIED:
            yield FileFault(
                f"{member.path}.role", f"{member.role} is for a disaggregated pool, and {spec.name} is not one"
            )
        elif member.group is not None:
            yield FileFault(f"{member.path}.group", "belongs to a decode worker")
        return
    if member.role is ReplicaRole.UNIFIED:
        yield FileFault(f"{member.path}.role", f"in the disaggregated pool {spec.name} it is prefill or decode")
    if member.group is not None and member.role is not ReplicaRole.DECODE:
        yield FileFault(f"{member.path}.group", "belongs to a decode worker")
    assert spec.connector is not None, "checked with the pool"
    wanted = _DIALECTS.get(spec.connector, Dialect.VLLM)
    if member.dialect is not wanted:
        yield FileFault(f"{member.path}.dialect", f"the connector {spec.connector} of pool {spec.name} is {wanted}'s")
