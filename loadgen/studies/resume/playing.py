"""Kills engines, and a whole region, under load, and checks every stream that a client got. It judges nothing.

All gateways and engines are processes on this machine; the engines' text is predictable, so that each answer is
compared with the complete expected one.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import yaml

from loadgen.demo.processes import Child, DemoFailure, running_child
from loadgen.demo.region_files import free_ports
from loadgen.engine.tokens import PromptMessage, chat_prompt, continuation
from mesh.clock import Clock

MODEL = "llama"
TOKENS = 60
CLIENTS = 12
ENGINES = 3
KILL_EVERY_S = 2.0
DOWN_S = 0.5
REGION_TOKENS = 240
"""Tokens of each stream of the region that dies: so many that all of them still run when the other region's engines may
be sent as many requests as they have room for."""
MANY_TIMES = 10
"""Factor on the streams of a region, in the case in which it holds many."""
SMALL = ("tiny", "4")
"""Preset and time scale of an engine that is killed again and again."""
LARGE = ("llama-3.1-8b-h100", "8")
"""Preset and time scale of engines that hold a hundred streams: 50 each, of which all get a token every 160 ms."""
_READY_S = 120.0
_HEARTBEATS_S = 1.0
_RAMP_S = 7.0
"""Time in which the number of requests that a started engine may be sent doubles every second, from 1 to 64."""
_SECOND_NS = 1_000_000_000
_WENT_ON = b": nightside: went on elsewhere"
_REGIONS = {"us-east-1": "US", "eu-west-1": "EU", "eu-central-1": "EU", "ap-northeast-1": "JP"}
_HOME, _LATE = "us-east-1", "ap-northeast-1"
_STREAMS_PER_ENGINE = 250
"""Streams that a region is sent for each of its engines, of which each runs up to 256 requests at once."""


@dataclass(slots=True)
class ObservedStream:
    """Observation of one stream by its client."""

    is_whole: bool
    """True if the stream ended with exactly the expected text."""
    is_broken: bool
    """True if the stream had begun, and ended with an error or not at all."""
    went_on: bool
    longest_gap_s: float
    first_token_s: float | None


@dataclass(slots=True)
class ResumeOutcome:
    case: str
    is_resumed: bool
    kills: int = 0
    seen: list[ObservedStream] = field(default_factory=list)
    tokens_read_again: float = 0.0
    held: int = 0
    """Streams that ran in the killed processes, as their engines reported the moment before."""
    read_s: list[float] = field(default_factory=list)
    """Time of each rest from its placement to its first token, as the clients' gateway logged it."""


async def play_engines(seconds: float, *, is_resumed: bool) -> ResumeOutcome:
    """Kill an engine of one region every few seconds, one at a time; each is restarted."""
    outcome = ResumeOutcome("an engine", is_resumed)
    with TemporaryDirectory(prefix="nightside-resume-") as folder:
        async with _Play(Path(folder), is_resumed, SMALL).running({_HOME: ENGINES}) as play:
            async with _load(play, outcome, CLIENTS, TOKENS):
                ends_s = _now_s() + seconds
                while _now_s() < ends_s:
                    await asyncio.sleep(KILL_EVERY_S)
                    engine = play.engines[outcome.kills % ENGINES]
                    outcome.held += await play.running_on(engine)
                    await engine.kill_and_restart()
                    outcome.kills += 1
                    await play.until_up(engine)
            outcome.tokens_read_again = await play.counted("nightside_resumed_tokens_total")
        outcome.read_s = play.read_s()
    return outcome


async def play_regions(clients: int, *, is_resumed: bool, dead: Sequence[str] = ("eu-west-1",)) -> ResumeOutcome:
    """Kill the gateways and the engines of the regions `dead`, which hold `clients` forwards, all at once; another
    region has room. That region's engines are started when the dead ones hold all forwards. Raises DemoFailure where
    they do not."""
    case = f"a region, {clients:,} streams" if len(dead) == 1 else f"{len(dead)} regions at once, {clients:,} streams"
    outcome = ResumeOutcome(case, is_resumed)
    needed = max(2, ceil(clients / _STREAMS_PER_ENGINE))
    engines = {_HOME: 0, **dict.fromkeys(dead, max(1, ceil(needed / len(dead)))), _LATE: needed}
    with TemporaryDirectory(prefix="nightside-resume-") as folder:
        async with _Play(Path(folder), is_resumed, LARGE).running(engines, late=_LATE) as play:
            async with _load(play, outcome, clients, REGION_TOKENS, times=1):
                await play.until_answering(clients)
                await play.start_late()
                there = [each for each in play.engines if each.region in dead]
                outcome.held = sum([await play.running_on(each) for each in there])
                if outcome.held < clients:
                    raise DemoFailure(f"{', '.join(dead)} held {outcome.held} streams when to die, not {clients}")
                async with asyncio.TaskGroup() as deaths:
                    for child in (*[play.gateways[region] for region in dead], *[each.child for each in there]):
                        deaths.create_task(child.kill())
                outcome.kills = len(dead)
            outcome.tokens_read_again = await play.counted("nightside_resumed_tokens_total")
        outcome.read_s = play.read_s()
    return outcome


