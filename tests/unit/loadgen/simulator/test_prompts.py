"""Chains grow as if hashed at once, and two prompts share exactly their common prefix."""

from __future__ import annotations

from gateway.core.block_sizes import EVEN_BLOCKS, blocks_in
from loadgen.engine.blocks import NAME_BYTES
from loadgen.simulator.prompts import Prompt, empty_prompt, reply_text
from tests.support.names import names_in

BLOCK = 64


def prompt(*pieces: bytes, tenant: str = "default") -> Prompt:
    said = empty_prompt("llama", tenant, BLOCK)
    for piece in pieces:
        said = said.followed_by(piece)
    return said


def test_growing_in_pieces_gives_the_chain_of_the_whole() -> None:
    text = bytes(range(256)) * 3
    assert prompt(text[:40], text[40:300], text[300:]) == prompt(text)
    assert len(names_in(prompt(text).names)) == len(text) // BLOCK


def test_prompts_share_names_up_to_where_they_differ() -> None:
    one, other = prompt(b"a" * 200, b"x" * 200), prompt(b"a" * 200, b"y" * 200)
    shared = [first == second for first, second in zip(names_in(one.names), names_in(other.names), strict=True)]
    assert shared == [True] * 3 + [False] * 3


def test_tenants_share_nothing() -> None:
    one, other = prompt(b"a" * 200), prompt(b"a" * 200, tenant="acme")
    assert not set(names_in(one.names)) & set(names_in(other.names))


def test_texts_fill_whole_tokens() -> None:
    assert prompt(b"abcde").size_bytes == 8
    assert prompt(b"abcde").tokens == 2


def test_a_gateway_sees_every_fourth_name() -> None:
    long = prompt(b"b" * BLOCK * 11)
    names = names_in(long.names)
    assert long.chain(4, 100) == names[3] + names[7]
    assert long.chain(4, 1) == names[3]


def test_a_long_prompt_has_a_name_for_each_growing_block_that_it_fills() -> None:
    """Blocks of one gateway's size grow after 4,096 of them, by 64 at first."""
    long = prompt(b"c" * BLOCK * 2 * (EVEN_BLOCKS + 64 + 63))
    names = names_in(long.names)
    whole = long.chain(2, 10_000)
    assert whole == b"".join([*names[1 : 2 * EVEN_BLOCKS : 2], names[2 * (EVEN_BLOCKS + 64) - 1]])
    assert long.chain(2, EVEN_BLOCKS) == whole[:-NAME_BYTES]
    profile_blocks = blocks_in(long.size_bytes, 2 * BLOCK)
    assert len(whole) == NAME_BYTES * profile_blocks


def test_answers_have_their_length_and_differ() -> None:
    assert len(reply_text("q1", 7)) == 28
    assert reply_text("q1", 7) != reply_text("q2", 7)
