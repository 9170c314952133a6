"""Files that not everybody on a machine may read: how ours are made, and which of those in use stand open.

It changes no file that is there already: who may read that is for its owner to say.
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
"""What 0640 leaves out: writing and running by the group, anything by others."""


def private_opener(path: str, flags: int) -> int:
    """For `open`. A file that it makes is its owner's, and its group may read it."""
    return os.open(path, flags, FILE_MODE)


def make_private_folder(path: Path) -> None:
    """Unless it is there already."""
    path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raises each OSError with the path: writing and syncing by themselves name none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def open_to_others(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Those that more people may read or write than 0640 would let, each with its mode as `0644`. What is not there, or
    cannot be looked at, is for whoever opens it to complain of."""
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & _TOO_OPEN:
            yield path, f"{mode:04o}"
