"""Processes are read as the system tells, one that has ended is left out, files are summed by kind, and lines of
requests are counted once."""

from __future__ import annotations

import os
from pathlib import Path

from loadgen.studies.long.flatness import ProcessSample
from loadgen.studies.long.sampling import RequestLines, largest_bytes, read_process, stored_bytes


def test_a_process_is_read_as_the_system_tells(tmp_path: Path) -> None:
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/status").write_text("Name:\tgw: one\nVmRSS:\t  1234 kB\nThreads:\t5\n")
    for number in range(3):
        (tmp_path / f"7/fd/{number}").touch()
    assert read_process(1.5, "gw", 7, tmp_path) == ProcessSample(1.5, "gw", 7, 1234, 3, 5)
    own = read_process(0.0, "own", os.getpid())
    assert own is not None
    assert min(own.resident_kib, own.descriptors, own.threads) > 0


def test_a_process_that_has_ended_is_left_out(tmp_path: Path) -> None:
    assert read_process(0.0, "gw", 8, tmp_path) is None
    (tmp_path / "9").mkdir()
    (tmp_path / "9/status").write_text("Name:\tzombie\nThreads:\t1\n")
    (tmp_path / "9/fd").mkdir()
    assert read_process(0.0, "gw", 9, tmp_path) is None


def test_files_are_summed_by_kind(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/one").write_bytes(b"x" * 10)
    (tmp_path / "a/b/two").write_bytes(b"x" * 5)
    (tmp_path / "gw.log").write_bytes(b"x" * 3)
    kinds = {"state": (tmp_path / "a", "**/*"), "logs": (tmp_path, "*.log"), "none": (tmp_path / "c", "**/*")}
    assert stored_bytes(kinds) == {"state": 15, "logs": 3, "none": 0}
    assert largest_bytes(kinds) == {"state": 10, "logs": 3, "none": 0}


def test_lines_of_requests_are_counted_once_and_only_whole(tmp_path: Path) -> None:
    one, other = tmp_path / "one.log", tmp_path / "other.log"
    line = b'{"outcome":"completed","event":"request","level":"info"}\n'
    one.write_bytes(line + b'{"event":"ready"}\n' + line[:30])
    other.write_bytes(line)
    lines = RequestLines()
    assert lines.count([one, other]) == 2
    assert lines.count([one, other]) == 2
    with one.open("ab") as file:
        file.write(line[30:] + line)
    assert lines.count([one, other]) == 4
