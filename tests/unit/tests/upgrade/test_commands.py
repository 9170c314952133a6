from __future__ import annotations

import subprocess

import pytest

from loadgen.demo.processes import DemoFailure
from tests.upgrade.commands import played_to_end


@pytest.mark.parametrize(
    "error", [DemoFailure("psql"), AssertionError("psql"), OSError("psql"), subprocess.TimeoutExpired("psql", 1)]
)
def test_a_play_that_fails_is_told_with_its_reason(error: Exception) -> None:
    async def play() -> None:
        raise error

    assert "psql" in played_to_end(play())
