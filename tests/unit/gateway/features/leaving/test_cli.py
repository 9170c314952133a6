from __future__ import annotations

import pytest
from click.testing import CliRunner

from gateway.features.leaving.cli import replica

WATCH = ("watch-host", "--provider", "gcp", "--gateway", "http://127.0.0.1:1", "--replica", "r0")


@pytest.mark.parametrize(
    "arguments,why",
    [
        (("leave-by", "r0"), "Missing argument"),
        (("leave-by", "r0", "soon"), "neither a duration"),
        (("leave-by", "r0", "2026-03-01T12:00:00"), "neither a duration"),
        (("withdraw",), "Missing argument"),
        ((*WATCH, "--interval", "often"), "--interval"),
        ((*WATCH, "--lead", "-1s"), "--lead"),
        ((*WATCH, "--rebalance", "10m"), "AWS alone"),
        (("watch-host", "--provider", "elsewhere", *WATCH[3:]), "--provider"),
        (WATCH[:-2], "--replica"),
        ((*WATCH[:3], *WATCH[5:]), "--gateway"),
    ],
)
def test_wrong_use_of_a_command_is_told(arguments: tuple[str, ...], why: str) -> None:
    told = CliRunner().invoke(replica, list(arguments))
    assert (told.exit_code, why in told.stderr) == (2, True), told.stderr
