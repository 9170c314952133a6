"""Standard error of both programs is JSON, line by line, whatever happens to their connections, though gRPC's C library
has messages of its own for that.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine
from tests.support.certificates import Files, mesh_leaf, new_ca, roots_of
from tests.support.controllers import Mesh, controller_file, controller_process
from tests.support.core import EU, US
from tests.support.processes import QUICK_PEERS, gateway_process, region_file

AS_FROM_A_SHELL = ("env", "-u", "GRPC_VERBOSITY")
"""Command prefix that unsets GRPC_VERBOSITY, which the environment of a test run may set."""
NO_TLS = b"HTTP/1.1 400 Bad Request\r\n\r\n"
_SETTINGS = b"\x00\x00\x00\x04" + bytes(5)
_ENHANCE_YOUR_CALM = b"\x00\x00\x00\x0b" + b"too_many_pings"
GO_AWAY = _SETTINGS + b"\x00\x00\x16\x07" + bytes(5) + bytes(4) + _ENHANCE_YOUR_CALM
"""Frames that close an HTTP/2 connection at once on the caller."""


@asynccontextmanager
async def rude_peer(port: int, says: bytes) -> AsyncIterator[asyncio.Event]:
    """Server that sends these bytes to each caller; the event is set once a caller has dialled again."""
    heard, calls = asyncio.Event(), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            heard.set()
        await reader.read(1 << 16)
        writer.write(says)
        writer.close()  # the caller might otherwise keep the connection, and never dial again

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield heard


async def knock(port: int) -> None:
    """Send bytes that are no TLS to a server that expects it, and wait until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(NO_TLS)
    await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("has_tls", [True, False], ids=["handshakes that fail", "connections that are closed on it"])
async def test_a_gateways_lines_are_json_whatever_its_peers_do(
    tmp_path: Path, engine: FakeEngine, unused_tcp_port_factory: Callable[[], int], has_tls: bool
) -> None:
    own, others = unused_tcp_port_factory(), unused_tcp_port_factory()
    files, ca = Files(tmp_path / "certificates"), new_ca()
    files.put(mesh_leaf(ca, "us-1", US), roots=roots_of(ca))
    tls = {"certificate": str(files.certificate), "key": str(files.key), "roots": str(files.roots)}
    peer = {"gateway": "eu-1", "region": EU.region, "jurisdiction": EU.jurisdiction, "address": f"127.0.0.1:{others}"}
    listen = {"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "peers": f"127.0.0.1:{own}"}
    peering = {**QUICK_PEERS, **({"tls": tls} if has_tls else {})}
    file = region_file(tmp_path, "us-1", US, engine, listen=listen, peers=[peer], peering=peering)
    async with (
        rude_peer(others, NO_TLS if has_tls else GO_AWAY) as heard,
        gateway_process(file, started_by=AS_FROM_A_SHELL) as gateway,
    ):
        await heard.wait()
        await knock(own)
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    assert gateway.log_lines, "what is no JSON would have been told of as it ended"


async def test_a_controllers_lines_are_json_whoever_calls(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    await knocked_at(tmp_path, unused_tcp_port_factory(), AS_FROM_A_SHELL)


async def test_an_operator_may_ask_for_what_grpc_has_to_say(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    with pytest.raises(AssertionError, match="Handshake failed"):
        await knocked_at(tmp_path, unused_tcp_port_factory(), ("env", "GRPC_VERBOSITY=INFO"))


async def knocked_at(folder: Path, port: int, started_by: Sequence[str]) -> None:
    """Run a controller from start to end. Raises AssertionError with the lines that are no JSON."""
    tls = Mesh(folder, new_ca()).controller_tls()
    listen = {"grpc": f"127.0.0.1:{port}", "admin": "127.0.0.1:0"}
    file = controller_file(folder, listen=listen, link={"tls": tls})
    async with controller_process(file, started_by=started_by) as controller:
        await knock(port)
        controller.process.send_signal(signal.SIGTERM)
        assert await controller.process.wait() == 0
