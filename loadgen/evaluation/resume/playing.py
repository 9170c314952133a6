"""Kills engines, and a whole region, under load, and looks at every stream that a client got. It judges nothing.

Everything is a process of its own on this machine; what engines say can be foretold, so that each answer is held
against the whole of what it should have been.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import yaml

from gateway.ground.clock import Clock
from loadgen.demo.processes import Child, DemoFailure, running_child
from loadgen.demo.region_files import free_ports
from loadgen.engine.tokens import Message, chat_prompt, continuation

MODEL = "llama"
TOKENS = 60
CLIENTS = 12
ENGINES = 3
KILL_EVERY_S = 2.0
DOWN_S = 0.5
_TIME_SCALE = "4"
_READY_S = 60.0
_SECOND_NS = 1_000_000_000
_WENT_ON = b": nightside: went on elsewhere"
_REGIONS = {"us-east-1": "US", "eu-west-1": "EU", "ap-northeast-1": "JP"}


@dataclass(slots=True)
class Seen:
    """What one client saw of one stream."""

    is_whole: bool
    """It ended, and said nothing but what it should have."""
    is_broken: bool
    """It had begun, and ended with an error or not at all."""
    went_on: bool
    longest_gap_s: float
    first_token_s: float | None


@dataclass(slots=True)
class Outcome:
    case: str
    is_resumed: bool
    kills: int = 0
    seen: list[Seen] = field(default_factory=list)
    tokens_read_again: float = 0.0
    held: int = 0
    """Streams that ran in what was killed."""


async def play_engines(seconds: float, *, is_resumed: bool) -> Outcome:
    """An engine of one region is killed every few seconds, and comes back."""
    outcome = Outcome("an engine", is_resumed)
    with TemporaryDirectory(prefix="nightside-resume-") as folder:
        async with _Play(Path(folder), is_resumed).running({"us-east-1": ENGINES}) as play:
            async with _load(play, outcome, CLIENTS):
                ends_s = _now_s() + seconds
                while _now_s() < ends_s:
                    await asyncio.sleep(KILL_EVERY_S)
                    engine = play.engines[outcome.kills % ENGINES]
                    outcome.held += await play.running_on(engine)
                    await engine.kill_and_restart()
                    outcome.kills += 1
            outcome.tokens_read_again = await play.counted("nightside_resumed_tokens_total")
    return outcome


async def play_region(clients: int, *, is_resumed: bool) -> Outcome:
    """A region that holds forwards dies, its gateway and its engines; another one has room."""
    outcome = Outcome("a region", is_resumed)
    with TemporaryDirectory(prefix="nightside-resume-") as folder:
        engines = {"us-east-1": 0, "eu-west-1": 2, "ap-northeast-1": 2}
        async with _Play(Path(folder), is_resumed).running(engines) as play:
            async with _load(play, outcome, clients, times=1):
                await play.until_answering(clients)
                there = [each for each in play.engines if each.region == "eu-west-1"]
                outcome.held = sum([await play.running_on(each) for each in there])
                for each in there:
                    await each.child.kill()
                await play.gateways["eu-west-1"].kill()
                outcome.kills = 1
            outcome.tokens_read_again = await play.counted("nightside_resumed_tokens_total")
    return outcome


# The fleet


@dataclass(slots=True, eq=False)
class _Engine:
    region: str
    port: int
    start: Callable[[int], Any]
    child: Child

    async def kill_and_restart(self) -> None:
        await self.child.kill()
        await asyncio.sleep(DOWN_S)
        self.child = await self.start(self.port)


class _Play:
    def __init__(self, folder: Path, is_resumed: bool) -> None:
        self._folder = folder
        self._is_resumed = is_resumed
        self._started = 0
        self.engines: list[_Engine] = []
        self.gateways: dict[str, Child] = {}
        self.url = ""
        self._admin = ""
        self.answering = 0

    @asynccontextmanager
    async def running(self, engines: dict[str, int]) -> AsyncIterator[_Play]:
        rng = random.Random()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:

            async def start(port: int) -> Child:
                self._started += 1
                log = self._folder / f"engine-{port}-{self._started}.log"
                options = ["--preset", "tiny", "--model", MODEL, "--port", str(port), "--time-scale", _TIME_SCALE]
                return await stack.enter_async_context(
                    running_child(f"engine {port}", ["nightside", "engine", *options, "--ignore-eos"], log, tasks)
                )

            ports = iter(free_ports(sum(engines.values()) + 3 * len(engines), rng))
            for region, count in engines.items():
                for _ in range(count):
                    port = next(ports)
                    self.engines.append(_Engine(region, port, start, await start(port)))
            listens = {region: (next(ports), next(ports), next(ports)) for region in engines}
            first, *_ = listens.values()
            self.url, self._admin = f"http://127.0.0.1:{first[0]}", f"http://127.0.0.1:{first[1]}"
            for region in engines:
                path = self._write(region, listens)
                log = self._folder / f"{region}.log"
                self.gateways[region] = await stack.enter_async_context(
                    running_child(region, ["nightside", "gateway", "run", str(path)], log, tasks)
                )
            await self._until_ready(sum(engines.values()))
            yield self
            for child in (*self.gateways.values(), *(each.child for each in self.engines)):
                await child.stop(1.0)

    def _write(self, region: str, listens: dict[str, tuple[int, int, int]]) -> Path:
        policy = self._folder / f"{region}.policy.yaml"
        every = {"jurisdictions": sorted(set(_REGIONS.values()))}
        head = {"region": region, "jurisdiction": _REGIONS[region]}
        policy.write_text(
            yaml.safe_dump(
                {"version": 1, **head, "process": every, "accept": {"jurisdictions": list(every["jurisdictions"])}}
            )
        )
        http, admin, peers = (f"127.0.0.1:{port}" for port in listens[region])
        document = {
            "gateway": f"gw-{region}",
            **head,
            "policy": str(policy),
            "listen": {"http": http, "admin": admin, "peers": peers},
            "replicas": [
                {"id": f"r{each.port}", "url": f"http://127.0.0.1:{each.port}", "models": [MODEL]}
                for each in self.engines
                if each.region == region
            ],
            "peers": [
                {"gateway": f"gw-{other}", "region": other, "jurisdiction": _REGIONS[other]}
                | {"address": f"127.0.0.1:{listens[other][2]}"}
                for other in listens
                if other != region
            ],
            "resume": {"enabled": self._is_resumed},
            "attempt": {"retry_budget_min": 1000},
        }
        path = self._folder / f"{region}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    async def _until_ready(self, engines: int) -> None:
        """A chat is answered: whoever is needed for that is up."""
        del engines
        async with asyncio.timeout(_READY_S), aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.post(f"{self.url}/v1/chat/completions", json=_asked("ready?", 1)) as answer:
                        if answer.status == 200 and b"[DONE]" in await answer.read():
                            return
                await asyncio.sleep(0.2)

    async def running_on(self, engine: _Engine) -> int:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{engine.port}/load") as answer:
                return int((await answer.json())["server_load"])

    async def until_answering(self, streams: int) -> None:
        async with asyncio.timeout(_READY_S):
            while self.answering < streams:  # noqa: ASYNC110 - counted by those that read
                await asyncio.sleep(0.02)

    async def counted(self, series: str) -> float:
        async with aiohttp.ClientSession() as session, session.get(f"{self._admin}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


# Clients


def _now_s() -> float:
    return Clock().now_ns() / _SECOND_NS


def _asked(question: str, tokens: int = TOKENS) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True}


@asynccontextmanager
async def _load(play: _Play, outcome: Outcome, clients: int, *, times: int | None = None) -> AsyncIterator[None]:
    """So many clients, each of which asks again as soon as it was answered; `times`: so often."""
    done = asyncio.Event()

    def may_ask(asked: int) -> bool:
        return not done.is_set() and (times is None or asked < times)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(_ask_on(session, play, outcome, number, may_ask))
        yield
        done.set()


async def _ask_on(
    session: aiohttp.ClientSession, play: _Play, outcome: Outcome, number: int, may_ask: Callable[[int], bool]
) -> None:
    asked = 0
    while may_ask(asked):
        asked += 1
        outcome.seen.append(await _ask(session, play, f"client {number} asks for the {asked}th time"))


async def _ask(session: aiohttp.ClientSession, play: _Play, question: str) -> Seen:
    began_s = last_s = _now_s()
    first_s: float | None = None
    gap_s, said = 0.0, b""
    try:
        async with session.post(f"{play.url}/v1/chat/completions", json=_asked(question)) as answer:
            async for piece in answer.content.iter_any():
                now_s = _now_s()
                if first_s is None:
                    first_s = now_s - began_s
                    play.answering += 1
                else:
                    gap_s = max(gap_s, now_s - last_s)
                said, last_s = said + piece, now_s
    except aiohttp.ClientError:
        pass
    wanted = continuation(MODEL, chat_prompt([Message("user", question)]), TOKENS).decode()
    is_whole = b"data: [DONE]" in said and _text_of(said) == wanted
    return Seen(is_whole, not is_whole and first_s is not None, _WENT_ON in said, gap_s, first_s)


def _text_of(said: bytes) -> str:
    documents = [json.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: {")]
    choices = [choice for document in documents for choice in document.get("choices", ())]
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)


def play_all(seconds: float, clients: int, tell: Callable[[str], None]) -> list[Outcome]:
    """Raises DemoFailure where something could not be played."""
    outcomes = []
    for is_resumed in (False, True):
        for play in (play_engines(seconds, is_resumed=is_resumed), play_region(clients, is_resumed=is_resumed)):
            try:
                outcomes.append(asyncio.run(play))
            except* (DemoFailure, TimeoutError, OSError) as failures:
                raise DemoFailure(f"it could not be played: {failures.exceptions[0]}") from failures
            last = outcomes[-1]
            broken = sum(each.is_broken for each in last.seen)
            tell(f"{last.case}, {'resumed' if is_resumed else 'as before'}: {len(last.seen)} streams, {broken} broken")
    return outcomes
