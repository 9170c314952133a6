"""Real llama.cpp servers with a real small model, as processes that end with the tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.engines.real import ROOT, free_port
from tests.support.core import MODEL

_SLOTS = 2
_START_S = 60
_END_S = 20
_POLL_S = 0.2


@asynccontextmanager
async def llamacpp_servers(environment: Path, count: int = 2, *options: str) -> AsyncIterator[list[int]]:
    """Run that many servers in one process; yields their ports once all are healthy."""
    ports = [free_port() for _ in range(count)]
    program = [environment / "bin/python", ROOT / "loadgen/demo/llamacpp_server.py", *options, MODEL, _SLOTS, *ports]
    process = _started([*map(str, program)])
    try:
        async with asyncio.timeout(_START_S), aiohttp.ClientSession() as session:
            for port in ports:
                await _until_healthy(session, port)
        yield ports
    finally:
        process.terminate()
        process.wait(_END_S)


def _started(program: list[str]) -> subprocess.Popen[bytes]:
    tethered = [sys.executable, "-m", "loadgen.demo.bound_to_parent", str(os.getpid()), *program]
    return subprocess.Popen(tethered, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def _until_healthy(session: aiohttp.ClientSession, port: int) -> None:
    while True:
        try:
            async with session.get(f"http://127.0.0.1:{port}/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(_POLL_S)
