"""Loads: recorded ones from their files, synthetic ones without, and never the same rows to learn from and to play."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.studies.balanceroute.loads import ASIDE, CHOOSING, ELSEWHERE, LOADS, LONG_TOKENS, TABLES, asked, present
from loadgen.studies.recordings import find_file
from loadgen.traces.files import TraceError
from tests.support.traces import published


def test_what_defaults_are_chosen_on_is_in_no_table_and_not_aside() -> None:
    groups = TABLES, CHOOSING, ASIDE, ELSEWHERE
    assert len({load for group in groups for load in group}) == sum(map(len, groups)) == len(LOADS)


def test_without_files_there_is_what_was_made_up() -> None:
    assert present(None) == ["prompts", "recurring", "limited", "agents"]
    with pytest.raises(TraceError, match="--traces"):
        find_file(None, "azure2023/*.csv")


def test_files_are_found_and_short_answers_left_out(tmp_path: Path) -> None:
    folder = published(tmp_path)
    assert "mooncake" in present(folder)
    assert len(LOADS["mooncake"].read(folder)) == 9
    assert LOADS["capped"].read(folder) == []  # 44 tokens each


def test_what_is_known_came_before_what_is_played() -> None:
    load = asked(LOADS["recurring"], None)
    assert len(load.earlier) + len(load.later) == 8_000
    assert [each.output_tokens for each in load.known()] == [each.output_tokens for each in load.earlier]
    assert any(each.prompt_key for each in load.later)


def test_curves_give_long_answers_with_the_prompts_of_all(tmp_path: Path) -> None:
    folder = tmp_path / "azure2024_digitised"
    folder.mkdir()
    (folder / "conv_input_cdf.csv").write_text("tokens,cdf\n0,0.0\n1000,1.0\n")
    (folder / "conv_output_cdf.csv").write_text("tokens,cdf\n0,0.0\n200,0.75\n600,1.0\n")
    drawn = LOADS["azure2024"].read(tmp_path)
    answers = [each.output_tokens for each in drawn]
    assert min(answers) == LONG_TOKENS
    assert 495 < sum(answers) / len(answers) < 505  # uniform between 400 and 600
    assert 480 < sum(each.prompt_tokens for each in drawn) / len(drawn) < 520
