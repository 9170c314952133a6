from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.tokens import (
    TOKEN_BYTES,
    TOKEN_ID_MAX,
    PromptMessage,
    block_names,
    chat_prompt,
    continuation,
    text_of,
    token_count,
    token_ids,
)
from tests.support.names import names_in

messages = st.lists(st.builds(PromptMessage, st.sampled_from(["system", "user"]), st.text(max_size=200)), max_size=4)


@given(messages, st.integers(1, 50), st.text(max_size=50))
def test_a_conversation_with_its_answer_is_a_true_prefix_of_the_next_turn(
    history: list[PromptMessage], answer_tokens: int, question: str
) -> None:
    prompt = chat_prompt(history)
    answer = continuation("m", prompt, answer_tokens)
    next_turn = chat_prompt([*history, PromptMessage("assistant", answer.decode()), PromptMessage("user", question)])

    assert next_turn.startswith(prompt + answer)


@given(st.binary(max_size=100), st.integers(0, 20), st.integers(0, 20))
def test_an_answer_can_be_continued_where_it_broke_off(prompt: bytes, first: int, second: int) -> None:
    begun = continuation("m", prompt, first)
    assert begun + continuation("m", prompt + begun, second) == continuation("m", prompt, first + second)
    assert len(begun) == first * TOKEN_BYTES


def test_answers_differ_by_prompt_and_model() -> None:
    answers = {continuation(model, prompt, 20) for model in ("m", "n") for prompt in (b"a", b"b")}
    assert len(answers) == 4


@given(st.lists(st.integers(0, TOKEN_ID_MAX)))
def test_token_ids_stand_for_their_text(ids: list[int]) -> None:
    assert list(token_ids(text_of(ids))) == ids


@given(messages)
def test_a_chat_prompt_fills_whole_tokens(history: list[PromptMessage]) -> None:
    prompt = chat_prompt(history)
    assert text_of(token_ids(prompt)) == prompt
    assert token_count(prompt) * TOKEN_BYTES == len(prompt)


def test_a_started_token_counts() -> None:
    assert [token_count(b"x" * size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_unpaired_surrogates_are_text_too() -> None:
    assert chat_prompt([PromptMessage("user", "\ud800")])


def names_of(text: bytes, *, model: str = "m", cache_salt: str = "") -> list[bytes]:
    return names_in(block_names(text, model=model, cache_salt=cache_salt, block_tokens=16))


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_equal_names_mean_equal_text_up_to_there(shared: bytes, left: bytes, right: bytes) -> None:
    size = 16 * TOKEN_BYTES
    left_text, right_text = shared + left, shared + right
    left_ids, right_ids = names_of(left_text), names_of(right_text)
    assert len(left_ids) == len(left_text) // size
    for index, (left_id, right_id) in enumerate(zip(left_ids, right_ids, strict=False)):
        end = (index + 1) * size
        assert (left_id == right_id) == (left_text[:end] == right_text[:end])


def test_models_and_salts_share_no_block() -> None:
    text = b"x" * 200
    names = [names_of(text), names_of(text, model="n"), names_of(text, cache_salt="s"), names_of(text, cache_salt="t")]
    assert len({name for ids in names for name in ids}) == 4 * 3
