"""How this process has its memory allocated. It holds no memory itself.

glibc raises the size above which an allocation has pages of its own with each such piece that is freed, up to 32 MiB.
From then on bodies of megabytes lie among small objects, and one of those that stays keeps all the pages below it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from gateway.ground.values import MEBIBYTE

MAPPED_BYTES_MIN = 128 * 1024
"""A piece of this size or more has pages of its own, which go back to the system as soon as it is freed."""
UNUSED_BYTES_MAX = 4 * MEBIBYTE
"""What may stay unused at the end of the heap: less would be given back and asked for again with each request."""
ARENAS_MAX = 2
"""Heaps of their own for threads. By default there may be eight for each core, and none gives to another."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # as `malloc.h` has them
_VALUES = {_M_MMAP_THRESHOLD: MAPPED_BYTES_MIN, _M_TRIM_THRESHOLD: UNUSED_BYTES_MAX, _M_ARENA_MAX: ARENAS_MAX}


def fix_allocator() -> bool:
    """For the whole process, whatever its environment says. False: the C library is another than glibc, which has
    nothing of the kind to be set."""
    mallopt = _mallopt()
    return mallopt is not None and all(mallopt(name, value) for name, value in _VALUES.items())


def describe_allocator() -> str:
    """Words for operators about a gateway that is started on this machine."""
    if _mallopt() is None:
        return "allocator: not glibc's, and left as it is: what is freed may stay with the process"
    return (
        f"allocator: set at start: mmap threshold {MAPPED_BYTES_MIN // 1024}KiB,"
        f" trim threshold {UNUSED_BYTES_MAX // MEBIBYTE}MiB, {ARENAS_MAX} arenas"
    )


def _mallopt() -> Callable[[int, int], int] | None:
    found: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    return found
