from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.journal import JournalUnreadable
from mesh.runs import files_of_one_run, runs_in


def keep(folder: Path, run: str, *parts: int, at: int) -> list[Path]:
    files = [folder / f"{run}-{part:06}.journal" for part in parts]
    for file in files:
        file.touch()
        os.utime(file, (at, at))
    return files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep(tmp_path, "gw-a-20260101", 0, 1, at=100)
    keep(tmp_path, "gw-a-20260102", 0, 1, 2, at=200)
    keep(tmp_path, "gw-a-20260103", 4, 5, at=300)
    (tmp_path / "gw-a-20260103.crash").touch()
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_each_run_is_found_with_its_files_in_their_order(folder: Path) -> None:
    assert [str(run) for run in runs_in(folder)] == [
        "gw-a-20260103 (2 files, its beginning is gone)",
        "gw-a-20260102 (3 files)",
        "gw-a-20260101 (2 files)",
    ]
    assert [path.name[-14:-8] for path in runs_in(folder)[1].files] == ["000000", "000001", "000002"]


def test_the_newest_that_is_whole_is_picked_and_all_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picked = files_of_one_run([folder], None)
    assert [path.name for path in picked] == [f"gw-a-20260102-00000{part}.journal" for part in range(3)]
    told = capsys.readouterr().err
    assert told.startswith("3 runs in ")
    assert told.endswith("gw-a-20260101 (2 files); this is gw-a-20260102\n")


def test_another_may_be_asked_for(folder: Path) -> None:
    assert len(files_of_one_run([folder], "gw-a-20260101")) == 2
    with pytest.raises(JournalUnreadable, match="no run 'x' is in it; there are gw-a-20260103"):
        files_of_one_run([folder], "x")


def test_files_are_taken_as_they_are_given(folder: Path, tmp_path: Path) -> None:
    files = sorted(folder.glob("gw-a-20260101*"))
    assert files_of_one_run(files, None) == tuple(files)
    for paths, run, why in (
        (files, "x", "give a folder"),
        ([folder, *files], None, "one folder, or files"),
        ([tmp_path / "empty"], None, "no journal is in it"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(JournalUnreadable, match=why):
            files_of_one_run(paths, run)
