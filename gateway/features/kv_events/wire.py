"""Wire format of KV events: batches in MessagePack as vLLM and SGLang publish them, with events as maps or, by older
engines, as arrays. Token ids are counted and dropped: they are the text of prompts.

The formats are those of the modules `kv_events` of vLLM (in `distributed`) and of SGLang (in `disaggregation`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import DecodeError, Raw, Struct, ValidationError, msgpack
from msgspec.structs import replace

from gateway.core.features.kv_events.events import CacheChange, CacheTier, ChangeKind

BLOCK_TOKENS_MAX: Final = 2**20
EVENTS_MAX: Final = 16_384
"""Most events in a batch."""
HASHES_MAX: Final = 65_536
"""Most hashes in a batch. An engine tells of a few thousand at once."""
_PART_EVENTS: Final = 256
_PART_HASHES: Final = 2_048
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
    events: Raw


class _Named(Struct):
    type: str = ""


class _StoredMap(Struct):
    block_hashes: Raw
    parent_block_hash: _Hash | None
    token_ids: Raw
    block_size: int
    medium: str | None = None
    group_idx: int | None = None


class _RemovedMap(Struct):
    block_hashes: Raw
    medium: str | None = None
    group_idx: int | None = None


class _StoredArray(Struct, array_like=True):
    type: str
    block_hashes: Raw
    parent_block_hash: _Hash | None
    token_ids: Raw
    block_size: int
    lora_id: Raw = Raw()
    medium: str | None = None
    lora_name: Raw = Raw()
    extra_keys: Raw = Raw()
    group_idx: int | None = None


class _RemovedArray(Struct, array_like=True):
    type: str
    block_hashes: Raw
    medium: str | None = None
    group_idx: int | None = None


_BATCH: Final = msgpack.Decoder(_Batch)
_NAMED: Final = msgpack.Decoder(_Named)
_LIST: Final = msgpack.Decoder(list[Raw])
_HASHES: Final = msgpack.Decoder(list[_Hash])
_TEXT: Final = msgpack.Decoder(str)
_STORED_MAP: Final = msgpack.Decoder(_StoredMap)
_STORED_ARRAY: Final = msgpack.Decoder(_StoredArray)
_REMOVED_MAP: Final = msgpack.Decoder(_RemovedMap)
_REMOVED_ARRAY: Final = msgpack.Decoder(_RemovedArray)


class BatchPart(Struct, frozen=True):
    """Part of a batch that is read and taken in without a pause."""

    changes: tuple[CacheChange, ...]
    events: int
    hashes: int


def read_batch(payload: bytes) -> Iterator[BatchPart]:
    """Read the changes in a batch, a part at a time. Events of unknown types, and those of layers other than the first
    group's, are left out. Raises EventFault, also after some parts."""
    try:
        yield from _parts(_BATCH.decode(payload).events)
    except (DecodeError, ValidationError, RecursionError, UnicodeDecodeError) as error:
        raise EventFault(f"a batch of events cannot be read: {error}") from error


def _parts(array: Raw) -> Iterator[BatchPart]:
    if _length(array) > EVENTS_MAX:
        raise EventFault(f"a batch has more than {EVENTS_MAX:,} events")
    room = HASHES_MAX
    changes: list[CacheChange] = []
    events = hashes = 0
    for event in _LIST.decode(array):
        events += 1
        for change in _changes(event, room):
            for piece in _pieces(change):
                changes.append(piece)
                added = len(piece.blocks) // _HASH_BYTES
                hashes, room = hashes + added, room - added
                if hashes >= _PART_HASHES:
                    yield BatchPart(tuple(changes), events, hashes)
                    changes, events, hashes = [], 0, 0
        if events >= _PART_EVENTS:
            yield BatchPart(tuple(changes), events, hashes)
            changes, events, hashes = [], 0, 0
    yield BatchPart(tuple(changes), events, hashes)


def _pieces(change: CacheChange) -> Iterator[CacheChange]:
    """Changes of a few blocks each that come to the same."""
    size = _PART_HASHES * _HASH_BYTES
    if len(change.blocks) <= size:
        yield change
        return
    parent = change.parent
    for start in range(0, len(change.blocks), size):
        blocks = change.blocks[start : start + size]
        yield replace(change, blocks=blocks, parent=parent)
        parent = blocks[-_HASH_BYTES:] if change.kind is ChangeKind.STORED else b""


def _changes(event: Raw, room: int) -> Iterator[CacheChange]:
    """Change that an event tells of, if any, with so many hashes at most."""
    first = bytes(memoryview(event)[:1])
    is_map = bool(first) and (0x80 <= first[0] <= 0x8F or first[0] in (0xDE, 0xDF))
    kind = _NAMED.decode(event).type if is_map else _first_of(event)
    if kind == "AllBlocksCleared":
        yield CacheChange(ChangeKind.CLEARED)
    elif kind == "BlockStored":
        stored = (_STORED_MAP if is_map else _STORED_ARRAY).decode(event)
        if not stored.group_idx:
            yield _stored(stored, room)
    elif kind == "BlockRemoved":
        removed = (_REMOVED_MAP if is_map else _REMOVED_ARRAY).decode(event)
        if not removed.group_idx:
            yield CacheChange(ChangeKind.REMOVED, _packed(removed.block_hashes, room), tier=_tier(removed.medium))


def _first_of(event: Raw) -> str:
    parts = _LIST.decode(event)
    if not parts:
        raise EventFault("an event is empty")
    return _TEXT.decode(parts[0])


def _stored(event: _StoredMap | _StoredArray, room: int) -> CacheChange:
    tokens, blocks = _length(event.token_ids), _length(event.block_hashes)
    size = event.block_size
    if not 1 <= size <= BLOCK_TOKENS_MAX:
        raise EventFault(f"a block has {size} tokens")
    if tokens and tokens != size * blocks:
        raise EventFault(f"{blocks} blocks of {size} tokens have {tokens} tokens")
    parent = b"" if event.parent_block_hash is None else _hash(event.parent_block_hash)
    tier = _tier(event.medium)
    if not tokens:  # copies of blocks, whose place has been told before
        size = 0
    return CacheChange(ChangeKind.STORED, _packed(event.block_hashes, room), parent, size, tier)


def _tier(medium: str | None) -> CacheTier:
    return _TIERS.get(medium, CacheTier.STORAGE)


def _packed(array: Raw, room: int) -> bytes:
    """Hashes of a list, which is not read if it has more than there is room for."""
    if _length(array) > room:
        raise EventFault(f"a batch has more than {HASHES_MAX:,} hashes")
    return b"".join([_hash(each) for each in _HASHES.decode(array)])


def _hash(told: _Hash) -> bytes:
    """Last 8 bytes of a hash: SGLang's are signed, and some engines send all bytes."""
    if isinstance(told, int):
        return (told & _HASH_MASK).to_bytes(_HASH_BYTES, "big")
    return told[-_HASH_BYTES:].rjust(_HASH_BYTES, b"\0")


def _length(array: Raw) -> int:
    """Length of a MessagePack array, from its head."""
    head = bytes(memoryview(array)[:5])
    if head and 0x90 <= head[0] <= 0x9F:
        return head[0] & 0x0F
    if head and head[0] in (0xDC, 0xDD):
        return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5], "big")
    raise EventFault("events, hashes or tokens are no list")
