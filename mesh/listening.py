"""Explains why an address cannot be listened on, with the key of the file that names it; the system's errors say
neither. It leaves no socket open.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from mesh.values import Address


@contextmanager
def named_by(key: str, address: Address) -> Iterator[None]:
    """Raise an OSError from the block again with the key, the address and the reason."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{key}: cannot listen on {address}: {_in_words(error, address)}") from error


def why_not(address: Address) -> int:
    """Error number that the system gives for binding to the address, since gRPC does not say why it cannot listen; 0
    where binding succeeds."""
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
            return f"port {address.port} needs rights that this user lacks"
        case _:
            return error.strerror or str(error)
