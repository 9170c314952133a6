"""Block hashes of a prompt: turns it into a chain of them, so that prefixes can be compared without keeping any text.

The prompt is never decoded, and no more of it is hashed than was asked for. Blocks beyond the first mebibyte or so grow
(`block_sizes`), so that a bounded chain tells long prompts apart to their end. A hash of all that is left would do so,
too, but the next turn of a conversation would not match its earlier turn there; blocks that grow with the text before
them lose at most a 64th of that match.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from xxhash import xxh3_64, xxh3_64_intdigest

from gateway.core.block_sizes import EVEN_BLOCKS, block_size, blocks_in, bytes_in, hashes_of
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

    Returns the packed chain (8 bytes, big-endian, per block, at most `blocks_max` blocks) and the length of the whole
    text in bytes. The last block may be cut short by the end of the text if it is a growing one; among blocks of equal
    size only full ones count. Equal hash i means equal salt and equal blocks 0..i, wherever the borders of the parts
    fell.
    """
    assert block_bytes > 0, "a block has at least one byte"
    assert blocks_max >= 0, "a limit is never negative"
    views = [memoryview(part) for part in parts]
    text_bytes = sum(map(len, views))
    link = xxh3_64_intdigest(salt)
    links = _even_links(views, link, min(blocks_max, EVEN_BLOCKS), block_bytes)
    if blocks_max > EVEN_BLOCKS and text_bytes > EVEN_BLOCKS * block_bytes:
        rest = _behind(views, EVEN_BLOCKS * block_bytes)
        links += _grown_links(rest, links[-1], EVEN_BLOCKS, block_bytes, blocks_max)
    return struct.pack(f">{len(links)}Q", *links), text_bytes


def _even_links(views: list[memoryview], link: int, blocks_max: int, block_bytes: int) -> list[int]:
    """Hashes of the full blocks of equal size, at most `blocks_max`; `link` is the hash before the first. Only a block
    that straddles two parts is put together from copies."""
    links: list[int] = []
    rest = b""
    for view in views:
        start = min(-len(rest) % block_bytes, len(view))
        rest += view[:start]
        if len(rest) == block_bytes:
            link = xxh3_64_intdigest(rest, link)
            links.append(link)
            rest = b""
        end = start + block_bytes * min((len(view) - start) // block_bytes, blocks_max - len(links))
        for (block,) in struct.iter_unpack(f"{block_bytes}s", view[start:end]):
            link = xxh3_64_intdigest(block, link)
            links.append(link)
        if len(links) == blocks_max:
            break
        rest += view[end:]
    return links


def _behind(views: list[memoryview], skipped_bytes: int) -> list[memoryview]:
    """Parts of a text behind its first bytes."""
    rest: list[memoryview] = []
    for view in views:
        if skipped_bytes < len(view):
            rest.append(view[skipped_bytes:])
        skipped_bytes = max(0, skipped_bytes - len(view))
    return rest


def _grown_links(rest: list[memoryview], link: int, first: int, block_bytes: int, blocks_max: int) -> list[int]:
    """Hashes of the growing blocks in the rest of a text, which begins with block `first`; `link` is the hash before
    it. The last block ends with the text. No text is copied, however many parts it lies in."""
    links: list[int] = []
    block = first
    left_bytes = 0
    digest = xxh3_64()
    for view in rest:
        start = 0
        while start < len(view):
            if not left_bytes:
                if block == blocks_max:
                    return links
                left_bytes = block_size(block, block_bytes)
                digest = xxh3_64(seed=link)
                links.append(0)
                block += 1
            taken = view[start : start + left_bytes]
            digest.update(taken)
            start += len(taken)
            left_bytes -= len(taken)
            if not left_bytes:
                link = links[-1] = digest.intdigest()
    if left_bytes:
        links[-1] = digest.intdigest()
    return links


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
    if known != hashes_of(len(text), block_bytes) or not text:
        return chain
    kept = blocks_in(len(text) - 1, block_bytes)
    if not kept:
        return chain[:0]
    link = int.from_bytes(chain[(kept - 1) * PREFIX_HASH_BYTES : kept * PREFIX_HASH_BYTES], "big")
    rest = [memoryview(text)[bytes_in(kept, block_bytes) : -1], memoryview(tail)]
    links = _even_links(rest, link, max(0, min(blocks_max, EVEN_BLOCKS) - kept), block_bytes)
    if kept + len(links) >= EVEN_BLOCKS:
        grown = _behind(rest, len(links) * block_bytes)
        links += _grown_links(grown, links[-1] if links else link, kept + len(links), block_bytes, blocks_max)
    return chain[: kept * PREFIX_HASH_BYTES] + struct.pack(f">{len(links)}Q", *links)
