"""The default: whoever costs least, in time, among everybody that a request may go to; or waiting here for one of them.

What a request costs at a replica is what has to be read of its prompt there, what is ahead of it, and what it takes from
those who run there. A recomputation delays them all, a wait delays one; a copy made elsewhere serves all who wait for
the same beginning. Nothing is compared but times, estimated from what this gateway has seen itself. It looks at the few
that know most of the prompt and the few that have least to do, never at all.
"""

from __future__ import annotations

from math import inf

from gateway.core.bits import slots_of
from gateway.core.config import PlacementConfig
from gateway.core.first_token import FirstTokenLine
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.policy import Choice, Offer, Policy
from gateway.core.prefix_index import Match, PrefixIndex
from gateway.core.requests import Hold
from gateway.core.vocabulary import PREFIX_HASH_BYTES, PlacementReason, RequestProfile, Target, TargetKind

_HOLDERS_MAX = 4
"""Of those that know most of the prompt: the least loaded."""
_IDLEST_MAX = 4
"""Of all: the least loaded."""
_PRIOR_NS_PER_BYTE = 10_000.0
"""Of prefill, until a replica has told: an 8B model on an H100 reads a token, four bytes, in 40 µs."""
_PRIOR_BYTES_PER_TOKEN = 4.0
_FULL_SHARE = 0.9
_LEARN = 0.02
"""What one more sample counts."""
_TURN_SLOTS = 64
_PACE_KEEPS = 0.95


import json
import os

EXP = {"k": 3.0, "r": 2.0, "p": 1.0, "qmax": 0.9, "u": 1.0, "near": 2.0, "w": 0.3, "g": 1.0, "d": 0.3, "H": 50, "all": 0} | json.loads(os.environ.get("EXP", "{}"))


class _Books:
    """What is known of one replica besides what every policy may see."""

    __slots__ = (
        "beginnings",
        "ended_ns",
        "held",
        "held_bytes",
        "interval_ns",
        "line",
        "overtaken_until_bytes",
        "pushed_bytes",
    )

    def __init__(self) -> None:
        self.line = FirstTokenLine()
        self.held = 0
        self.held_bytes = 0
        self.beginnings: dict[bytes, int] = {}
        """How many are held here for each beginning of a prompt that is known here."""
        self.pushed_bytes = 0
        """Of prefill, all that was ever sent there by us."""
        self.overtaken_until_bytes = 0
        """From so many on nobody new goes past those who are held."""
        self.ended_ns: int | None = None
        self.interval_ns = 0.0
        """Between ends of legs there, of late."""


