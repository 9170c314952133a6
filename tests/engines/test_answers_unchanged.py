"""Answers of real llama.cpp, asked directly, through one gateway, through two regions, and resumed at another engine.

Decoding is greedy and without a prompt cache, so that the engine repeats itself. A client gets the engine's bytes, and
the same prompt gets the same answer every way, but for what the engine makes anew each time: ids, times and timings.
`--answers-page FILE` writes the comparison down as a page of results.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, EMBEDDINGS_PATH
from tests.engines.answers_page import Compared, page_of
from tests.engines.cutter import Cut, Cutter
from tests.engines.llamacpp import llamacpp_servers
from tests.engines.regions import RealMesh, RealRegion, replicas
from tests.engines.tap import Tap
from tests.support.core import EU, MODEL, US

pytestmark = pytest.mark.timeout(300)

MADE_ANEW = ("id", "created", "timings")
"""Members of an answer, and of tool calls in it, that the engine makes anew each time."""
WENT_ON = b": nightside: went on elsewhere"
"""Comment that the gateway adds to a resumed stream."""
TO_THE_BYTE = "to the byte"
TOKENS = 40
QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
    "required": ["city", "country"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {"messages": QUESTION, "max_tokens": TOKENS}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT_PATH, CHAT),
    "tools offered": (CHAT_PATH, CHAT | {"tools": [WEATHER], "tool_choice": "auto"}),
    "structured output": (
        CHAT_PATH,
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}},
    ),
    "logprobs": (CHAT_PATH, CHAT | {"logprobs": True, "top_logprobs": 3}),
    "completion": (COMPLETIONS_PATH, {"prompt": "The capital of France is", "max_tokens": TOKENS}),
}
TELLING = {
    "chat": b"Paris",
    "tools offered": b"Paris",
    "structured output": b"country",
    "logprobs": b'"top_logprobs"',
    "completion": b"Paris",
}
"""Text that an answer to each call has to contain, so that none is compared that shows nothing of it."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways to one engine: at its own port, and through a tap behind one gateway and behind two."""

    direct: str
    one: RealRegion
    two: RealRegion
    tap: Tap

    @property
    def through(self) -> dict[str, RealRegion]:
        return {"one gateway": self.one, "two regions": self.two}


@asynccontextmanager
async def ways(mesh: RealMesh, port: int) -> AsyncIterator[Ways]:
    async with Tap(port).serving() as tap:
        us = mesh.add("us-1", US, {})
        eu = mesh.add("eu-1", EU, {}, replicas=replicas({"one": tap.url}, "llamacpp"))
        async with mesh.running():
            await eu.until_free(1)
            yield Ways(f"http://127.0.0.1:{port}", eu, us, tap)


@pytest.fixture(scope="module")
def compared(request: pytest.FixtureRequest) -> Iterator[list[Compared]]:
    """Comparisons of all tests, written down as a page at the end where one was asked for."""
    made: list[Compared] = []
    yield made
    page = request.config.getoption("--answers-page")
    if page is not None:
        page.write_text(page_of(made))


async def read(session: aiohttp.ClientSession, url: str, path: str, call: dict[str, Any]) -> bytes:
    body = {"model": MODEL, "temperature": 0, "cache_prompt": False, **call}
    async with session.post(url + path, json=body, headers={"connection": "close"}) as answer:
        said = await answer.read()
    assert answer.status == 200, said
    return said


def lasting(said: bytes) -> list[Any]:
    """Documents of an answer, whole or streamed, without the members that are made anew each time."""
    lines = [line for line in said.splitlines() if line.startswith(b"data: ")]
    if not lines:
        return [_lasting(json.loads(said))]
    assert lines[-1] == b"data: [DONE]"
    return [_lasting(json.loads(line[6:])) for line in lines[:-1]]


def _lasting(value: Any) -> Any:
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in MADE_ANEW}
    return value


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_the_engines_own(
    llamacpp_environment: Path,
    mesh: RealMesh,
    session: aiohttp.ClientSession,
    compared: list[Compared],
    *,
    stream: bool,
) -> None:
    async with (
        llamacpp_servers(llamacpp_environment, 1) as (port,),
        ways(mesh, port) as all_ways,
    ):
        for name, (path, call) in CALLS.items():
            asked = call | ({"stream": True} if stream else {})
            direct = await read(session, all_ways.direct, path, asked)
            assert TELLING[name] in direct, direct
            assert lasting(await read(session, all_ways.direct, path, asked)) == lasting(direct)
            for way, region in all_ways.through.items():
                said = await read(session, region.url, path, asked)
                assert said == all_ways.tap.answers[-1], f"{name}, {way}"
                assert lasting(said) == lasting(direct), f"{name}, {way}"
                compared.append(Compared(name, "stream" if stream else "whole", way, TO_THE_BYTE))


async def test_embeddings_are_the_engines_own(
    llamacpp_environment: Path, mesh: RealMesh, session: aiohttp.ClientSession, compared: list[Compared]
) -> None:
    call = {"input": ["Regions sleep at night.", "Paris"], "encoding_format": "float"}
    async with llamacpp_servers(llamacpp_environment, 1, "--embeddings") as (port,), ways(mesh, port) as all_ways:
        direct = await read(session, all_ways.direct, EMBEDDINGS_PATH, call)
        assert len(json.loads(direct)["data"]) == 2
        for way, region in all_ways.through.items():
            said = await read(session, region.url, EMBEDDINGS_PATH, call)
            assert said == all_ways.tap.answers[-1] == direct, way
            compared.append(Compared("embeddings", "whole", way, TO_THE_BYTE))


async def test_a_resumed_answer_is_the_unbroken_one(
    llamacpp_environment: Path, mesh: RealMesh, session: aiohttp.ClientSession, compared: list[Compared]
) -> None:
    """The stream breaks after each of its tokens once, and goes on at the other engine."""
    call = CHAT | {"stream": True}
    cut = Cut()
    async with llamacpp_servers(llamacpp_environment) as (port, other), Cutter(port, cut).serving() as one:
        async with Cutter(other, cut).serving() as two:
            engines = replicas({"one": one.url, "two": two.url}, "llamacpp")
            region = mesh.add("us-1", US, {}, replicas=engines, attempt=PATIENT)
            async with mesh.running():
                await region.until_free(2)
                unbroken = await read(session, f"http://127.0.0.1:{port}", CHAT_PATH, call)
                events = len(lasting(unbroken))
                breaks = range(2, events - 1)
                differing: dict[int, str] = {}
                for at in breaks:
                    cut.order(at)
                    said = await read(session, region.url, CHAT_PATH, call)
                    await region.until_free(2)
                    assert said.count(WENT_ON) == 1, at
                    assert len(ids(said)) == 1, at
                    if lasting(said) != lasting(unbroken):
                        differing[at] = text_of(said)
                assert differing == {}, text_of(unbroken)
                compared.append(Compared("chat", "stream", "resumed", f"{len(breaks)} of {len(breaks)} breaks"))


PATIENT = {"breaker_failures_in_row": 1000, "breaker_failure_share": 1.0, "retry_budget_min": 1000}


def ids(said: bytes) -> set[str]:
    return {json.loads(line[6:])["id"] for line in said.splitlines() if line.startswith(b"data: {")}


def text_of(said: bytes) -> str:
    choices = [choice for document in lasting(said) for choice in document["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
