"""Tells whether an error comes from a shortage on this machine: of descriptors, memory or disk space. Then no remote
end is to blame, and work goes on without optional parts.
"""

from __future__ import annotations

import errno
import os

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_our_shortage(error: OSError) -> bool:
    """Return whether this machine's shortage caused the error. The shortage may lie behind the error: with one of
    several addresses, or in a name look-up, which reports it in a dozen other ways. So for an error that no remote end
    can have caused, this process is checked for a free descriptor."""
    causes: list[BaseException | None] = [error, error.__cause__, error.__context__]
    if any(isinstance(each, OSError) and each.errno in _SHORTAGES for each in causes):
        return True
    if isinstance(error, (ConnectionError, TimeoutError)):
        return False  # the text may come from the remote end
    return (error.errno is None and tells_our_shortage(str(error))) or not has_descriptor()


def is_full_disk(error: OSError) -> bool:
    """Return whether the error says that a disk is full or a limit of its space is reached. Room may be made while a
    program runs, so that is no fault of its configuration."""
    return error.errno in _FULL_DISK


def tells_our_shortage(text: str) -> bool:
    """Return whether a text names a shortage of descriptors, for libraries that give only the system's message. Use it
    only for texts that no remote end can have sent."""
    return any(os.strerror(each) in text for each in _DESCRIPTORS)


def has_descriptor() -> bool:
    """Return whether this process can open a file at this moment."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _DESCRIPTORS
    return True
