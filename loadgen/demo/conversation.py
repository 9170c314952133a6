"""Runs the demo with real engines: one busy region, a few questions, and the answers with the region of their engine.

It measures nothing. It must never report success when no request was answered from another region.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from gateway.core.vocabulary import RegionName
from loadgen.demo.mesh import Mesh
from loadgen.demo.processes import DemoFailure
from loadgen.demo.scenario import DemoScenario
from mesh.clock import Clock

_NS = 1e-9
_BUSY_S = 20.0
_ANSWER_S = 120.0
_POLL_S = 0.05
_STANDS_S = 1.5
"""Wait until the queue counts: an engine none of whose answers has ended counts as blocked after one second."""
_SHOWN_MAX = 240
_KEEP_BUSY = (
    "Write a long story about a lighthouse keeper.",
    "Write a long story about a night train.",
)
_QUESTIONS = (
    "What is the capital of France? Answer in one sentence.",
    "Why is the sky dark at night? Answer in one sentence.",
    "Where does the sun rise? Answer in one sentence.",
)
_LONG_TOKENS, _SHORT_TOKENS = 200, 60


@dataclass(frozen=True, slots=True)
class DemoReply:
    """One question and its answer."""

    client: RegionName
    question: str
    answer: str
    engine: RegionName
    first_token_s: float

    @property
    def came_from_elsewhere(self) -> bool:
        return self.engine != self.client


async def converse(console: Console, scenario: DemoScenario, mesh: Mesh) -> None:
    """Fill the first region, ask questions in it and in the second, and print the answers. Raises DemoFailure if an
    answer is empty, if one for the second region was generated elsewhere, or if none was generated in another
    region."""
    busy, idle = (region.name for region in scenario.regions[:2])
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
        clients = _Clients(session, scenario.model, mesh)
        stories = [tasks.create_task(clients.ask(busy, each, _LONG_TOKENS)) for each in _KEEP_BUSY]
        console.print(f"Two clients in {busy} ask its one engine for long stories …")
        await clients.until_full(busy)
        await asyncio.sleep(_STANDS_S)
        console.print(f"… and while it writes, others ask there, too. {idle} has nothing to do.\n")
        said = []
        for question in _QUESTIONS:
            said.append(await clients.ask(busy, question, _SHORT_TOKENS))
            _print(console, said[-1])
        said.append(await clients.ask(idle, _QUESTIONS[0], _SHORT_TOKENS))
        _print(console, said[-1])
        console.print("And what the first two had asked for:\n")
        for story in stories:
            said.append(await story)
            _print(console, said[-1])
    problems = list(_problems(said, idle))
    if problems:
        raise DemoFailure("\n".join(problems))
    console.print(_moral(said, busy, idle))


def _problems(said: list[DemoReply], idle: RegionName) -> Iterator[str]:
    for each in said:
        if not each.answer.strip():
            yield f"{each.client}: no word came back for {each.question!r}"
        if each.client == idle and each.came_from_elsewhere:
            yield f"against the residency policy, {each.engine} answered what was asked in {idle}"
    if not any(each.came_from_elsewhere for each in said):
        yield "nothing was answered from another region"


def _moral(said: list[DemoReply], busy: RegionName, idle: RegionName) -> str:
    forwarded = sum(each.came_from_elsewhere for each in said)
    asked = sum(each.client == busy for each in said)
    return (
        f"{forwarded} of {asked} answers for clients in {busy} were written by the engine in {idle}: real text, from"
        f" another region, over the same address. What is asked in {idle} stays there: its policy says so."
    )


def _print(console: Console, said: DemoReply) -> None:
    style = "bold green" if said.came_from_elsewhere else "bold"
    console.print(f"[bold]{said.client}[/bold] asks: {escape(said.question)}")
    console.print(f"[{style}]{said.engine}[/{style}] answers, first word after {said.first_token_s:.2f} s:")
    console.print(Padding(escape(_shortened(said.answer)), (0, 0, 1, 4)))


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX].rsplit(maxsplit=1)[0]} …"


class _Clients:
    """Clients that know only the address of their region's gateway."""

    def __init__(self, session: aiohttp.ClientSession, model: str, mesh: Mesh) -> None:
        self._session = session
        self._model = model
        self._mesh = mesh
        self._clock = Clock()

    async def ask(self, region: RegionName, question: str, tokens_max: int) -> DemoReply:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens_max,
            "temperature": 0,
            "stream": True,
        }
        asked_ns = self._clock.now_ns()
        url = f"{self._mesh.gateways[region]}/v1/chat/completions"
        try:
            async with self._session.post(url, json=body) as answer:
                if answer.status != 200:
                    raise DemoFailure(f"{region} answered {answer.status}: {(await answer.text())[:_SHOWN_MAX]}")
                words, first_ns = [], 0
                async for word in _words(answer.content):
                    first_ns = first_ns or self._clock.now_ns()
                    words.append(word)
                engine = RegionName(answer.headers["x-nightside-region"])
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoFailure(f"asking {region} failed: {type(error).__name__} {error}") from error
        return DemoReply(region, question, "".join(words), engine, (first_ns - asked_ns) * _NS)

    async def until_full(self, region: RegionName) -> None:
        """Wait until the region's gateway has no available replica of its own. Raises DemoFailure on time-out."""
        try:
            async with asyncio.timeout(_BUSY_S):
                while await self._has_room(region):  # noqa: ASYNC110 - another process, which sends no event
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise DemoFailure(f"{region} was not busy after {_BUSY_S:.0f} s") from None

    async def _has_room(self, region: RegionName) -> bool:
        async with self._session.get(f"{self._mesh.admins[region]}/admin/state") as answer:
            state = await answer.json()
        return any(replica["available"] for replica in state["replicas"])


async def _words(stream: aiohttp.StreamReader) -> AsyncIterator[str]:
    """Text in a stream of chat events. Raises DemoFailure for an error event."""
    async for line in stream:
        payload = line.removeprefix(b"data:").strip()
        if payload == line.strip() or payload == b"[DONE]":
            continue
        event: dict[str, Any] = json.loads(payload)
        if "error" in event:
            raise DemoFailure(f"a stream ended with an error: {event['error'].get('message', event['error'])}")
        for choice in event.get("choices", ()):
            if text := choice.get("delta", {}).get("content"):
                yield text
