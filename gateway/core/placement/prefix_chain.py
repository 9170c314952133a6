"""Block hashes of a prompt: turns it into a chain of them, so that prefixes can be compared without keeping any text.

The prompt is never decoded, and no more of it is hashed than was asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice

from xxhash import xxh3_64_intdigest

from gateway.core.vocabulary import PREFIX_HASH_BYTES, ModelName, TenantName


def prefix_salt(model: ModelName, tenant: TenantName, cache_salt: str | None) -> bytes:
    """Salt of a prompt's chain: the properties that two prompts must share before anything about one is used for the
    other.

    Each field comes after its length, so no two triples look alike. JSON strings may hold lone surrogates, which must
    not make a request fail here.
    """
    salt = b""
    for field in (model, tenant) if cache_salt is None else (model, tenant, cache_salt):
        raw = field.encode("utf-8", "surrogatepass")
        salt += len(raw).to_bytes(4, "big") + raw
    return salt


def prefix_chain(
    salt: bytes, parts: Iterable[bytes | memoryview], *, block_bytes: int, blocks_max: int
) -> tuple[bytes, int]:
    """Hash the text that `parts` make together, block by block, each block seeded with the hash before it.

    Returns the packed chain (8 bytes, big-endian, per full block, at most `blocks_max` blocks) and the length of the
    whole text in bytes. Equal hash i means equal salt and equal blocks 0..i, wherever the borders of the parts fell.
    """
    assert block_bytes > 0, "a block has at least one byte"
    assert blocks_max >= 0, "a limit is never negative"
    views = [memoryview(part) for part in parts]
    link = xxh3_64_intdigest(salt)
    links = [link := xxh3_64_intdigest(block, link) for block in islice(_blocks(views, block_bytes), blocks_max)]
    return struct.pack(f">{len(links)}Q", *links), sum(map(len, views))


def _blocks(views: list[memoryview], block_bytes: int) -> Iterator[bytes]:
    """Full blocks, one at a time; only a block that straddles two parts is put together from copies."""
    rest = b""
    for view in views:
        start = min(-len(rest) % block_bytes, len(view))
        rest += view[:start]
        if len(rest) == block_bytes:
            yield rest
            rest = b""
        end = len(view) - (len(view) - start) % block_bytes
        for (block,) in struct.iter_unpack(f"{block_bytes}s", view[start:end]):
            yield block
        rest += view[end:]


def extended_chain(
    chain: bytes, parts: Iterable[bytes | memoryview], tail: bytes, *, block_bytes: int, blocks_max: int
) -> bytes:
    """Chain of the text that `parts` make together, with its last byte (a closing bracket or quote) replaced by `tail`.
    `chain` is that of `parts`; it includes the salt, which is not needed again.

    Returns `chain` unchanged where it was cut short, and an empty chain where no block before the last byte is
    complete.
    """
    text = b"".join(parts)
    known = len(chain) // PREFIX_HASH_BYTES
    if known != len(text) // block_bytes or not text:
        return chain
    kept = min(known, (len(text) - 1) // block_bytes)
    if not kept:
        return chain[:0]
    link = int.from_bytes(chain[(kept - 1) * PREFIX_HASH_BYTES : kept * PREFIX_HASH_BYTES], "big")
    rest = [memoryview(text)[kept * block_bytes : -1], memoryview(tail)]
    links = [link := xxh3_64_intdigest(block, link) for block in islice(_blocks(rest, block_bytes), blocks_max - kept)]
    return chain[: kept * PREFIX_HASH_BYTES] + struct.pack(f">{len(links)}Q", *links)
