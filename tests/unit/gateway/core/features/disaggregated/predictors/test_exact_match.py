from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from gateway.core.features.disaggregated.predictors.arrays import (
    KEYS_MAX,
    ExactMatchArrays,
    KeyedArrays,
    PromptKey,
    SurvivalArrays,
    UnusableArrays,
)
from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT, Features, prompt_key
from gateway.core.features.disaggregated.predictors.exact_match import ExactMatch, fit_exact_match
from gateway.core.features.disaggregated.predictors.history import Ended
from gateway.core.features.disaggregated.predictors.recent import NOTHING_RECENT

FIRST, SECOND, UNSEEN = (prompt_key(prompt, 100, b"") for prompt in (b"first", b"second", b"unseen"))


def ended(key: int, prompt: int, *outputs: int) -> list[Ended]:
    return [Ended(key, prompt, output, 0, 0) for output in outputs]


def features(key: int, prompt: int = 100) -> Features:
    return Features(prompt, key, NOTHING_RECENT)


def estimates(matched: ExactMatch, asked: list[tuple[int, Features]], horizon: int = 20) -> list[tuple[float, float]]:
    ages = np.array([age for age, _ in asked], np.int64)
    probability, tokens = matched.estimate(ages, [each for _, each in asked], horizon)
    return list(zip(probability.tolist(), tokens.tolist(), strict=True))


def test_prompts_of_one_beginning_and_of_two_lengths_are_two() -> None:
    asked = [(b"first", 100, b""), (b"first", 101, b""), (b"other", 100, b""), (b"first", 100, b"a secret")]
    assert len({prompt_key(*each) for each in asked}) == 4
    assert prompt_key(b"", 100, b"a secret") == UNKNOWN_PROMPT


def test_the_same_prompt_says_more_than_everybody() -> None:
    history = [*ended(FIRST, 100, 10, 12), *ended(SECOND, 100, 500, 900)]
    matched = ExactMatch(fit_exact_match(history, PromptKey.PROMPT))
    asked = [(0, features(FIRST)), (0, features(SECOND)), (0, features(UNSEEN)), (0, features(UNKNOWN_PROMPT))]
    assert estimates(matched, asked) == [(1.0, 11.0), (0.0, 20.0), (0.5, 11.0), (0.5, 11.0)]


def test_an_answer_longer_than_any_to_its_prompt_is_a_miss() -> None:
    history = [*ended(FIRST, 100, 10), *ended(SECOND, 100, 30, 900)]
    matched = ExactMatch(fit_exact_match(history, PromptKey.PROMPT))
    assert estimates(matched, [(9, features(FIRST)), (10, features(FIRST))]) == [(1.0, 1.0), (0.5, 20.0)]


def test_prompts_about_as_long_count_as_the_same_by_length() -> None:
    history = [*ended(UNKNOWN_PROMPT, 10, 5, 5), *ended(UNKNOWN_PROMPT, 1000, 800, 801)]
    matched = ExactMatch(fit_exact_match(history, PromptKey.LENGTH, buckets=2))
    asked = [(0, features(FIRST, 3)), (0, features(FIRST, 999)), (790, features(FIRST, 5000))]
    assert estimates(matched, asked) == [(1.0, 5.0), (1.0, 5.0), (1.0, 10.5)]


def test_prompts_that_are_all_equally_long_are_one_bucket() -> None:
    arrays = fit_exact_match(ended(FIRST, 7, *range(1, 40)), PromptKey.LENGTH)
    assert arrays.by_length is not None
    assert arrays.by_length.keys == (7,)
    ExactMatch(arrays)


def test_where_there_was_no_such_prompt_its_length_says_more_than_everybody() -> None:
    history = [*ended(FIRST, 10, 15), *ended(UNKNOWN_PROMPT, 10, 5, 5), *ended(UNKNOWN_PROMPT, 1000, 800, 801, 802)]
    matched = ExactMatch(fit_exact_match(history, PromptKey.PROMPT_OR_LENGTH, buckets=2))
    asked = [(0, features(FIRST, 10)), (0, features(UNSEEN, 10)), (0, features(UNSEEN, 1000)), (900, features(FIRST))]
    assert estimates(matched, asked) == [(1.0, 15.0), (1.0, 25 / 3), (0.0, 20.0), (0.0, 20.0)]


def test_one_record_is_enough_and_keys_are_bounded() -> None:
    assert estimates(ExactMatch(fit_exact_match(ended(FIRST, 1, 4), PromptKey.PROMPT)), [(0, features(FIRST))]) == [
        (1.0, 4.0)
    ]
    history = [*ended(FIRST, 1, 4), *ended(SECOND, 1, 5, 6), *ended(UNKNOWN_PROMPT, 1, 7, 8, 9)]
    for arrays in (
        fit_exact_match(history, PromptKey.PROMPT, keys_max=1),
        fit_exact_match(history, PromptKey.PROMPT, answers_min=2),
    ):
        assert arrays.by_prompt is not None
        assert arrays.by_prompt.keys == (SECOND,)


GOOD = KeyedArrays((3, 4), (1, 3), (5, 1, 2))


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        (replace(GOOD, ends=(3,)), "2 keys, 1 ends"),
        (replace(GOOD, keys=(4, 3)), "keys"),
        (replace(GOOD, keys=(3, 3)), "keys"),
        (replace(GOOD, keys=(-1, 3)), "keys"),
        (replace(GOOD, ends=(1, 2)), "ends"),
        (replace(GOOD, ends=(3, 3)), "ends"),
        (replace(GOOD, output_tokens=(5, 2, 1)), "key 4: should be in ascending order"),
        (replace(GOOD, keys=tuple(range(KEYS_MAX + 1)), ends=tuple(range(1, KEYS_MAX + 2))), "at most"),
    ],
)
def test_arrays_that_are_none_are_refused_in_words(arrays: KeyedArrays, problem: str) -> None:
    everybody = SurvivalArrays((1,))
    ExactMatch(ExactMatchArrays(everybody, GOOD, GOOD))
    with pytest.raises(UnusableArrays, match=f"^by_prompt.*{problem}"):
        ExactMatch(ExactMatchArrays(everybody, arrays, None))
    with pytest.raises(UnusableArrays, match=f"^by_length.*{problem}"):
        ExactMatch(ExactMatchArrays(everybody, None, arrays))


def test_what_has_no_lengths_at_all_is_refused() -> None:
    with pytest.raises(UnusableArrays, match="no lengths"):
        ExactMatch(ExactMatchArrays(SurvivalArrays(()), GOOD, None))
    with pytest.raises(UnusableArrays, match="no bucket"):
        ExactMatch(ExactMatchArrays(SurvivalArrays((1,)), None, KeyedArrays((), (), ())))
