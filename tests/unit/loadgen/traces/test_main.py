"""`nightside trace`: its output and files, and the meaning of its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.traces.files import read_trace
from loadgen.traces.main import trace
from loadgen.traces.rows import TraceFormat

ROW = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (path := tmp_path / "recorded.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n")
    return path


def test_a_trace_is_described(file: Path) -> None:
    result = CliRunner().invoke(trace, ["describe", str(file)])
    assert result.exit_code == 0, result.output
    assert "recorded.jsonl (mooncake)" in result.stdout
    assert "input that repeats" in result.stdout


def test_unreadable_lines_are_shown_and_are_a_problem(file: Path) -> None:
    with file.open("a") as more:
        more.write("{}\n")
    result = CliRunner().invoke(trace, ["describe", str(file)])
    assert result.exit_code == 1
    assert "unreadable: line 3: Object missing required field" in result.stdout
    result = CliRunner().invoke(trace, ["describe", str(file), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["unreadable"] == 1


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_trace_is_converted(file: Path, name: str) -> None:
    out = file.with_name(name)
    result = CliRunner().invoke(trace, ["convert", str(file), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "2 requests; every line could be read" in result.stderr
    again = read_trace(out)
    assert (again.format, len(again.rows)) == (TraceFormat.NIGHTSIDE, 2)


def test_what_is_no_trace_is_an_error(tmp_path: Path) -> None:
    (path := tmp_path / "poem").write_text("Roses are red\n")
    result = CliRunner().invoke(trace, ["describe", str(path)])
    assert result.exit_code == 1
    assert "poem: its first line belongs to no known format" in result.output
    result = CliRunner().invoke(trace, ["convert", str(path), "--format", "azure", "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert not (tmp_path / "out").exists()


def test_times_are_durations(file: Path) -> None:
    result = CliRunner().invoke(trace, ["describe", str(file), "--from", "soon"])
    assert result.exit_code == 2
