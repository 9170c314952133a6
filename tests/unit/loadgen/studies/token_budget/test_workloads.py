from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.planner.lengths import RequestShape
from loadgen.studies.token_budget.workloads import WORKLOADS, present
from loadgen.traces.files import TraceError


def test_a_load_is_there_when_all_of_its_files_are(tmp_path: Path) -> None:
    folder = tmp_path / "azure2024_digitised"
    folder.mkdir()
    (folder / "conv_input_cdf.csv").write_text("tokens,cdf\n0,0\n100,1\n")
    assert present(tmp_path) == []
    (folder / "conv_output_cdf.csv").write_text("tokens,cdf\n0,0\n10,1\n")
    assert present(tmp_path) == ["azure_conv"]
    shapes = WORKLOADS["azure_conv"].shapes(tmp_path)
    assert len(shapes) > 5_000
    assert all(each.total_tokens <= 110 for each in shapes)
    assert shapes != sorted(shapes), "curves know no order, and a sorted one would be a drift"


def test_a_recorded_one_comes_in_its_own_order(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    lines = ['{"timestamp": 3000, "input_length": 900, "output_length": 5, "hash_ids": [1, 2]}',
             '{"timestamp": 0, "input_length": 20, "output_length": 7, "hash_ids": [3]}']  # fmt: skip
    (tmp_path / "mooncake" / "conversation_trace.jsonl").write_text("\n".join(lines))
    assert WORKLOADS["mooncake"].shapes(tmp_path) == [RequestShape(20, 7), RequestShape(900, 5)]


def test_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert present(None) == []
    with pytest.raises(TraceError, match="there is no mooncake"):
        WORKLOADS["mooncake"].shapes(tmp_path)
