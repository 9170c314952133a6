"""Sizes of the blocks that a prompt is compared by: equal at first, then growing with the text before them.

The size of a block depends on its place alone, so a longer prompt has the blocks of its own beginning.
"""

from __future__ import annotations

from typing import Final

EVEN_BLOCKS: Final = 4096
"""Leading blocks of equal size: 1 MiB of text in blocks of 256 bytes."""
_STEPS: Final = 64
"""Blocks in which the text doubles, from there on: each is at most a 64th of the text before it."""
_EVEN_SHIFT: Final = 6
"""Binary logarithm of the size of the first growing block, in blocks of equal size."""
BLOCKS_MAX: Final = EVEN_BLOCKS + 8 * _STEPS
"""Default limit of blocks of one prompt: enough for 256 MiB of text in blocks of 256 bytes."""

assert EVEN_BLOCKS == _STEPS << _EVEN_SHIFT, "the first growing block is a 64th of the text before it"


def block_size(block: int, block_bytes: int) -> int:
    """Bytes of one block. `block`: its place, from 0. `block_bytes`: size of the first ones."""
    if block < EVEN_BLOCKS:
        return block_bytes
    return block_bytes << (_EVEN_SHIFT + (block - EVEN_BLOCKS) // _STEPS)


def bytes_in(blocks: int, block_bytes: int) -> int:
    """Bytes in the first blocks of a prompt, if all of them are complete."""
    if blocks <= EVEN_BLOCKS:
        return blocks * block_bytes
    doublings, steps = divmod(blocks - EVEN_BLOCKS, _STEPS)
    return (_STEPS + steps) * block_bytes << (_EVEN_SHIFT + doublings)


def blocks_in(text_bytes: int, block_bytes: int) -> int:
    """Complete blocks in a text."""
    even = text_bytes // block_bytes
    if even <= EVEN_BLOCKS:
        return even
    doublings = (even // EVEN_BLOCKS).bit_length() - 1
    return EVEN_BLOCKS + _STEPS * doublings + (even >> (_EVEN_SHIFT + doublings)) - _STEPS


def hashes_of(text_bytes: int, block_bytes: int) -> int:
    """Hashes of a text whose chain is not cut short: those of its complete blocks, and that of a last, growing one."""
    blocks = blocks_in(text_bytes, block_bytes)
    return blocks + (blocks >= EVEN_BLOCKS and bytes_in(blocks, block_bytes) < text_bytes)
