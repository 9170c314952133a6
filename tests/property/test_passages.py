"""Prompts made of passages share exactly the prefixes that their texts share, also where the texts are never made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.passages import BlockText, runs_of
from loadgen.simulator.prompts import empty_prompt, passage_prompt
from loadgen.workload import Program, WorkloadStep
from tests.support.names import names_in

UNIT_TOKENS = 16
EMPTY = empty_prompt("model", "tenant", UNIT_TOKENS * 4)
NUMBERS = st.lists(st.integers(0, 2), max_size=6)


def passages(block_tokens: st.SearchStrategy[int]) -> st.SearchStrategy[BlockText]:
    def made(numbers: list[int], size: int, cut: int, own: int, owner: str) -> BlockText:
        whole = len(numbers) * size
        tokens = max(1, whole - cut % size if cut and numbers else whole + own)
        return BlockText("here", runs_of(numbers), size, tokens, owner)

    return st.builds(made, NUMBERS, block_tokens, st.integers(0, 70), st.integers(0, 70), st.sampled_from("ab"))


def shared_units(one: BlockText, other: BlockText) -> int:
    """Units that the two texts have in common at their beginning."""
    texts = [each.text() for each in (one, other)]
    count = 0
    while (
        all(len(text) >= (count + 1) * UNIT_TOKENS * 4 for text in texts)
        and len({text[: (count + 1) * UNIT_TOKENS * 4] for text in texts}) == 1
    ):
        count += 1
    return count


def shared_names(one: BlockText, other: BlockText) -> int:
    pairs = zip(*(names_in(passage_prompt(EMPTY, each).names) for each in (one, other)), strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(one.tokens, other.tokens) // UNIT_TOKENS)


@given(st.sampled_from((16, 32, 64)).flatmap(lambda size: st.tuples(*[passages(st.just(size))] * 2)))
def test_names_are_shared_exactly_as_far_as_texts_are(pair: tuple[BlockText, BlockText]) -> None:
    assert shared_names(*pair) == shared_units(*pair)


@given(passages(st.integers(1, 50)), passages(st.integers(1, 50)))
def test_what_names_share_texts_share_whatever_the_size_of_blocks(one: BlockText, other: BlockText) -> None:
    if one.block_tokens == other.block_tokens:
        assert shared_names(one, other) <= shared_units(one, other)


@given(passages(st.integers(1, 50)))
def test_a_prompt_is_as_long_as_its_text_and_ends_like_it(passage: BlockText) -> None:
    prompt, text = passage_prompt(EMPTY, passage), passage.text()
    assert prompt.size_bytes == len(text.encode()) == passage.tokens * 4
    assert text.encode().endswith(prompt.tail)
    assert len(prompt.tail) < EMPTY.block_bytes


@given(passages(st.integers(1, 50)), st.integers(0, 400))
def test_the_end_of_a_text_can_be_made_alone(passage: BlockText, from_token: int) -> None:
    assert passage.text(from_token) == passage.text()[from_token * 4 :]


@given(passages(st.integers(1, 50)))
def test_whoever_is_live_sends_this_text(passage: BlockText) -> None:
    program = Program("p", "u", "u", "", (WorkloadStep("", 5, passage=passage),))
    assert program.messages(0, {}) == [{"role": "user", "content": passage.text()}]
