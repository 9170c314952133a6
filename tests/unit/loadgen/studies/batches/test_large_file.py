"""The input file of the study is one that a gateway takes, and a lost or doubled line is found in its results."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from gateway.features.batches.lines import LineChecker
from loadgen.studies.batches.large_file import lost_and_doubled, write_file


def test_the_file_has_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    write_file(file, 100, random.Random(1))
    checker = LineChecker("/v1/chat/completions", lines_max=100, line_bytes_max=4096)
    assert all(checker.take(line) for line in file.read_bytes().splitlines(keepends=True))
    assert (checker.end(), checker.total) == ((), 100)


def test_lost_and_doubled_lines_are_counted(tmp_path: Path) -> None:
    output, errors = tmp_path / "output.jsonl", tmp_path / "errors.jsonl"
    output.write_bytes(b"".join(msgspec.json.encode({"custom_id": f"line-{each}"}) + b"\n" for each in (0, 1, 3)))
    errors.write_bytes(msgspec.json.encode({"custom_id": "line-3"}) + b"\n")
    assert lost_and_doubled([output, errors], 5) == (2, 1)
