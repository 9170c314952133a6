"""Fixtures of integration tests: an engine that plays scripts, a client, and gateways in front of engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.engine import FakeEngine
from tests.support.certificates import new_ca
from tests.support.regions import Mesh
from tests.support.served import SLOW, Served, served


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let processes trust one certificate authority instead of all of this machine: aiohttp has OpenSSL read them all
    when it is imported, which takes a tenth of a gateway's start.
    """
    file = tmp_path_factory.mktemp("authority") / "authority.pem"
    file.write_bytes(new_ca().pem().certificate_pem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine().serving() as fake:
        yield fake


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as made:
        yield made


@pytest.fixture
async def mesh(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, unused_tcp_port_factory)
    yield made
    await made.close()


@pytest.fixture(params=[False, True], ids=["here", "across"])
def across(request: pytest.FixtureRequest) -> bool:
    """True if the gateway that clients use forwards everything to the next region."""
    return bool(request.param)


@pytest.fixture
async def up(tmp_path: Path, unused_tcp_port_factory: Callable[[], int], across: bool) -> AsyncIterator[Served]:
    async with served(tmp_path, unused_tcp_port_factory, across=across) as made:
        yield made


@pytest.fixture
async def slow(tmp_path: Path, unused_tcp_port_factory: Callable[[], int], across: bool) -> AsyncIterator[Served]:
    async with served(tmp_path, unused_tcp_port_factory, across=across, engine=SLOW) as made:
        yield made


@pytest.fixture
async def slow_and_broken(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], across: bool
) -> AsyncIterator[Served]:
    """Slow engine behind gateways that do not resume broken answers."""
    async with served(tmp_path, unused_tcp_port_factory, across=across, engine=SLOW, resumes=False) as made:
        yield made
