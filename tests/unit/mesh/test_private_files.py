from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.private_files import make_private_folder, open_to_others, private_opener


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Umask under which no new file is private."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_made_is_for_the_owner_and_its_group(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a")
    make_private_folder(tmp_path / "a")
    with open(tmp_path / "a" / "file", "wb", opener=private_opener) as file:
        file.write(b"x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "a" / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("mode", "is_open"),
    [(0o644, True), (0o660, True), (0o650, True), (0o604, True), (0o640, False), (0o600, False), (0o440, False)],
)
def test_more_than_the_group_s_reading_is_told(tmp_path: Path, mode: int, is_open: bool) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    assert list(open_to_others([path])) == ([(path, f"{mode:04o}")] if is_open else [])


def test_what_is_not_there_is_somebody_else_s_to_tell(tmp_path: Path) -> None:
    assert list(open_to_others([tmp_path / "none"])) == []
