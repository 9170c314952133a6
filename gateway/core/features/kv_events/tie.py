"""Tie between an engine's blocks and a prompt: where in the prompt's text each block of tokens ends, without a
tokenizer."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from gateway.core.block_sizes import blocks_in, bytes_in
from gateway.core.vocabulary import PREFIX_HASH_BYTES


class Tie:
    """Prompt that blocks of an engine hold. Bytes of its text are known at some numbers of tokens, which only grow with
    it; in between they are taken to be in proportion."""

    __slots__ = ("_block_bytes", "_text", "_tokens", "chain", "holders")

    def __init__(self, chain: bytes, block_bytes: int, tokens: int, text_bytes: int) -> None:
        self.chain = chain
        """Packed hashes of the prompt's blocks, as the index has them."""
        self.holders = 0
        """Blocks of the engine that are tied to this prompt."""
        self._block_bytes = block_bytes
        self._tokens = [0, tokens]
        self._text = [0, text_bytes]

    def extend(self, chain: bytes, tokens: int, text_bytes: int) -> None:
        """Take the prompt of a later turn, which begins with this one."""
        self.chain = chain
        self.pin(tokens, text_bytes)

    def pin(self, tokens: int, text_bytes: int) -> None:
        """Note that so many tokens are so much of the text. Ignored where it contradicts what is known."""
        at = bisect_left(self._tokens, tokens)
        if at and text_bytes < self._text[at - 1]:
            return
        if at < len(self._tokens) and (self._tokens[at] == tokens or self._text[at] < text_bytes):
            return
        self._tokens.insert(at, tokens)
        self._text.insert(at, text_bytes)

    def text_at(self, tokens: int) -> int:
        """Bytes of the prompt's text in its first tokens."""
        at = bisect_right(self._tokens, tokens)
        if at == len(self._tokens):
            return self._text[-1]
        before, text = self._tokens[at - 1], self._text[at - 1]
        return text + (self._text[at] - text) * (tokens - before) // (self._tokens[at] - before)

    def blocks_at(self, tokens: int) -> int:
        """Complete blocks of the prompt's text in its first tokens."""
        return min(len(self.chain) // PREFIX_HASH_BYTES, blocks_in(self.text_at(tokens), self._block_bytes))

    def bytes_of(self, blocks: int) -> int:
        """Bytes of the prompt's text in its first blocks."""
        return bytes_in(blocks, self._block_bytes)


def part(one: Tie, other: Tie, tokens: int, blocks: int) -> None:
    """Note that two prompts share so many blocks of text, and the engine's blocks of them so many tokens."""
    text_bytes = one.bytes_of(blocks)
    one.pin(tokens, text_bytes)
    other.pin(tokens, text_bytes)


def common_blocks(one: bytes, other: bytes) -> int:
    """Number of leading blocks that two chains share: equal hashes imply that all before them are equal."""
    low, high = 0, min(len(one), len(other)) // PREFIX_HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        start, end = (middle - 1) * PREFIX_HASH_BYTES, middle * PREFIX_HASH_BYTES
        if one[start:end] == other[start:end]:
            low = middle
        else:
            high = middle - 1
    return low
