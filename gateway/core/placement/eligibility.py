"""Eligible targets of a class of requests: the rules that apply before any policy is asked.

Residency, forwarding, overflow, pools and earlier failures of a request are judged here, for each kind of target
separately. Replicas in a pool that the request prefers come first; replicas in other pools that take it are a last
resort (`spill_replicas`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import OverflowMode, PlacementConfig
from gateway.core.kernel.peers import Peers, PeerState
from gateway.core.kernel.replicas import Replicas, ReplicaState
from gateway.core.kernel.request_class import ClassTargets, RequestClass
from gateway.core.kernel.spare_capacity import Homes, SpareCapacity
from gateway.core.vocabulary import (
    GatewayId,
    ModelName,
    PoolName,
    RegionName,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
    ServiceClass,
    Target,
    TargetKind,
)

_INTERACTIVE: Final = ServiceClass.INTERACTIVE
PoolQueue = Callable[[ModelName, PoolName], int]
"""Counts the queued requests for a model that prefer that pool."""


class Eligibility:
    """Masks of eligible and available targets by request class. Costs do not grow with the number of replicas, except
    in the last resorts."""

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
        self.spare_capacity = SpareCapacity(replicas, peers, homes)
        self._region = region
        self._config = config
        self._replicas = replicas
        self._peers = peers
        self._sibling_mask = 0
        self.may_shadow = False
        """True if overflow is in shadow mode for some model."""
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
        """Replicas that may serve the class, in any pool, available or not."""
        return self._targets_of(request_class).eligible_replicas

    def awaited_replicas(self, request_class: RequestClass) -> int:
        """Replicas that a waiting request takes as soon as they have a free slot: of pools, the preferred one's."""
        pinned = request_class.pinned
        if pinned is not None:
            return self._replicas.mask_of([pinned]) if pinned.kind is TargetKind.REPLICA else 0
        return self._targets_of(request_class).preferred_replicas

    def slots_given(self, request_class: RequestClass) -> int:
        """Slots that waiting requests of the class will be given by requests that yield."""
        replicas = self._replicas
        if not (replicas.giving and request_class.goes_first):
            return 0
        mask = self.awaited_replicas(request_class) & replicas.giving & replicas.open
        return sum(max(0, replicas.at(slot).room + replicas.at(slot).yielding) for slot in slots_of(mask))

    def available_replicas(self, request_class: RequestClass) -> int:
        mask = self._targets_of(request_class).preferred_replicas & self._replicas.available
        return mask if request_class.service_class is _INTERACTIVE else self.with_room(mask, request_class)

    def with_room(self, mask: int, request_class: RequestClass) -> int:
        """Available replicas of the mask that have room to spare."""
        return self.spare_capacity.replicas_with_room(mask, request_class) if mask else 0

    def spill_replicas(self, request_class: RequestClass) -> int:
        """Available own replicas in an alternate pool: while the preferred pool is overloaded and no request waits for
        the alternate one, or, once no replica of the preferred pool answers, even if requests wait there."""
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
            mask = free & self._replicas.groups.in_pool(pool)
            if mask and (is_gone or not self._waiting_in(request_class, pool)):
                return mask
        return 0

    def is_gone(self, request_class: RequestClass) -> bool:
        """Return true if no replica of the preferred pools answers."""
        return not self._targets_of(request_class).preferred_replicas & self._replicas.reachable

    def _waiting_in(self, request_class: RequestClass, pool: PoolName) -> int:
        return self._pool_queue(request_class.model, pool)

    def closed_replicas(self, request_class: RequestClass) -> int:
        """Replicas that would serve the class, had the request arrived elsewhere."""
        return self._replicas.groups.closed_to(request_class.model, request_class.rule, request_class.origin)

    def open_replicas(self, request_class: RequestClass) -> int:
        """Replicas that could take the class whatever their load; for classes that yield, only those with room."""
        if request_class.service_class is not _INTERACTIVE:
            return self.available_replicas(request_class)
        return self._targets_of(request_class).preferred_replicas & self._replicas.open

    # Peers

    def available_siblings(self, request_class: RequestClass) -> int:
        if not self._sibling_mask or not request_class.may_stay_in_region:
            return 0
        return self.available_peers(request_class) & self._sibling_mask

    def available_remotes(self, request_class: RequestClass) -> int:
        if not self._peers.usable or not self._may_overflow(request_class):
            return 0
        return self.available_peers(request_class) & ~self._sibling_mask

    def shadow_remotes(self, request_class: RequestClass) -> int:
        """Peers that a request might be forwarded to if overflow were on instead of in shadow mode."""
        may_go = request_class.may_cross_regions and request_class.pinned is None
        if not may_go or self._mode_of(request_class) is not OverflowMode.SHADOW:
            return 0
        return self.available_peers(request_class) & ~self._sibling_mask

    # Reachability

    def may_ever_serve(self, request_class: RequestClass, barred_peers: int = 0) -> bool:
        """Return true if it makes sense to wait: some replica may serve the class, even if down or full, or some peer
        within reach is not barred. Cheap while an own replica may serve it or a peer is available."""
        if request_class.pinned is not None:
            return self.can_ever_reach(request_class)
        if self.eligible_replicas(request_class):
            return True
        if (self.available_siblings(request_class) | self.available_remotes(request_class)) & ~barred_peers:
            return True
        return bool(self.peers_to_wait_for(request_class) & ~barred_peers)

    def serves_now(self, request_class: RequestClass) -> bool:
        """Return true if a reachable replica or peer serves the class, even if full. Peers do not report whether some
        of their replicas are up, so a usable peer that lists the model counts."""
        if self._targets_of(request_class).eligible_replicas & self._replicas.reachable:
            return True
        within_reach = self._within_reach(request_class) & self._peers.usable
        return bool(within_reach and self._peers.eligible(request_class.model, request_class.rule) & within_reach)

    def rooms(self, request_class: RequestClass) -> dict[Target, int]:
        """Number of requests of the class that each available target could begin at once, by its last report, what was
        sent there since and the limits on own legs there. An interactive one is given the slots of those that yield;
        for a class that yields itself, each target counts as one. Targets that failed the request and those without
        room are left out. O(available targets)."""
        wanted = request_class
        replicas = self.available_replicas(wanted) & ~wanted.failed_replicas
        peers = (self.available_siblings(wanted) | self.available_remotes(wanted)) & ~wanted.failed_peers
        yields = wanted.service_class is not _INTERACTIVE
        found: dict[Target, int] = {}
        for slot in slots_of(replicas):
            replica = self._replicas.at(slot)
            room = replica.room + (replica.yielding if wanted.goes_first else 0)
            found[replica.target] = 1 if yields else min(room, replica.legs_left)
        for slot in slots_of(peers):
            peer = self._peers.at(slot)
            room = self._peers.room(peer, wanted)
            found[peer.target] = min(room, 1 if yields else peer.legs_left)
        return found

    def batch_rooms(self, request_class: RequestClass) -> dict[RegionName, int]:
        """Requests of class `batch` that could run at once beside what runs, by each region that may serve them.
        O(targets)."""
        replicas = self._targets_of(request_class).preferred_replicas & self._replicas.available
        peers = self.available_siblings(request_class) | self.available_remotes(request_class)
        found = self.spare_capacity.batch_rooms(replicas, peers, request_class)
        for slot in slots_of(self.eligible_replicas(request_class)):
            found.setdefault(self._replicas.at(slot).spec.place.region, 0)
        within_reach = self._within_reach(request_class)
        for slot in slots_of(within_reach & self._peers.eligible(request_class.model, request_class.rule)):
            found.setdefault(self._peers.at(slot).spec.place.region, 0)
        return found

    def peers_to_wait_for(self, request_class: RequestClass) -> int:
        """Peers within reach that serve the class, and, if its model is known, those that have not reported yet.
        O(peers)."""
        model, rule = request_class.model, request_class.rule
        within_reach = self._within_reach(request_class)
        if not within_reach:
            return 0
        fit = request_class.fit
        heard = within_reach & self._peers.eligible(
            model, rule, connectors=request_class.connectors, fit=fit, identity=request_class.identity
        )
        unheard = self._peers.unheard(rule) & within_reach if fit is None or fit.takes_unknown else 0
        is_known = bool(heard) or self._replicas.groups.serves(model) or self._peers.serves(model)
        return heard | unheard if is_known else 0

    # Pinned requests

    def can_ever_reach(self, request_class: RequestClass) -> bool:
        """Return true if the pinned target is still known and the residency rule allows it."""
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
        """Return the pinned target if it is free. A control request needs only a reachable one. With `takes_full` a
        full replica counts too: where the policy sends or holds other requests for it, it would never become free for
        this one."""
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

    # Internals

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
            mask |= self._replicas.groups.in_pool(pool)
        return replicas & mask

    def _untried_replicas_or_all(self, request_class: RequestClass) -> int:
        """Replicas that did not fail the request, as long as it has any other target it could ever go to; else all."""
        everywhere = self._everywhere(request_class)
        untried = everywhere & ~request_class.failed_replicas
        if untried or self._has_untried_peer(request_class):
            return untried
        return everywhere

    def _everywhere(self, request_class: RequestClass) -> int:
        """Replicas that may serve the request, including those that failed it."""
        wanted = request_class
        mask = self._replicas.groups.eligible(
            wanted.model,
            wanted.rule,
            wanted.origin,
            connectors=wanted.connectors,
            fit=wanted.fit,
            identity=wanted.identity,
        )
        return mask & self._replicas.appending if wanted.appends else mask

    def available_peers(self, request_class: RequestClass) -> int:
        """Peers that can take one more request of the class, whether or not it may leave this gateway."""
        targets = self._targets_of(request_class)
        if targets.peers_version != self._peers.version:
            targets.peers_version = self._peers.version
            targets.available_peers = self._untried_peers_or_all(request_class)
            if request_class.service_class is not _INTERACTIVE:
                targets.available_peers = self.peers_with_room(targets.available_peers, request_class)
        return targets.available_peers

    def peers_with_room(self, mask: int, request_class: RequestClass) -> int:
        """Peers of the mask, all available, that report room to spare."""
        return self.spare_capacity.peers_with_room(mask, request_class) if mask else 0

    def _untried_peers_or_all(self, request_class: RequestClass) -> int:
        """Available peers without those that failed the request, unless it has no other target it could ever go to."""
        wanted = request_class
        available = self._peers.available(
            wanted.model, wanted.rule,
            connectors=wanted.connectors, fit=wanted.fit, identity=wanted.identity, appends=wanted.appends,
            goes_first=wanted.goes_first,
        )  # fmt: skip
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
        eligible = self._peers.eligible(
            wanted.model, wanted.rule, connectors=wanted.connectors, fit=wanted.fit, identity=wanted.identity
        )
        return bool(eligible & within_reach & ~request_class.failed_peers)

    def _within_reach(self, request_class: RequestClass) -> int:
        """Slots that the class may be forwarded to at all, whether or not a peer has them."""
        within_reach = self._sibling_mask if request_class.may_stay_in_region else 0
        if self._may_overflow(request_class):
            within_reach |= ~self._sibling_mask
        return within_reach

    def _may_overflow(self, request_class: RequestClass) -> bool:
        return request_class.may_cross_regions and self._mode_of(request_class) is OverflowMode.ON

    def _mode_of(self, request_class: RequestClass) -> OverflowMode:
        return self._config.overflow_of(request_class.model)
