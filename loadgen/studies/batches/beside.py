"""Measures the first tokens of interactive streams with and without a backlog of batch lines at the same engines."""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import Jurisdiction, ModelName, Place, RegionName
from loadgen.bench.relay import wire
from loadgen.demo.mesh import Mesh, running_mesh
from loadgen.demo.region_files import write_open_policies
from loadgen.demo.scenario import DemoScenario, RegionScenario
from loadgen.live_client import AnswerFailure, EndpointDialect, PartialAnswer, exchange
from mesh.clock import Clock

ENGINES = 4
SLOTS = 12
ARRIVALS_PER_S = 4.0
"""Interactive streams that begin in a second, at random: about half of the slots are busy with them."""
ANSWER_TOKENS = 128
PROMPT_BYTES = 600
WINDOW_S = 60.0
SETTLE_S = 8.0
"""Time between a change of the backlog and the window that is measured."""
_LINES = 20_000
_LINE_TOKENS = 200
_CALL_S = 30.0
_SECOND_NS = 1_000_000_000
_REGION = "us-east-1"
_INTERRUPTED = re.compile(rb"^nightside_interruptions_total\{[^}]*\} (\S+)", re.MULTILINE)
_RUNNING = re.compile(rb"^vllm:num_requests_running\{[^}]*\} (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Beside:
    """First tokens of one window, in seconds, and the lines that ended in it."""

    has_backlog: bool
    first_s: tuple[float, ...]
    failed: int
    lines: int
    busy_share: float
    """Share of the engines' slots that were in use, of all looks at them."""
    interrupted: int = 0
    """Running lines that gave their slots to streams meanwhile."""


async def play_beside(rounds: int, tell: Callable[[str], None]) -> list[Beside]:
    """Windows without and with a backlog, in turn. Raises DemoFailure."""
    with tempfile.TemporaryDirectory(prefix="nightside-batch-") as name:
        folder = Path(name)
        region = RegionScenario(
            Place(RegionName(_REGION), Jurisdiction("US")),
            clients=0,
            engines=ENGINES,
            slots=SLOTS,
            policies=folder / "policies",
            sections={"batches": {"folder": str(folder / "batches")}},
        )
        write_open_policies([region], folder / "policies")
        round_trips = folder / "round_trips.csv"
        round_trips.write_text("")
        scenario = DemoScenario(regions=(region,), round_trips_file=round_trips)
        async with (
            asyncio.TaskGroup() as tasks,
            running_mesh(scenario, OverflowMode.ON, folder, tasks) as mesh,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_CALL_S)) as session,
        ):
            played = _Windows(session, mesh, region.name, scenario.model)
            return await played.play(rounds, tell)


@dataclass(slots=True)
class _Seen:
    """Streams that began in one window, whenever their first tokens came."""

    begun: int = 0
    first_s: list[float] = field(default_factory=list)
    failed: int = 0


class _Windows:
    def __init__(self, session: aiohttp.ClientSession, mesh: Mesh, region: RegionName, model: ModelName) -> None:
        self._session = session
        self._url = mesh.gateways[region]
        self._admin = mesh.admins[region]
        self._dialect = EndpointDialect(model, ignore_eos=True)
        self._engines = mesh.engines[region]
        self._rng = random.Random(1)
        self._clock = Clock()
        self._seen: _Seen | None = None
        """Streams of the window that runs; None between windows."""

    async def play(self, rounds: int, tell: Callable[[str], None]) -> list[Beside]:
        windows: list[Beside] = []
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(self._arrive(tasks))
            for number in range(rounds):
                windows.append(await self._window(None))
                batch = await self._hand_in()
                windows.append(await self._window(batch))
                await self._call("POST", f"/v1/batches/{batch}/cancel")
                lines, streams = windows[-1].lines, len(windows[-1].first_s)
                tell(f"round {number + 1} of {rounds}: {lines} lines beside {streams} streams")
            load.cancel()
        return windows

    async def _window(self, batch: str | None) -> Beside:
        await asyncio.sleep(SETTLE_S)
        before, interrupted = await self._done(batch), await self._interrupted()
        self._seen = seen = _Seen()
        busy, looks = 0.0, 0
        until_s = asyncio.get_running_loop().time() + WINDOW_S
        while asyncio.get_running_loop().time() < until_s:
            busy, looks = busy + await self._busy_share(), looks + 1
            await asyncio.sleep(1.0)
        self._seen = None
        lines, interrupted = await self._done(batch) - before, await self._interrupted() - interrupted
        while len(seen.first_s) + seen.failed < seen.begun:  # noqa: ASYNC110 - each stream has a time-out
            await asyncio.sleep(0.1)
        busy_share = busy / max(looks, 1)
        return Beside(batch is not None, tuple(seen.first_s), seen.failed, lines, busy_share, interrupted)

    async def _arrive(self, tasks: asyncio.TaskGroup) -> None:
        """Begin a stream at random moments, until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(ARRIVALS_PER_S))
            tasks.create_task(self._stream(self._seen or _Seen()))

    async def _stream(self, seen: _Seen) -> None:
        body = self._dialect.body([{"role": "user", "content": self._prompt()}], ANSWER_TOKENS)
        sent_ns, has_begun = self._clock.now_ns(), False
        seen.begun += 1

        def on_text() -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                seen.first_s.append((self._clock.now_ns() - sent_ns) / _SECOND_NS)

        try:
            url = f"{self._url}/v1/chat/completions"
            await exchange(self._session, url, headers={}, body=body, answer=PartialAnswer(), on_text=on_text)
        except (AnswerFailure, aiohttp.ClientError, TimeoutError):
            seen.failed += not has_begun

    def _prompt(self) -> str:
        (text,) = wire.prompts(1, PROMPT_BYTES, self._rng)
        return text

    async def _interrupted(self) -> int:
        async with self._session.get(f"{self._admin}/metrics", raise_for_status=True) as answer:
            return sum(int(float(each)) for each in _INTERRUPTED.findall(await answer.read()))

    async def _busy_share(self) -> float:
        running = 0.0
        for url in self._engines:
            async with self._session.get(f"{url}/metrics") as answer:
                running += sum(float(each) for each in _RUNNING.findall(await answer.read()))
        return running / (ENGINES * SLOTS)

    async def _hand_in(self) -> str:
        """Hand in a backlog that outlasts the window. Returns the batch's id."""
        lines = []
        for number in range(_LINES):
            messages = [{"role": "user", "content": self._prompt()}]
            body = {"model": self._dialect.model, "messages": messages, "max_tokens": _LINE_TOKENS, "ignore_eos": True}
            lines.append({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", b"".join(msgspec.json.encode(each) + b"\n" for each in lines), filename="backlog.jsonl")
        file = await self._call("POST", "/v1/files", data=form)
        order = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch: str = (await self._call("POST", "/v1/batches", json=order))["id"]
        while not await self._done(batch):  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.5)
        return batch

    async def _done(self, batch: str | None) -> int:
        if batch is None:
            return 0
        counts: dict[str, int] = (await self._call("GET", f"/v1/batches/{batch}"))["request_counts"]
        return counts["completed"] + counts["failed"]

    async def _call(self, method: str, path: str, **named: Any) -> dict[str, Any]:
        """Answer to a call. Raises aiohttp's errors."""
        async with self._session.request(method, self._url + path, raise_for_status=True, **named) as answer:
            found: dict[str, Any] = await answer.json()
            return found
