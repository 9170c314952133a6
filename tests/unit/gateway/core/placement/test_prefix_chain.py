from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from gateway.core.block_sizes import EVEN_BLOCKS, blocks_in, bytes_in, hashes_of
from gateway.core.placement.prefix_chain import extended_chain, prefix_chain, prefix_salt
from gateway.core.vocabulary import PREFIX_HASH_BYTES, ModelName, TenantName

SALT = b"salt"


def chain_of(text: bytes, block_bytes: int = 4, blocks_max: int = 100, salt: bytes = SALT) -> bytes:
    return prefix_chain(salt, [text], block_bytes=block_bytes, blocks_max=blocks_max)[0]


def blocks_in_common(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other)) // PREFIX_HASH_BYTES
    return next(
        (i for i in range(length) if one[8 * i : 8 * i + 8] != other[8 * i : 8 * i + 8]),
        length,
    )


def test_each_hash_is_seeded_with_the_one_before() -> None:
    first = xxh3_64_intdigest(b"abcd", xxh3_64_intdigest(SALT))
    assert chain_of(b"abcdefgh") == struct.pack(">2Q", first, xxh3_64_intdigest(b"efgh", first))


def test_hashes_are_the_same_on_every_machine() -> None:
    assert chain_of(b"the quick brown fox", block_bytes=8).hex() == "e32c7603177982752f1c6a5a17200c38"


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)), st.integers(1, 20), st.integers(0, 30))
def test_borders_between_parts_do_not_matter(text: bytes, cuts: list[int], block_bytes: int, blocks_max: int) -> None:
    borders = sorted([0, *(min(cut, len(text)) for cut in cuts), len(text)])
    parts = [memoryview(text)[start:end] for start, end in pairwise(borders)]
    chain, total = prefix_chain(SALT, iter(parts), block_bytes=block_bytes, blocks_max=blocks_max)
    assert chain == chain_of(text, block_bytes, blocks_max)
    assert total == len(text)
    assert len(chain) == PREFIX_HASH_BYTES * min(len(text) // block_bytes, blocks_max)


@given(st.binary(max_size=60), st.binary(max_size=30), st.binary(max_size=30))
def test_chains_agree_for_exactly_the_common_blocks(shared: bytes, one: bytes, other: bytes) -> None:
    left, right = shared + one, shared + other
    same = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    assert blocks_in_common(chain_of(left), chain_of(right)) == same // 4


# Texts with growing blocks: in blocks of one byte these begin after 4 KiB.

LONG = bytes(range(251)) * 80
long_sizes = st.integers(0, len(LONG))


@given(long_sizes, long_sizes, st.integers(0, 255))
def test_long_prompts_that_differ_anywhere_have_different_chains(size: int, place: int, byte: int) -> None:
    one = LONG[:size]
    other = one[:place] + bytes([byte]) + one[place + 1 :] if place < size else one + bytes([byte])
    chains = [chain_of(text, 1, 10_000) for text in (one, other)]
    assert (chains[0] == chains[1]) == (one == other)
    if one != other:
        assert blocks_in_common(*chains) == blocks_in(min(place, size), 1), "nothing before the difference differs"


@given(long_sizes, long_sizes, st.integers(1, 3))
def test_a_prompt_that_extends_another_keeps_its_chain_but_for_the_last_block(
    size: int, longer: int, block_bytes: int
) -> None:
    size, longer = sorted((size, longer))
    short, long = chain_of(LONG[:size], block_bytes, 10_000), chain_of(LONG[:longer], block_bytes, 10_000)
    full = blocks_in(size, block_bytes)
    assert long[: full * PREFIX_HASH_BYTES] == short[: full * PREFIX_HASH_BYTES]
    assert len(short) // PREFIX_HASH_BYTES - full <= 1
    assert bytes_in(full, block_bytes) >= min(size - block_bytes + 1, size * 63 // 64), "most of it is known again"


@given(long_sizes, st.lists(long_sizes, max_size=4), st.integers(1, 3), st.integers(4090, 4300))
def test_borders_between_parts_do_not_matter_to_growing_blocks(
    size: int, cuts: list[int], block_bytes: int, blocks_max: int
) -> None:
    text = LONG[:size]
    borders = sorted([0, *(min(cut, size) for cut in cuts), size])
    parts = [memoryview(text)[start:end] for start, end in pairwise(borders)]
    chain, total = prefix_chain(SALT, parts, block_bytes=block_bytes, blocks_max=blocks_max)
    assert (chain, total) == (chain_of(text, block_bytes, blocks_max), size)
    assert len(chain) == PREFIX_HASH_BYTES * min(hashes_of(size, block_bytes), blocks_max)


@given(st.integers(1, 9000), st.binary(min_size=1, max_size=600), st.integers(1, 3), st.integers(4090, 4300))
def test_an_extended_chain_is_that_of_the_longer_text(
    size: int, tail: bytes, block_bytes: int, blocks_max: int
) -> None:
    chain = chain_of(LONG[:size], block_bytes, blocks_max)
    extended = extended_chain(chain, [LONG[:size]], tail, block_bytes=block_bytes, blocks_max=blocks_max)
    if hashes_of(size, block_bytes) > blocks_max:
        assert extended == chain, "a chain that was cut short says nothing of the text behind it"
    elif size > block_bytes:
        assert extended == chain_of(LONG[: size - 1] + tail, block_bytes, blocks_max)


def test_even_blocks_are_as_before_whatever_follows_them() -> None:
    whole, cut = chain_of(LONG, 4, EVEN_BLOCKS + 9), chain_of(LONG[: 4 * EVEN_BLOCKS], 4, EVEN_BLOCKS)
    assert whole[: EVEN_BLOCKS * PREFIX_HASH_BYTES] == cut
    link = int.from_bytes(cut[-PREFIX_HASH_BYTES:], "big")
    start = 4 * EVEN_BLOCKS
    expected = xxh3_64_intdigest(LONG[start : start + 4 * 64], link)
    assert whole[len(cut) : len(cut) + PREFIX_HASH_BYTES] == struct.pack(">Q", expected)


def test_equal_blocks_after_different_ones_hash_differently() -> None:
    assert chain_of(b"aaaaxxxx")[8:] != chain_of(b"bbbbxxxx")[8:]
    assert chain_of(b"xxxxxxxx")[8:] != chain_of(b"xxxxxxxx")[:8]


def test_nothing_agrees_under_another_salt() -> None:
    assert blocks_in_common(chain_of(b"abcdefgh"), chain_of(b"abcdefgh", salt=b"other")) == 0


def test_a_long_prompt_is_cut_but_counted_whole() -> None:
    assert prefix_chain(SALT, [b"a" * 10, b"b" * 1000], block_bytes=4, blocks_max=3) == (
        chain_of(b"a" * 10 + b"bb"),
        1010,
    )


def test_no_text_has_no_blocks() -> None:
    assert prefix_chain(SALT, [], block_bytes=4, blocks_max=3) == (b"", 0)
    assert prefix_chain(SALT, [b"", memoryview(b"abc")], block_bytes=4, blocks_max=3) == (b"", 3)


def test_limits_must_make_sense() -> None:
    with pytest.raises(AssertionError):
        prefix_chain(SALT, [b"abcd"], block_bytes=0, blocks_max=3)
    with pytest.raises(AssertionError):
        prefix_chain(SALT, [b"abcd"], block_bytes=4, blocks_max=-1)


FIELDS = st.tuples(st.text(max_size=4), st.text(max_size=4), st.none() | st.text(max_size=4))


@given(FIELDS, FIELDS)
def test_no_two_salts_look_alike(one: tuple[str, str, str | None], other: tuple[str, str, str | None]) -> None:
    salts = [prefix_salt(ModelName(model), TenantName(tenant), salt) for model, tenant, salt in (one, other)]
    assert (salts[0] == salts[1]) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c", None), ("a", "bc", None)),
        (("a", "b", ""), ("a", "b", None)),
        (("a", "b", "c"), ("a", "bc", "")),
    ],
)
def test_salts_keep_their_fields_apart(one: tuple[str, str, str | None], other: tuple[str, str, str | None]) -> None:
    left, right = (prefix_salt(ModelName(model), TenantName(tenant), salt) for model, tenant, salt in (one, other))
    assert left != right


