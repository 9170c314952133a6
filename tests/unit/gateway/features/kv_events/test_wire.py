"""Batches of events, as engines of several versions publish them."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core.features.kv_events.events import CacheChange, CacheTier, ChangeKind
from gateway.features.kv_events.wire import EVENTS_MAX, HASHES_MAX, EventFault, read_batch

GOLDEN = bytes.fromhex(
    "93cb41daa8dbe0200000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfdab89baa7b5857c0b170"
    "6172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a6"
    "6d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f6361636865"
    "5f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173"
    "68657391"
    "01a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)
"""Batch that vLLM's own structs encode: a block stored, a block removed, all cleared."""
GOLDEN_CHANGES = [
    CacheChange(ChangeKind.STORED, (15760518052499183552).to_bytes(8, "big"), b"", 4),
    CacheChange(ChangeKind.REMOVED, (1).to_bytes(8, "big")),
    CacheChange(ChangeKind.CLEARED),
]
STORED: dict[str, object] = {
    "type": "BlockStored",
    "block_hashes": [1, 2],
    "parent_block_hash": None,
    "token_ids": [0] * 8,
    "block_size": 4,
    "lora_id": None,
    "medium": "GPU",
}


def batch(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def changes_in(payload: bytes) -> list[CacheChange]:
    return [change for part in read_batch(payload) for change in part.changes]


def stored(**changes: object) -> bytes:
    return batch({**STORED, **changes})


def as_array(event: dict[str, object]) -> list[object]:
    return list(event.values())


def test_a_batch_of_vllms_own_making_is_read() -> None:
    assert changes_in(GOLDEN) == GOLDEN_CHANGES


def test_events_of_older_engines_are_arrays() -> None:
    (change,) = changes_in(batch(as_array(STORED)))
    assert change == CacheChange(ChangeKind.STORED, b"\0" * 7 + b"\1" + b"\0" * 7 + b"\2", b"", 4)
    (removed, cleared) = changes_in(batch(["BlockRemoved", [1], "CPU"], ["AllBlocksCleared"]))
    assert removed == CacheChange(ChangeKind.REMOVED, b"\0" * 7 + b"\1", tier=CacheTier.HOST)
    assert cleared.kind is ChangeKind.CLEARED


def test_an_array_may_end_early() -> None:
    (change,) = changes_in(batch(as_array(STORED)[:5]))
    assert change.tier is CacheTier.DEVICE


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, CacheTier.DEVICE),
        ("GPU", CacheTier.DEVICE),
        ("CPU", CacheTier.HOST),
        ("CPU_PINNED", CacheTier.HOST),
        ("STORAGE", CacheTier.STORAGE),
        ("DISK", CacheTier.STORAGE),
        ("something new", CacheTier.STORAGE),
    ],
)
def test_each_medium_has_its_tier(medium: str | None, tier: CacheTier) -> None:
    assert changes_in(stored(medium=medium))[0].tier is tier


@pytest.mark.parametrize(
    ("told", "packed"),
    [
        (-1, b"\xff" * 8),
        (2**64 - 1, b"\xff" * 8),
        (b"a" * 24 + b"12345678", b"12345678"),
        (b"1", b"\0" * 7 + b"1"),
    ],
)
def test_hashes_may_be_signed_or_bytes(told: int | bytes, packed: bytes) -> None:
    change = changes_in(stored(block_hashes=[told], token_ids=[0] * 4, parent_block_hash=told))[0]
    assert (change.blocks, change.parent) == (packed, packed)


def test_copies_without_tokens_have_no_place() -> None:
    assert changes_in(stored(token_ids=[], medium="CPU"))[0].block_tokens == 0


def test_long_lists_of_tokens_are_counted_by_their_head() -> None:
    for blocks in (4, 300):
        (change,) = changes_in(stored(block_hashes=list(range(blocks)), token_ids=[0] * (256 * blocks), block_size=256))
        assert len(change.blocks) == 8 * blocks


def test_other_groups_of_layers_and_unknown_events_are_left_out() -> None:
    events = {**STORED, "group_idx": 1}, {"type": "BlockRemoved", "block_hashes": [1], "group_idx": 2}
    assert changes_in(batch(*events, {"type": "Later", "field": 1}, ["Later", 2])) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93" * 5_000,
        GOLDEN[:-1],
        msgspec.msgpack.encode({"ts": 1}),
        batch(7),
        batch([]),
        batch([1]),
        stored(block_size=0),
        stored(block_size=2**30),
        stored(token_ids=[0] * 7),
        stored(token_ids=3),
        stored(block_hashes="none"),
        stored(block_hashes=[1.5]),
        msgspec.msgpack.encode([1.5, [msgspec.Raw(b"\x91\xa1\xff")]]),
        msgspec.msgpack.encode([1.5, [msgspec.Raw(b"\x81\xa4type\xa1\xff")]]),
    ],
)
def test_what_cannot_be_read_is_a_fault(payload: bytes) -> None:
    with pytest.raises(EventFault):
        changes_in(payload)


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (batch(*[["X"]] * (EVENTS_MAX + 1)), "events"),
        (batch({"type": "BlockRemoved", "block_hashes": [1] * (HASHES_MAX + 1)}), "hashes"),
        (batch(*[["BlockRemoved", [1] * (HASHES_MAX // 2)]] * 2, ["BlockRemoved", [1]]), "hashes"),
        (stored(block_hashes=[1] * (HASHES_MAX + 1), block_size=1, token_ids=[0] * (HASHES_MAX + 1)), "hashes"),
    ],
)
def test_a_batch_has_a_bound_on_events_and_hashes(payload: bytes, what: str) -> None:
    with pytest.raises(EventFault, match=f"more than .* {what}"):
        changes_in(payload)


def test_a_long_batch_comes_in_parts() -> None:
    parts = list(read_batch(batch(*[["X"]] * EVENTS_MAX)))
    assert sum(part.events for part in parts) == EVENTS_MAX
    assert max(part.events for part in parts) <= 256
    parts = list(read_batch(batch(*[["BlockRemoved", list(range(at, HASHES_MAX, 4))] for at in range(4)])))
    assert sum(part.hashes for part in parts) == HASHES_MAX
    assert max(part.hashes for part in parts) < 2 * 2_048


def test_a_long_chain_comes_in_pieces_that_follow_each_other() -> None:
    blocks = 5_000
    payload = stored(block_hashes=list(range(blocks)), token_ids=[0] * blocks, block_size=1, parent_block_hash=blocks)
    pieces = changes_in(payload)
    assert b"".join(piece.blocks for piece in pieces) == b"".join(at.to_bytes(8, "big") for at in range(blocks))
    assert [piece.parent for piece in pieces] == [
        blocks.to_bytes(8, "big"),
        *[each.blocks[-8:] for each in pieces[:-1]],
    ]
    assert len(pieces) == 3
