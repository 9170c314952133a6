"""What our replicas' caches still hold of what we sent there, how long they keep it, how soon it is asked for again.

An index remembers where a prompt was sent, for as long as it has room itself; a cache forgets sooner. This is a second
index, bounded by what each engine says that its cache holds, so that both can be told apart. It estimates, and decides
nothing.
"""

from __future__ import annotations

from math import inf
from typing import Final

from gateway.core.config import PlacementConfig
from gateway.core.placement.fleet import Fleet
from gateway.core.prefix_index import PrefixIndex
from gateway.core.vocabulary import RequestProfile

_PRIOR_BYTES_PER_TOKEN: Final = 4.0
_BYTES_PER_TOKEN_MIN: Final = 0.5
_BYTES_PER_TOKEN_MAX: Final = 32.0
"""Of any text with any tokenizer: a template adds tokens to a short prompt, and no token of a language is longer."""
_PRIOR_OUTPUT_TOKENS: Final = 256.0
_LEARN: Final = 0.02
"""What one more sample counts: the last fifty make the average."""
_FULL_SHARE: Final = 0.9
"""A cache that is fuller than this pushes something out for whatever comes."""
_CHAIN_MAX: Final = 0.9
"""Of what is pushed out, at most so much is taken to come back: ten recomputations for one."""


class Caches:
    """Of all replicas of a gateway."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        self._fleet = fleet
        self._bounds = config.prefix_index_bytes_max, config.prefix_ttl_ns
        self._kept = PrefixIndex(*self._bounds)
        self._block_bytes = 1
        self._bytes_per_token = _PRIOR_BYTES_PER_TOKEN
        self._prompt_share = 1.0
        """Of all tokens, those of prompts: the rest of a cache is taken by answers."""
        self.output_tokens = _PRIOR_OUTPUT_TOKENS
        """Of an answer, on average."""
        self.gap_ns = 0.0
        """From one turn of a conversation to the next, on average; 0 until one went on."""
        self.continued = 0.0
        """Of all prompts, those that go on where another one ended."""

    # What it is told

    def configure(self, config: PlacementConfig) -> None:
        """It starts afresh only if its own sizes changed, as other indexes do."""
        bounds = config.prefix_index_bytes_max, config.prefix_ttl_ns
        if bounds != self._bounds:
            self._bounds = bounds
            self._kept = PrefixIndex(*bounds)

    def left(self, slot: int) -> None:
        self._kept.remove_target(slot)

    def sent(self, profile: RequestProfile, slot: int, matched_blocks: int, arrived_ns: int, now_ns: int) -> None:
        """To be told before the fleet's own index is. `matched_blocks` by that index."""
        last_ns = self._fleet.last_sent_ns(profile, slot)
        goes_on = last_ns is not None and 2 * profile.uncached_bytes(matched_blocks) < profile.prompt_bytes
        self.continued += _LEARN * (goes_on - self.continued)
        if goes_on and last_ns is not None:
            gap_ns = float(max(0, arrived_ns - last_ns))
            self.gap_ns += (_LEARN if self.gap_ns else 1.0) * (gap_ns - self.gap_ns)
        self._block_bytes = profile.prefix_block_bytes
        self._kept.insert(profile.prefix, slot, now_ns)
        if room := self._room_blocks(slot):
            self._kept.bound(slot, room)

    def unread(self, profile: RequestProfile, slot: int, matched_blocks: int) -> None:
        """Forget a prompt that the replica refused. `matched_blocks`: the blocks that it was believed to know."""
        self._kept.withdraw(profile.prefix, slot, matched_blocks)

    def answered(self, profile: RequestProfile, prompt_tokens: int, output_tokens: int) -> None:
        """An engine has counted. One that counts what cannot be is not believed, and none moves an average by more than
        the others hold it: what is learnt here serves for all."""
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

    # What it is asked

    def uncached_bytes(self, profile: RequestProfile, slot: int) -> int:
        """What the replica would have to read of this prompt."""
        return profile.uncached_bytes(self._kept.match(profile.prefix, 1 << slot).blocks)

    def kept_for_ns(self, slot: int, now_ns: int) -> float:
        """How long the replica keeps what nobody asks for again: as long as what it will push out next has been there.
        Without end where there is room, or nobody knows how much."""
        room = self._room_blocks(slot)
        if not room or self._kept.blocks_of(slot) < _FULL_SHARE * room:
            return inf
        earliest_ns = self._kept.earliest_ns(slot)
        return inf if earliest_ns is None else float(now_ns - earliest_ns)

    def follow_ups(self) -> float:
        """Requests that are expected to go on from one: the share of prompts that go on, and of those as many again. As
        many bytes are read once more for each byte that is read into a cache that is full of what is still wanted:
        whoever is pushed out comes back, and pushes out another then."""
        share = min(_CHAIN_MAX, self.continued)
        return share / (1 - share)

    def fits(self, uncached_bytes: int, free_tokens: int, load: float) -> bool:
        """Would so much of a prompt have room beside those who run there? They write on: each, on average, half of an
        answer more."""
        return uncached_bytes / self._bytes_per_token + load * self.output_tokens / 2 <= free_tokens

    def _room_blocks(self, slot: int) -> int:
        """Of prompts, in its cache; 0: nobody knows."""
        tokens = self._fleet.replica_kv_tokens(slot)
        return int(tokens * self._bytes_per_token * self._prompt_share) // self._block_bytes
