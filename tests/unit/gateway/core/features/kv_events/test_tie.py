from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.features.kv_events.tie import Tie, common_blocks, part

BLOCK = 16


def chain(*hashes: int) -> bytes:
    return b"".join(each.to_bytes(8, "big") for each in hashes)


def tie_of(blocks: int = 100, tokens: int = 400) -> Tie:
    return Tie(chain(*range(blocks)), BLOCK, tokens, blocks * BLOCK)


def test_tokens_are_in_proportion_to_the_text() -> None:
    tie = tie_of()
    assert [tie.blocks_at(tokens) for tokens in (0, 3, 4, 200, 399, 400)] == [0, 0, 1, 50, 99, 100]


def test_more_tokens_than_the_prompt_has_are_the_whole_of_it() -> None:
    assert tie_of().blocks_at(1_000) == 100


def test_a_pinned_point_bends_the_proportion() -> None:
    tie = tie_of()
    tie.pin(100, 80 * BLOCK)
    assert [tie.blocks_at(tokens) for tokens in (50, 100, 250, 400)] == [40, 80, 90, 100]


def test_a_point_that_contradicts_another_is_ignored() -> None:
    tie = tie_of()
    tie.pin(100, 80 * BLOCK)
    for tokens, blocks in ((200, 10), (50, 90), (100, 5), (500, 20)):
        tie.pin(tokens, blocks * BLOCK)
    assert [tie.blocks_at(tokens) for tokens in (50, 100, 250, 400)] == [40, 80, 90, 100]


def test_a_later_turn_goes_on_where_the_earlier_one_ended() -> None:
    tie = tie_of()
    tie.extend(chain(*range(150)), 500, 150 * BLOCK)
    assert [tie.blocks_at(tokens) for tokens in (200, 400, 450, 500)] == [50, 100, 125, 150]


def test_two_prompts_part_where_their_blocks_do() -> None:
    one, other = tie_of(), Tie(chain(*range(60), 999), BLOCK, 300, 61 * BLOCK)
    part(one, other, 200, 60)
    assert one.blocks_at(200) == other.blocks_at(200) == 60
    assert other.blocks_at(300) == 61


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_common_blocks_are_the_leading_equal_ones(one: list[int], other: list[int]) -> None:
    """A hash of a chain stands for all before it, so the chains here hash their own beginnings."""

    def hashed(names: list[int]) -> bytes:
        return chain(*[hash(tuple(names[: at + 1])) & (2**64 - 1) for at in range(len(names))])

    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_blocks(hashed(one), hashed(other)) == expected


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 3_000)), max_size=12))
def test_text_never_shrinks_with_more_tokens(points: list[tuple[int, int]]) -> None:
    tie = tie_of()
    for tokens, text_bytes in points:
        tie.pin(tokens, text_bytes)
    text = [tie.text_at(tokens) for tokens in range(510)]
    assert text == sorted(text)
