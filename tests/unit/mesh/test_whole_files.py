from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.whole_files import UnfitFile, read_whole


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 2048)
    assert read_whole(path, 2048) == b"x" * 2048
    with pytest.raises(UnfitFile, match="is larger than 1 KiB"):
        read_whole(path, 2047)


def test_what_is_not_there_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read_whole(tmp_path / "gone")
    assert str(caught.value.filename) == str(tmp_path / "gone")


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("become", [become_pipe, become_folder])
def test_nobody_waits_for_what_became_a_pipe_after_it_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, become: Callable[[Path], None]
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    looked = Path.stat

    def look(self: Path) -> os.stat_result:
        found = looked(self)
        become(path)
        return found

    monkeypatch.setattr(Path, "stat", look)
    with pytest.raises(OSError, match=r"is not a file|Is a directory"):
        read_whole(path)


def change_while_read(monkeypatch: pytest.MonkeyPatch, path: Path, times: int) -> None:
    """Have the file written between the checks before and after its reading, this many times."""
    looked, left = os.fstat, [2 * times]

    def look(descriptor: int) -> os.stat_result:
        left[0] -= 1
        if left[0] >= 0 and left[0] % 2 == 0:
            with path.open("ab") as file:
                file.write(b"y")
        return looked(descriptor)

    monkeypatch.setattr(os, "fstat", look)


def test_one_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    change_while_read(monkeypatch, path, 2)
    assert read_whole(path) == b"xyy"


def test_one_that_keeps_changing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    change_while_read(monkeypatch, path, 9)
    with pytest.raises(UnfitFile, match="changes while it is read"):
        read_whole(path)
