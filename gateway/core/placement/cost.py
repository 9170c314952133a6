"""Default placement policy: the target with the lowest cost among all that a request may go to, or waiting here for one
of this gateway's replicas.

All costs are times, estimated from what this gateway has observed. Prefilling the uncached part of the prompt occupies
a replica and slows the requests that run there; the request itself pays for the prefill ahead of it and for the round
trip. Prefill delays every running request, as many as there are on average, and a wait delays one, so a wait counts for
that much less; but a copy made elsewhere serves all requests that wait for the same prefix. The policy compares the few
replicas with the longest match and the few least loaded, never all of them.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gateway.core.kernel.bits import slots_of
from gateway.core.kernel.config import PlacementConfig
from gateway.core.kernel.replicas import ReplicaState
from gateway.core.kernel.requests import Hold
from gateway.core.kernel.slots import wait_for_slot_ns
from gateway.core.placement.caches import Caches
from gateway.core.placement.first_token import FirstTokenLine
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.holds import Holds
from gateway.core.placement.policy import Choice, Offer, Policy, Weighed
from gateway.core.vocabulary import (
    PREFIX_HASH_BYTES,
    Costs,
    PlacementReason,
    RequestId,
    RequestProfile,
    Target,
    TargetKind,
)

_HOLDERS_MAX: Final = 4
_IDLEST_MAX: Final = 4
_PRIOR_NS_PER_BYTE: Final = 10_000.0
"""Prefill time of a byte until first tokens have been measured: an 8B model on an H100 prefills four bytes in 40 µs. An
L4 takes ten times as long, which the first few requests show."""
_NS_PER_BYTE_MAX: Final = 1_000_000.0
"""Upper bound of a measured prefill time, a hundred times the prior: anything slower was not prefill alone."""
_SAMPLE_BYTES_MIN: Final = 256
"""Smallest prefill that counts as a sample: shorter ones measure the overhead of a first token only."""
_STANDS_STILL_NS: Final = 1_000_000_000
"""Time after which a queue that has not moved is waiting for more than a prefill."""
_QUEUED_IN_ENGINE_MAX: Final = 1
"""Requests that may wait in an engine for a slot, so that no slot stays empty between two requests."""
_SLOT_WAIT_WEIGHT: Final = 2
"""Weight of a wait for a slot against a wait for prefill: while a slot is free elsewhere, later requests queue behind
this one as well."""
_DISTANCE_WEIGHT: Final = 2
"""Weight of the round trip to a peer against a wait: a round trip is measured, while a wait is estimated with an error
as large as itself, so a request is forwarded only if it gains more than that."""
_WAYS_MORE_MAX: Final = 2.0
"""Largest number of later requests of the session that the round trip is counted for, since each of them takes it
too."""
_CROWDED: Final = 1.2
_CROWDED_BY: Final = 4
"""Ratio and number of requests by which the own replicas' mean load must exceed a peer's for the region to count as
crowded against it: smaller differences come and go, and a long session is dear to move."""
_CROWDED_WAYS: Final = 0.25
"""Weight of the round trip to a peer while the own replicas are crowded against it: a session that stays slows all
others for as long as it stays, by more than `explore_load_bytes` says."""
_SMALL_LOAD: Final = 12
"""Mean load, plus one, up to which one more request on a replica weighs `explore_load_bytes`. Above, it weighs less in
proportion: prefill delays all requests that run, so it weighs more and more against one of them, and the loads of large
replicas differ by chance by more than a session is worth moving for."""
_INTERVAL_KEEPS: Final = 0.95
"""Weight of the old average when one more interval comes; the last twenty make it."""


class _Books:
    """Observations of one replica that belong to this policy only."""

    __slots__ = ("began_ns", "ended_ns", "holds", "interval_ns", "prefilled_ns", "reading_since_ns", "state")

    def __init__(self, state: ReplicaState) -> None:
        self.state = state
        self.holds = Holds()
        self.began_ns: int | None = None
        """Time at which the first leg was sent to the replica."""
        self.ended_ns: int | None = None
        self.interval_ns = 0.0
        """Mean time between ends of legs at the replica, over the last few."""
        self.prefilled_ns = 0
        """Time of the replica's last first token."""
        self.reading_since_ns = 0
        """Time at which the replica began the first prompt that has no first token yet."""

    def leaving_ns(self, now_ns: int) -> float:
        """Nanoseconds until a request leaves the replica. Before any interval was measured: the time since the first
        leg was sent there, its last first token came or its last leg ended, whichever is latest, if at least a second,
        else 0. A request queued behind the first answer of a slow engine thus has a wait."""
        if self.interval_ns:
            return self.interval_ns
        if self.began_ns is None:
            return 0.0
        stood_still_ns = now_ns - max(self.began_ns, self.prefilled_ns, self.ended_ns or 0)
        return float(stood_still_ns) if stood_still_ns >= _STANDS_STILL_NS else 0.0


