from __future__ import annotations

import errno
import socket

import pytest

from mesh.listening import named_by, why_not
from mesh.values import Address

HERE = Address("127.0.0.1", 8080)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EADDRINUSE, "port 8080 is in use by another program on this machine: end that one, or change the port"),
        (errno.EADDRNOTAVAIL, "this machine has no such address"),
        (errno.EACCES, "port 8080 needs rights that this user lacks"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_the_key_the_address_and_the_reason_are_told(number: int, said: str) -> None:
    with pytest.raises(OSError, match=r"listen\.http: cannot listen on") as caught, named_by("listen.http", HERE):
        raise OSError(number, "Input/output error")
    assert str(caught.value) == f"listen.http: cannot listen on 127.0.0.1:8080: {said}"


def test_the_system_knows_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert why_not(Address("127.0.0.1", taken.getsockname()[1])) == errno.EADDRINUSE
    assert why_not(Address("127.0.0.1", 0)) == 0
