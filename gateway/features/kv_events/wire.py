"""Wire format of KV events: batches in MessagePack as vLLM and SGLang publish them, with events as maps or, by older
engines, as arrays. Token ids are counted and dropped: they are the text of prompts.

The formats are those of the modules `kv_events` of vLLM (in `distributed`) and of SGLang (in `disaggregation`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import DecodeError, Raw, Struct, ValidationError, msgpack

from gateway.core.features.kv_events.events import CacheChange, CacheTier, ChangeKind

BLOCK_TOKENS_MAX: Final = 2**20
_HASH_MASK: Final = 2**64 - 1
_HASH_BYTES: Final = 8
_TIERS: Final = {
    None: CacheTier.DEVICE,
    "GPU": CacheTier.DEVICE,
    "CPU": CacheTier.HOST,
    "CPU_PINNED": CacheTier.HOST,
}
"""Memory of each medium; any other is storage."""
_Hash = int | bytes


class EventFault(Exception):
    """A batch that cannot be read."""


class _Batch(Struct, array_like=True):
    ts: float
    events: list[Raw]


class _Named(Struct):
    type: str = ""


class _StoredMap(Struct):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: Raw
    block_size: int
    medium: str | None = None
    group_idx: int | None = None


class _RemovedMap(Struct):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


class _StoredArray(Struct, array_like=True):
    type: str
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: Raw
    block_size: int
    lora_id: Any = None
    medium: str | None = None
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: int | None = None


class _RemovedArray(Struct, array_like=True):
    type: str
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


_BATCH: Final = msgpack.Decoder(_Batch)
_NAMED: Final = msgpack.Decoder(_Named)
_LIST: Final = msgpack.Decoder(list[Raw])
_TEXT: Final = msgpack.Decoder(str)
_STORED_MAP: Final = msgpack.Decoder(_StoredMap)
_STORED_ARRAY: Final = msgpack.Decoder(_StoredArray)
_REMOVED_MAP: Final = msgpack.Decoder(_RemovedMap)
_REMOVED_ARRAY: Final = msgpack.Decoder(_RemovedArray)


def read_batch(payload: bytes) -> list[CacheChange]:
    """Changes in a batch. Events of unknown types, and those of layers other than the first group's, are left out.
    Raises EventFault."""
    try:
        return [change for event in _BATCH.decode(payload).events for change in _changes(event)]
    except (DecodeError, ValidationError, RecursionError) as error:
        raise EventFault(f"a batch of events cannot be read: {error}") from error


def _changes(event: Raw) -> Iterator[CacheChange]:
    first = bytes(memoryview(event)[:1])
    is_map = bool(first) and (0x80 <= first[0] <= 0x8F or first[0] in (0xDE, 0xDF))
    kind = _NAMED.decode(event).type if is_map else _first_of(event)
    if kind == "AllBlocksCleared":
        yield CacheChange(ChangeKind.CLEARED)
    elif kind == "BlockStored":
        stored = (_STORED_MAP if is_map else _STORED_ARRAY).decode(event)
        if not stored.group_idx:
            yield _stored(stored)
    elif kind == "BlockRemoved":
        removed = (_REMOVED_MAP if is_map else _REMOVED_ARRAY).decode(event)
        if not removed.group_idx:
            yield CacheChange(ChangeKind.REMOVED, _packed(removed.block_hashes), tier=_tier(removed.medium))


def _first_of(event: Raw) -> str:
    parts = _LIST.decode(event)
    if not parts:
        raise EventFault("an event is empty")
    return _TEXT.decode(parts[0])


def _stored(event: _StoredMap | _StoredArray) -> CacheChange:
    tokens, blocks = _length(event.token_ids), len(event.block_hashes)
    size = event.block_size
    if not 1 <= size <= BLOCK_TOKENS_MAX:
        raise EventFault(f"a block has {size} tokens")
    if tokens and tokens != size * blocks:
        raise EventFault(f"{blocks} blocks of {size} tokens have {tokens} tokens")
    parent = b"" if event.parent_block_hash is None else _packed([event.parent_block_hash])
    tier = _tier(event.medium)
    if not tokens:  # copies of blocks, whose place has been told before
        size = 0
    return CacheChange(ChangeKind.STORED, _packed(event.block_hashes), parent, size, tier)


def _tier(medium: str | None) -> CacheTier:
    return _TIERS.get(medium, CacheTier.STORAGE)


def _packed(hashes: list[_Hash]) -> bytes:
    """Last 8 bytes of each hash: SGLang's are signed, and some engines send all bytes."""
    return b"".join(
        [
            (each & _HASH_MASK).to_bytes(_HASH_BYTES, "big")
            if isinstance(each, int)
            else each[-_HASH_BYTES:].rjust(_HASH_BYTES, b"\0")
            for each in hashes
        ]
    )


def _length(array: Raw) -> int:
    """Length of a MessagePack array, from its head."""
    head = bytes(memoryview(array)[:5])
    if head and 0x90 <= head[0] <= 0x9F:
        return head[0] & 0x0F
    if head and head[0] in (0xDC, 0xDD):
        return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5], "big")
    raise EventFault("the tokens of a block are no list")
