"""KV cache of one engine as the engine tells of it, with its blocks tied to prompts that were sent there.

A block is known by the engine's hash, its parent and the number of tokens up to its end. An answer of P prompt and O
output tokens leaves a chain of blocks whose last one ends with its last full block; if exactly one chain of that length
was completed while the answer ran, its blocks are the prompt's. Blocks that cannot be placed or tied are kept or
ignored, and change nothing: the gateway's own estimate stays for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from gateway.core.features.kv_events.events import CacheChange, CacheTier
from gateway.core.features.kv_events.tie import Tie, common_blocks, part
from gateway.core.vocabulary import PREFIX_HASH_BYTES, RequestProfile, Word

GRACE_NS: Final = 1_000_000_000
"""Time after the end of an answer within which the engine's events about it are expected."""
_SKEW_NS: Final = 200_000_000
"""Time by which an engine's events may come sooner than the tokens that they are about."""
_ANSWERS_MAX: Final = 1024
"""Most answers that wait for their events; further ones are not tied."""
_CHAIN_BYTES_MAX: Final = 16 * 2**20
"""Most bytes of the prompts' chains that blocks of one engine are tied to, and of those that wait to be."""
_CANDIDATES_MAX: Final = 8
"""Most blocks that an answer may have ended with; beyond, they are not told apart."""
_STEPS_MAX: Final = 32_768
"""Most blocks looked at for one answer. A search takes milliseconds at most."""
_TIERS: Final = {CacheTier.DEVICE: 1, CacheTier.HOST: 2, CacheTier.STORAGE: 4}
_NO_TIER: Final = 0


class TieResult(Word):
    """Outcome of the search for an answer's blocks."""

    TIED = "tied"
    KNOWN = "known"
    """All blocks of the prompt were tied before."""
    AMBIGUOUS = "ambiguous"
    """Several chains of blocks, or several answers, have the same length, or the search takes too many steps."""
    UNHEARD = "unheard"
    """The engine told of no chain of this length while the answer ran."""
    FULL = "full"
    """No room is left for the prompt's chain."""


class Answer:
    """Answer that has ended, with what its blocks are found by."""

    __slots__ = ("ended_ns", "first_token_ns", "profile", "prompt_tokens", "started_ns", "token_ns", "total_tokens")

    def __init__(
        self,
        profile: RequestProfile,
        prompt_tokens: int,
        output_tokens: int,
        started_ns: int,
        ended_ns: int,
        *,
        first_token_ns: int = 0,
    ) -> None:
        self.profile = profile
        self.prompt_tokens = prompt_tokens
        self.total_tokens = prompt_tokens + output_tokens
        self.started_ns = started_ns
        self.ended_ns = ended_ns
        self.first_token_ns = first_token_ns or ended_ns
        self.token_ns = (ended_ns - self.first_token_ns) // max(1, output_tokens - 1)
        """Mean time from one token to the next; 0: not known."""

    def since_ns(self, end_tokens: int) -> int:
        """Earliest time at which the engine may have told of the last block, which ends there: in twice the time that
        the tokens after it took, or while the answer ran."""
        if not self.token_ns:
            return self.started_ns
        tail_ns = 2 * self.token_ns * (self.total_tokens - end_tokens + 1) + _SKEW_NS
        return max(self.started_ns, self.ended_ns - tail_ns)


class Settled:
    """Result for one answer. For one that is tied, the prompt, and its first blocks if the engine is known to hold all
    of them."""

    __slots__ = ("blocks", "chain", "result")

    def __init__(self, result: TieResult, chain: bytes = b"", blocks: int = 0) -> None:
        self.result = result
        self.chain = chain
        self.blocks = blocks


class Shortened:
    """Prompt of which the engine holds only the first blocks from now on."""

    __slots__ = ("blocks", "chain")

    def __init__(self, chain: bytes, blocks: int) -> None:
        self.chain = chain
        self.blocks = blocks


