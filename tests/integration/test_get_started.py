"""Commands of the pages to get started with, run against real processes; and checks that a wrong page would fail."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.walk import Block, blocks_of, is_as_shown, on_free_ports, run

FOLDER = Path(__file__).parents[2] / "docs/get_started"
PAGE = (FOLDER / "three_regions.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("one_region", 6), pytest.param("three_regions", 10, marks=pytest.mark.nightly)]
)
async def test_the_walk_goes_as_the_page_says(
    name: str, count: int, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    page = (FOLDER / f"{name}.md").read_text()
    blocks = blocks_of(on_free_ports(page, unused_tcp_port_factory))
    assert len(blocks) == count
    for block, printed in zip(blocks, await run(blocks, tmp_path), strict=True):
        if block.shown is None:
            assert printed.strip() == "", block.commands
        else:
            assert is_as_shown(printed, block.shown), f"{block.commands}\nprinted:\n{printed}\nshown:\n{block.shown}"


def test_a_prometheus_that_runs_already_is_in_nobody_s_way() -> None:
    told = subprocess.run(["prometheus", "--help"], capture_output=True, text=True)
    own = re.search(r"--web\.listen-address=\S*:(\d+)", told.stdout + told.stderr)
    assert own is not None
    assert f"listens on port {own[1]}" in " ".join(PAGE.split())
    assert set(re.findall(r"(?:127\.0\.0\.1:|localhost:|--port )(\d{4})\b", PAGE)).isdisjoint({own[1]})
    assert "systemctl" not in PAGE


def test_each_address_of_the_page_becomes_a_free_one() -> None:
    ports = iter(range(20_001, 30_000))
    assert on_free_ports("http://127.0.0.1:9900 --port 9001 https://localhost:8080 9900", lambda: next(ports)) == (
        "http://127.0.0.1:20003 --port 20002 https://localhost:20001 9900"
    )


@pytest.mark.parametrize(
    ("printed", "shown", "is_it"),
    [
        ("ready\n", "ready\n", True),
        ("ready in 3 s\n", "ready in … s\n", True),
        ("a\nb\nready\n", "…\nready\n", True),
        ("ready\nb\n", "ready\n", False),
        ("not ready\n", "ready\n", False),
        ("", "ready\n", False),
    ],
)
def test_what_is_printed_is_held_to_what_is_shown(printed: str, shown: str, is_it: bool) -> None:
    assert is_as_shown(printed, shown) is is_it


async def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    page = "```sh\necho one\n```\n\n```text\none\n```\n\n```console\nexit 3\n```\n\n```sh\nfalse\n```\n"
    one, two = blocks_of(page)
    assert (one, two) == (Block("echo one\n", "one\n"), Block("false\n", None))
    with pytest.raises(AssertionError, match="one"):
        await run([one, two], tmp_path)


async def test_the_shell_s_notice_of_a_killed_process_is_no_output(tmp_path: Path) -> None:
    page = '```sh\nsleep 600 & KILLED=$!\nkill -KILL $KILLED\nwait $KILLED || echo "ended with $?"\n```\n'
    assert await run(blocks_of(page), tmp_path) == ["ended with 137\n"]
