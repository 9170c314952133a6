"""Commands of docs/how_to/operations.md, run against real processes, as those of docs/get_started are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.walk import ROOT, blocks_of, is_as_shown, run

PAGE = ROOT / "docs/how_to/operations.md"
_PORT = re.compile(r"\b[789]\d{3}\b")


def on_free_ports(page: str, free_port: Callable[[], int]) -> str:
    """Text of the page with each port that it uses replaced by a free one, everywhere."""
    ports = {port: str(free_port()) for port in sorted(set(_PORT.findall(page)))}
    return _PORT.sub(lambda found: ports[found[0]], page)


@pytest.mark.timeout(1200)
async def test_the_runbook_goes_as_the_page_says(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
    blocks = blocks_of(on_free_ports(PAGE.read_text(), unused_tcp_port_factory))
    assert len(blocks) >= 10
    for block, printed in zip(blocks, await run(blocks, tmp_path, 1100), strict=True):
        if block.shown is None:
            assert printed.strip() == "", block.commands
        else:
            assert is_as_shown(printed, block.shown), f"{block.commands}\nprinted:\n{printed}\nshown:\n{block.shown}"
