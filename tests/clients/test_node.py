"""OpenAI's and Anthropic's SDKs for JavaScript, unmodified, under Node."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.core import MODEL
from tests.support.served import HELLO_ANSWERED, served

SCRIPT = Path(__file__).parent / "javascript/ask.mjs"


NAME, DEAD, ALIVE = "mesh.example", "127.0.0.2", "127.0.0.1"
RESOLVER = SCRIPT.with_name("two_addresses.cjs")


@pytest.mark.parametrize("addresses", [(), (DEAD, ALIVE)], ids=["one address", "a first address that refuses"])
async def test_both_read_what_a_gateway_says(
    tmp_path: Path,
    unused_tcp_port_factory: Callable[[], int],
    node: str,
    modules: Path,
    addresses: tuple[str, ...],
) -> None:
    async with served(tmp_path, unused_tcp_port_factory) as up:
        url = f"http://{NAME}:{urlsplit(up.url).port}" if addresses else up.url
        process = await asyncio.create_subprocess_exec(
            *(node, "--require", str(RESOLVER), str(SCRIPT), url, "client", MODEL, ",".join([NAME, *addresses])),
            cwd=modules.parent,
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
    told = json.loads(output)
    assert told.pop("refused") == [404, "model_not_found"]
    assert set(told) == {"chat", "streamed", "response", "message", "messageStreamed"}
    assert set(told.values()) == {HELLO_ANSWERED}
