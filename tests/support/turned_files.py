"""Turns files into those of a case of `tests/hostile/files.py`."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from tests.hostile.files import GOOD, HALF, FileCase, Kind


def turn(path: Path, case: FileCase) -> None:
    """Replace the file by that of the case. The old file is kept as NAME.before, unless the case rewrites it in
    place."""
    good = path.read_bytes()
    content = case.content.replace(GOOD, good).replace(HALF, good[: len(good) * 3 // 5])
    if case.kind is Kind.REWRITTEN:
        path.write_bytes(content)
        return
    path.rename(path.with_name(f"{path.name}.before"))
    match case.kind:
        case Kind.TEXT:
            path.write_bytes(content)
        case Kind.LINK:
            path.symlink_to(os.fsdecode(content.replace(b"%SELF%", path.name.encode())))
        case Kind.HUGE:
            path.touch()
            os.truncate(path, int(content))
        case Kind.PIPE:
            os.mkfifo(path)
        case Kind.FOLDER:
            path.mkdir()
        case Kind.SOCKET:
            _listen_at(path)
        case Kind.NOTHING:
            pass


def restore(path: Path, good: bytes) -> None:
    """Put the good content back as a careful program does: write another file and rename it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_bytes(good)
    fresh.replace(path)


def _listen_at(path: Path) -> None:
    """Create a listening socket at the path. A socket's path is limited to some hundred bytes, so the folder is named
    by its descriptor."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
