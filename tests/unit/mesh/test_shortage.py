from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

import pytest
import uvloop

from mesh.shortage import has_descriptor, is_our_shortage, tells_our_shortage
from tests.support.descriptors import no_descriptor_left

FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def behind(cause: Exception) -> OSError:
    error = ConnectionError("it broke off")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_the_system_says_so(code: int) -> None:
    assert is_our_shortage(OSError(code, os.strerror(code)))
    assert is_our_shortage(behind(OSError(code, os.strerror(code))))


def test_of_several_addresses_one_may_say_so() -> None:
    assert is_our_shortage(OSError(f"Multiple exceptions: [Errno 111] Connection refused, {FULL}"))


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ETIMEDOUT])
def test_what_another_end_does_is_no_shortage(code: int) -> None:
    assert not is_our_shortage(OSError(code, os.strerror(code)))
    assert not is_our_shortage(behind(ValueError("no HTTP")))


def test_nor_are_the_system_s_words_in_another_end_s_mouth() -> None:
    assert not is_our_shortage(ConnectionError(f"its answer is in {os.strerror(errno.EMFILE)}"))


def test_a_name_that_is_not_found_is_one_only_while_nothing_can_be_opened() -> None:
    unknown = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert not is_our_shortage(unknown)
    with no_descriptor_left():
        assert is_our_shortage(unknown)
        assert not has_descriptor()
        assert not is_our_shortage(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
        assert not is_our_shortage(TimeoutError())
    assert has_descriptor()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "nobody.invalid"])
def test_whatever_a_connection_meets_while_nothing_can_be_opened(run: Callable[..., None], host: str) -> None:
    async def connect() -> None:
        with no_descriptor_left():
            with pytest.raises(OSError) as caught:
                await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, 1)
            assert is_our_shortage(caught.value)

    run(connect())


def test_words_are_known() -> None:
    assert tells_our_shortage("failed to connect to all addresses; last error: INTERNAL: socket: Too many open files")
    assert not tells_our_shortage("Connection refused")
