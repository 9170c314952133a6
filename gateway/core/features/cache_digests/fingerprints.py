"""Fingerprints of prefix blocks: which blocks of a chain a digest names. The fingerprint of a block is its hash.

A block's hash stands for all blocks before it, so a digest need not name every block. It names the first eight, then
eight in each doubling: a match found by them is at most an eighth shorter than the whole.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final

from gateway.core.vocabulary import PREFIX_HASH_BYTES

FINGERPRINT_BYTES: Final = PREFIX_HASH_BYTES
_PER_DOUBLING: Final = 8
_DOUBLINGS_MAX: Final = 20


def _ladder() -> tuple[int, ...]:
    rungs = list(range(1, _PER_DOUBLING + 1))
    for doubling in range(_DOUBLINGS_MAX):
        first = _PER_DOUBLING << doubling
        rungs.extend(first + step * (1 << doubling) for step in range(1, _PER_DOUBLING + 1))
    return tuple(rungs)


RUNGS: Final = _ladder()
"""Numbers of blocks at which a chain is named, in rising order."""


def rungs_within(blocks: int) -> int:
    """Number of rungs in a chain of so many blocks."""
    return bisect_right(RUNGS, blocks)


def fingerprint(chain: bytes, blocks: int) -> int:
    """Fingerprint of a chain's first blocks: the hash of the last of them."""
    end = blocks * PREFIX_HASH_BYTES
    return int.from_bytes(chain[end - PREFIX_HASH_BYTES : end], "big")


def packed(fingerprints: list[int]) -> bytes:
    return struct.pack(f">{len(fingerprints)}Q", *fingerprints)


def unpacked(text: bytes) -> tuple[int, ...]:
    """Fingerprints that a message holds, without a rest that is not a whole one."""
    count = len(text) // FINGERPRINT_BYTES
    return struct.unpack_from(f">{count}Q", text)
