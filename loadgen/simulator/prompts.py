"""Prompts as chains of block hashes, which grow without hashing again what they grew from. No request's text is kept.

One chain serves both who route by prefix and who cache it: a gateway's block is a whole number of an engine's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from loadgen.engine.blocks import NAME_BYTES, packed
from loadgen.engine.tokens import TOKEN_BYTES
from loadgen.passages import Passage

_NAME = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text of whole tokens: the chained names of its full blocks, packed, and what follows the last of them."""

    block_bytes: int
    names: bytes
    tail: bytes
    seed: int
    """What the first block is chained to: texts with another seed share nothing."""

    @property
    def size_bytes(self) -> int:
        return len(self.names) // NAME_BYTES * self.block_bytes + len(self.tail)

    @property
    def tokens(self) -> int:
        return self.size_bytes // TOKEN_BYTES

    def followed_by(self, text: bytes) -> Prompt:
        """The prompt with more text at its end, filled up to whole tokens."""
        rest = self.tail + text.ljust(-(-len(text) // TOKEN_BYTES) * TOKEN_BYTES)
        size = self.block_bytes
        link = _NAME.unpack(self.names[-NAME_BYTES:])[0] if self.names else self.seed
        full = len(rest) - len(rest) % size
        names = [link := xxh3_64_intdigest(rest[start : start + size], link) for start in range(0, full, size)]
        return Prompt(size, self.names + packed(names), rest[full:], self.seed)

    def chain(self, blocks_per_hash: int, hashes_max: int) -> bytes:
        """Packed as gateways compare prompts: one hash for so many blocks."""
        names = memoryview(self.names).cast("Q")
        return names[blocks_per_hash - 1 :: blocks_per_hash][:hashes_max].tobytes()


def empty_prompt(model: str, tenant: str, block_bytes: int) -> Prompt:
    """Nothing said yet; what one tenant says to one model is told apart from everything else."""
    return Prompt(block_bytes, b"", b"", xxh3_64_intdigest(f"{len(model)}:{model}{tenant}".encode()))


def passage_prompt(empty: Prompt, passage: Passage) -> Prompt:
    """The passage as a prompt; of its text only the end is made."""
    unit_tokens = empty.block_bytes // TOKEN_BYTES
    names = passage.names(unit_tokens, empty.seed)
    return Prompt(empty.block_bytes, packed(names), passage.text(len(names) * unit_tokens).encode(), empty.seed)


def reply_text(request_id: str, tokens: int) -> bytes:
    """An answer that no other request gets."""
    word = _NAME.pack(xxh3_64_intdigest(request_id.encode()))
    size = tokens * TOKEN_BYTES
    return (word * (size // len(word) + 1))[:size]
