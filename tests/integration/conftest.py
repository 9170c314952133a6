"""Fixtures of integration tests: an engine that plays scripts, a client, and gateways in front of engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.engine import FakeEngine
from tests.support.regions import Mesh
from tests.support.served import SLOW, Served, served


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