def test_a_lone_surrogate_does_no_harm() -> None:
    assert prefix_salt(ModelName("m"), TenantName("t"), "\ud800") != prefix_salt(ModelName("m"), TenantName("t"), "?")


@given(long_sizes, st.lists(long_sizes, max_size=5), st.integers(4000, 4400))
def test_borders_between_parts_do_not_matter_among_growing_blocks(size: int, cuts: list[int], blocks_max: int) -> None:
    text = LONG[:size]
    borders = sorted([0, *(min(cut, size) for cut in cuts), size])
    parts = [memoryview(text)[start:end] for start, end in pairwise(borders)]
    chain, _ = prefix_chain(SALT, parts, block_bytes=1, blocks_max=blocks_max)
    assert chain == chain_of(text, 1, blocks_max)
    assert len(chain) == PREFIX_HASH_BYTES * min(hashes_of(size, 1), blocks_max)


def test_a_growing_block_is_hashed_as_one_seeded_with_the_one_before() -> None:
    text = LONG[: EVEN_BLOCKS + 70]
    seed = int.from_bytes(chain_of(text, 1, EVEN_BLOCKS)[-8:], "big")
    first = xxh3_64_intdigest(text[EVEN_BLOCKS : EVEN_BLOCKS + 64], seed)
    last = xxh3_64_intdigest(text[EVEN_BLOCKS + 64 :], first)
    assert chain_of(text, 1, 10_000)[-16:] == struct.pack(">2Q", first, last)
