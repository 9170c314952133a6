from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from loadgen.traces.files import Draw, TraceError, guessed_format, opened, read_trace
from loadgen.traces.rows import TraceFormat

LINES = {
    TraceFormat.MOONCAKE: '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0]}\n',
    TraceFormat.AGENTIC: '{"s": "s", "i": 0, "t": 0, "in": 9, "out": 1, "blk": []}\n',
    TraceFormat.AZURE: "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
    TraceFormat.NIGHTSIDE: '{"at": 0, "input_tokens": 9, "output_tokens": 1}\n',
}


@pytest.mark.parametrize("trace_format", list(LINES))
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_says_itself_what_it_is(tmp_path: Path, trace_format: TraceFormat, *, compressed: bool) -> None:
    data = LINES[trace_format].encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(data) if compressed else data)
    trace = read_trace(path)
    assert (trace.format, len(trace.rows), trace.unreadable.count) == (trace_format, 1, 0)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "it is empty"),
        (b"hello\n", "its first line belongs to no known format"),
        (b'{"a": 1}\n', "its first line belongs to no known format"),
        (b'{"hash_ids": []}\n', "no row can be read as mooncake: line 1: "),
        (gzip.compress(LINES[TraceFormat.MOONCAKE].encode() * 9, mtime=0)[:-9], "cannot be read: "),
        (b"\x1f\x8bnonsense", "cannot be read: "),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, data: bytes, complaint: str) -> None:
    (path := tmp_path / "trace").write_bytes(data)
    with pytest.raises(TraceError, match=complaint):
        read_trace(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gone.jsonl cannot be read: No such file"):
        guessed_format(tmp_path / "gone.jsonl")


def test_bytes_that_are_no_text_make_a_row_unreadable_and_no_more(tmp_path: Path) -> None:
    (path := tmp_path / "trace").write_bytes(LINES[TraceFormat.MOONCAKE].encode() + b'{"timestamp\xff": 0}\n')
    trace = read_trace(path)
    assert (len(trace.rows), trace.unreadable.count) == (1, 1)


def test_progress_is_told(tmp_path: Path) -> None:
    (path := tmp_path / "trace").write_text(LINES[TraceFormat.MOONCAKE] * 2500)
    told: list[int] = []
    read_trace(path, on_progress=told.append)
    assert told == [1000, 2000]


def service(folder: Path, *, with_rates: bool) -> Path:
    folder.mkdir()
    counts = {"input_tokens": "{10: 1.0}", "output_tokens": "{7: 1.0}"}
    for client in (0, 1):
        (folder / f"chunk-{client}-dataset.json").write_text(json.dumps({"0": counts}))
    (folder / "README.md").write_text("hello")
    if with_rates:
        (folder / "chunk-0-trace.csv").write_text("0,1.0,1.0\n")
    return folder


def test_a_folder_of_clients_is_drawn_from(tmp_path: Path) -> None:
    trace = read_trace(service(tmp_path / "model", with_rates=True), draw=Draw(until_s=100))
    assert {row.session for row in trace.rows} == {"0"}
    assert trace.unreadable.first == ["client 1: no rates"]


def test_an_archive_of_clients_needs_rates_from_elsewhere(tmp_path: Path) -> None:
    folder = service(tmp_path / "model", with_rates=False)
    with tarfile.open(path := tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(folder, "data/model")
    hours = ",".join(f"h{hour:02}" for hour in range(24))
    (rates := tmp_path / "rates.csv").write_text(f"client,{hours}\n0,{','.join('1' * 24)}\n1,{','.join('1' * 24)}\n")
    trace = read_trace(path, draw=Draw(rates, until_s=100))
    assert {row.session for row in trace.rows} == {"0", "1"}
    with pytest.raises(TraceError, match="no row can be read as servegen: client 0: no rates"):
        read_trace(path)
    with pytest.raises(TraceError, match="more than 2,000,000; ask for less of the day"):
        read_trace(path, draw=Draw(rates, rate_scale=1000))


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (path := tmp_path / "plain").write_text("one\ntwo\n")
    with opened(path) as lines:
        assert list(lines) == ["one\n", "two\n"]
