"""Says why an address cannot be listened on, by the key of the file that names it: the system's errors have neither.

It opens nothing for good.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.ground.values import Address


@contextmanager
def named_by(key: str, address: Address) -> Iterator[None]:
    """Raises OSError in those words."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{key}: cannot listen on {address}: {_in_words(error, address)}") from error


def why_not(address: Address) -> int:
    """GRPC says that it cannot listen, and not why: the system does, if it is asked the same. 0 where it could."""
    kind = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind((address.host, address.port))
        except OSError as error:
            return error.errno or 0
    return 0


def _in_words(error: OSError, address: Address) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {address.port} is in use by another program on this machine: end that one, or change the port"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address"
        case errno.EACCES:
            return f"port {address.port} is not for everybody to listen on: this user may not"
        case _:
            return error.strerror or str(error)
