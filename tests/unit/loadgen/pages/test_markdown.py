"""Markdown elements common to every page are laid out the same."""

from __future__ import annotations

import pytest

from loadgen.pages.markdown import between, bullets, listed, table


def test_a_table_has_its_names_to_the_left_and_its_figures_to_the_right() -> None:
    assert table(("run", "p50"), [("a", "1"), ("b", "2")]) == "| run | p50 |\n| :-- | --: |\n| a | 1 |\n| b | 2 |\n"


@pytest.mark.parametrize(
    ("words", "said"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_listed(words: list[str], said: str) -> None:
    assert listed(words) == said


def test_every_line_has_its_bullet() -> None:
    assert bullets(["a", "b"]) == "- a\n- b\n"


@pytest.mark.parametrize(
    ("numbers", "told"), [([], "–"), ([2.14], "2.1"), ([2.14, 2.08], "2.1"), ([3.0, 0.94], "0.9–3.0")]
)
def test_numbers_are_told_by_the_least_and_the_greatest(numbers: list[float], told: str) -> None:
    assert between(numbers) == told
