"""Reads a file that other programs write: whole, within a bound, and without blocking.

A pipe, a device and a folder are refused unread: opening a pipe would wait for its writer, and a device has no end. A
file that keeps changing while it is read is refused too, since the content may be half old and half new.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SMALL_BYTES_MAX = 1 << 20
"""Default bound in bytes, above any secret, certificate or list of authorities."""
_TRIES = 3
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class UnfitFile(OSError):
    """File that exists and is not read; `strerror` says why, and quotes nothing of it."""


def read_whole(path: Path, bytes_max: int = SMALL_BYTES_MAX) -> bytes:
    """Read the file that a path leads to. Raises OSError, of which UnfitFile is a subclass."""
    for _ in range(_TRIES):
        content = _read(path, bytes_max)
        if content is not None:
            return content
    raise UnfitFile(errno.EAGAIN, "changes while it is read", str(path))


def _read(path: Path, bytes_max: int) -> bytes | None:
    """Content of the file; None where it changed while it was read."""
    _refuse_unless_file(path, path.stat())
    with open(path, "rb", opener=_open_at_once) as file:
        before = os.fstat(file.fileno())
        _refuse_unless_file(path, before)
        content = file.read(bytes_max + 1)
        after = os.fstat(file.fileno())
    if len(content) > bytes_max:
        raise UnfitFile(errno.EFBIG, f"is larger than {bytes_max >> 10} KiB", str(path))
    return content if _state(before) == _state(after) else None


def _open_at_once(path: str, _: int) -> int:
    """Open without blocking: since it was checked, the path may have come to lead to a pipe."""
    return os.open(path, _FLAGS)


def _refuse_unless_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFile(errno.EINVAL, "is not a file", str(path))


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size
