"""Has this machine run short, of descriptors, memory or room on a disk? Then no other end is to blame, and what can be
done without goes on without it.
"""

from __future__ import annotations

import errno
import os

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_our_shortage(error: OSError) -> bool:
    """Also where the shortage lies behind it: with one of several addresses, or in the look-up of a name, which tells
    of it in a dozen other words; so what no other end can have caused is asked of this process."""
    causes: list[BaseException | None] = [error, error.__cause__, error.__context__]
    if any(isinstance(each, OSError) and each.errno in _SHORTAGES for each in causes):
        return True
    if isinstance(error, (ConnectionError, TimeoutError)):
        return False  # whoever was reached may have put words into it
    return (error.errno is None and tells_our_shortage(str(error))) or not has_descriptor()


def is_full_disk(error: OSError) -> bool:
    """Room may be made while a program runs, so a full disk is no fault of its configuration."""
    return error.errno in _FULL_DISK


def tells_our_shortage(text: str) -> bool:
    """For libraries that say it in the system's words alone; only of what no other end can have said."""
    return any(os.strerror(each) in text for each in _DESCRIPTORS)


def has_descriptor() -> bool:
    """Could this process open anything at this moment?"""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _DESCRIPTORS
    return True