class _Block:
    __slots__ = ("end_tokens", "followed_ns", "is_contested", "parent", "start_tokens", "stored_ns", "tie", "tiers")

    def __init__(self, parent: bytes, start_tokens: int, end_tokens: int, stored_ns: int) -> None:
        self.parent = parent
        self.start_tokens = start_tokens
        self.end_tokens = end_tokens
        self.stored_ns = stored_ns
        """Time at which the engine last told that it was stored."""
        self.followed_ns = -1
        """Time at which the first block after it was told; −1: none was."""
        self.tiers = _NO_TIER
        self.tie: Tie | None = None
        self.is_contested = False
        """Two answers could have ended with it."""


class EngineCache:
    """Blocks of one engine."""

    def __init__(self, blocks_max: int) -> None:
        self.blocks_max = blocks_max
        """Limit on the blocks that are kept."""
        self._blocks: dict[bytes, _Block] = {}
        self._by_end: dict[int, dict[bytes, _Block]] = {}
        """Blocks by the tokens up to their end, in the order in which they were last stored."""
        self._block_tokens = 0
        self._answers: deque[Answer] = deque()
        self._waiting_bytes = 0
        """Bytes of the chains of answers that wait."""
        self._steps = 0
        """Blocks and answers looked at for the present answer."""
        self._chain_bytes = 0
        self.tied = 0
        """Number of blocks that are tied to a prompt."""
        self.unplaced = 0
        """Number of blocks told without a known block before them."""

    def __len__(self) -> int:
        return len(self._blocks)

    # The engine's word

    def store(self, change: CacheChange, now_ns: int) -> bool:
        """Take in stored blocks. Return false if there is no room for all of them."""
        if not change.block_tokens:
            self._copied(change)
            return True
        parent, start_tokens = change.parent, 0
        if parent:
            before = self._blocks.get(parent)
            if before is None:
                self.unplaced += len(change.blocks) // PREFIX_HASH_BYTES
                return True
            start_tokens = before.end_tokens
            _follow(before, now_ns)
        self._block_tokens = change.block_tokens
        tier = _TIERS[change.tier]
        for key in hashes_in(change.blocks):
            block = self._stored(key, parent, start_tokens, start_tokens + change.block_tokens, now_ns)
            if block is None:
                return False
            block.tiers |= tier
            parent, start_tokens = key, block.end_tokens
            if key != change.blocks[-PREFIX_HASH_BYTES:]:
                _follow(block, now_ns)
        return True

    def remove(self, change: CacheChange) -> list[Shortened]:
        """Take in removed blocks. Return the prompts that became shorter."""
        left: dict[Tie, int] = {}
        for key in hashes_in(change.blocks):
            block = self._blocks.get(key)
            if block is None:
                continue
            block.tiers &= ~_TIERS[change.tier]
            if block.tiers:
                continue
            self._drop(key, block)
            if (tie := block.tie) is not None:
                blocks = tie.blocks_at(block.start_tokens)
                left[tie] = min(blocks, left.get(tie, blocks))
                self._untie(block, tie)
        return [Shortened(tie.chain, blocks) for tie, blocks in left.items()]

    # Answers

    def expect(self, answer: Answer) -> bool:
        """Look for the answer's blocks once its events must have come. Return false if too many answers wait."""
        waiting_bytes = self._waiting_bytes + len(answer.profile.prefix)
        if len(self._answers) >= _ANSWERS_MAX or waiting_bytes > _CHAIN_BYTES_MAX:
            return False
        self._waiting_bytes = waiting_bytes
        self._answers.append(answer)
        return True

    @property
    def due_ns(self) -> int | None:
        """Time at which the first answer's blocks are looked for."""
        return self._answers[0].ended_ns + GRACE_NS if self._answers else None

    def settle(self, now_ns: int) -> Iterator[Settled]:
        """Tie the blocks of answers whose events must have come by this time: of as many as few steps suffice for, and
        of one at least."""
        spent = 0
        while spent < _STEPS_MAX and self._answers and self._answers[0].ended_ns + GRACE_NS <= now_ns:
            answer = self._answers.popleft()
            self._waiting_bytes -= len(answer.profile.prefix)
            self._steps = 0
            yield self._settle(answer)
            spent += self._steps

    def violations(self) -> list[str]:
        """Return the broken invariants, for tests; takes time in proportion to the blocks."""
        broken = []
        if len(self._blocks) > self.blocks_max:
            broken.append(f"{len(self._blocks)} blocks are kept, {self.blocks_max} are allowed")
        if sum(map(len, self._by_end.values())) != len(self._blocks):
            broken.append("blocks and their ends differ")
        holders: dict[Tie, int] = {}
        for block in self._blocks.values():
            if block.tie is not None:
                holders[block.tie] = holders.get(block.tie, 0) + 1
        if sum(holders.values()) != self.tied:
            broken.append(f"{sum(holders.values())} blocks are tied, {self.tied} are counted")
        if any(tie.holders != count for tie, count in holders.items()):
            broken.append("holders of a prompt are miscounted")
        if sum(len(tie.chain) for tie in holders) != self._chain_bytes:
            broken.append("bytes of chains are miscounted")
        if sum(len(answer.profile.prefix) for answer in self._answers) != self._waiting_bytes:
            broken.append("bytes of waiting answers are miscounted")
        if any(not block.tiers for block in self._blocks.values()):
            broken.append("a block is in no memory")
        return broken

    # Internals

    def _copied(self, change: CacheChange) -> None:
        """Note copies of blocks in other memory, of which the engine does not repeat the place."""
        for key in hashes_in(change.blocks):
            block = self._blocks.get(key)
            if block is None:
                self.unplaced += 1
            else:
                block.tiers |= _TIERS[change.tier]

    def _stored(self, key: bytes, parent: bytes, start: int, end: int, now_ns: int) -> _Block | None:
        block = self._blocks.get(key)
        if block is not None and (block.parent != parent or block.end_tokens != end):
            return block  # a block cannot be in two places: the first stays
        if block is None:
            if len(self._blocks) >= self.blocks_max:
                return None
            block = self._blocks[key] = _Block(parent, start, end, now_ns)
        block.stored_ns, block.followed_ns, block.is_contested = now_ns, -1, False
        same_end = self._by_end.get(end)
        if same_end is None:
            same_end = self._by_end[end] = {}
        same_end.pop(key, None)
        same_end[key] = block
        return block

    def _drop(self, key: bytes, block: _Block) -> None:
        del self._blocks[key]
        same_end = self._by_end[block.end_tokens]
        del same_end[key]
        if not same_end:
            del self._by_end[block.end_tokens]

    def _settle(self, answer: Answer) -> Settled:
        found = self._last_blocks(answer)
        if self._steps >= _STEPS_MAX or len(found) > _CANDIDATES_MAX:
            return Settled(TieResult.AMBIGUOUS)
        if not found:
            return Settled(TieResult.UNHEARD)
        last = found[0]
        self._steps += len(self._answers)
        if any(self._may_end_with(last, other) for other in self._answers):  # answers that have ended since
            last.is_contested = True
        if len(found) > 1 or last.is_contested:
            return Settled(TieResult.AMBIGUOUS)
        return self._tie(answer, last)

    def _last_blocks(self, answer: Answer) -> list[_Block]:
        """Blocks with which the answer may have ended; of too many, the first ones."""
        found: list[_Block] = []
        for end_tokens in self._ends(answer):
            since_ns = answer.since_ns(end_tokens)
            for block in reversed(self._by_end.get(end_tokens, {}).values()):
                self._steps += 1
                if block.stored_ns < since_ns or self._steps >= _STEPS_MAX:
                    break
                if _was_last(block, answer):
                    found.append(block)
                    if len(found) > _CANDIDATES_MAX:
                        return found
        fresh = [block for block in found if self._is_fresh(block, answer)] if len(found) > 1 else []
        return fresh or found

    def _is_fresh(self, last: _Block, answer: Answer) -> bool:
        """Return true if the end of the prompt in the chain that ends with this block was stored between the request's
        start and its first token."""
        end_tokens = answer.prompt_tokens // self._block_tokens * self._block_tokens
        block: _Block | None = last
        while block is not None and block.end_tokens > end_tokens:
            block = self._before(block)
        return block is not None and answer.started_ns <= block.stored_ns <= answer.first_token_ns + _SKEW_NS

    def _before(self, block: _Block) -> _Block | None:
        """Block before this one; None: it is the first, or the one before is not held or the steps are spent. Since
        each block ends where the next one starts, no walk goes round in a circle, whatever an engine tells."""
        self._steps += 1
        before = self._blocks.get(block.parent)
        if before is None or before.end_tokens != block.start_tokens or self._steps >= _STEPS_MAX:
            return None
        return before

    def _ends(self, answer: Answer) -> list[int]:
        """Tokens up to the end of the answer's last full block. Its last token is stored only by engines that compute
        ahead."""
        size = self._block_tokens
        if not size:
            return []
        end, end_ahead = (answer.total_tokens - 1) // size * size, answer.total_tokens // size * size
        return [end] if end == end_ahead else [end, end_ahead]

    def _may_end_with(self, block: _Block, answer: Answer) -> bool:
        is_in_time = block.stored_ns >= answer.since_ns(block.end_tokens) and _was_last(block, answer)
        return is_in_time and block.end_tokens in self._ends(answer)

    def _tie(self, answer: Answer, last: _Block) -> Settled:
        """Tie the prompt's blocks in the chain that ends with this one."""
        new, known, held_tokens = self._untied(last, answer.prompt_tokens)
        if self._steps >= _STEPS_MAX:
            return Settled(TieResult.AMBIGUOUS)
        if not new:
            return Settled(TieResult.KNOWN)
        profile, before = answer.profile, None if known is None else known.tie
        chain = profile.prefix
        shared = 0 if before is None else common_blocks(before.chain, chain) * PREFIX_HASH_BYTES
        goes_on = before is not None and 0 < shared == len(before.chain)
        added = len(chain) - (shared if goes_on else 0)
        if self._chain_bytes + added > _CHAIN_BYTES_MAX:
            return Settled(TieResult.FULL)
        self._chain_bytes += added
        if before is not None and goes_on:
            tie = before
            tie.extend(chain, answer.prompt_tokens, profile.prompt_bytes)
        else:
            tie = Tie(chain, profile.prefix_block_bytes, answer.prompt_tokens, profile.prompt_bytes)
            if before is not None and known is not None and 0 < shared < len(chain):
                part(before, tie, known.end_tokens, shared // PREFIX_HASH_BYTES)
        for block in new:
            block.tie = tie
        tie.holders += len(new)
        self.tied += len(new)
        return Settled(TieResult.TIED, chain, tie.blocks_at(held_tokens))

    def _untied(self, last: _Block, prompt_tokens: int) -> tuple[list[_Block], _Block | None, int]:
        """Blocks of the prompt in the chain that ends with this one, the last first, that are not tied; the last one
        that is; and the tokens of the prompt that the chain holds, 0 if it lacks its beginning."""
        new: list[_Block] = []
        known: _Block | None = None
        held_tokens, first = 0, last
        block: _Block | None = last
        while block is not None:
            if block.end_tokens <= prompt_tokens:
                held_tokens = held_tokens or block.end_tokens
            if block.tie is not None:
                known = known or block
            elif block.end_tokens <= prompt_tokens:
                new.append(block)
            first = block
            block = self._before(block)
        return new, known, held_tokens if first.start_tokens == 0 else 0

    def _untie(self, block: _Block, tie: Tie) -> None:
        block.tie = None
        self.tied -= 1
        tie.holders -= 1
        if not tie.holders:
            self._chain_bytes -= len(tie.chain)


def hashes_in(blocks: bytes) -> list[bytes]:
    """Hashes of packed blocks."""
    return [blocks[at : at + PREFIX_HASH_BYTES] for at in range(0, len(blocks), PREFIX_HASH_BYTES)]


def _follow(block: _Block, now_ns: int) -> None:
    if block.followed_ns < 0:
        block.followed_ns = now_ns


def _was_last(block: _Block, answer: Answer) -> bool:
    """Return true if the block was the last of its chain when the answer ended, and told soon enough."""
    is_followed = 0 <= block.followed_ns <= answer.ended_ns
    return not is_followed and block.stored_ns <= answer.ended_ns + GRACE_NS
