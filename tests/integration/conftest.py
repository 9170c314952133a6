from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.regions import Mesh


@pytest.fixture
async def mesh(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, unused_tcp_port_factory)
    yield made
    await made.close()
