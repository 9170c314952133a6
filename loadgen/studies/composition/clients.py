"""Users of one region who stream answers from the mesh's one name, and what each stream saw: its first token, its
longest pause and its end. A client tries each address once and never again, so that nothing hides a broken stream.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec

from gateway.core.vocabulary import ModelName, RegionName
from loadgen.demo.mesh import NamedMesh
from loadgen.demo.region_files import ZONE
from loadgen.names import NameResolver
from mesh.clock import Clock

REGION_HEADER = "x-nightside-region"
TOPICS = (
    "whereas the party of the first part ",
    "def f(x): return [x + 1 for x in y] ",
    "a recipe for bread with salt ",
)
"""Subjects of prompts; a prompt repeats one of them."""
_ANSWER_TOKENS = ((16, 24), (40, 60), (70, 90))
"""Range of answer lengths of each subject: a predictor that knows prompts foresees them."""
_REPEATS = (6, 20)
_PAUSE_S = 0.05
_TIMEOUT_S = 60.0


@dataclass(slots=True)
class StreamSeen:
    """One stream, as its client saw it. Times are of the study's clock."""

    region: RegionName
    sent_ns: int
    host: str = ""
    """Address of the gateway that answered or broke; empty: none could be connected to."""
    ran_in: str = ""
    """Region whose engine answered."""
    first_ns: int | None = None
    pause_ns: int = 0
    """Longest time between two parts of the answer."""
    parts: int = 0
    ended_ns: int | None = None
    """Time of the end, whole or not; None: it had none when the study was over."""
    fault: str = ""
    """Reason why the answer is not whole; empty where it is."""
    tried: tuple[str, ...] = ()
    """Addresses that refused the connection."""


@dataclass(slots=True)
class Users:
    """Users of one region. `seen` has every stream."""

    region: RegionName
    model: ModelName
    name: NamedMesh
    clock: Clock
    seed: int
    is_wanted: Callable[[int], bool]
    """True while the user of this number asks."""
    seen: list[StreamSeen] = field(default_factory=list)
    is_over: bool = False

    async def run(self, users: int) -> None:
        """Send requests until `is_over` is set, or until cancelled; open streams then stay without an end."""
        resolver = NameResolver(self.name.servers, self.name.networks[self.region], self.clock)
        port = int(self.name.url.rpartition(":")[2])
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            for number in range(users):
                tasks.create_task(self._user(session, resolver, port, number))

    async def _user(self, session: aiohttp.ClientSession, resolver: NameResolver, port: int, number: int) -> None:
        rng = random.Random(f"{self.seed}/{self.region}/{number}")
        while not self.is_over:
            if not self.is_wanted(number):
                await asyncio.sleep(_PAUSE_S)
                continue
            stream = StreamSeen(self.region, self.clock.now_ns())
            self.seen.append(stream)
            try:
                addresses = await resolver.addresses(ZONE)
                await self._ask(session, [f"http://{each}:{port}" for each in addresses], stream, self._body(rng))
            except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
                stream.fault = f"{type(error).__name__}: {error}"
            stream.ended_ns = self.clock.now_ns()
            await asyncio.sleep(_PAUSE_S)

    def _body(self, rng: random.Random) -> dict[str, object]:
        topic = rng.randrange(len(TOPICS))
        text = TOPICS[topic] * rng.randint(*_REPEATS)
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": rng.randint(*_ANSWER_TOKENS[topic]),
            "stream": True,
        }

    async def _ask(
        self, session: aiohttp.ClientSession, urls: list[str], stream: StreamSeen, body: dict[str, object]
    ) -> None:
        for url in urls:
            stream.host = url.removeprefix("http://").rpartition(":")[0]
            try:
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    stream.ran_in = response.headers.get(REGION_HEADER, "")
                    if response.status != 200:
                        stream.fault = f"HTTP {response.status}: {(await response.text())[:200]}"
                        return
                    await self._read(response, stream)
                    return
            except aiohttp.ClientConnectorError:
                stream.tried, stream.host = (*stream.tried, stream.host), ""
        stream.fault = f"no process listens at {', '.join(stream.tried)}"

    async def _read(self, response: aiohttp.ClientResponse, stream: StreamSeen) -> None:
        is_whole, last_ns = False, 0
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            data = line[len(b"data:") :].strip()
            now_ns = self.clock.now_ns()
            if data == b"[DONE]":
                break
            event = msgspec.json.decode(data, type=_Chunk)
            if event.error is not None:
                stream.fault = f"error in the stream: {event.error!s}"[:200]
                return
            if event.choices and event.choices[0].finish_reason:
                is_whole = True
            if event.choices and event.choices[0].delta.content:
                stream.first_ns = stream.first_ns or now_ns
                stream.pause_ns = max(stream.pause_ns, now_ns - last_ns if last_ns else 0)
                stream.parts, last_ns = stream.parts + 1, now_ns
        if not is_whole:
            stream.fault = "the answer has no end"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: object = None
