"""Sizes of blocks agree with each other, whichever way they are asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.block_sizes import BLOCKS_MAX, EVEN_BLOCKS, block_size, blocks_in, bytes_in, hashes_of

sizes = st.integers(1, 300)


@given(st.integers(0, BLOCKS_MAX + 200), sizes)
def test_the_bytes_of_blocks_are_the_sum_of_their_sizes(blocks: int, block_bytes: int) -> None:
    assert bytes_in(blocks + 1, block_bytes) == bytes_in(blocks, block_bytes) + block_size(blocks, block_bytes)


@given(st.integers(0, BLOCKS_MAX + 200), sizes, st.data())
def test_a_text_has_the_blocks_that_it_fills(blocks: int, block_bytes: int, data: st.DataObject) -> None:
    more = data.draw(st.integers(0, block_size(blocks, block_bytes) - 1))
    text_bytes = bytes_in(blocks, block_bytes) + more
    assert blocks_in(text_bytes, block_bytes) == blocks
    assert hashes_of(text_bytes, block_bytes) == blocks + (blocks >= EVEN_BLOCKS and more > 0)


@given(st.integers(EVEN_BLOCKS, BLOCKS_MAX), sizes)
def test_a_growing_block_is_at_most_a_64th_of_the_text_before_it(block: int, block_bytes: int) -> None:
    assert block_size(block, block_bytes) * 64 <= bytes_in(block, block_bytes)


def test_the_default_limit_is_far_beyond_any_body() -> None:
    assert bytes_in(EVEN_BLOCKS, 256) == 2**20
    assert bytes_in(BLOCKS_MAX, 256) == 2**28
