"""Two real vLLM for the whole session, and a pair of prefill worker and decode worker.

Tests are skipped with the reason where engines cannot be started, unless `--require-engines` is given.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.engines.real import (
    LLAMACPP_FOLDER,
    ROOT,
    VLLM_FOLDER,
    Engine,
    all_up,
    decode_worker,
    prefill_worker,
    vllm,
    why_missing,
)
from tests.engines.regions import RealMesh


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-engines", action="store_true", help="Fail where a real engine cannot be had.")
    parser.addoption("--figures", type=Path, help="Where to write down what was measured, for a page of results.")
    parser.addoption("--answers-page", type=Path, help="Where to write the page that compares answers.")


def needs(folder: Path, config: pytest.Config) -> None:
    reason = why_missing(folder)
    if reason and config.getoption("--require-engines"):
        pytest.fail(f"no real engine: {reason}")
    if reason:
        pytest.skip(f"no real engine: {reason}")


@dataclass(frozen=True, slots=True)
class Engines:
    one: Engine
    two: Engine

    def __iter__(self) -> Iterator[Engine]:
        yield self.one
        yield self.two


@pytest.fixture(scope="session")
def running_engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    needs(VLLM_FOLDER, request.config)
    folder = tmp_path_factory.mktemp("vllm")
    engines = Engines(vllm(folder / "one.log"), vllm(folder / "two.log"))
    try:
        asyncio.run(all_up(engines))
        yield engines
    finally:
        for engine in engines:
            engine.kill()


@pytest.fixture
async def engines(running_engines: Engines) -> Engines:
    """Both engines up and idle, whatever the last test did to them."""
    await all_up(running_engines)
    for engine in running_engines:
        await engine.until_holding(0)
    return running_engines


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill worker and a decode worker; prompts' KV cache moves between them over NIXL."""

    prefill: Engine
    decode: Engine

    def __iter__(self) -> Iterator[Engine]:
        yield self.prefill
        yield self.decode


@pytest.fixture(scope="session")
def running_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    needs(VLLM_FOLDER, request.config)
    folder = tmp_path_factory.mktemp("pair")
    pair = Pair(prefill_worker(folder / "prefill.log"), decode_worker(folder / "decode.log"))
    try:
        asyncio.run(all_up(pair))
        yield pair
    finally:
        for engine in pair:
            engine.kill()


@pytest.fixture
async def pair(running_pair: Pair) -> Pair:
    """Both engines up and empty, whatever the last test did to them."""
    await all_up(running_pair)
    for engine in running_pair:
        await engine.until_holding(0)
        await engine.until_empty()
    return running_pair


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the plug-in that counts experts, installed from its sources as a user would."""
    folder = tmp_path_factory.mktemp("plugin")
    sources = shutil.copytree(
        ROOT / "engine_plugins/vllm_expert_counts",
        folder / "sources",
        ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"),
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    options = ["--no-build-isolation", "--no-deps", "--target", str(folder / "site")]
    subprocess.run([*pip, *options, str(sources)], check=True)
    return folder / "site"


@pytest.fixture(scope="session")
def llamacpp_environment(request: pytest.FixtureRequest) -> Path:
    needs(LLAMACPP_FOLDER, request.config)
    return LLAMACPP_FOLDER


@pytest.fixture
def mesh(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> RealMesh:
    return RealMesh(tmp_path, unused_tcp_port_factory)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made
