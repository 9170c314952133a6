"""A client's own gateway is killed in the middle of its answer: the client asks another gateway for the rest, as the
page on clients shows it, and has the whole answer."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from loadgen.engine.server import serve_engines
from tests.support.core import EU, MODEL, US
from tests.support.gateways import until
from tests.support.processes import QUICK_OBSERVATION, QUICK_PROBES, Process, gateway_process, region_file
from tests.support.programs import ROOT
from tests.support.served import HELLO, SLOW, expected

TOKENS = 8
PAGE = ROOT / "docs/reference/clients.md"
MARK = "# Ask another gateway for the rest of a broken answer"


@dataclass
class Pair:
    own: Process
    other: Process

    @property
    def urls(self) -> list[str]:
        return [f"{each.http_url}/v1" for each in (self.own, self.other)]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Two gateways that do not know each other, with an engine each."""
    quick = {"probes": QUICK_PROBES, "observation": QUICK_OBSERVATION}
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(serve_engines([SLOW] * 2))
        files = [
            region_file(tmp_path, name, place, engine, **quick)
            for name, place, engine in zip(("us-1", "eu-1"), (US, EU), engines, strict=True)
        ]
        own, other = [await stack.enter_async_context(gateway_process(file)) for file in files]
        yield Pair(own, other)


def documented() -> Callable[..., Any]:
    """Function that the page shows."""
    shown: dict[str, Any] = {}
    (block,) = (each for each in PAGE.read_text().split("```")[1::2] if MARK in each)
    exec(block.removeprefix("python\n"), shown)
    return shown["answer"]  # type: ignore[no-any-return]


async def test_the_rest_of_an_answer_is_asked_for_at_another_gateway(pair: Pair) -> None:
    said: list[str] = []

    def take(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            pair.own.signal(signal.SIGKILL)

    async with AsyncExitStack() as stack:
        made = [openai.AsyncOpenAI(base_url=url, api_key="client", max_retries=0) for url in pair.urls]
        clients = [await stack.enter_async_context(each) for each in made]
        await documented()(clients, MODEL, HELLO, take, max_tokens=TOKENS)
    assert "".join(said) == expected(("user", "hello"), tokens=TOKENS)
    await until(lambda: pair.own.process.returncode is not None)
