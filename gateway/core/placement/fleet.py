"""What a policy may look at: how busy and how far each target is, what it was sent before, the one source of chance.

Targets are slots in masks. It answers; it changes nothing but whose turn it is among equals.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from gateway.core.bits import select_slot, slots_of
from gateway.core.config import PlacementConfig
from gateway.core.peers import Peers
from gateway.core.pools import PoolFit
from gateway.core.prefix_index import Match, PrefixIndex
from gateway.core.prices import Prices, PriceTable, ReplicaPrice
from gateway.core.replicas import Replicas, ReplicaState
from gateway.core.vocabulary import ModelCapacity, ModelName, PoolName, RegionName, RequestProfile, ServiceClass

_NOWHERE = RegionName("")
ExactMatch = Callable[[RequestProfile, int], Match]
"""Which replicas of a mask have most of a request's prompt in their caches right now, and how much that is."""


class Fleet:
    """Our replicas and the other gateways, as a policy sees them. Once a target has left, its slot may be another's."""

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
        """Ours: what is sent elsewhere leaves it."""
        self.prices: PriceTable | None = None
        """Those in force at this time of day; None: nobody has said any."""
        self.first_token_slos_ns: dict[ServiceClass, int] = {}
        """By class, when its first tokens were promised."""
        self.fit: PoolFit | None = None
        """Of the request that is placed at this moment: which of another gateway's pools count. None: all."""
        self.exact_match: ExactMatch | None = None
        """Whoever can look into the replicas' caches answers in place of the index: a simulation, to tell what that
        would be worth."""
        self.empty_indexes(config)

    def empty_indexes(self, config: PlacementConfig) -> None:
        """Forget every prefix, and remember others within the bounds of these settings."""
        self.replica_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        self.peer_index = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        """The regional snapshot: what we forwarded where."""

    def first_token_slo_ns(self, profile: RequestProfile) -> int:
        """What its class is promised; 0: nothing."""
        return self.first_token_slos_ns.get(profile.service_class, 0)

    def take_prices(self, prices: Prices | None) -> None:
        self.prices = None if prices is None else PriceTable(prices)

    # Replicas

    def serves_here(self, model: ModelName) -> bool:
        """Is there a replica of ours for it, up or down?"""
        return self._replicas.serves(model)

    def replica(self, slot: int) -> ReplicaState:
        """Replica of ours in that slot, with all that is known of it; a policy only reads it."""
        return self._replicas.at(slot)

    def replica_load(self, slot: int) -> int:
        """Requests there, running and waiting, as far as known."""
        return self._replicas.load_at(slot)

    def replica_region(self, slot: int) -> RegionName:
        """Where it stands: mostly ours."""
        return self._replicas.at(slot).spec.place.region

    def replica_pool(self, slot: int) -> PoolName:
        return self._replicas.at(slot).spec.pool

    def replica_price(self, slot: int) -> ReplicaPrice | None:
        """None where nobody has said any."""
        return None if self.prices is None else self.prices.of(self.replica_region(slot), self.replica_pool(slot))

    def replica_kv_tokens(self, slot: int) -> int:
        """Room in its cache; 0 where the engine does not tell."""
        return self._replicas.at(slot).kv_tokens

    def last_sent_ns(self, profile: RequestProfile, slot: int) -> int | None:
        """When the prompt that this one goes on from was sent there last; None if it goes on from none."""
        return self.replica_index.last_sent_ns(profile.prefix, slot)

    def few_least_loaded(self, mask: int, count: int, first: int = 0) -> list[int]:
        """Up to so many slots of a mask, the least loaded first; of equal ones, those from slot `first` on."""
        return self._replicas.few_least_loaded(mask, count, first)

    def replica_in_flight(self, slot: int) -> int:
        """Our own legs there."""
        return self._replicas.at(slot).in_flight

    def replica_backlog_bytes(self, slot: int) -> int:
        """Of our own legs there without a first token, the bytes of prompt that it was not known to have."""
        return self._replicas.at(slot).backlog_bytes

    def least_loaded_replica(self, mask: int) -> int:
        """The slot with the lowest load; equal ones take turns. O(distinct loads)."""
        return self._replicas.least_loaded(mask)

    def match_replicas(self, profile: RequestProfile, mask: int) -> Match:
        """Those that were sent most of the prompt. Nobody was, as far as is known, unless the policy has the prefixes
        remembered."""
        if self.exact_match is not None:
            return self.exact_match(profile, mask)
        return self.replica_index.match(profile.prefix, mask)

    # Other gateways

    def peer_load(self, slot: int, model: ModelName) -> int:
        """Its queue for the model, and our forwards that it has not counted yet."""
        state = self._peers.at(slot)
        return self._peers.queue_length(state, model) + len(state.unreflected)

    def _served(self, slot: int, model: ModelName) -> list[ModelCapacity]:
        """What another gateway has that this request would run on."""
        served = [each for each in self._peers.at(slot).served if each.model == model]
        return served if self.fit is None else self.fit.preferred_among(served)

    def peer_backlog_bytes(self, slot: int) -> int:
        """Of our own forwards there without a first token, the bytes of prompt that were not forwarded there before."""
        return self._peers.at(slot).backlog_bytes

    def peer_load_per_replica(self, slot: int, model: ModelName) -> float:
        """Requests on each of its replicas for the model on average, with our forwards that it has not counted yet."""
        state = self._peers.at(slot)
        replicas = load = 0
        for capacity in self._served(slot, model):
            replicas += capacity.replicas
            load += capacity.load
        return (load + len(state.unreflected)) / max(1, replicas)

    def total_load(self, mask: int) -> int:
        """Requests on all of them together. O(distinct loads)."""
        return self._replicas.total_load(mask)

    def peer_replicas(self, slot: int, model: ModelName) -> int:
        return sum([each.replicas for each in self._served(slot, model)])

    def least_peer_load(self, mask: int, model: ModelName) -> float:
        """On each replica of whoever of a mask has least; 0 for an empty one."""
        return min((self.peer_load_per_replica(slot, model) for slot in slots_of(mask)), default=0.0)

    def peer_backlog(self, slot: int, model: ModelName) -> int:
        """Bytes of prompt that whichever of its replicas has least to read has to read first, as it told last, with
        those of our forwards since."""
        state = self._peers.at(slot)
        told = min([each.backlog_bytes for each in self._served(slot, model)], default=0)
        return told + sum(state.prefilling.get(key, 0) for key in state.unreflected)

    def peer_wait_ns(self, slot: int, model: ModelName) -> float:
        """Time that one more request waits there for a slot, by its last heartbeat; 0 where one is free."""
        return self._peers.wait_ns(self._peers.at(slot), model, self.fit)

    def peer_free_tokens(self, slot: int, model: ModelName) -> int | None:
        """Room in the KV cache of the replica there that has most; None: nobody knows."""
        told = [each.free_tokens for each in self._served(slot, model) if each.free_tokens is not None]
        return max(told, default=None)

    def peer_region(self, slot: int) -> RegionName:
        """Its own; some of its replicas may stand elsewhere."""
        return self._peers.at(slot).spec.place.region

    def peer_prices(self, slot: int, model: ModelName) -> list[ReplicaPrice]:
        """Of what it has that this request would run on, one for each place and pool; empty where the list in force has
        nothing on one of them, or there is none."""
        if self.prices is None:
            return []
        found = [self.prices.of(each.place.region, each.pool) for each in self._served(slot, model)]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else []

    def peer_rtt_ns(self, slot: int) -> int:
        return self._peers.at(slot).rtt_ns

    def nearest_peer(self, mask: int, model: ModelName) -> int:
        """By round trip, then by load, then by slot. O(slots in the mask)."""
        return min(slots_of(mask), key=lambda slot: (self.peer_rtt_ns(slot), self.peer_load(slot, model)))

    def least_loaded_peer(self, mask: int, model: ModelName) -> int:
        """By load, then by round trip, then by slot. O(slots in the mask)."""
        return min(slots_of(mask), key=lambda slot: (self.peer_load(slot, model), self.peer_rtt_ns(slot)))

    def match_peers(self, profile: RequestProfile, mask: int) -> Match:
        """Those to which most of the prompt was forwarded, under the same condition as for replicas."""
        return self.peer_index.match(profile.prefix, mask)

    # Chance

    def any_of(self, mask: int) -> int:
        return select_slot(mask, self.rng.randrange(mask.bit_count()))
