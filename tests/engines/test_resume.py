"""Answers of real engines that break at random tokens and go on at another one. Decoded greedily, so that each can be
held against the one that nothing broke: how many are equal, and that all are whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from tests.engines.conftest import Engines
from tests.engines.cutter import Cut, Cutter
from tests.engines.real import ROOT, free_port, reports_error
from tests.engines.regions import RealMesh, RealRegion, replicas
from tests.support.core import MODEL, US
from tests.support.gateways import counted

pytestmark = pytest.mark.timeout(400)

TOKENS = 40
BREAKS = 12
"""Of each kind of call."""
ENDING = 8
"""Events at the end of a stream, at most, that say that it ends: nobody goes on behind them."""
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Why do leaves turn brown in autumn?",
    "How does a bicycle stay upright?",
)


@dataclass
class Tally:
    """What became of the breaks of one kind."""

    breaks: int = 0
    equal: int = 0
    differing: list[str] = field(default_factory=list)

    def note(self, unbroken: str, broken: str) -> None:
        self.breaks += 1
        self.equal += unbroken == broken
        if unbroken != broken:
            self.differing.append(f"{unbroken!r}\n{broken!r}")


@asynccontextmanager
async def behind_cutters(mesh: RealMesh, ports: Iterable[int], dialect: str) -> AsyncIterator[tuple[RealRegion, Cut]]:
    cut = Cut()
    async with AsyncExitStack() as stack:
        cutters = [await stack.enter_async_context(Cutter(port, cut).serving()) for port in ports]
        region = mesh.add("us-1", US, {f"r{number}": each.url for number, each in enumerate(cutters)})
        limits = {"breaker_failures_in_row": 1000, "breaker_failure_share": 1.0, "retry_budget_min": 1000}
        region.write(replicas=replicas({f"r{n}": each.url for n, each in enumerate(cutters)}, dialect), attempt=limits)
        await stack.enter_async_context(mesh.running())
        await region.until_free(len(cutters))
        yield region, cut


def asked(path: str, question: str, **more: object) -> dict[str, Any]:
    bodies: dict[str, dict[str, object]] = {
        CHAT_PATH: {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS},
        COMPLETIONS_PATH: {"prompt": question, "max_tokens": TOKENS, "ignore_eos": True},
        MESSAGES_PATH: {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS},
        RESPONSES_PATH: {"input": question, "max_output_tokens": TOKENS, "store": False},
    }
    return {"model": MODEL, "stream": True, "temperature": 0, **bodies[path], **more}


async def answer(
    session: aiohttp.ClientSession, region: RealRegion, path: str, body: dict[str, Any]
) -> tuple[str, int]:
    """Its text, and how many events it took. A stream that says that it failed, or does not end, is none."""
    async with session.post(region.url + path, json=body) as response:
        said = await response.read()
    assert response.status == 200, said
    assert not reports_error(said), said.decode()
    documents = [json.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: {")]
    if path in (CHAT_PATH, COMPLETIONS_PATH):
        assert said.rstrip().endswith(b"data: [DONE]")
        choices = [choice for document in documents for choice in document["choices"]]
        assert choices[-1]["finish_reason"] in ("stop", "length")
        texts = [choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices]
        return "".join(texts), len(documents)
    assert documents[-1]["type"] in ("message_stop", "response.completed")
    if path == RESPONSES_PATH:
        texts = [each["delta"] for each in documents if each["type"] == "response.output_text.delta"]
    else:
        texts = [each["delta"]["text"] for each in documents if each["type"] == "content_block_delta"]
    return "".join(texts), len(documents)


def resumes(region: RealRegion) -> float:
    region.gateway.driver.tell_observers()
    return counted(region.gateway, "resumes_total", target="replica")


async def break_often(session: aiohttp.ClientSession, region: RealRegion, cut: Cut, path: str, **more: object) -> Tally:
    tally, chance = Tally(), random.Random(path)
    for number in range(BREAKS):
        body = asked(path, QUESTIONS[number % len(QUESTIONS)], **more)
        unbroken, events = await answer(session, region, path, body)
        before = resumes(region)
        cut.order(chance.randrange(4, max(5, events - ENDING)))
        broken, _ = await answer(session, region, path, body)
        await region.until_free(2)
        await region.until_idle()
        if resumes(region) > before:  # else it had not begun: it was had from the beginning
            tally.note(unbroken, broken)
    assert tally.breaks >= BREAKS // 2
    return tally


def told(engine: str, path: str, tally: Tally) -> None:
    """For whoever runs it with `-s`: where no two tokenizers need agree, there is nothing to assert."""
    differing = "\n".join(tally.differing[:2])
    sys.stdout.write(f"\n{engine} {path}: {tally.equal} of {tally.breaks} equal\n{differing}\n")


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH])
async def test_vllm_goes_on_with_a_text(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession, path: str
) -> None:
    """Random weights write what no tokenizer would read as the same tokens: only that all are whole is asked."""
    async with behind_cutters(mesh, (each.port for each in engines), "vllm") as (region, cut):
        tally = await break_often(session, region, cut, path, **({"ignore_eos": True} if path == CHAT_PATH else {}))
    told("vLLM", path, tally)


async def test_vllm_goes_on_with_token_ids_exactly(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession
) -> None:
    async with behind_cutters(mesh, (each.port for each in engines), "vllm") as (region, cut):
        tally = await break_often(session, region, cut, COMPLETIONS_PATH, return_token_ids=True)
    told("vLLM, token ids,", COMPLETIONS_PATH, tally)
    assert tally.equal == tally.breaks, tally.differing


def _llamacpp(environment: Path, ports: Iterable[int]) -> subprocess.Popen[bytes]:
    server = [environment / "bin/python", ROOT / "loadgen/demo/llamacpp_server.py", MODEL, "2", *map(str, ports)]
    tethered = [sys.executable, "-m", "loadgen.demo.tether", str(os.getpid()), *map(str, server)]
    return subprocess.Popen(tethered, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def llamacpp_servers(environment: Path) -> AsyncIterator[tuple[int, int]]:
    ports = free_port(), free_port()
    process = _llamacpp(environment, ports)
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            for port in ports:
                await _until_healthy(session, port)
        yield ports
    finally:
        process.terminate()
        process.wait(20)


async def _until_healthy(session: aiohttp.ClientSession, port: int) -> None:
    while True:
        try:
            async with session.get(f"http://127.0.0.1:{port}/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH])
async def test_llamacpp_goes_on_with_a_text(
    llamacpp_environment: Path, mesh: RealMesh, session: aiohttp.ClientSession, path: str
) -> None:
    """A real model writes words, and nearly all breaks fall between two tokens that are read as they were written."""
    async with (
        llamacpp_servers(llamacpp_environment) as ports,
        behind_cutters(mesh, ports, "llamacpp") as (region, cut),
    ):
        tally = await break_often(session, region, cut, path)
    told("llama.cpp", path, tally)
    assert tally.equal >= tally.breaks / 2, tally.differing
