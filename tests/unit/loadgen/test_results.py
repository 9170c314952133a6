"""The table on the terminal can be read at a usual width, with any names of runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from loadgen.figures import Figures
from loadgen.results import in_short, summary_table

SLOW = {"p50": 23_670.0, "p90": 35_420.0}
TOTAL: Figures = {
    "requests": 1_999_999,
    "requests_per_s": 1234.5,
    "tokens_per_s": 123_456.0,
    "ttft_ms": SLOW,
    "duration_ms": SLOW,
    "prefix_hit_rate": None,
    "cached_share": 0.923,
    "forwarded_share": 0.467,
    "failed": 12_345,
    "unfinished": 1234,
}


@pytest.mark.parametrize("width", [80, 100])
def test_no_figure_is_cut_short(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary_table("day", [("regions.us-east-1.replicas=3 without credit", TOTAL)]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    for figure in ("1234.5", "123456", "23.67", "35.42", "92.3%", "46.7%", "12345", "1234 "):
        assert figure in text


def test_what_was_not_measured_is_a_dash() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table("day", [("run", TOTAL | {"ttft_ms": None, "forwarded_share": None})]))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("–") == 3


def test_several_runs_are_compared_in_words_by_what_they_are_for_first() -> None:
    quick, slow = (TOTAL | {"ttft_ms": {"p50": p50, "p90": p90}} for p50, p90 in ((310.0, 1020.0), (170.0, 8510.0)))
    said = list(in_short([{"name": "mesh", "total": quick}, {"name": "alone", "total": slow}]))
    titles = [sentence.partition(":")[0] for sentence in said]
    assert titles.index("Lowest TTFT, p90") < titles.index("Lowest TTFT, p50")
    assert said[1] == "Lowest TTFT, p90: mesh, 1.02\u00a0s; alone 8.51\u00a0s (×\u00a08.3)."
    assert list(in_short([{"name": "mesh", "total": quick}])) == []
