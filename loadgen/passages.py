"""Texts named by numbers: sequences of numbered blocks, so that prompts share exactly the blocks with which they begin.

A passage costs a few numbers, however long it is. Code that needs the text generates it, and code that only compares
prompts takes the block names. Both are derived from the same numbers, so they always agree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import shake_128
from itertools import islice

from xxhash import xxh3_64_intdigest

_NUMBER = struct.Struct(">q")
_NAMES_MASK = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15
_VOCABULARY = """
act add age ago aid aim air all and any ape apt arc are ark arm art ash ask ate awe axe bad bag ban bar bat bay bed bee
beg bet bid big bin bit bow box boy bud bug bus but buy cab can cap car cat cow cry cub cup cut dad dam day den dew did
die dig dim dip dog dot dry due dug ear eat egg ego elf elm end era eve eye fan far fat fed fee few fig fin fit fix fly
fog for fox fun fur gap gas gem get god got gum gun guy had ham has hat hay hen her hid him hip his hit hot how hub hug
hut ice ill ink inn ion its ivy jam jar jaw jet job joy key kid kit lab lad lap law lay led leg let lid lie lip lit log
lot low mad man map mat may men met mix mom mud net new nil nor not now nun nut oak odd off oil old one our out owe own
pad pan pat paw pay pea pen pet pie pig pin pit pot put ran rat raw ray red rib rid rig rim rip rob rod rot row rub run
sad sat saw say sea see set sew she shy sin sip sir sit six sky son spy sum sun tab tag tan tap tax tea ten the tie tin
tip toe ton too top toy try two use van vet via war was wax way web wet who why win won yes yet you zoo
"""
_WORDS = [f" {word}" for word in _VOCABULARY.split()[:256]]
assert len(set(_WORDS)) == 256
assert all(len(word) == 4 for word in _WORDS)
"""Words of four bytes each (with the space), each one token of most real tokenizers."""


@dataclass(frozen=True, slots=True)
class BlockText:
    """Text of a given number of tokens: numbered blocks, followed by text that no other passage contains."""

    space: str
    """Namespace of the block numbers: the same number in another space is another text."""
    runs: tuple[tuple[int, int], ...]
    """Blocks as ranges: the first and the last number of each."""
    block_tokens: int
    tokens: int
    """Length of the whole text. A value below the blocks' sum cuts the last block short."""
    own: str = ""
    """Name of the text that follows the blocks."""

    @property
    def blocks(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)

    def numbers(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def cut(self, tokens_max: int) -> BlockText:
        """Passage cut to its first `tokens_max` tokens; unchanged if it is not longer."""
        return self if self.tokens <= tokens_max else replace(self, tokens=tokens_max)

    def scaled(self, scale: float) -> BlockText:
        """Passage with the same number of blocks, each scaled in length by whole tokens."""
        block_tokens = max(1, round(self.block_tokens * scale))
        in_blocks = min(self.tokens, self.blocks * self.block_tokens)
        whole, rest = divmod(in_blocks, self.block_tokens)
        rest = rest * block_tokens // self.block_tokens + round((self.tokens - in_blocks) * scale)
        return replace(self, block_tokens=block_tokens, tokens=max(1, whole * block_tokens + rest))

    def block_names(self, seed: int) -> list[int]:
        """Chained 64-bit names of the blocks: name i of two passages is equal if blocks 0 to i are."""
        return self._links(seed)[:-1]

    def names(self, unit_tokens: int, seed: int) -> tuple[int, ...]:
        """Chained 64-bit names of the full units: name i of two passages is equal if units 0 to i are."""
        size, links = self.block_tokens, self._links(seed)
        own = len(links) - 1
        inside = min(self.tokens, own * size)
        names = [
            (links[(end - 1) // size] + end * _ODD) & _NAMES_MASK for end in range(unit_tokens, inside + 1, unit_tokens)
        ]
        after = (len(names) + 1) * unit_tokens
        names += [(links[own] + end * _ODD) & _NAMES_MASK for end in range(after, self.tokens + 1, unit_tokens)]
        return tuple(names)

    def text(self, from_token: int = 0) -> str:
        """Text from this token to the end, four bytes per token."""
        return "".join(map(_WORDS.__getitem__, b"".join(self._draws(from_token))))

    def _links(self, seed: int) -> list[int]:
        """Hash of each block and one of the text after them, each chained to the one before."""
        link = xxh3_64_intdigest(self.space.encode(), seed)
        links = [link := xxh3_64_intdigest(_NUMBER.pack(number), link) for number in self.numbers()]
        return [*links, xxh3_64_intdigest(b"own" + self.own.encode(), link)]

    def _draws(self, from_token: int) -> Iterator[bytes]:
        """Random bytes that select the words, one byte per token."""
        size = self.block_tokens
        at = from_token // size * size
        for number in islice(self.numbers(), from_token // size, None):
            if at >= self.tokens:
                return
            drawn = shake_128(f"{len(self.space)}:{self.space}{number}".encode()).digest(min(size, self.tokens - at))
            yield drawn[max(0, from_token - at) :]
            at += size
        start = self.blocks * size
        if self.tokens > start:
            drawn = shake_128(f"own {len(self.space)}:{self.space}{self.own}".encode()).digest(self.tokens - start)
            yield drawn[max(0, from_token - start) :]


def runs_of(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Consecutive numbers combined into ranges of first and last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return tuple(runs)
