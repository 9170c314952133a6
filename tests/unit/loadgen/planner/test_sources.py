from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.planner.sources import SourceError, cumulative, from_curves, from_gateways, from_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:48.6805900,396,109
2023-11-16 18:15:50.6805900,879,0
"""


def test_a_trace_tells_lengths_and_its_own_rate(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    source = from_trace(path)
    assert source.requests == 2
    assert source.rate_per_s == pytest.approx(0.5)
    assert source.lengths.total_tokens_max == 505
    assert any("1 requests without" in note for note in source.notes)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("what,is,this\n1,2,3\n")
    with pytest.raises(SourceError, match=r"other\.csv"):
        from_trace(path)


def curve(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_two_curves_make_a_source_without_a_rate(tmp_path: Path) -> None:
    prompts = curve(tmp_path, "p.csv", "tokens,cdf_mid,cdf_low\n0,0,0\n100,0.5,0\n1000,1.0,0\n")
    answers = curve(tmp_path, "a.csv", "tokens,cdf\n1,0.0\n21,1.0\n")
    source = from_curves(prompts, answers)
    assert source.rate_per_s is None
    assert source.lengths.mean(lambda each: each.output_tokens) == pytest.approx(11, rel=0.02)
    assert "independently" in source.notes[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tokens,cdf\n10,0.5\nten,1.0\n", "line 3: should hold tokens and a share"),
        ("tokens,cdf\n10,1.5\n", "line 2: 1.5 of requests"),
        ("tokens,cdf\n10,0.2\n", "at least two points"),
    ],
)
def test_a_curve_that_is_none_is_refused_by_its_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(SourceError, match=fault):
        cumulative(curve(tmp_path, "c.csv", text))


def test_a_page_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"metrics\.txt cannot be read: No such file"):
        from_gateways([str(tmp_path / "metrics.txt")], None)
    with pytest.raises(SourceError, match="cannot be read"):
        from_gateways(["http://127.0.0.1:1/metrics"], None)
