"""Groups of interchangeable replicas: which of them may serve a request, by model, pool, place, origin and length."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable

from gateway.core.kernel.pools import PoolBounds, PoolFit
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    ModelName,
    NeededIdentity,
    Place,
    PlaceRule,
    PoolName,
    PoolSpec,
    ReplicaRole,
    ReplicaSpec,
)

Group = tuple[ModelName, PoolName, Place, PlaceRule | None, Connector | None, int, str]
"""Key of a group of interchangeable replicas. The last items are the group's context window, the most tokens of one
request (0: unknown), and the identity of the model (empty: unknown)."""

IDENTITIES_TOLD_MAX = 8
"""Identities of one model that heartbeats tell apart. A gateway that has more, such as one for each pod, tells peers
that they are unknown, so that its heartbeats stay short."""


class ReplicaGroups:
    """Replicas of this gateway by group, as masks of their slots. Decode workers belong to no group: requests are
    placed at the prefill workers of their pool."""

    def __init__(self) -> None:
        self._groups: dict[Group, int] = {}
        self._told: dict[Group, int] = {}
        """Groups as peers are told of them."""
        self._decoding: dict[PoolName, int] = {}
        """Mask of each pool's decode workers."""
        self._connectors: dict[PoolName, Connector] = {}
        """Connector of each disaggregated pool."""
        self._bounds: dict[PoolName, PoolBounds] = {}
        """Bounds of the pools that the assignment describes."""
        self.told_thresholds: dict[PoolName, tuple[int, int]] = {}
        """Configured threshold and context window of each pool that has a threshold; window 0: not configured."""
        self.thresholds: dict[ModelName, None] = {}
        """Models that some assigned pool with a threshold serves."""
        self.counts: dict[ModelName, int] = {}
        """Replicas that serve each model, without decode workers."""
        self.models: dict[ModelName, None] = {}
        """Models that the groups serve, in order; a dict used as an ordered set."""
        self.ask_origins = False
        """Some replicas accept only requests that arrived in certain places, so a request's origin matters for
        eligibility."""

    # Changes

    def describe(self, pools: Iterable[PoolSpec]) -> None:
        """Take the specifications of the pools; `rebuild` follows."""
        pools = list(pools)
        self._connectors = {pool.name: pool.connector for pool in pools if pool.connector is not None}
        self._bounds = {
            pool.name: PoolBounds(pool.name, pool.context_tokens_max, pool.threshold_tokens) for pool in pools
        }
        self.told_thresholds = {
            pool.name: (pool.threshold_tokens, pool.context_tokens_max) for pool in pools if pool.threshold_tokens
        }

    def rebuild(self, replicas: Iterable[tuple[int, ReplicaSpec, int]]) -> None:
        """Regroup the replicas, each given as slot, spec and context window. Prefill workers of a pool without a decode
        worker or a known connector join no group."""
        self._groups = {}
        self._decoding = {}
        self.counts = {}
        replicas = list(replicas)
        for slot, spec, _ in replicas:
            if spec.role is ReplicaRole.DECODE:
                self._decoding[spec.pool] = self._decoding.get(spec.pool, 0) | 1 << slot
                continue
            for model in spec.models:
                self.counts[model] = self.counts.get(model, 0) + 1
        for slot, spec, context in replicas:
            connector = None
            if spec.role is not ReplicaRole.UNIFIED:
                connector = self._connectors.get(spec.pool)
                if spec.role is ReplicaRole.DECODE or spec.pool not in self._decoding or connector is None:
                    continue
            for model in spec.models:
                identity = spec.identity_of(model)
                group = (model, spec.pool, spec.place, spec.accepts, connector, context, identity)
                self._groups[group] = self._groups.get(group, 0) | 1 << slot
        self._told = _with_few_identities(self._groups)
        self.models = dict.fromkeys(model for model, *_ in self._groups)
        self.ask_origins = any(accepts is not None for _, _, _, accepts, *_ in self._groups)
        self.thresholds = dict.fromkeys(model for model, pool, *_ in self._groups if self.threshold_of(pool))

    def retune(self, pool: PoolName, tokens: int) -> bool:
        """Set the pool's threshold to `tokens`. False: nothing changed, since the pool is not assigned, has no
        threshold, or has this one."""
        bounds = self._bounds.get(pool)
        if bounds is None or not bounds.threshold_tokens or bounds.threshold_tokens == tokens:
            return False
        self._bounds[pool] = PoolBounds(pool, bounds.context_tokens_max, tokens)
        return True

    # Queries

    def told(self) -> ItemsView[Group, int]:
        """Mask of the replicas of each group, as peers are told: those of a model with more than IDENTITIES_TOLD_MAX
        identities have an unknown one."""
        return self._told.items()

    def serves(self, model: ModelName) -> bool:
        """True if a group serves the model."""
        return model in self.models

    def has_any(self, model: ModelName, mask: int) -> bool:
        """True if a replica of the mask serves the model."""
        return any(served == model and members & mask for (served, *_), members in self._groups.items())

    def eligible(
        self,
        model: ModelName,
        rule: PlaceRule,
        origin: Place | None = None,
        *,
        connectors: frozenset[Connector] = ALL_CONNECTORS,
        fit: PoolFit | None = None,
        identity: NeededIdentity | None = None,
    ) -> int:
        """Mask of the replicas, available or not, that serve the model in a place the rule allows and accept requests
        that arrived at `origin`. `origin` None: only replicas that accept every origin. `connectors`: connectors that
        can hand the request over; unified replicas need none. `fit`: pools that the request fits into; None: all.
        `identity`: identity of the model that it is bound to; None: any."""
        mask = 0
        for (served, pool, place, accepts, connector, context, known), members in self._groups.items():
            if served != model or (connector is not None and connector not in connectors):
                continue
            if identity is not None and not identity.takes(known):
                continue
            if fit is not None and (pool not in fit.pools or 0 < context < fit.need_tokens):
                continue
            if rule.allows(place) and _takes_from(origin, accepts):
                mask |= members
        return mask

    def closed_to(self, model: ModelName, rule: PlaceRule, origin: Place | None = None) -> int:
        """Mask of the replicas that would be eligible but for the request's origin."""
        mask = 0
        if self.ask_origins:
            for (served, _, place, accepts, *_), members in self._groups.items():
                if served == model and rule.allows(place) and not _takes_from(origin, accepts):
                    mask |= members
        return mask

    def in_pool(self, pool: PoolName) -> int:
        """Mask of all placeable replicas of the pool, whichever models they serve."""
        mask = 0
        for (_, name, *_), members in self._groups.items():
            if name == pool:
                mask |= members
        return mask

    def bounds(
        self, model: ModelName, rule: PlaceRule, origin: Place | None, connectors: frozenset[Connector]
    ) -> list[PoolBounds]:
        """Bounds of the pools that such a request may go to; one pool appears several times where its engines' context
        windows differ."""
        found: list[PoolBounds] = []
        for served, pool, place, accepts, connector, context, _ in self._groups:
            if served != model or (connector is not None and connector not in connectors):
                continue
            if rule.allows(place) and _takes_from(origin, accepts):
                found.append(PoolBounds(pool, context, self.threshold_of(pool)))
        return found

    def contexts(self, model: ModelName) -> list[int]:
        """Context windows of the model on the replicas that serve it, in tokens; 0 where unknown."""
        return [context for served, _, _, _, _, context, _ in self._groups if served == model]

    def context_of(self, pool: PoolName, seen: int) -> int:
        """Context window in tokens of a replica of the pool whose engine reported `seen`; 0: no limit is known."""
        bounds = self._bounds.get(pool)
        told = 0 if bounds is None else bounds.context_tokens_max
        return min(told, seen) if told and seen else told or seen

    def threshold_of(self, pool: PoolName) -> int:
        """Threshold of the pool in tokens; 0: it has none."""
        bounds = self._bounds.get(pool)
        return 0 if bounds is None else bounds.threshold_tokens

    def is_longer(self, pool: PoolName, window_tokens: int) -> bool:
        """Return whether the pool takes longer requests than `window_tokens`. True for a pool without a known limit."""
        bounds = self._bounds.get(pool)
        return bounds is None or bounds.limit > window_tokens

    def can_answer(self, reachable: int) -> bool:
        """Return whether engines among these replicas could serve any request. A disaggregated pool needs a prefill and
        a decode worker."""
        return any(
            members & reachable and (connector is None or self._decoding[pool] & reachable)
            for (_, pool, _, _, connector, *_), members in self._groups.items()
        )


def _takes_from(origin: Place | None, accepts: PlaceRule | None) -> bool:
    return accepts is None or (origin is not None and accepts.allows(origin))


def _with_few_identities(groups: dict[Group, int]) -> dict[Group, int]:
    """Groups in which the identities of each model that has too many of them are unknown."""
    identities: dict[ModelName, set[str]] = {}
    for model, *_, identity in groups:
        identities.setdefault(model, set()).add(identity)
    many = {model for model, each in identities.items() if len(each - {""}) > IDENTITIES_TOLD_MAX}
    if not many:
        return groups
    told: dict[Group, int] = {}
    for (model, pool, place, accepts, connector, context, identity), members in groups.items():
        group = (model, pool, place, accepts, connector, context, "" if model in many else identity)
        told[group] = told.get(group, 0) | members
    return told
