"""Merges the replicas and peers of this gateway from the controller's assignment, the region file, discovery sources
and the engines' own lists of models. Each change is submitted as a new version of the whole. This module probes no
replica and places no request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from gateway.config.targets import ReplicaConfig
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import (
    ControlVersion,
    ModelName,
    PeerSpec,
    PoolName,
    PoolSpec,
    ReplicaId,
    ReplicaSpec,
    Roots,
)

_NONE: Roots = {}
_Told = TypeVar("_Told", tuple[ModelName, ...], Roots)

Follow = Callable[[tuple[ReplicaConfig, ...]], None]
"""Callback that gets the replicas before the core does, so that the core orders no leg to a replica that cannot be
reached yet."""


@dataclass(frozen=True, slots=True)
class _Learnt:
    """Replica with the models and identities that its engine tells, and what it was made of."""

    described: ReplicaConfig
    told: Roots
    config: ReplicaConfig

    def is_of(self, described: ReplicaConfig, models: tuple[ModelName, ...], told: Roots) -> bool:
        """Return whether it is made of these, so that it need not be made anew."""
        return self.described is described and self.config.spec.models == models and self.told is told


class Assignments:
    """Replicas, peers and pools of this gateway. Nothing is submitted before `start`."""

    def __init__(self, submit: Callable[[AssignmentApplied], None], follow: Follow) -> None:
        self.version = 0
        self._submit = submit
        self._follow = follow
        self._configured: tuple[ReplicaConfig, ...] = ()
        self._peers: tuple[PeerSpec, ...] = ()
        self._pools: dict[PoolName, PoolSpec] = {}
        self._ordered: tuple[ReplicaConfig, ...] = ()
        self._ordered_pools: dict[PoolName, PoolSpec] = {}
        self._closed: frozenset[str] = frozenset()
        self._control = ControlVersion()
        self._found: dict[str, tuple[ReplicaConfig, ...]] = {}
        self._models: dict[ReplicaId, tuple[ModelName, ...]] = {}
        self._roots: dict[ReplicaId, Roots] = {}
        self._learnt: dict[ReplicaId, _Learnt] = {}
        self._followed: tuple[ReplicaConfig, ...] = ()
        self._told: AssignmentApplied | None = None
        self._is_started = False

    def start(self) -> None:
        self._is_started = True
        self._tell()

    def configure(
        self,
        replicas: Iterable[ReplicaConfig],
        peers: Iterable[PeerSpec],
        sources: Iterable[str],
        pools: Iterable[PoolSpec] = (),
    ) -> None:
        """Take what the region file names; what sources other than `sources` had found is forgotten."""
        self._configured, self._peers = tuple(replicas), tuple(peers)
        self._pools = {each.name: each for each in pools}
        self._found = {name: self._found[name] for name in sources if name in self._found}
        self._tell(always_follow=True)

    def order(
        self,
        replicas: Iterable[ReplicaConfig],
        closed: Iterable[str],
        control: ControlVersion,
        pools: Iterable[PoolSpec] = (),
    ) -> None:
        """Take a controller's assignment, of version `control`. `closed` are the ids of replicas that this gateway must
        not serve, whichever source describes them: each is the id of a single replica or the shared id of all its
        ranks."""
        self._ordered, self._closed, self._control = tuple(replicas), frozenset(closed), control
        self._ordered_pools = {each.name: each for each in pools}
        self._tell(always_follow=True)

    def found(self, source: str, replicas: tuple[ReplicaConfig, ...]) -> None:
        """Take all replicas that one source has found."""
        self._found[source] = replicas
        self._tell()

    def listed(self, replicas: Iterable[ReplicaId], models: tuple[ModelName, ...]) -> None:
        """Take the models that an engine lists, for the replicas that it stands for."""
        self._learn(self._models, replicas, models)

    def identified(self, replicas: Iterable[ReplicaId], roots: Roots) -> None:
        """Take the identities of its models that an engine tells, for replicas without a declared one."""
        self._learn(self._roots, replicas, roots)

    def _learn(self, known: dict[ReplicaId, _Told], replicas: Iterable[ReplicaId], told: _Told) -> None:
        """Keep what an engine tells of itself, and pass it on if it is new: engines tell the same again and again."""
        fresh = [replica_id for replica_id in replicas if known.get(replica_id) != told]
        if fresh:
            known.update(dict.fromkeys(fresh, told))
            self._tell()

    def _tell(self, *, always_follow: bool = False) -> None:
        """Pass on the replicas and the assignment, each where it has changed. Changes that the core does not see, such
        as a new API key, make no version."""
        if not self._is_started:
            return
        replicas = self._replicas()
        if always_follow or replicas != self._followed:
            self._follow(replicas)
            self._followed = replicas
        self._forget_models_of_others()
        specs = tuple(each.spec for each in replicas)
        pools = self._used_pools(specs)
        told = AssignmentApplied(self.version + 1, specs, self._peers, self._control, self._away(), pools)
        if self._told is None or replace(told, version=self.version) != self._told:
            self.version += 1
            self._told = told
            self._submit(told)

    def _replicas(self) -> tuple[ReplicaConfig, ...]:
        """Replicas with distinct ids. The controller's description comes before the region file's, and that before a
        source's. The controller's description of a replica replaces the others' for all its ranks."""
        by_id: dict[ReplicaId, ReplicaConfig] = {}
        ordered = {_name(each) for each in self._ordered}
        for config in (*self._ordered, *(each for each in self._described() if _name(each) not in ordered)):
            if not self._is_closed(config):
                by_id.setdefault(config.spec.replica_id, config)
        self._learnt = {replica_id: self._with_learnt(config) for replica_id, config in by_id.items()}
        return tuple(each.config for each in self._learnt.values())

    def _described(self) -> Iterator[ReplicaConfig]:
        """Replicas that the region file or a source describes; the controller's are left out."""
        yield from self._configured
        for found in self._found.values():
            yield from found

    def _away(self) -> tuple[ModelName, ...]:
        """Models of the replicas that are described here but closed: other gateways serve them."""
        closed = (each for each in self._described() if self._is_closed(each))
        return tuple(sorted({model for each in closed for model in each.spec.models}))

    def _used_pools(self, specs: Iterable[ReplicaSpec]) -> tuple[PoolSpec, ...]:
        """Pools that any replica names, where they are known; the controller's description comes first."""
        known = self._pools | self._ordered_pools
        return tuple(known[name] for name in dict.fromkeys(spec.pool for spec in specs) if name in known)

    def _is_closed(self, config: ReplicaConfig) -> bool:
        return not self._closed.isdisjoint((config.spec.replica_id, _name(config)))

    def _with_learnt(self, described: ReplicaConfig) -> _Learnt:
        """Replica with what its engine tells of itself; the same object as before unless some of it has changed."""
        replica_id = described.spec.replica_id
        models = self._models.get(replica_id, ()) if described.lists_models else described.spec.models
        told = _NONE if described.spec.identity else self._roots.get(replica_id, _NONE)
        before = self._learnt.get(replica_id)
        if before is not None and before.is_of(described, models, told):
            return before
        roots = {model: told[model] for model in models if model in told}
        return _Learnt(described, told, replace(described, spec=replace(described.spec, models=models, roots=roots)))

    def _forget_models_of_others(self) -> None:
        asking = {config.spec.replica_id for config in self._followed if not config.spec.identity}
        self._roots = {replica_id: roots for replica_id, roots in self._roots.items() if replica_id in asking}
        listing = {config.spec.replica_id for config in self._followed if config.lists_models}
        self._models = {replica_id: models for replica_id, models in self._models.items() if replica_id in listing}


def _name(config: ReplicaConfig) -> str:
    """Id that the replica is described under; each of its ranks has an id of its own."""
    replica_id = config.spec.replica_id
    return replica_id if config.rank is None else replica_id.rpartition("@")[0]
