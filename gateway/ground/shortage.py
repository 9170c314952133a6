"""Has this machine run short, of descriptors or memory? Then whoever was to be reached is not to blame."""

from __future__ import annotations

import errno
import os
import socket

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def is_our_shortage(error: OSError) -> bool:
    """Also where the shortage lies behind it: of several addresses, or in the look-up of a name, which has an error
    code of its own for everything."""
    causes: list[BaseException | None] = [error, error.__cause__, error.__context__]
    if any(isinstance(each, OSError) and each.errno in _SHORTAGES for each in causes):
        return True
    if error.errno is None and tells_our_shortage(str(error)):
        return True
    return isinstance(error, socket.gaierror) and not has_descriptor()


def tells_our_shortage(text: str) -> bool:
    """For libraries that say it in the system's words alone."""
    return any(os.strerror(each) in text for each in _DESCRIPTORS)


def has_descriptor() -> bool:
    """Could this process open anything at this moment?"""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _DESCRIPTORS
    return True
