"""Signs of life of a client's host, read from the kernel's account of its connection."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.http1.server import HttpServer
from gateway.http1.vanished import is_silent
from tests.support.lines import CLIENT, Line
from tests.unit.gateway.http1.test_server import GET, LIMITS, Site

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells soon enough")

STALL_S = 60.0


def tcp_info(*, retransmits: int = 0, probes: int = 0, last_ack_ms: int = 0) -> bytes:
    return bytes([1, 0, retransmits, probes]) + bytes(52) + last_ack_ms.to_bytes(4, sys.byteorder)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param(tcp_info(), False, id="it has just answered"),
        pytest.param(tcp_info(last_ack_ms=3_600_000), False, id="it was asked nothing"),
        pytest.param(tcp_info(retransmits=2, last_ack_ms=1999), False, id="two segments are lost"),
        pytest.param(tcp_info(retransmits=3, last_ack_ms=1999), False, id="too soon"),
        pytest.param(tcp_info(retransmits=2, last_ack_ms=9000), False, id="idle, then two segments are lost"),
        pytest.param(tcp_info(retransmits=3, last_ack_ms=2000), True, id="data is not acknowledged"),
        pytest.param(tcp_info(probes=3, last_ack_ms=3900), False, id="two probes are lost, one is on its way"),
        pytest.param(tcp_info(probes=4, last_ack_ms=4000), True, id="no probe is answered"),
        pytest.param(b"", False, id="a kernel that tells less"),
    ],
)
def test_silence_is_a_question_without_an_answer(told: bytes, expected: bool) -> None:
    assert is_silent(told, 2.0) is expected


class FakeSocket:
    """Socket whose kernel tells what a test says."""

    def __init__(self) -> None:
        self.info = tcp_info()
        self.idle_s: list[int] = []
        self.is_closed = False

    def setsockopt(self, level: int, name: int, setting: int) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, "closed")
        if (level, name) == (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE):
            self.idle_s.append(setting)

    def getsockopt(self, level: int, name: int, length: int) -> bytes:
        assert (level, name) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return self.info[:length]


class ClientLine(Line):
    def __init__(self) -> None:
        super().__init__()
        self.own = FakeSocket()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": CLIENT, "socket": self.own}.get(name, default)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Server that answers nothing by itself."""
    made = Site()
    made.answers = made.hold
    yield made
    made.server.close(at_once=True)


def asking(site: Site) -> ClientLine:
    """Client whose request runs."""
    line = ClientLine()
    site.connect(line)
    line.say(GET)
    return line


async def test_a_running_request_of_a_vanished_client_is_cancelled(site: Site) -> None:
    line = asking(site)
    line.own.info = tcp_info(probes=3, last_ack_ms=3500)
    site.look(1.0)
    assert not line.is_cut
    line.own.info = tcp_info(probes=4, last_ack_ms=4500)
    site.look(1.0)
    assert line.is_cut
    line.lose()
    assert site.left == site.exchanges


async def test_a_client_is_asked_each_second_only_while_its_request_runs(site: Site) -> None:
    line = ClientLine()
    site.connect(line)
    site.look(1.0)
    line.say(GET)
    for _ in range(3):
        site.look(1.0)
    site.exchanges[0].respond(200, {}, b"")
    line.own.info = tcp_info(probes=9, last_ack_ms=9000)
    for _ in range(3):
        site.look(1.0)
    assert line.own.idle_s == [15, 1, 15]
    assert not line.is_cut, "a connection without a request costs nothing"


async def test_a_client_that_reads_nothing_has_its_own_limit(site: Site) -> None:
    line = asking(site)
    line.is_stuck = True
    site.exchanges[0].start(200, "", has_length=False)
    site.exchanges[0].write(bytes(70_000))
    line.own.info = tcp_info(probes=1, last_ack_ms=5000)  # the host answers the probes of a closed window
    site.look(STALL_S - 0.1)
    assert not line.is_cut
    site.look(0.1)
    assert line.is_cut


async def test_a_socket_that_cannot_be_asked_delays_no_other_connection(site: Site) -> None:
    broken, sound = asking(site), asking(site)
    for line in (broken, sound):
        line.own.info = tcp_info(probes=4, last_ack_ms=4500)
    broken.own.is_closed = True
    site.look(1.0)
    assert (broken.is_cut, sound.is_cut) == (False, True)


async def test_a_limit_longer_than_the_default_is_kept(site: Site) -> None:
    site.server = HttpServer(site, replace(LIMITS, silence_s=20.0))
    site.server.time = lambda: site.now_s
    line = asking(site)
    line.own.info = tcp_info(retransmits=5, last_ack_ms=19_999)
    site.look(1.0)
    assert not line.is_cut
    line.own.info = tcp_info(retransmits=6, last_ack_ms=20_000)
    site.look(1.0)
    assert line.is_cut
