from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT
from loadgen.fit.sources import Request, history_from, history_of, history_of_trace, passage_key
from loadgen.passages import BlockText
from loadgen.traces.files import TraceError, read_trace
from mesh.state_files import StateUnusable

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:10.0,100,1000
2023-11-16 18:15:11.0,200,10
2023-11-16 18:15:12.0,300,20
"""


def test_requests_come_in_the_order_in_which_they_would_have_ended(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(AZURE)
    snapshot = history_of_trace(read_trace(file), token_s=0.05)
    assert [(each.prompt_tokens, each.output_tokens, each.after) for each in snapshot.ended] == [
        (200, 10, 0),
        (300, 20, 1),
        (100, 1000, 0),
    ]
    assert [each.ended_ns for each in snapshot.ended] == [1_500_000_000, 3_000_000_000, 50_000_000_000]
    assert history_of_trace(read_trace(file), requests_max=1).added == 1


def test_who_ends_at_the_moment_of_an_admission_is_known_then() -> None:
    snapshot = history_of([Request(0.0, 0, 1, 10), Request(1.0, 0, 2, 10)], token_s=0.1)
    assert [each.after for each in snapshot.ended] == [0, 1]


def test_a_trace_without_answers_has_no_history(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:10.0,100,0\n")
    with pytest.raises(TraceError, match="generated"):
        history_of_trace(read_trace(file))


def test_a_history_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StateUnusable, match="no such file"):
        history_from(tmp_path / "none.json")


def test_prompts_are_the_same_if_all_of_their_blocks_are() -> None:
    prompt = BlockText("s", ((1, 4),), 16, 60)
    assert passage_key(prompt) == passage_key(BlockText("s", ((1, 4),), 16, 60, "its own, which is cut off"))
    others = [BlockText("t", ((1, 4),), 16, 60), BlockText("s", ((1, 4),), 16, 61), BlockText("s", ((1, 5),), 16, 70)]
    assert len({passage_key(each) for each in (prompt, *others)}) == 4
    own = [BlockText("s", ((1, 4),), 16, 70, "its own"), BlockText("", (), 16, 70)]
    assert [passage_key(each) for each in own] == [UNKNOWN_PROMPT] * 2
