"""Answers of real engines that break at random tokens and are resumed at another engine.

Decoding is greedy, so that each answer can be compared with an unbroken one: how many are equal, why the others differ,
and that all are whole. One test kills an engine under load. `--figures FILE` writes the measurements down for the page
of results.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from loadgen.studies.resume.real_engines import Exactness, Killed, write_measured
from tests.engines.conftest import Engines
from tests.engines.cutter import Cut, Cutter
from tests.engines.llamacpp import llamacpp_servers
from tests.engines.real import reports_error
from tests.engines.regions import RealMesh, RealRegion, replicas
from tests.support.core import MODEL, US
from tests.support.gateways import counted

pytestmark = pytest.mark.timeout(400)

TOKENS = 40
CLIENTS = 4
"""Clients at once; few enough for a single engine."""
WENT_ON = b": nightside: went on elsewhere"
BREAKS = 12
"""Breaks of each kind of call."""
ENDING = 8
"""Events at the end of a stream, at most, that announce its end: a break behind them is not resumed."""
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Why do leaves turn brown in autumn?",
    "How does a bicycle stay upright?",
)


@dataclass
class Tally:
    """Results of the breaks of one kind."""

    breaks: int = 0
    equal: int = 0
    reread: int = 0
    """Differing answers whose text so far is tokenized differently from the tokens that were generated."""
    differing: list[str] = field(default_factory=list)

    def note(self, unbroken: str, broken: str, *, is_reread: bool) -> None:
        self.breaks += 1
        self.equal += unbroken == broken
        if unbroken != broken:
            self.reread += is_reread
            self.differing.append(f"{unbroken!r}\n{broken!r}")


Reread = Callable[[str, str, str, str], Awaitable[bool]]
"""Checks, given the call, the question, the text at the break and the whole text, if the tokenizer of the resuming
engine makes other tokens of the text than were generated.
"""


@asynccontextmanager
async def behind_cutters(
    mesh: RealMesh, ports: Iterable[int], dialect: str, **sections: object
) -> AsyncIterator[tuple[RealRegion, Cut]]:
    cut = Cut()
    async with AsyncExitStack() as stack:
        cutters = [await stack.enter_async_context(Cutter(port, cut).serving()) for port in ports]
        region = mesh.add("us-1", US, {f"r{number}": each.url for number, each in enumerate(cutters)}, **sections)
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


async def answer(session: aiohttp.ClientSession, region: RealRegion, path: str, body: dict[str, Any]) -> list[str]:
    """Text of each event. Asserts that the stream reports no failure and ends."""
    async with session.post(region.url + path, json=body) as response:
        said = await response.read()
    assert response.status == 200, said
    assert not reports_error(said), said.decode()
    documents = [json.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: {")]
    if path in (CHAT_PATH, COMPLETIONS_PATH):
        assert said.rstrip().endswith(b"data: [DONE]")
        choices = [choice for document in documents for choice in document["choices"]]
        assert choices[-1]["finish_reason"] in ("stop", "length")
        return [choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices]
    assert documents[-1]["type"] in ("message_stop", "response.completed")
    if path == RESPONSES_PATH:
        return [each["delta"] if each["type"] == "response.output_text.delta" else "" for each in documents]
    return [each["delta"]["text"] if each["type"] == "content_block_delta" else "" for each in documents]


def resumes(region: RealRegion) -> float:
    region.gateway.driver.tell_observers()
    return counted(region.gateway, "resumes_total", target="replica")


async def break_often(
    session: aiohttp.ClientSession, region: RealRegion, cut: Cut, path: str, reread: Reread, **more: object
) -> Tally:
    tally, chance = Tally(), random.Random(path)
    for number in range(BREAKS):
        question = QUESTIONS[number % len(QUESTIONS)]
        body = asked(path, question, **more)
        texts = await answer(session, region, path, body)
        before = resumes(region)
        at = chance.randrange(4, max(5, len(texts) - ENDING))
        cut.order(at)
        unbroken, broken = "".join(texts), "".join(await answer(session, region, path, body))
        await region.until_free(2)
        await region.until_idle()
        if resumes(region) > before:  # a stream that had not begun is retried from its start
            is_reread = unbroken != broken and await reread(path, question, "".join(texts[:at]), unbroken)
            tally.note(unbroken, broken, is_reread=is_reread)
    assert tally.breaks >= BREAKS // 2
    return tally


async def tokenized(session: aiohttp.ClientSession, port: int, text: str) -> list[int]:
    body = {"model": MODEL, "prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
    async with session.post(f"http://127.0.0.1:{port}/tokenize", json=body) as response:
        assert response.status == 200, await response.text()
        told: list[int] = (await response.json())["tokens"]
        return told


async def detokenized(session: aiohttp.ClientSession, port: int, tokens: list[int]) -> str:
    body = {"model": MODEL, "tokens": tokens}
    async with session.post(f"http://127.0.0.1:{port}/detokenize", json=body) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["prompt"])


def by_generated_ids(session: aiohttp.ClientSession, port: int) -> Reread:
    """Compare token ids, for an engine that reports those it generates: are the ids of the text those that were
    generated?
    """

    async def reread(path: str, question: str, said: str, whole: str) -> bool:
        path = COMPLETIONS_PATH if path == COMPLETIONS_PATH else CHAT_PATH
        body = asked(path, question, ignore_eos=True, return_token_ids=True)
        async with session.post(f"http://127.0.0.1:{port}{path}", json=body) as response:
            lines = (await response.text()).splitlines()
        text, generated = "", list[int]()
        for line in lines:
            is_behind = line.startswith("data: {") and len(text) < len(said)
            choices = json.loads(line[6:])["choices"] if is_behind else []
            for choice in choices:
                text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                generated += choice.get("token_ids") or []
        if not (whole.startswith(said) and text.startswith(said)):
            return False  # the same question gave another answer, so that ids cannot be compared
        while generated and await detokenized(session, port, generated) != said:
            generated.pop()  # one event may have brought several tokens
        return await tokenized(session, port, said) != generated

    return reread


async def with_ids(path: str, question: str, said: str, whole: str) -> bool:
    """Return False: with token ids, no text is tokenized again."""
    del path, question, said, whole
    return False


def by_whole_text(session: aiohttp.ClientSession, port: int) -> Reread:
    """Compare texts, for an engine that reports no ids and tokenizes text as it generates it: does the break fall
    inside a token of the whole text?
    """

    async def reread(path: str, question: str, said: str, whole: str) -> bool:
        del path, question
        before = await tokenized(session, port, said)
        return (await tokenized(session, port, whole))[: len(before)] != before

    return reread


Told = Callable[[str, str, str, Tally], None]


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Told:
    """Report of the measurements, with `-s` or `--figures`; it asserts nothing, as two tokenizers need not agree."""

    def tell(engine: str, path: str, how: str, tally: Tally) -> None:
        differing = "\n".join(tally.differing[:2])
        counts = f"{tally.equal} of {tally.breaks} equal, {tally.reread} read as other tokens"
        sys.stdout.write(f"\n{engine} {path} as {how}: {counts}\n{differing}\n")
        figures = request.config.getoption("--figures")
        if figures is not None:
            measured = Exactness(engine, path, how, tally.breaks, tally.equal, tally.reread)
            write_measured(figures, exactness=measured)

    return tell


VLLM = "vLLM 0.32, random weights"
LLAMACPP = "llama.cpp, SmolLM2-135M"


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH])
async def test_vllm_goes_on_with_a_text(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession, told: Told, path: str
) -> None:
    """Random weights generate text that no tokenizer reads as the same tokens: the test asserts only that all answers
    are whole.
    """
    reread = by_generated_ids(session, engines.one.port)
    more = {"ignore_eos": True} if path == CHAT_PATH else {}
    async with behind_cutters(mesh, (each.port for each in engines), "vllm") as (region, cut):
        tally = await break_often(session, region, cut, path, reread, **more)
    told(VLLM, path, "text", tally)


async def test_vllm_goes_on_with_token_ids_exactly(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession, told: Told
) -> None:
    async with behind_cutters(mesh, (each.port for each in engines), "vllm") as (region, cut):
        tally = await break_often(session, region, cut, COMPLETIONS_PATH, with_ids, return_token_ids=True)
    told(VLLM, COMPLETIONS_PATH, "token ids", tally)
    assert tally.equal == tally.breaks, tally.differing


async def test_a_chat_goes_on_with_token_ids_exactly(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession, told: Told
) -> None:
    """The client does not see token ids: the gateway requests them itself where its operator enabled that."""
    ports = [each.port for each in engines]
    async with behind_cutters(mesh, ports, "vllm", resume={"token_ids": True}) as (region, cut):
        tally = await break_often(session, region, cut, CHAT_PATH, with_ids, ignore_eos=True)
    told(VLLM, CHAT_PATH, "token ids", tally)
    assert tally.equal == tally.breaks, tally.differing


class Streams:
    """Clients that send one request after the other until they are stopped."""

    def __init__(self, session: aiohttp.ClientSession, region: RealRegion) -> None:
        self._session = session
        self._region = region
        self.is_over = False
        self.whole = self.broken = self.went_on = 0
        self.begun = 0
        """Streams that have a first token, and no end yet."""
        self.pauses_s: list[float] = []
        self.first_tokens_s: list[float] = []

    async def keep_asking(self, number: int) -> None:
        while not self.is_over:
            await self._ask(f"{number}. {QUESTIONS[number % len(QUESTIONS)]}")

    async def _ask(self, question: str) -> None:
        body = asked(CHAT_PATH, question, ignore_eos=True, max_tokens=10 * TOKENS)
        clock = asyncio.get_running_loop().time
        last_s, pause_s, said = clock(), 0.0, b""
        async with self._session.post(self._region.url + CHAT_PATH, json=body) as response:
            assert response.status == 200, await response.text()
            async for piece in response.content.iter_any():
                now_s = clock()
                if said:
                    pause_s = max(pause_s, now_s - last_s)
                else:
                    self.begun += 1
                    self.first_tokens_s.append(now_s - last_s)
                said, last_s = said + piece, now_s
        self.begun -= 1
        is_whole = said.rstrip().endswith(b"data: [DONE]") and not reports_error(said)
        self.whole += is_whole
        self.broken += not is_whole
        if WENT_ON in said:
            self.went_on += 1
            self.pauses_s.append(pause_s)

    async def until_begun(self, streams: int) -> None:
        while self.begun < streams:  # noqa: ASYNC110 - counted by those that read
            await asyncio.sleep(0.01)


async def test_an_engine_that_is_killed_under_load_breaks_nothing(
    engines: Engines, mesh: RealMesh, session: aiohttp.ClientSession, pytestconfig: pytest.Config
) -> None:
    """The engine's process is killed, with all requests that it holds; no proxy stands in between."""
    urls = {"r0": engines.one.url, "r1": engines.two.url}
    region = mesh.add("us-1", US, urls)
    async with mesh.running():
        await region.until_free(2)
        streams = Streams(session, region)
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(streams.keep_asking(number))
            held = 0
            while not held or streams.begun < CLIENTS:  # some streams may have ended during the query
                await streams.until_begun(CLIENTS)
                held = int(await engines.one.held())
            engines.one.kill()
            streams.is_over = True  # ends once the running requests are through
    figures = pytestconfig.getoption("--figures")
    told = Killed(
        VLLM,
        streams.whole + streams.broken,
        held,
        streams.whole,
        streams.broken,
        streams.went_on,
        streams.pauses_s,
        streams.first_tokens_s,
    )
    sys.stdout.write(f"\n{told}\n")
    if figures is not None:
        write_measured(figures, killed=told)
    assert streams.went_on >= 1
    assert (streams.broken, streams.went_on) == (0, resumes(region))


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH])
async def test_llamacpp_goes_on_with_a_text(
    llamacpp_environment: Path, mesh: RealMesh, session: aiohttp.ClientSession, told: Told, path: str
) -> None:
    """A real model writes words: nearly all breaks fall between two tokens, and the text is read as the tokens that
    were generated.
    """
    async with (
        llamacpp_servers(llamacpp_environment) as ports,
        behind_cutters(mesh, ports, "llamacpp") as (region, cut),
    ):
        tally = await break_often(session, region, cut, path, by_whole_text(session, ports[0]))
    told(LLAMACPP, path, "text", tally)
    assert tally.equal >= tally.breaks / 2, tally.differing
