"""Bytes of the prefix index's parts, measured on CPython 3.11, and of what two of its chains share."""

from __future__ import annotations

from gateway.core.block_sizes import EVEN_BLOCKS, bytes_in
from gateway.core.vocabulary import PREFIX_HASH_BYTES

NODE_BYTES = 200
"""Bytes of a node with its label's header, its key and its place in the table of nodes."""
END_BYTES = 115
SUPPORT_BYTES = 45
_BOOKS_BYTES = 545
"""Bytes of one slot's books while they are empty, without the int of its bit."""
_INT_BYTES = 28
EMPTY_BOOKS_BYTES = _BOOKS_BYTES + _INT_BYTES
"""Bytes of slot 0's books while they are empty; each further slot's are at most a byte larger."""
EMPTY_SPARED_BYTES = 400
"""Bytes of one slot's table of spared nodes while it is empty."""
_EVEN_BYTES = EVEN_BLOCKS * PREFIX_HASH_BYTES
_INT_BITS_PER_BYTE = 7.5
SHORT_INT_BITS = 62
"""Widest int that a compiled index holds by value."""


def common_bytes(label: bytes, chain: bytes, position: int) -> int:
    """Bytes of a label that the chain shares, where the chain has the label's first hash but not all of it.

    A binary search: two hashes are equal only if all before them are.
    """
    equal, end = 1, min(len(label) - PREFIX_HASH_BYTES, len(chain) - position) // PREFIX_HASH_BYTES
    while equal < end:
        middle = (equal + end + 1) // 2
        at = (middle - 1) * PREFIX_HASH_BYTES
        if chain.startswith(label[at : at + PREFIX_HASH_BYTES], position + at):
            equal = middle
        else:
            end = middle - 1
    return equal * PREFIX_HASH_BYTES


def mask_bytes(mask: int) -> int:
    """Bytes of a node's own mask; a lone slot's int is shared."""
    if not mask & (mask - 1):
        return 0
    return _INT_BYTES + int(mask.bit_length() / _INT_BITS_PER_BYTE)


def books_bytes(slot: int) -> int:
    return EMPTY_BOOKS_BYTES + int(slot / _INT_BITS_PER_BYTE)


def even_blocks_in(position: int, label_bytes: int) -> int:
    """Text behind a label that begins at this position of a chain, in blocks of equal size, as if its last block were
    complete."""
    end = position + label_bytes
    if end <= _EVEN_BYTES:
        return label_bytes // PREFIX_HASH_BYTES
    return bytes_in(end // PREFIX_HASH_BYTES, 1) - bytes_in(position // PREFIX_HASH_BYTES, 1)
