"""Placement policies' view of targets: load, distance and prompts sent to each, and the one source of chance.

Targets are slots in masks. The view answers questions; the only state it changes is the turn among equal targets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from gateway.core.kernel.bits import select_slot, slots_of
from gateway.core.kernel.config import PlacementConfig
from gateway.core.kernel.peers import Peers
from gateway.core.kernel.pools import PoolFit
from gateway.core.kernel.replicas import Replicas, ReplicaState
from gateway.core.placement.prefix_index import Match, PrefixIndex
from gateway.core.vocabulary import ModelCapacity, ModelName, PoolName, RegionName, RequestProfile, ServiceClass

_NOWHERE = RegionName("")
_EVERY_SLOT = -1
"""Mask of all slots."""
ExactMatch = Callable[[RequestProfile, int], Match]
"""Finds the replicas of a mask that have most of a request's prompt in their caches at this moment, and how much that
is."""
ToldMatch = Callable[[RequestProfile, int], int]
"""Finds how many of a prompt's first blocks the target in a slot says it holds."""


class PeerLoad:
    """Sums over a peer's capacities for one model."""

    __slots__ = ("backlog_bytes", "free_tokens", "load", "net_load", "replicas")

    def __init__(self, capacities: Sequence[ModelCapacity]) -> None:
        self.replicas = sum([each.replicas for each in capacities])
        self.load = sum([each.load for each in capacities])
        self.net_load = sum([max(0, each.load - each.yielding) for each in capacities])
        """Load without requests that yield."""
        self.backlog_bytes = min([each.backlog_bytes for each in capacities], default=0)
        self.free_tokens = max([each.free_tokens for each in capacities if each.free_tokens is not None], default=None)


