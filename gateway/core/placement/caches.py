"""Estimates of replicas' KV caches: what they still hold of earlier prompts, for how long, and how soon it is used
again.

The fleet's prefix index remembers prompts as long as it has room itself; a cache evicts sooner. This is a second index,
bounded by the capacity that each engine reports, so that both can be told apart. It estimates, and decides nothing.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gateway.core.kernel.config import PlacementConfig
from gateway.core.placement.fleet import Fleet
from gateway.core.placement.prefix_index import PrefixIndex
from gateway.core.vocabulary import PREFIX_HASH_BYTES, RequestProfile

_PRIOR_BYTES_PER_TOKEN: Final = 4.0
_BYTES_PER_TOKEN_MIN: Final = 0.5
_BYTES_PER_TOKEN_MAX: Final = 32.0
"""Bounds for any text with any tokenizer: a template adds tokens to a short prompt, and no language has longer
tokens."""
_PRIOR_OUTPUT_TOKENS: Final = 256.0
_LEARN: Final = 0.02
"""Weight of one more sample in an average, which is thereby taken over the last fifty."""
_FULL_SHARE: Final = 0.9
"""Share of its capacity above which a cache evicts something for each new prompt."""
_CHAIN_MAX: Final = 0.9
"""Largest share of evicted prefixes that is taken to be asked for again: about ten recomputations for one."""


class Caches:
    """Cache estimates for all replicas of a gateway."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        self._fleet = fleet
        self._bounds = config.prefix_index_bytes_max, config.prefix_ttl_ns
        self._kept = PrefixIndex(*self._bounds)
        self._block_bytes = 1
        self._bytes_per_token = _PRIOR_BYTES_PER_TOKEN
        self._prompt_share = 1.0
        """Share of prompts in all tokens; answers take the rest of a cache."""
        self.output_tokens = _PRIOR_OUTPUT_TOKENS
        """Mean length of an answer in tokens."""
        self.gap_ns = 0.0
        """Mean time from one turn of a conversation to the next; 0 until one has continued."""
        self.continued = 0.0
        """Share of prompts that continue an earlier one."""

    # Events

    def configure(self, config: PlacementConfig) -> None:
        """Take new settings; the index is emptied only if its own bounds changed, like the other indexes."""
        bounds = config.prefix_index_bytes_max, config.prefix_ttl_ns
        if bounds != self._bounds:
            self._bounds = bounds
            self._kept = PrefixIndex(*bounds)

    def left(self, slot: int) -> None:
        self._kept.remove_target(slot)

    def sent(self, profile: RequestProfile, slot: int, matched_blocks: int, arrived_ns: int, now_ns: int) -> None:
        """Note a prompt sent to a replica. Must be called before the fleet's own index is updated; `matched_blocks` are
        those of that index."""
        last_ns = self._fleet.last_sent_ns(profile, slot)
        follows_on = last_ns is not None and 2 * profile.uncached_bytes(matched_blocks) < profile.prompt_bytes
        self.continued += _LEARN * (follows_on - self.continued)
        if follows_on and last_ns is not None:
            gap_ns = float(max(0, arrived_ns - last_ns))
            self.gap_ns += (_LEARN if self.gap_ns else 1.0) * (gap_ns - self.gap_ns)
        self._block_bytes = profile.prefix_block_bytes
        self._insert(profile.prefix, slot, now_ns)

    def unread(self, profile: RequestProfile, slot: int, matched_blocks: int) -> None:
        """Forget a prompt that the replica refused. `matched_blocks`: the blocks it was believed to have."""
        self._kept.withdraw(profile.prefix, slot, matched_blocks)

    def shortened(self, chain: bytes, slot: int, blocks: int) -> None:
        """Forget all but the first blocks of a prompt, which the engine says it has removed."""
        self._kept.retract(chain, slot, blocks)

    def holds(self, chain: bytes, slot: int, now_ns: int) -> None:
        """Note a beginning of a prompt that the engine says it holds."""
        if self._kept.match(chain, 1 << slot).blocks * PREFIX_HASH_BYTES < len(chain):
            self._insert(chain, slot, now_ns)

    def answered(self, profile: RequestProfile, prompt_tokens: int, output_tokens: int) -> None:
        """Learn from an engine's token counts. Implausible counts are ignored, and one sample never moves an average
        far: the averages serve for all replicas."""
        bytes_per_token = profile.prompt_bytes / prompt_tokens
        if not _BYTES_PER_TOKEN_MIN <= bytes_per_token <= _BYTES_PER_TOKEN_MAX:
            return
        believed = min(output_tokens, 2 * self.output_tokens + _PRIOR_OUTPUT_TOKENS)
        share = prompt_tokens / (prompt_tokens + believed)
        self._bytes_per_token += _LEARN * (bytes_per_token - self._bytes_per_token)
        self._prompt_share += _LEARN * (share - self._prompt_share)
        self.output_tokens += _LEARN * (believed - self.output_tokens)

    def expire(self, now_ns: int) -> None:
        self._kept.expire(now_ns)

    # Questions

    def uncached_bytes(self, profile: RequestProfile, slot: int) -> int:
        """Bytes of this prompt that the replica would have to prefill."""
        return profile.uncached_bytes(self._kept.match(profile.prefix, 1 << slot).blocks)

    def kept_for_ns(self, slot: int, now_ns: int) -> float:
        """Nanoseconds for which the replica keeps a prefix that is not used again: the age of the prefix it will evict
        next. Infinite where there is room, or the capacity is not known."""
        room = self._room_blocks(slot)
        if not room or self._kept.even_blocks_of(slot) < _FULL_SHARE * room:
            return inf
        earliest_ns = self._kept.earliest_ns(slot)
        return inf if earliest_ns is None else float(now_ns - earliest_ns)

    def follow_ups(self) -> float:
        """Expected number of requests that continue from one: the share of prompts that continue, and as many again of
        those. In a cache that is full of prefixes still in use, each byte prefilled causes as many further bytes: an
        evicted prefix is prefilled again and then evicts another."""
        share = min(_CHAIN_MAX, self.continued)
        return share / (1 - share)

    def fits(self, uncached_bytes: int, free_tokens: int, load: float) -> bool:
        """Return true if the replica has room for this much of a prompt beside its running requests, each of which will
        still write half of an average answer."""
        return uncached_bytes / self._bytes_per_token + load * self.output_tokens / 2 <= free_tokens

    def _insert(self, chain: bytes, slot: int, now_ns: int) -> None:
        self._kept.insert(chain, slot, now_ns)
        if room := self._room_blocks(slot):
            self._kept.bound(slot, room)

    def _room_blocks(self, slot: int) -> int:
        """Capacity of the replica's cache for prompts, in blocks of equal size; 0: not known."""
        tokens = self._fleet.replica_kv_tokens(slot)
        return int(tokens * self._bytes_per_token * self._prompt_share) // self._block_bytes