class Cost(Policy):
    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        super().__init__(fleet, config)
        self._books: dict[int, _Books] = {}
        self._line = FirstTokenLine()
        """Of all replicas together, for those that have told nothing yet, and for other gateways."""
        self._turn = 0
        self._mirror = PrefixIndex(config.prefix_index_bytes_max, config.prefix_ttl_ns)
        """What is still in each replica's cache, as far as we sent it there: the rest has been pushed out."""
        self._bytes_per_token = _PRIOR_BYTES_PER_TOKEN
        self._prompt_share = 1.0
        """Of all tokens."""
        self._near_bytes = self._evicted_bytes = 0.0
        self._gap_ns = 0.0
        """Between one turn of a conversation and the next, on average."""
        self._continued = 0.0
        """The share of prompts that go on where another one ended."""
        self._now_ns = 0
        self._arrived_ns = 0
        self._block_bytes = 1

    def wants_prefixes(self) -> bool:
        return True

    def weighs_everybody(self) -> bool:
        return True

    def choose_replica(self, profile: RequestProfile, mask: int, /) -> Choice:
        offer = Offer(mask, mask, 0, 0, None, 0)
        choice = self.weigh(profile, offer, 0)
        assert choice is not None, "somebody of a mask that is not empty costs least"
        return choice

    def choose_peer(self, profile: RequestProfile, mask: int, is_remote: bool, /) -> Choice:
        slot, blocks, _ = self._cheapest_peer(profile, mask)
        return self._peer_choice(slot, blocks, is_remote=is_remote)

    def weigh(self, profile: RequestProfile, offer: Offer, now_ns: int, /) -> Choice | None:
        self._now_ns = now_ns
        self._arrived_ns = now_ns - offer.waited_ns
        slot, blocks, cost_ns = self._cheapest_replica(profile, offer)
        peers = offer.siblings | offer.remotes
        if peers:
            peer, known, peer_cost_ns = self._cheapest_peer(profile, peers)
            if slot < 0 or peer_cost_ns < cost_ns:
                return self._peer_choice(peer, known, is_remote=bool(offer.remotes >> peer & 1))
        if slot < 0:
            return None
        return self._replica_choice(profile, offer, slot, blocks)

    # Replicas

    def _cheapest_replica(self, profile: RequestProfile, offer: Offer) -> tuple[int, int, float]:
        """Its slot (−1: there is none), how many blocks it knows, and what it costs."""
        best, best_blocks, best_cost_ns = -1, 0, 0.0
        best_key = (0.0, 0, 0)
        match = self.fleet.match_replicas(profile, offer.replicas)
        for slot in self._candidates(match, offer.replicas):
            knows_most = match.mask >> slot & 1
            blocks = match.blocks if knows_most else self.fleet.match_replicas(profile, 1 << slot).blocks
            cost_ns = self._replica_cost_ns(profile, slot, blocks, offer.held)
            key = (cost_ns, self.fleet.replica_load(slot), (slot - self._turn) % _TURN_SLOTS)
            if best < 0 or key < best_key:
                best, best_blocks, best_cost_ns, best_key = slot, blocks, cost_ns, key
        return best, best_blocks, best_cost_ns

    def _candidates(self, match: Match, replicas: int) -> list[int]:
        few = self.fleet.few_least_loaded(replicas, _IDLEST_MAX)
        if match.blocks:
            few += [slot for slot in self.fleet.few_least_loaded(match.mask, _HOLDERS_MAX) if slot not in few]
        return few

    def _replica_cost_ns(self, profile: RequestProfile, slot: int, blocks: int, held: Hold | None) -> float:
        fleet = self.fleet
        load = fleet.replica_load(slot)
        slope = self._slope_of(slot)
        reading_ns = slope * profile.uncached_bytes(blocks)
        if EXP["u"]:
            reading_ns *= 1 + EXP["u"] * self._harm(slot)
        crowding_ns = slope * self.config.explore_load_bytes * load
        books = self._books[slot]
        if held is not None and held.slot == slot:
            ahead, ahead_bytes, alike = 0, 0, 0  # it is the first of those
        else:
            ahead, ahead_bytes = books.held, 0
            alike = books.beginnings.get(_beginning(profile, blocks), 0)
        wait_ns = max(
            slope * (fleet.replica_backlog_bytes(slot) + ahead_bytes),
            (fleet.replica_waiting(slot) + ahead) * books.interval_ns,
        )
        return reading_ns + crowding_ns + EXP["w"] * wait_ns * (1 + alike) / (1 + load)

    def _replica_choice(self, profile: RequestProfile, offer: Offer, slot: int, blocks: int) -> Choice:
        reason = PlacementReason.LOCAL_PREFIX if blocks else PlacementReason.LOCAL_EXPLORE
        choice = Choice(slot, blocks, reason)
        uncached = choice.uncached_bytes = self._uncached_bytes(profile, slot)
        if self._pushes_out_too_much(profile, offer, slot, uncached):
            choice.hold = Hold(slot, uncached, _beginning(profile, blocks), is_cold=True)
        elif self._must_wait(offer, slot, uncached):
            choice.hold = Hold(slot, uncached, _beginning(profile, blocks))
        else:
            self._turn = slot + 1
        return choice

    def _uncached_bytes(self, profile: RequestProfile, slot: int) -> int:
        return profile.uncached_bytes(self._mirror.match(profile.prefix, 1 << slot).blocks)

    def _pushes_out_too_much(self, profile: RequestProfile, offer: Offer, slot: int, uncached_bytes: int) -> bool:
        """What it would push out of the cache is still wanted there, and it has not waited for as long yet as its
        recomputation keeps all others waiting."""
        load = self.fleet.replica_load(slot)
        if not load or 2 * uncached_bytes < profile.prompt_bytes:
            return False
        if self._kept_for_ns(slot) >= EXP["k"] * self._gap_ns:
            return False
        chain = self._continued / (1 - min(EXP["qmax"], self._continued))
        patience_ns = chain * self._slope_of(slot) * uncached_bytes * (1 + load)
        return patience_ns > EXP["g"] * self._gap_ns and offer.waited_ns < EXP["p"] * patience_ns

    def _harm(self, slot: int) -> float:
        """What is read again for each byte that is pushed out, over all that follows from it."""
        if not self._gap_ns:
            return 0.0
        q = min(EXP["qmax"], self._continued / (1 + self._kept_for_ns(slot) / self._gap_ns))
        return q / (1 - q)

    def _kept_for_ns(self, slot: int) -> float:
        """How long the replica keeps what nobody asks for again."""
        room = self._room_blocks(slot)
        earliest_ns = self._mirror.earliest_ns(slot)
        if not room or earliest_ns is None or self._mirror.blocks_of(slot) < _FULL_SHARE * room:
            return inf
        return self._now_ns - earliest_ns

    def _is_full(self, slot: int) -> bool:
        room = self._room_blocks(slot)
        return bool(room) and self._mirror.blocks_of(slot) >= _FULL_SHARE * room

    def _room_blocks(self, slot: int) -> int:
        """Of prompts, in its cache; 0: nobody knows."""
        tokens = self.fleet.replica_kv_tokens(slot)
        return int(tokens * self._bytes_per_token * self._prompt_share) // self._block_bytes

    def _must_wait(self, offer: Offer, slot: int, uncached_bytes: int) -> bool:
        """It would only lie in the engine's own queue, where nobody can think again."""
        if not offer.ready >> slot & 1:
            return True
        books = self._books[slot]
        if books.held and offer.held is None and books.pushed_bytes >= books.overtaken_until_bytes:
            return True
        slope = self._slope_of(slot)
        hold_ns = EXP["H"] * 1e6
        return slope * uncached_bytes > hold_ns and slope * self.fleet.replica_backlog_bytes(slot) > hold_ns

    # Other gateways

    def _cheapest_peer(self, profile: RequestProfile, mask: int) -> tuple[int, int, float]:
        fleet = self.fleet
        slope = self._line.slope_ns() or _PRIOR_NS_PER_BYTE
        best, best_blocks, best_key = -1, 0, (0.0, 0, 0)
        for slot in slots_of(mask):
            blocks = fleet.match_peers(profile, 1 << slot).blocks
            rtt_ns = fleet.peer_rtt_ns(slot)
            load = fleet.peer_load_per_replica(slot, profile.model)
            cost_ns = (
                slope * (profile.uncached_bytes(blocks) + self.config.explore_load_bytes * load)
                + EXP["d"] * rtt_ns
            )
            key = (cost_ns, rtt_ns, slot)
            if best < 0 or key < best_key:
                best, best_blocks, best_key = slot, blocks, key
        return best, best_blocks, best_key[0]

    def _peer_choice(self, slot: int, blocks: int, *, is_remote: bool) -> Choice:
        if blocks:
            reason = PlacementReason.REMOTE_PREFIX if is_remote else PlacementReason.SIBLING_PREFIX
        else:
            reason = PlacementReason.REMOTE_NEAREST if is_remote else PlacementReason.SIBLING_OVERFLOW
        choice = Choice(slot, blocks, reason)
        choice.is_peer = True
        return choice

    # What it learns

    def joined(self, target: Target, slot: int) -> None:
        if target.kind is TargetKind.REPLICA:
            self._books[slot] = _Books()

    def left(self, target: Target, slot: int) -> None:
        if target.kind is TargetKind.REPLICA:
            self._books.pop(slot, None)
            self._mirror.remove_target(slot)

    def sent(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:
        if target.kind is not TargetKind.REPLICA:
            return
        self._books[slot].pushed_bytes += self._uncached_bytes(profile, slot)
        last_ns = self.fleet.last_sent_ns(profile, slot)
        goes_on = last_ns is not None and 2 * profile.uncached_bytes(matched_blocks) < profile.prompt_bytes
        self._continued += _LEARN * (goes_on - self._continued)
        if goes_on and last_ns is not None:
            gap_ns = float(self._arrived_ns - last_ns)
            self._gap_ns += (_LEARN if self._gap_ns else 1.0) * (gap_ns - self._gap_ns)
        self._block_bytes = profile.prefix_block_bytes
        if not (room := self._room_blocks(slot)):
            return
        lost = matched_blocks - self._mirror.match(profile.prefix, 1 << slot).blocks
        if lost > 0 and last_ns is not None and self._arrived_ns - last_ns <= EXP["near"] * self._kept_for_ns(slot):
            self._near_bytes += lost
        self._mirror.insert(profile.prefix, slot, self._now_ns)
        before = self._mirror.blocks_of(slot)
        self._mirror.bound(slot, room)
        self._evicted_bytes += before - self._mirror.blocks_of(slot)
        self._near_bytes *= 1 - _LEARN
        self._evicted_bytes *= 1 - _LEARN

    def answered(self, profile: RequestProfile, prompt_tokens: int, output_tokens: int) -> None:
        self._bytes_per_token += _LEARN * (profile.prompt_bytes / max(1, prompt_tokens) - self._bytes_per_token)
        share = prompt_tokens / max(1, prompt_tokens + output_tokens)
        self._prompt_share += _LEARN * (share - self._prompt_share)

    def prefilled(self, slot: int, bytes_ahead: int, uncached_bytes: int, took_ns: int) -> None:
        if not bytes_ahead and not self.fleet.replica_waiting(slot):
            self._line.add(uncached_bytes, took_ns)

    def ended(self, slot: int, now_ns: int) -> None:
        books = self._books.get(slot)
        if books is None:
            return
        if books.ended_ns is not None:
            since_ns = float(now_ns - books.ended_ns)
            keeps = _PACE_KEEPS if books.interval_ns else 0.0
            books.interval_ns = keeps * books.interval_ns + (1 - keeps) * since_ns
        books.ended_ns = now_ns

    def held(self, hold: Hold) -> None:
        books = self._books.get(hold.slot)
        if books is None:
            return
        if not books.held:
            backlog_bytes = self.fleet.replica_backlog_bytes(hold.slot)
            books.overtaken_until_bytes = books.pushed_bytes + backlog_bytes + hold.uncached_bytes
        books.held += 1
        books.held_bytes += hold.uncached_bytes
        books.beginnings[hold.beginning] = books.beginnings.get(hold.beginning, 0) + 1

    def unheld(self, hold: Hold) -> None:
        books = self._books.get(hold.slot)
        if books is None:
            return
        books.held -= 1
        books.held_bytes -= hold.uncached_bytes
        count = books.beginnings.pop(hold.beginning) - 1
        if count:
            books.beginnings[hold.beginning] = count
        if books.held:
            books.overtaken_until_bytes = books.pushed_bytes + books.held_bytes // books.held

    def _slope_of(self, slot: int) -> float:
        """Nanoseconds a byte of prefill."""
        return self._line.slope_ns() or _PRIOR_NS_PER_BYTE


def _beginning(profile: RequestProfile, blocks: int) -> bytes:
    """Stands for all that is known of the prompt."""
    return profile.prefix[(blocks - 1) * PREFIX_HASH_BYTES : blocks * PREFIX_HASH_BYTES] if blocks else b""
