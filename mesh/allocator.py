"""Sets the limits of this process's memory allocator. It holds no memory itself.

By default glibc raises the size above which an allocation has pages of its own each time that such a piece is freed, up
to 32 MiB. From then on bodies of megabytes lie among small objects, and one small object that stays keeps all the pages
below it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from mesh.values import MEBIBYTE

MAPPED_BYTES_MIN = 128 * 1024
"""Least size in bytes of a piece with pages of its own, which go back to the system as soon as it is freed."""
UNUSED_BYTES_MAX = 4 * MEBIBYTE
"""Bytes that may stay unused at the end of the heap; with less, memory would be given back and requested again with
each request."""
ARENAS_MAX = 2
"""Most heaps for threads. glibc's default is eight for each core, and memory of one is never used for another."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # values from `malloc.h`
_VALUES = {_M_MMAP_THRESHOLD: MAPPED_BYTES_MIN, _M_TRIM_THRESHOLD: UNUSED_BYTES_MAX, _M_ARENA_MAX: ARENAS_MAX}


def fix_allocator() -> bool:
    """Set the limits for the whole process, whatever its environment says. Returns False where the C library is not
    glibc, which alone has them, or refuses one."""
    mallopt = _mallopt()
    return mallopt is not None and all(mallopt(name, value) for name, value in _VALUES.items())


def describe_allocator() -> str:
    """Line for operators about a gateway that is started on this machine."""
    if _mallopt() is None:
        return "allocator: not glibc's, and left as it is: what is freed may stay with the process"
    return (
        f"allocator: set at start: mmap threshold {MAPPED_BYTES_MIN // 1024}KiB,"
        f" trim threshold {UNUSED_BYTES_MAX // MEBIBYTE}MiB, {ARENAS_MAX} arenas"
    )


def _mallopt() -> Callable[[int, int], int] | None:
    found: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    return found
