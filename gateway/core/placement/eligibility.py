"""Which targets a class of requests may go to at all: the rules that no policy is asked about.

Residency, forwarding, overflow, pools and what failed a request before are judged here, each kind of target by itself.
Of ours, those are meant first that are in the pool that a request is meant for; the others that take it are a last
resort (`spill_replicas`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.config import OverflowMode, PlacementConfig
from gateway.core.peers import Peers, PeerState
from gateway.core.replicas import Replicas, ReplicaState
from gateway.core.requests import ClassTargets, RequestClass
from gateway.core.rooms import Homes, Rooms
from gateway.core.vocabulary import (
    GatewayId,
    ModelName,
    PoolName,
    RegionName,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
    ServiceClass,
    TargetKind,
)

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
PoolQueue = Callable[[ModelName, PoolName], int]
"""How many requests wait for a model that are meant for that pool."""


class Eligibility:
    """Masks by class. Costs do not grow with the number of replicas, but for those that are asked in a last resort."""

    def __init__(
        self,
        region: RegionName,
        config: PlacementConfig,
        replicas: Replicas,
        peers: Peers,
        pool_queue: PoolQueue = lambda _model, _pool: 0,
        *,
        homes: Homes = lambda: 0,
    ) -> None:
        self._pool_queue = pool_queue
        self.rooms = Rooms(replicas, peers, homes)
        self._region = region
        self._config = config
        self._replicas = replicas
        self._peers = peers
        self._sibling_mask = 0
        self.may_shadow = False
        """Overflow is in shadow mode for some model."""
        self._take(config)

    def configure(self, config: PlacementConfig) -> None:
        self._take(config)

    def _take(self, config: PlacementConfig) -> None:
        self._config = config
        modes = [config.overflow, *config.overflow_by_model.values()]
        self.may_shadow = OverflowMode.SHADOW in modes

    def peers_changed(self) -> None:
        self._sibling_mask = sum(1 << state.slot for state in self._peers if state.spec.place.region == self._region)

    # Replicas

    def eligible_replicas(self, request_class: RequestClass) -> int:
        """Available or not, in whatever pool."""
        return self._targets_of(request_class).eligible_replicas

    def available_replicas(self, request_class: RequestClass) -> int:
        mask = self._targets_of(request_class).preferred_replicas & self._replicas.available
        return mask if request_class.service_class is _INTERACTIVE else self.with_room(mask, request_class)

    def with_room(self, mask: int, request_class: RequestClass) -> int:
        """Of these, which are available, those that have room to spare."""
        return self.rooms.replicas_with_room(mask, request_class) if mask else 0

    def spill_replicas(self, request_class: RequestClass) -> int:
        """Of ours in another pool that takes it, those that are available: while the pool that it is meant for is
        overloaded, and nobody waits for the other; or whoever waits there, once nobody of its own pool answers."""
        fit = request_class.fit
        if fit is None or not fit.alternates:
            return 0
        targets = self._targets_of(request_class)
        free = targets.eligible_replicas & ~targets.preferred_replicas & self._replicas.available
        if request_class.service_class is not _INTERACTIVE:
            free = self.with_room(free, request_class)
        if not free or targets.preferred_replicas & self._replicas.available:
            return 0
        is_gone = self.is_gone(request_class)
        if not is_gone and self._waiting_in(request_class, fit.preferred[0]) < self._config.spill_queue_length:
            return 0
        for pool in fit.alternates:
            mask = free & self._replicas.in_pool(pool)
            if mask and (is_gone or not self._waiting_in(request_class, pool)):
                return mask
        return 0

    def is_gone(self, request_class: RequestClass) -> bool:
        """Does nobody answer of the pool that it is meant for?"""
        return not self._targets_of(request_class).preferred_replicas & self._replicas.reachable

    def _waiting_in(self, request_class: RequestClass, pool: PoolName) -> int:
        return self._pool_queue(request_class.model, pool)

    def closed_replicas(self, request_class: RequestClass) -> int:
        """Those that would serve it, had it arrived elsewhere."""
        return self._replicas.closed_to(request_class.model, request_class.rule, request_class.origin)

    def full_replicas(self, request_class: RequestClass) -> int:
        """Those that could take it, but for what they have to do."""
        if request_class.service_class is not _INTERACTIVE:
            return 0
        return self.open_replicas(request_class) & ~self._replicas.available

    def open_replicas(self, request_class: RequestClass) -> int:
        """Those that could take it, whatever they have to do; of whoever yields, only those that have room."""
        if request_class.service_class is not _INTERACTIVE:
            return self.available_replicas(request_class)
        return self._targets_of(request_class).preferred_replicas & self._replicas.open

    # Other gateways

    def available_siblings(self, request_class: RequestClass) -> int:
        if not self._sibling_mask or not request_class.may_stay_in_region:
            return 0
        return self._available_peers(request_class) & self._sibling_mask

    def available_remotes(self, request_class: RequestClass) -> int:
        if not self._peers.usable or not self._may_overflow(request_class):
            return 0
        return self._available_peers(request_class) & ~self._sibling_mask

    def shadow_remotes(self, request_class: RequestClass) -> int:
        """Where it might be forwarded, were overflow on and not in shadow."""
        may_go = request_class.may_cross_regions and request_class.pinned is None
        if not may_go or self._mode_of(request_class) is not OverflowMode.SHADOW:
            return 0
        return self._available_peers(request_class) & ~self._sibling_mask

    # Who could ever take it

    def may_ever_serve(self, request_class: RequestClass, barred_peers: int = 0) -> bool:
        """Is there anybody to wait for: a replica that may serve it, down or full as that may be, or a peer within its
        reach that is not barred to it? While a replica of ours is, or a peer is available, that is as cheap as to ask
        who is."""
        if request_class.pinned is not None:
            return self.can_ever_reach(request_class)
        if self.eligible_replicas(request_class):
            return True
        if (self.available_siblings(request_class) | self.available_remotes(request_class)) & ~barred_peers:
            return True
        return bool(self.peers_to_wait_for(request_class) & ~barred_peers)

    def serves_now(self, request_class: RequestClass) -> bool:
        """Is there anybody who serves it and can be reached, full as they may be? A peer is taken at its word: that of
        its replicas some live, it does not tell."""
        if self._targets_of(request_class).eligible_replicas & self._replicas.reachable:
            return True
        within_reach = self._within_reach(request_class) & self._peers.usable
        return bool(within_reach and self._peers.eligible(request_class.model, request_class.rule) & within_reach)

    def peers_to_wait_for(self, request_class: RequestClass) -> int:
        """Those that serve it, and those that may say so yet, of a model that is known. O(peers)."""
        model, rule = request_class.model, request_class.rule
        within_reach = self._within_reach(request_class)
        if not within_reach:
            return 0
        fit = request_class.fit
        heard = self._peers.eligible(model, rule, connectors=request_class.connectors, fit=fit) & within_reach
        unheard = self._peers.unheard(rule) & within_reach if fit is None or fit.takes_unknown else 0
        is_known = bool(heard) or self._replicas.serves(model) or self._peers.serves(model)
        return heard | unheard if is_known else 0

    # The one target that will do

    def can_ever_reach(self, request_class: RequestClass) -> bool:
        """Is the pinned target still ours or known, and does the rule allow it?"""
        pinned = request_class.pinned
        assert pinned is not None, "only for what is pinned"
        if pinned.kind is TargetKind.REPLICA:
            replica = self._replicas.get(ReplicaId(pinned.id))
            return replica is not None and self._may_take(replica.spec, request_class)
        peer = self._peers.get(GatewayId(pinned.id))
        if peer is None or not request_class.rule.allows(peer.spec.place):
            return False
        is_sibling = bool(self._sibling_mask >> peer.slot & 1)
        return request_class.may_stay_in_region if is_sibling else request_class.may_cross_regions

    def _may_take(self, spec: ReplicaSpec, request_class: RequestClass) -> bool:
        takes_it = spec.accepts is None or (
            request_class.origin is not None and spec.accepts.allows(request_class.origin)
        )
        return takes_it and spec.role is ReplicaRole.UNIFIED and request_class.rule.allows(spec.place)

    def pinned_target(
        self, request_class: RequestClass, *, takes_full: bool = False
    ) -> ReplicaState | PeerState | None:
        """The target, if it is free; a control request only needs it to answer. `takes_full`: or if it only has to do,
        where others are sent to it all the same, or wait for it: it would never be free for this one."""
        pinned = request_class.pinned
        if pinned is None or not self.can_ever_reach(request_class):
            return None
        if pinned.kind is TargetKind.REPLICA:
            replica = self._replicas.get(ReplicaId(pinned.id))
            free = self._replicas.open if takes_full else self._replicas.available
            if request_class.is_control:
                free = self._replicas.reachable
            return replica if replica is not None and free >> replica.slot & 1 else None
        peer = self._peers.get(GatewayId(pinned.id))
        return peer if peer is not None and self._peers.usable >> peer.slot & 1 else None

    # Inside

    def _targets_of(self, request_class: RequestClass) -> ClassTargets:
        targets = request_class.targets
        if targets is None or targets.config is not self._config:
            targets = request_class.targets = ClassTargets(self._config)
        if targets.replicas_version != self._replicas.version or request_class.failed_replicas:
            targets.replicas_version = self._replicas.version
            targets.eligible_replicas = self._untried_replicas_or_all(request_class)
            targets.preferred_replicas = self._preferred_among(targets.eligible_replicas, request_class)
        return targets

    def _preferred_among(self, replicas: int, request_class: RequestClass) -> int:
        if request_class.fit is None:
            return replicas
        mask = 0
        for pool in request_class.fit.preferred:
            mask |= self._replicas.in_pool(pool)
        return replicas & mask

    def _untried_replicas_or_all(self, request_class: RequestClass) -> int:
        """A request avoids the replicas that failed it, as long as there is anywhere else it could ever go."""
        everywhere = self._everywhere(request_class)
        untried = everywhere & ~request_class.failed_replicas
        if untried or self._has_untried_peer(request_class):
            return untried
        return everywhere

    def _everywhere(self, request_class: RequestClass) -> int:
        """Every replica that may serve it, whatever failed it before."""
        wanted = request_class
        mask = self._replicas.eligible(
            wanted.model, wanted.rule, wanted.origin, connectors=wanted.connectors, fit=wanted.fit
        )
        return mask & self._replicas.continuing if wanted.goes_on else mask

    def _available_peers(self, request_class: RequestClass) -> int:
        targets = self._targets_of(request_class)
        if targets.peers_version != self._peers.version:
            targets.peers_version = self._peers.version
            targets.available_peers = self._untried_peers_or_all(request_class)
            if request_class.service_class is not _INTERACTIVE:
                targets.available_peers = self.peers_with_room(targets.available_peers, request_class)
        return targets.available_peers

    def peers_with_room(self, mask: int, request_class: RequestClass) -> int:
        """Of these, which are available, those that say they have room to spare."""
        return self.rooms.peers_with_room(mask, request_class) if mask else 0

    def _untried_peers_or_all(self, request_class: RequestClass) -> int:
        """Peers that failed the request are asked again only when there is nobody else whom it could ever ask."""
        wanted = request_class
        available = self._peers.available(wanted.model, wanted.rule, connectors=wanted.connectors, fit=wanted.fit)
        untried = available & ~request_class.failed_peers
        if untried or not request_class.failed_peers or self._has_untried_peer(request_class):
            return untried
        everywhere = self._everywhere(request_class)
        return untried if everywhere & ~request_class.failed_replicas else available

    def _has_untried_peer(self, request_class: RequestClass) -> bool:
        within_reach = self._within_reach(request_class)
        if not within_reach:
            return False
        wanted = request_class
        eligible = self._peers.eligible(wanted.model, wanted.rule, connectors=wanted.connectors, fit=wanted.fit)
        return bool(eligible & within_reach & ~request_class.failed_peers)

    def _within_reach(self, request_class: RequestClass) -> int:
        """Where it may be forwarded at all, whoever that is."""
        within_reach = self._sibling_mask if request_class.may_stay_in_region else 0
        if self._may_overflow(request_class):
            within_reach |= ~self._sibling_mask
        return within_reach

    def _may_overflow(self, request_class: RequestClass) -> bool:
        return request_class.may_cross_regions and self._mode_of(request_class) is OverflowMode.ON

    def _mode_of(self, request_class: RequestClass) -> OverflowMode:
        return self._config.overflow_of(request_class.model)
