"""Prompts as chains of block hashes, which are extended without hashing their beginning again. No request's text is
kept.

One chain serves both prefix routing and prefix caching: a gateway's block is a whole number of an engine's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from gateway.core.block_sizes import EVEN_BLOCKS, blocks_in, bytes_in
from loadgen.engine.blocks import NAME_BYTES, packed
from loadgen.engine.tokens import TOKEN_BYTES
from loadgen.passages import BlockText

_NAME = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text of whole tokens: the chained names of its full blocks, packed, and the bytes after the last of them."""

    block_bytes: int
    names: bytes
    tail: bytes
    seed: int
    """Seed of the first block's name: texts with different seeds share no name."""

    @property
    def size_bytes(self) -> int:
        return len(self.names) // NAME_BYTES * self.block_bytes + len(self.tail)

    @property
    def tokens(self) -> int:
        return self.size_bytes // TOKEN_BYTES

    def followed_by(self, text: bytes) -> Prompt:
        """Prompt with more text at its end, filled up to whole tokens."""
        rest = self.tail + text.ljust(-(-len(text) // TOKEN_BYTES) * TOKEN_BYTES)
        size = self.block_bytes
        link = _NAME.unpack(self.names[-NAME_BYTES:])[0] if self.names else self.seed
        full = len(rest) - len(rest) % size
        names = [link := xxh3_64_intdigest(rest[start : start + size], link) for start in range(0, full, size)]
        return Prompt(size, self.names + packed(names), rest[full:], self.seed)

    def chain(self, blocks_per_hash: int, hashes_max: int) -> bytes:
        """Packed hashes as gateways compare prompts: one hash for each `blocks_per_hash` blocks, for more of them where
        blocks grow, and at most `hashes_max`. A growing block that the text does not fill has none."""
        names = memoryview(self.names).cast("Q")
        even = names[blocks_per_hash - 1 :: blocks_per_hash][: min(hashes_max, EVEN_BLOCKS)].tobytes()
        hashes = min(hashes_max, blocks_in(len(names), blocks_per_hash))
        ends = (NAME_BYTES * bytes_in(count, blocks_per_hash) for count in range(EVEN_BLOCKS + 1, hashes + 1))
        return even + b"".join(self.names[end - NAME_BYTES : end] for end in ends)


def empty_prompt(model: str, tenant: str, block_bytes: int) -> Prompt:
    """Prompt without text, with a seed of its own for each tenant and model."""
    return Prompt(block_bytes, b"", b"", xxh3_64_intdigest(f"{len(model)}:{model}{tenant}".encode()))


def passage_prompt(empty: Prompt, passage: BlockText) -> Prompt:
    """Passage as a prompt; only the end of its text is generated."""
    unit_tokens = empty.block_bytes // TOKEN_BYTES
    names = passage.names(unit_tokens, empty.seed)
    return Prompt(empty.block_bytes, packed(names), passage.text(len(names) * unit_tokens).encode(), empty.seed)


def reply_text(request_id: str, tokens: int) -> bytes:
    """Text of an answer, unique to the request."""
    word = _NAME.pack(xxh3_64_intdigest(request_id.encode()))
    size = tokens * TOKEN_BYTES
    return (word * (size // len(word) + 1))[:size]