class CostPolicy(Policy):
    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._books: dict[int, _Books] = {}
        self._line = FirstTokenLine()
        """First-token model of all own replicas: one of its own for each would keep avoiding a replica that once looked
        slow, and never measure it again."""
        self._caches = Caches(fleet, config)
        self._turn = 0
        self._load = 0.0
        self._load_here = 0.0
        """Mean load of the own replicas of the latest offer."""
        self._delay_weight = 1.0
        self._crowding_bytes = 0.0
        """Bytes of prompt whose prefill weighs as much as one more request on a replica, for the latest offer."""
        self._full_share = 0.0
        """Share of full caches among the own replicas compared last; peers' caches are taken to be full to the same
        degree."""
        self._arrived_ns = 0
        self._now_ns = 0
        self._appends = False
        """True if the answer of the latest request weighed has begun: new requests held for a replica are behind it."""
        self._byte_ns = _PRIOR_NS_PER_BYTE
        """Prefill time of one byte."""
        self._replicas: list[Weighed] = []
        self._peers: list[Weighed] = []
        """Targets that were compared for the latest request."""
        self._chosen: tuple[RequestId, int, int] | None = None
        """Request, bytes of its prompt, and slot of the replica that was chosen last."""
        self._chosen_unread_bytes = 0
        """Bytes of that prompt that the replica has to prefill."""

    def wants_prefixes(self) -> bool:
        return True

    def takes_full_replicas(self) -> bool:
        return True

    # Questions

    def weigh(self, profile: RequestProfile, offer: Offer, now_ns: int, /) -> Choice | None:
        self._now_ns = now_ns
        self._arrived_ns = offer.arrived_ns
        self._look_around(profile, offer)
        slot, blocks, cost_ns = self._cheapest_replica(profile, offer)
        peers = offer.siblings | offer.remotes
        if peers:
            peer, known, peer_cost_ns = self._cheapest_peer(profile, peers, cost_ns if slot >= 0 else inf)
            if peer < 0 and not self.fleet.answers_here(profile.model):  # no own replica to wait for instead
                peer, known, peer_cost_ns = self._cheapest_peer(profile, peers, must_fit=False)
            if peer >= 0 and (slot < 0 or peer_cost_ns < cost_ns):
                choice = Choice(peer, known, _reason_there(known, is_remote=bool(offer.remotes >> peer & 1)))
                choice.is_peer = True
                return self._with_rivals(choice)
        return None if slot < 0 else self._with_rivals(self._replica_choice(profile, offer, slot, blocks))

    def _with_rivals(self, choice: Choice) -> Choice:
        choice.replicas, choice.peers = self._replicas, self._peers
        return choice

    def reading_again_ns(self, uncached_bytes: int) -> float:
        return self._caches.follow_ups() * self._byte_ns * uncached_bytes

    def byte_ns(self) -> float:
        return self._byte_ns

    def costs_at_replica(
        self, profile: RequestProfile, slot: int, held: Hold | None, matched_blocks: int = -1
    ) -> Costs:
        """Costs against the load found when the request was weighed; it must be the latest one that was."""
        blocks = self.fleet.match_replicas(profile, 1 << slot).blocks if matched_blocks < 0 else matched_blocks
        return self._replica_costs(profile, slot, blocks, held)

    def costs_at_peer(self, profile: RequestProfile, slot: int, matched_blocks: int = -1) -> Costs:
        blocks = self.fleet.match_peers(profile, 1 << slot).blocks if matched_blocks < 0 else matched_blocks
        return self._peer_costs(profile, slot, blocks)

    def _look_around(self, profile: RequestProfile, offer: Offer) -> None:
        """Prepare the comparison of one request: loads and the targets allowed differ between requests."""
        self._appends = profile.appends
        ours = offer.replicas.bit_count()
        total = self.fleet.total_load(offer.replicas)
        self._load_here = total / ours if ours else 0.0
        peers = offer.siblings | offer.remotes
        self._load = self._load_everywhere(profile, ours, total, peers) if peers else self._load_here
        self._delay_weight = self.config.delay_weight / (1 + self._load)
        self._crowding_bytes = self.config.explore_load_bytes * min(1.0, _SMALL_LOAD / (1 + self._load))
        self._replicas, self._peers = [], []

    def _load_everywhere(self, profile: RequestProfile, ours: int, total: int, peers: int) -> float:
        """Mean number of requests per replica over all targets of the offer: `total` on `ours` own replicas, and those
        of a mask of peers. A peer counts for at most as many replicas as there are own ones, and none of them as busier
        than those: a peer's report can lower the mean by half at most, and never raise it."""
        fleet = self.fleet
        replicas = ours
        load = float(total)
        load_max = load / ours if ours else fleet.least_peer_load(peers, profile.model)
        for slot in slots_of(peers):
            count = min(fleet.peer_replicas(slot, profile.model), max(1, ours))
            replicas += count
            load += count * min(fleet.peer_load_per_replica(slot, profile.model), load_max)
        return load / max(1, replicas)

    def _share_delayed(self, load: float) -> float:
        """Share of the mean load that a prefill at a target delays: below 1 only where less than half of the mean load
        runs. Smaller differences are ignored, because reported loads are old, and many little-used replicas equal a few
        busy ones."""
        return (1 + load) / (1 + self._load) if 2 * load < self._load else 1.0

    def _reading_ns(self, uncached_bytes: int, load: float, full_share: float) -> float:
        """Cost of prefilling so many bytes. In a full cache they evict as much, which will be prefilled again, so a
        conversation tends to stay where its cache is."""
        reading_ns = self._byte_ns * uncached_bytes * self._share_delayed(load)
        return reading_ns * (1 + self._caches.follow_ups() * full_share) if full_share else reading_ns

    def _is_full(self, slot: int) -> bool:
        """Return true if the cache evicts prefixes that are still in use: it keeps unused ones for less than
        `kept_gaps` mean gaps between turns."""
        caches = self._caches
        return caches.kept_for_ns(slot, self._now_ns) < self.config.kept_gaps * caches.gap_ns

    # Own replicas

    def _cheapest_replica(self, profile: RequestProfile, offer: Offer) -> tuple[int, int, float]:
        """Return the slot (−1: there is none), the blocks of the prompt that it has, and its cost."""
        fleet = self.fleet
        match = fleet.match_replicas(profile, offer.replicas)
        candidates = fleet.few_least_loaded(offer.replicas, _IDLEST_MAX, self._turn)
        if match.mask & ~sum([1 << slot for slot in candidates]):
            holders = fleet.few_least_loaded(match.mask, _HOLDERS_MAX, self._turn)
            candidates += [slot for slot in holders if slot not in candidates]
        if not candidates:
            return -1, 0, 0.0
        full = [self._is_full(slot) for slot in candidates]
        self._full_share = sum(full) / len(full)
        best, best_blocks, best_ns, best_load = -1, 0, 0.0, 0
        for slot, is_full in zip(candidates, full, strict=True):
            knows_most = match.mask >> slot & 1
            blocks = match.blocks if knows_most else fleet.match_replicas(profile, 1 << slot).blocks
            weighed = self._weighed_here(profile, slot, blocks, offer.held, is_full=is_full)
            self._replicas.append(weighed)
            cost_ns, load = weighed.total_ns, self._books[slot].state.load
            if best < 0 or cost_ns < best_ns or (cost_ns == best_ns and load < best_load):
                best, best_blocks, best_ns, best_load = slot, blocks, cost_ns, load
        return best, best_blocks, best_ns

    def _replica_costs(self, profile: RequestProfile, slot: int, blocks: int, held: Hold | None) -> Costs:
        return self._weighed_here(profile, slot, blocks, held, is_full=self._is_full(slot)).costs()

    def _weighed_here(
        self, profile: RequestProfile, slot: int, blocks: int, held: Hold | None, *, is_full: bool
    ) -> Weighed:
        state = self._books[slot].state
        load = state.load - state.yielding if self.fleet.goes_first else state.load
        reading_ns = self._reading_ns(profile.uncached_bytes(blocks), load, is_full)
        crowding_ns = self._byte_ns * self._crowding_bytes * load
        waiting_ns = self._waiting_ns(profile, slot, blocks, held)
        return Weighed(slot, blocks, reading_ns=reading_ns, crowding_ns=crowding_ns, waiting_ns=waiting_ns)

    def _waiting_ns(self, profile: RequestProfile, slot: int, blocks: int, held: Hold | None) -> float:
        """Cost of the wait until the request could begin there, multiplied by the number of requests that wait for the
        same beginning of a prompt, this one included: a copy elsewhere would serve them all. A request already held
        there counts once."""
        holds = self._books[slot].holds
        cost_ns = self._wait_cost_ns(self._delay_ns(slot, held), self._slot_wait_ns(slot, held))
        if not holds.count or (held is not None and held.slot == slot):
            return cost_ns
        return cost_ns * (1 + holds.alike(_beginning(profile, blocks)))

    def _ahead_ns(self, slot: int, held: Hold | None) -> float:
        """Nanoseconds until the request could begin there."""
        return max(self._delay_ns(slot, held), self._slot_wait_ns(slot, held))

    def _delay_ns(self, slot: int, held: Hold | None) -> float:
        """Nanoseconds until the replica has prefilled what is ahead; for an engine whose slots are not known, also
        until the requests that wait in it have left."""
        books = self._books[slot]
        state, holds = books.state, books.holds
        ahead = ahead_bytes = 0
        if holds.count and (held is None or held.slot != slot):
            ahead, ahead_bytes = holds.count, holds.bytes
            if self._appends:
                ahead, ahead_bytes = holds.count_appending, holds.bytes_appending
        reading_ns = self._backlog_ns(books) + self._byte_ns * ahead_bytes
        if state.slots.total:
            return reading_ns
        return max(reading_ns, (state.waiting + ahead) * books.leaving_ns(self._now_ns))

    def _slot_wait_ns(self, slot: int, held: Hold | None) -> float:
        """Nanoseconds until a slot is free for the request and for all others held there, which wait for the same
        slots; one that they are given by a request that yields counts as a short wait. 0 where the engine's slots are
        not known."""
        books = self._books[slot]
        release_ns = books.state.slots.release_ns()
        if not release_ns:
            return 0.0
        ahead = books.holds.count_appending if self._appends else books.holds.count
        others = ahead - (held is not None and held.slot == slot)
        state = books.state
        given = state.yielding if self.fleet.goes_first else 0
        return wait_for_slot_ns(others + 1 - state.room, given, release_ns)

    def _wait_cost_ns(self, delay_ns: float, slot_wait_ns: float) -> float:
        """Cost of the longer of the waits for prefill and for a slot."""
        return self._delay_weight * max(delay_ns, _SLOT_WAIT_WEIGHT * slot_wait_ns)

    def _backlog_ns(self, books: _Books) -> float:
        """Nanoseconds until the replica has prefilled all that was sent there, less the time already spent on the first
        of it."""
        state = books.state
        unread_ns = self._byte_ns * state.backlog_bytes
        if not unread_ns:
            return 0.0
        read_ns = float(self._now_ns - books.reading_since_ns)
        return unread_ns - min(read_ns, self._byte_ns * state.first_unread_bytes)

    def _replica_choice(self, profile: RequestProfile, offer: Offer, slot: int, blocks: int) -> Choice:
        choice = Choice(slot, blocks, _reason_here(blocks))
        uncached_bytes = choice.uncached_bytes = self._caches.uncached_bytes(profile, slot)
        self._chosen = (profile.request_id, profile.prompt_bytes, slot)
        self._chosen_unread_bytes = uncached_bytes
        is_cold = self._pushes_out_too_much(profile, offer, slot, uncached_bytes)
        if is_cold or self._waits_better_here(profile, offer, slot, uncached_bytes):
            beginning = _beginning(profile, blocks)
            choice.hold = Hold(slot, uncached_bytes, beginning, is_cold=is_cold, appends=profile.appends)
        return choice

    def _waits_better_here(self, profile: RequestProfile, offer: Offer, slot: int, uncached_bytes: int) -> bool:
        """Return true if the request had better wait at the gateway: at the replica it would only lie in the engine's
        queue, where its placement cannot be reconsidered. A new one also waits behind each request held there whose
        answer has begun; such a request never waits behind new ones."""
        state = self._books[slot].state
        if not offer.ready >> slot & 1 or state.room <= -_QUEUED_IN_ENGINE_MAX:
            return True
        backlog_bytes, holds = state.backlog_bytes, self._books[slot].holds
        if holds.count_appending and not profile.appends:
            return True
        if not backlog_bytes:
            return False
        if not (profile.appends or holds.lets_pass or holds.is_first(offer.held)):
            return True
        least_bytes = min(uncached_bytes, backlog_bytes)
        return least_bytes > self.config.hold_size_bytes and self._byte_ns * least_bytes > self.config.hold_ns

    def hold_pinned(self, profile: RequestProfile, offer: Offer, slot: int, /) -> Hold | None:
        """Hold a pinned request that would otherwise overtake requests that wait their turn; the choice of replica is
        fixed. It never waits for room in the cache, as it continues where its prefix is, and a copy elsewhere would
        serve no other request."""
        uncached_bytes = self._bytes_to_read(profile, slot)
        waits = self._waits_better_here(profile, offer, slot, uncached_bytes)
        return Hold(slot, uncached_bytes, profile.follows.encode()) if waits else None

    def _bytes_to_read(self, profile: RequestProfile, slot: int) -> int:
        """Bytes to prefill at the replica. All of a prompt that follows a stored response is new, even if other prompts
        begin with the same words."""
        if profile.follows:
            return profile.prompt_bytes
        if self._chosen == (profile.request_id, profile.prompt_bytes, slot):
            return self._chosen_unread_bytes
        return self._caches.uncached_bytes(profile, slot)

    def _pushes_out_too_much(self, profile: RequestProfile, offer: Offer, slot: int, uncached_bytes: int) -> bool:
        """Return true if the request should wait rather than evict prefixes that are still in use: prefilling them
        again would cost the others more than the wait costs this request, until its patience is over. Waiting is
        useless where those prefixes are not asked for again within that time. A request whose answer has begun never
        waits for that."""
        state = self._books[slot].state
        load = state.load - state.yielding if self.fleet.goes_first else state.load
        if not load or profile.appends or 2 * uncached_bytes < profile.prompt_bytes or not self._is_full(slot):
            return False
        patience_ns = self.reading_again_ns(uncached_bytes) * (1 + load)
        is_worth_it = patience_ns > self.config.delay_weight * self._caches.gap_ns
        return is_worth_it and self._now_ns - offer.arrived_ns < patience_ns

    # Peers

    def _cheapest_peer(
        self, profile: RequestProfile, mask: int, cost_max_ns: float = inf, *, must_fit: bool = True
    ) -> tuple[int, int, float]:
        """Return the cheapest peer's slot (−1: none fits whose round trip alone costs less than `cost_max_ns`), the
        blocks of the prompt that it has, and its cost. Load and caches of peers that are as far are not looked at."""
        fleet = self.fleet
        least_way = _DISTANCE_WEIGHT * self._least_ways(profile) * self._delay_weight
        best, best_blocks, best_key = -1, 0, (0.0, 0)
        for slot in slots_of(mask):
            if least_way * fleet.peer_rtt_ns(slot) >= cost_max_ns:
                continue
            blocks = fleet.match_peers(profile, 1 << slot).blocks
            if must_fit and not self._fits_there(profile, slot, blocks):
                continue
            weighed = self._weighed_there(profile, slot, blocks)
            self._peers.append(weighed)
            key = (weighed.total_ns, fleet.peer_rtt_ns(slot))
            if best < 0 or key < best_key:
                best, best_blocks, best_key = slot, blocks, key
        return best, best_blocks, best_key[0]

    def _least_ways(self, profile: RequestProfile) -> float:
        """Smallest number of ways that `_distance_ns` counts at any peer."""
        may_be_crowded = not self._full_share and self._load_here > _CROWDED * _CROWDED_BY
        return _CROWDED_WAYS if may_be_crowded else self._ways(profile)

    def _fits_there(self, profile: RequestProfile, slot: int, blocks: int) -> bool:
        """Return true if the peer has room in its cache, does not report it, or has most of the prompt; otherwise the
        request would only wait for room there."""
        free_tokens = self.fleet.peer_free_tokens(slot, profile.model)
        uncached_bytes = profile.uncached_bytes(blocks)
        if free_tokens is None or 2 * uncached_bytes < profile.prompt_bytes:
            return True
        load = self.fleet.peer_load_per_replica(slot, profile.model, counts_yielding=True)
        return self._caches.fits(uncached_bytes, free_tokens, load)

    def _peer_costs(self, profile: RequestProfile, slot: int, blocks: int) -> Costs:
        return self._weighed_there(profile, slot, blocks).costs()

    def _weighed_there(self, profile: RequestProfile, slot: int, blocks: int) -> Weighed:
        fleet, model = self.fleet, profile.model
        load = fleet.peer_load_per_replica(slot, model)
        reading_ns = self._reading_ns(profile.uncached_bytes(blocks), load, self._full_share)
        crowding_ns = self._byte_ns * self._crowding_bytes * load
        waiting_ns = self._wait_cost_ns(
            self._byte_ns * fleet.peer_backlog(slot, model),
            fleet.peer_wait_ns(slot, model, appends=profile.appends),
        )
        return Weighed(
            slot,
            blocks,
            reading_ns=reading_ns,
            crowding_ns=crowding_ns,
            waiting_ns=waiting_ns,
            distance_ns=self._distance_ns(profile, slot, load),
        )

    def _distance_ns(self, profile: RequestProfile, slot: int, load: float) -> float:
        """Cost of the round trip for this request and for those expected to follow it in its session; for this one
        alone where requests rarely continue from others, or the client says that the session ends, and for a part of it
        where the own replicas are crowded against the peer's `load` and their caches have room: a session that leaves
        full caches is prefilled again, at the expense of others'."""
        if not self._full_share and self._load_here > _CROWDED * (_CROWDED_BY + load):
            ways = _CROWDED_WAYS
        else:
            ways = self._ways(profile)
        return _DISTANCE_WEIGHT * ways * self._delay_weight * self.fleet.peer_rtt_ns(slot)

    def _ways(self, profile: RequestProfile) -> float:
        """Requests that take the way to a peer: this one and those expected to follow it in its session."""
        return 1.0 if profile.hints.ends_session else 1 + min(_WAYS_MORE_MAX, self._caches.follow_ups())

    # Events

    def configure(self, config: PlacementConfig) -> None:
        super().configure(config)
        self._caches.configure(config)

    def joined(self, target: Target, slot: int) -> None:
        if target.kind is TargetKind.REPLICA:
            self._books[slot] = _Books(self.fleet.replica(slot))

    def left(self, target: Target, slot: int) -> None:
        if target.kind is TargetKind.REPLICA:
            del self._books[slot]
            self._caches.left(slot)

    def follows(self, arrived_ns: int, now_ns: int) -> None:
        self._arrived_ns, self._now_ns = arrived_ns, now_ns

    def sent(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:
        if target.kind is TargetKind.REPLICA:
            self._turn = slot + 1
            books = self._books[slot]
            books.holds.pushed_bytes += self._bytes_to_read(profile, slot)
            self._chosen = None
            if not books.state.prefilling:
                books.reading_since_ns = self._now_ns
            if books.began_ns is None:
                books.began_ns = self._now_ns
            self._caches.sent(profile, slot, matched_blocks, self._arrived_ns, self._now_ns)

    def unread(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:
        if target.kind is TargetKind.REPLICA:
            self._caches.unread(profile, slot, matched_blocks)

    def shortened(self, chain: bytes, slot: int, blocks: int) -> None:
        self._caches.shortened(chain, slot, blocks)

    def holds(self, chain: bytes, slot: int, now_ns: int) -> None:
        self._caches.holds(chain, slot, now_ns)

    def emptied(self, slot: int) -> None:
        self._caches.left(slot)

    def prefilled(self, slot: int, uncached_bytes: int, started_ns: int, now_ns: int) -> None:
        """Learn the prefill time from a first token. Prefill began when the request was sent, or when the previous
        first token came; a request that waited for a slot is no sample, and a stalled one is capped, because all
        replicas share one line."""
        books = self._books[slot]
        since_ns = max(started_ns, books.prefilled_ns)
        books.prefilled_ns = books.reading_since_ns = now_ns
        if uncached_bytes >= _SAMPLE_BYTES_MIN and not books.state.waiting:
            self._line.add(uncached_bytes, min(now_ns - since_ns, int(uncached_bytes * _NS_PER_BYTE_MAX)))
            self._byte_ns = self._line.byte_ns() or _PRIOR_NS_PER_BYTE

    def ended(self, slot: int, now_ns: int) -> None:
        books = self._books[slot]
        if books.ended_ns is not None:
            keeps = _INTERVAL_KEEPS if books.interval_ns else 0.0
            books.interval_ns = keeps * books.interval_ns + (1 - keeps) * (now_ns - books.ended_ns)
        books.ended_ns = now_ns

    def expire(self, now_ns: int) -> None:
        self._caches.expire(now_ns)

    def answered(self, profile: RequestProfile, prompt_tokens: int, output_tokens: int) -> None:
        self._caches.answered(profile, prompt_tokens, output_tokens)

    def held(self, hold: Hold) -> None:
        books = self._books[hold.slot]
        books.holds.add(hold, books.state.backlog_bytes)

    def unheld(self, hold: Hold) -> None:
        self._books[hold.slot].holds.remove(hold)


def _beginning(profile: RequestProfile, blocks: int) -> bytes:
    """Key of the beginning of a prompt that a held request waits for: the block hash at the largest power of two within
    the match, which covers at least half of it. Prompts of different lengths share it, and one copy would serve them
    all."""
    if not blocks:
        return b""
    block = 1 << (blocks.bit_length() - 1)
    return profile.prefix[(block - 1) * PREFIX_HASH_BYTES : block * PREFIX_HASH_BYTES]


def _reason_here(blocks: int) -> PlacementReason:
    return PlacementReason.LOCAL_PREFIX if blocks else PlacementReason.LOCAL_EXPLORE


def _reason_there(blocks: int, *, is_remote: bool) -> PlacementReason:
    if is_remote:
        return PlacementReason.REMOTE_PREFIX if blocks else PlacementReason.REMOTE_NEAREST
    return PlacementReason.SIBLING_PREFIX if blocks else PlacementReason.SIBLING_OVERFLOW
