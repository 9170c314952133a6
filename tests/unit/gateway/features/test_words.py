"""Words that features add to explanations."""

from __future__ import annotations

from gateway.features.recorded import WORDS
from gateway.features.words import Words, in_ms, plain, rounded


def test_no_reason_is_explained_by_two_features() -> None:
    reasons = [reason for words in WORDS for reason in words.reasons]
    assert len(reasons) >= 5
    assert len(set(reasons)) == len(reasons)


def test_a_feature_without_words_adds_none() -> None:
    assert not Words().reasons


def test_numbers_are_as_long_as_they_need_to_be() -> None:
    assert [rounded(each) for each in (0.04, 9.96, 12.4)] == ["0.0", "10.0", "12"]
    assert in_ms(1200.0) == "1200 ms"


def test_nothing_from_another_machine_steers_the_terminal() -> None:
    assert str(plain("a\x1b[2Jb")) == "a\ufffd[2Jb"