# The fleet


@dataclass(slots=True, eq=False)
class _Engine:
    region: str
    port: int
    start: Callable[[int], Awaitable[Child]]
    child: Child

    async def kill_and_restart(self) -> None:
        await self.child.kill()
        await asyncio.sleep(DOWN_S)
        self.child = await self.start(self.port)


class _Play:
    def __init__(self, folder: Path, is_resumed: bool, engine: tuple[str, str]) -> None:
        """Prepare a fleet; `engine` is the preset and time scale of its engines."""
        self._folder = folder
        self._is_resumed = is_resumed
        self._engine = engine
        self._late: list[tuple[str, int]] = []
        self._started = 0
        self.engines: list[_Engine] = []
        self.gateways: dict[str, Child] = {}
        self.url = ""
        self._admins: dict[str, str] = {}
        self.answering = 0

    @asynccontextmanager
    async def running(self, engines: dict[str, int], *, late: str = "") -> AsyncIterator[_Play]:
        """Run the fleet; `late` is a region whose engines start with `start_late`."""
        rng = random.Random()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:

            async def start(port: int) -> Child:
                self._started += 1
                log = self._folder / f"engine-{port}-{self._started}.log"
                preset, time_scale = self._engine
                options = ["--preset", preset, "--model", MODEL, "--port", str(port), "--time-scale", time_scale]
                return await stack.enter_async_context(
                    running_child(f"engine {port}", ["nightside", "engine", *options, "--ignore-eos"], log, tasks)
                )

            ports = iter(free_ports(sum(engines.values()) + 3 * len(engines), rng))
            self._start = start
            placed = [(region, next(ports)) for region, count in engines.items() for _ in range(count)]
            for region, port in placed:
                if region == late:
                    self._late.append((region, port))
                else:
                    self.engines.append(_Engine(region, port, start, await start(port)))
            listens = {region: (next(ports), next(ports), next(ports)) for region in engines}
            self.url = f"http://127.0.0.1:{next(iter(listens.values()))[0]}"
            self._admins = {region: f"http://127.0.0.1:{admin}" for region, (_, admin, _) in listens.items()}
            for region in engines:
                path = self._write(region, listens, [port for of, port in placed if of == region])
                log = self._folder / f"{region}.log"
                self.gateways[region] = await stack.enter_async_context(
                    running_child(region, ["nightside", "gateway", "run", str(path)], log, tasks)
                )
            await self._until_ready()
            yield self
            for child in (*self.gateways.values(), *(each.child for each in self.engines)):
                await child.stop(1.0)

    async def start_late(self) -> None:
        """Start the late engines; returns once their gateway has seen them, and limits no longer how many requests they
        get at once, as it does after a start."""
        for region, port in self._late:
            self.engines.append(_Engine(region, port, self._start, await self._start(port)))
            await self.until_up(self.engines[-1])
        async with asyncio.timeout(_READY_S):
            for region in dict(self._late):
                while await self.counted("nightside_replicas_available", region) < len(self._late):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        await asyncio.sleep(_RAMP_S + _HEARTBEATS_S)

    def _write(self, region: str, listens: dict[str, tuple[int, int, int]], engines: Sequence[int]) -> Path:
        policy = self._folder / f"{region}.policy.yaml"
        every = {"jurisdictions": sorted(set(_REGIONS.values()))}
        head = {"region": region, "jurisdiction": _REGIONS[region]}
        policy.write_text(
            yaml.safe_dump(
                {
                    "version": 1,
                    **head,
                    "process": every,
                    "accept": {"jurisdictions": list(every["jurisdictions"])},
                    "regions": dict(_REGIONS),
                }
            )
        )
        http, admin, peers = (f"127.0.0.1:{port}" for port in listens[region])
        document = {
            "gateway": f"gw-{region}",
            **head,
            "policy": str(policy),
            "listen": {"http": http, "admin": admin, "peers": peers},
            "replicas": [{"id": f"r{port}", "url": f"http://127.0.0.1:{port}", "models": [MODEL]} for port in engines],
            "peers": [
                {"gateway": f"gw-{other}", "region": other, "jurisdiction": _REGIONS[other]}
                | {"address": f"127.0.0.1:{listens[other][2]}"}
                for other in listens
                if other != region
            ],
            "resume": {"enabled": self._is_resumed},
        }
        path = self._folder / f"{region}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    async def _until_ready(self) -> None:
        """Wait until a chat request is answered, so that all processes it needs are up."""
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
            while self.answering < streams:  # noqa: ASYNC110 - counted by the tasks that read
                await asyncio.sleep(0.02)

    async def until_up(self, engine: _Engine) -> None:
        async with asyncio.timeout(_READY_S), aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{engine.port}/health") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.1)

    def read_s(self) -> list[float]:
        """Time from placement to first token of each rest, by the log of the clients' gateway."""
        lines = (self._folder / f"{_HOME}.log").read_text().splitlines()
        requests = [each for each in map(json.loads, lines) if each["event"] == "request"]
        return [each["first_token_ms"] / 1000 for each in requests if each.get("resumes")]

    async def counted(self, series: str, region: str = _HOME) -> float:
        async with aiohttp.ClientSession() as session, session.get(f"{self._admins[region]}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


# Clients


def _now_s() -> float:
    return Clock().now_ns() / _SECOND_NS


def _asked(question: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True}


@asynccontextmanager
async def _load(
    play: _Play, outcome: ResumeOutcome, clients: int, tokens: int, *, times: int | None = None
) -> AsyncIterator[None]:
    """Run clients that each send their next request as soon as the last one is answered, `times` times each if
    given."""
    done = asyncio.Event()

    def may_ask(asked: int) -> bool:
        return not done.is_set() and (times is None or asked < times)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as tasks:
        for number in range(clients):
            ask = partial(_ask, session, play, tokens=tokens)
            tasks.create_task(_ask_on(ask, outcome, f"client {number}", may_ask))
        yield
        done.set()


async def _ask_on(
    ask: Callable[[str], Awaitable[ObservedStream]], outcome: ResumeOutcome, client: str, may_ask: Callable[[int], bool]
) -> None:
    asked = 0
    while may_ask(asked):
        asked += 1
        outcome.seen.append(await ask(f"{client} asks for the {asked}th time"))


async def _ask(session: aiohttp.ClientSession, play: _Play, question: str, *, tokens: int) -> ObservedStream:
    began_s = last_s = _now_s()
    first_s: float | None = None
    gap_s, said = 0.0, b""
    try:
        async with session.post(f"{play.url}/v1/chat/completions", json=_asked(question, tokens)) as answer:
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
    wanted = continuation(MODEL, chat_prompt([PromptMessage("user", question)]), tokens).decode()
    is_whole = b"data: [DONE]" in said and _text_of(said) == wanted
    return ObservedStream(is_whole, not is_whole and first_s is not None, _WENT_ON in said, gap_s, first_s)


def _text_of(said: bytes) -> str:
    documents = [json.loads(line[6:]) for line in said.splitlines() if line.startswith(b"data: {")]
    choices = [choice for document in documents for choice in document.get("choices", ())]
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)


def play_all(seconds: float, clients: int, tell: Callable[[str], None]) -> list[ResumeOutcome]:
    """Play all cases. Raises DemoFailure where one could not be played."""
    plays = [
        partial(play_engines, seconds, is_resumed=False),
        partial(play_regions, clients, is_resumed=False),
        partial(play_engines, seconds, is_resumed=True),
        partial(play_regions, clients, is_resumed=True),
        partial(play_regions, MANY_TIMES * clients, is_resumed=True),
        partial(play_regions, clients, is_resumed=True, dead=("eu-west-1", "eu-central-1")),
    ]
    outcomes = []
    for play in plays:
        try:
            outcomes.append(asyncio.run(play()))
        except* (DemoFailure, TimeoutError, OSError) as failures:
            raise DemoFailure(f"it could not be played: {_first_of(failures)}") from failures
        last = outcomes[-1]
        broken = sum(each.is_broken for each in last.seen)
        tell(f"{last.case}, {'resumed' if last.is_resumed else 'as before'}: {len(last.seen)} streams, {broken} broken")
    return outcomes


def _first_of(failures: BaseExceptionGroup) -> BaseException:
    """First failure that is no group itself."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