class Fleet:
    """Own replicas and peers, as a policy sees them. After a target has left, another one may get its slot."""

    def __init__(
        self,
        config: PlacementConfig,
        replicas: Replicas,
        peers: Peers,
        rng: random.Random,
        *,
        region: RegionName = _NOWHERE,
    ) -> None:
        self._replicas = replicas
        self._peers = peers
        self.rng = rng
        self.region = region
        """Region of this gateway; requests sent to other regions leave it."""
        self.facts: dict[str, object] = {}
        """Facts that features tell policies, by a name that the feature defines."""
        self.first_token_slos_ns: dict[ServiceClass, int] = {}
        """First-token objective of each service class that has one."""
        self.goes_first = False
        """The request that is placed is given the slots of running ones that yield."""
        self.fit: PoolFit | None = None
        """Pools that suit the request being placed; only those of a peer count. None: all pools."""
        self.exact_match: ExactMatch | None = None
        """Set by a simulation that looks into the replicas' caches, in place of the index, to measure the value of
        exact matches."""
        self.told_match: ToldMatch | None = None
        """Set by a feature that hears from peers what their replicas hold."""
        self._loads: dict[int, tuple[Sequence[ModelCapacity], dict[tuple[ModelName, PoolFit | None], PeerLoad]]] = {}
        """Sums over each peer's capacities, by slot, and by model and pools, with the capacities that they are of."""
        self.empty_indexes(config)

    def empty_indexes(self, config: PlacementConfig) -> None:
        """Replace both indexes by empty ones with the bounds of these settings."""
        self.replica_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        self.peer_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        """Regional snapshot: prefixes of the prompts that were forwarded to each peer."""

    def first_token_slo_ns(self, profile: RequestProfile) -> int:
        """First-token objective of the request's class; 0: none."""
        return self.first_token_slos_ns.get(profile.service_class, 0)

    # Replicas

    def answers_here(self, model: ModelName) -> bool:
        """Return true if this gateway has a replica for the model that answers, however full it is."""
        return self._replicas.groups.has_any(model, self._replicas.reachable)

    def replica(self, slot: int) -> ReplicaState:
        """State of the own replica in that slot; a policy must only read it."""
        return self._replicas.at(slot)

    def replica_load(self, slot: int) -> int:
        """Requests at the replica, running and waiting, as far as known; for a request that goes first, without those
        that yield to it."""
        state = self._replicas.at(slot)
        return state.load - state.yielding if self.goes_first else state.load

    def replica_region(self, slot: int) -> RegionName:
        """Region of the replica, mostly this gateway's."""
        return self._replicas.at(slot).spec.place.region

    def replica_pool(self, slot: int) -> PoolName:
        return self._replicas.at(slot).spec.pool

    def replica_kv_tokens(self, slot: int) -> int:
        """Capacity of the replica's KV cache in tokens; 0 where the engine does not report it."""
        return self._replicas.at(slot).kv_tokens

    def last_sent_ns(self, profile: RequestProfile, slot: int) -> int | None:
        """Time at which the prompt that this one continues was last sent to the replica; None if it continues none."""
        return self.replica_index.last_sent_ns(profile.prefix, slot)

    def few_least_loaded(self, mask: int, count: int, first: int = 0) -> list[int]:
        """Up to `count` slots of a mask, the least loaded first; among equal ones, those from slot `first` on. For a
        request that goes first, those that yield to it are no load."""
        if self.goes_first and self._replicas.giving & mask:
            return self._replicas.rooms.few_least_loaded(mask, count, first)
        return self._replicas.few_least_loaded(mask, count, first)

    def replica_in_flight(self, slot: int) -> int:
        """Legs of this gateway at the replica."""
        return self._replicas.at(slot).in_flight

    def replica_backlog_bytes(self, slot: int) -> int:
        """Bytes of prompt that this gateway's legs without a first token have to prefill there, as far as known."""
        return self._replicas.at(slot).backlog_bytes

    def least_loaded_replica(self, mask: int) -> int:
        """Slot with the lowest load; equal ones take turns. For a request that goes first, those that yield to it are
        no load. O(distinct loads)."""
        if self.goes_first and self._replicas.giving & mask:
            return self._replicas.rooms.few_least_loaded(mask, 1, 0)[0]
        return self._replicas.least_loaded(mask)

    def match_replicas(self, profile: RequestProfile, mask: int) -> Match:
        """Replicas that were sent the longest prefix of the prompt. The match is empty unless the policy wants prefixes
        remembered."""
        if self.exact_match is not None:
            return self.exact_match(profile, mask)
        return self.replica_index.match(profile.prefix, mask)

    # Peers

    def peer_load(self, slot: int, model: ModelName) -> int:
        """Length of the peer's queue for the model, plus forwards from here that its last heartbeat does not count."""
        state = self._peers.at(slot)
        return self._peers.queue_length(state, model) + len(state.unreflected)

    def served_by(self, slot: int, model: ModelName) -> list[ModelCapacity]:
        """Capacities of a peer that the request being placed would run on."""
        served = [each for each in self._peers.at(slot).served if each.model == model]
        return served if self.fit is None else self.fit.preferred_among(served)

    def peer_load_per_replica(self, slot: int, model: ModelName, *, counts_yielding: bool = False) -> float:
        """Mean number of requests on each of the peer's replicas for the model, plus forwards that its heartbeat does
        not count; for a request that goes first, without those that yield to it, unless `counts_yielding`."""
        told = self._load_told(slot, model)
        load = told.net_load if self.goes_first and not counts_yielding else told.load
        return (load + len(self._peers.at(slot).unreflected)) / max(1, told.replicas)

    def _load_told(self, slot: int, model: ModelName) -> PeerLoad:
        """Sums over the peer's capacities that the request being placed would run on. They are computed once for each
        heartbeat, unless the peer does not serve the model."""
        served = self._peers.at(slot).served
        known = self._loads.get(slot)
        if known is None or known[0] is not served:
            known = self._loads[slot] = served, {}
        load = known[1].get((model, self.fit))
        if load is None:
            capacities = self.served_by(slot, model)
            load = PeerLoad(capacities)
            if capacities:
                known[1][model, self.fit] = load
        return load

    def total_load(self, mask: int) -> int:
        """Requests on all replicas of the mask together; for a request that goes first, without those that yield to it.
        O(distinct loads)."""
        if self.goes_first and self._replicas.giving & mask:
            return self._replicas.rooms.total_load(mask)
        return self._replicas.total_load(mask)

    def peer_replicas(self, slot: int, model: ModelName) -> int:
        return self._load_told(slot, model).replicas

    def least_peer_load(self, mask: int, model: ModelName) -> float:
        """Lowest load per replica among the peers of a mask; 0 for an empty mask."""
        return min((self.peer_load_per_replica(slot, model) for slot in slots_of(mask)), default=0.0)

    def peer_backlog(self, slot: int, model: ModelName) -> int:
        """Bytes of prompt ahead in the peer's least busy replica by its last heartbeat, plus those of forwards
        since."""
        state, told = self._peers.at(slot), self._load_told(slot, model).backlog_bytes
        return told + sum([state.prefilling.get(key, 0) for key in state.unreflected]) if state.unreflected else told

    def peer_wait_ns(self, slot: int, model: ModelName, *, appends: bool = False) -> float:
        """Nanoseconds that one more request waits at the peer for a slot, by its last heartbeat; 0 if one is free.
        `appends`: its answer has begun, so that no new request is ahead of it there."""
        return self._peers.wait_ns(self._peers.at(slot), model, self.fit, appends=appends, goes_first=self.goes_first)

    def peer_free_tokens(self, slot: int, model: ModelName) -> int | None:
        """Largest free KV cache among the peer's replicas, in tokens; None: not reported."""
        return self._load_told(slot, model).free_tokens

    def peer_region(self, slot: int) -> RegionName:
        """Region of the peer; some of its replicas may stand elsewhere."""
        return self._peers.at(slot).spec.place.region

    def peer_rtt_ns(self, slot: int) -> int:
        return self._peers.at(slot).rtt_ns

    def nearest_peer(self, mask: int, model: ModelName) -> int:
        """Peer with the shortest round trip, then the lowest load, then the lowest slot. O(slots in the mask)."""
        return min(slots_of(mask), key=lambda slot: (self.peer_rtt_ns(slot), self.peer_load(slot, model)))

    def least_loaded_peer(self, mask: int, model: ModelName) -> int:
        """Peer with the lowest load, then the shortest round trip, then the lowest slot. O(slots in the mask)."""
        return min(slots_of(mask), key=lambda slot: (self.peer_load(slot, model), self.peer_rtt_ns(slot)))

    def match_peers(self, profile: RequestProfile, mask: int) -> Match:
        """Peers that are expected to hold the longest prefix of the prompt: it was forwarded there, or they say so. The
        match is empty unless the policy wants prefixes remembered, or peers tell theirs."""
        match = self.peer_index.match(profile.prefix, mask)
        return match if self.told_match is None else self._longer_told(profile, mask, match)

    def told_blocks(self, profile: RequestProfile, slot: int) -> int:
        """Blocks of the prompt that only the peer's own word says it holds, counted from the first; 0 if forwards from
        here explain as many."""
        told = self._told(profile, slot)
        return told if told and told > self.peer_index.match(profile.prefix, 1 << slot).blocks else 0

    def _told(self, profile: RequestProfile, slot: int) -> int:
        """Blocks of the prompt that a peer says it holds; 0 if an own replica was sent as many. A peer's word counts
        only for what its region alone knows: beginnings that every region knows would let sessions leave theirs for
        nothing."""
        told = 0 if self.told_match is None else self.told_match(profile, slot)
        return told if told and told > self.replica_index.match(profile.prefix, _EVERY_SLOT).blocks else 0

    def _longer_told(self, profile: RequestProfile, mask: int, match: Match) -> Match:
        """The longer of a match and what the peers of the mask tell."""
        blocks, holders = match.blocks, match.mask
        for slot in slots_of(mask):
            told = self._told(profile, slot)
            if told > blocks:
                blocks, holders = told, 1 << slot
            elif told and told == blocks:
                holders |= 1 << slot
        return Match(blocks, holders)

    # Chance

    def any_of(self, mask: int) -> int:
        return select_slot(mask, self.rng.randrange(mask.bit_count()))
