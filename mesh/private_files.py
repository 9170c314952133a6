"""Makes files and folders that only their owner and group can read, and finds files that are open to others.

It changes no existing file: its permissions are for the owner to set.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_MODE = 0o640
FOLDER_MODE = 0o750
_TOO_OPEN = 0o037
"""Permissions that 0640 leaves out: writing and executing by the group, all by others."""


def private_opener(path: str, flags: int) -> int:
    """Opener for `open`, which makes files that their owner can write and their group can read."""
    return os.open(path, flags, FILE_MODE)


def make_private_folder(path: Path) -> None:
    """Make the folder unless it exists."""
    path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise each OSError with the path, since errors of writing and syncing name none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def open_to_others(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files with more permissions than 0640, each with its mode as `0644`. A file that is missing or
    unreadable is skipped: opening it will fail."""
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & _TOO_OPEN:
            yield path, f"{mode:04o}"
