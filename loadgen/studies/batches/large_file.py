"""Runs one large file of requests through one gateway, beside what the same gateway serves interactively.

Engines answer at once, so that the gateway is what limits both. It is on a core of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import aiohttp
import msgspec

from loadgen.bench.relay import machine, wire
from loadgen.bench.relay.figures import RelayFigure
from loadgen.bench.relay.measures import Effort, RelayBench, Subject, ask_until_ready, measure_saturation
from loadgen.bench.relay.processes import BenchFailure, running, running_engines
from loadgen.bench.relay.relays import BATCHES
from loadgen.bench.relay.setting import HOST, ReadyRelay, RelaySetting, nightside
from mesh.clock import Clock

KILLED_LINES = 50_000
"""Lines of the file during which the gateway is killed."""
KILLS = 3
_ENGINES = 8
_READY_S = 60.0
_CALL_S = 30.0
_UPLOAD_S = 600.0
_STEP_S = 0.5
_STALLED_S = 120.0
"""Time without a further line, or without an answer of the gateway, after which the run has failed."""
_PROMPT_BYTES = 256
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LargeFileRun:
    """One file, executed once."""

    lines: int
    file_bytes: int
    upload_s: float
    check_s: float
    """Time from the end of the upload until the first line ran."""
    run_s: float
    requests_per_s: float
    """Rate of the same requests by clients that never pause, before and after the file."""
    lines_per_s: float
    request_cpu_us: float
    """CPU time of the gateway for each of these requests."""
    line_cpu_us: float
    """CPU time of the gateway for each line; without meaning where it was killed meanwhile."""
    idle_kib: int
    """Memory of the gateway's process before the upload."""
    peak_kib: int
    """Largest memory of the gateway's process (VmHWM), of all its starts."""
    kills: int
    failed: int
    lost: int
    """Lines without a result."""
    doubled: int
    """Lines with more than one result."""


async def run_large_file(lines: int, kills: int, tell: Callable[[str], None]) -> LargeFileRun:
    """Run a file of `lines` requests while the gateway is killed `kills` times. Raises BenchFailure."""
    cores = machine.usable_cores()
    if len(cores) < 2:
        raise BenchFailure("the gateway needs a core of its own, beside that of engines and clients")
    os.sched_setaffinity(0, {cores[-1]})
    try:
        with tempfile.TemporaryDirectory(prefix="nightside-batch-") as folder:
            async with running_engines(_ENGINES, cores[-1], Path(folder)) as engines:
                bench = RelayBench(Effort(), engines, random.Random(1))
                setting = RelaySetting(Path(folder), engines, cores[0], Path(folder), cores[-1], bench.rng)
                ready = await asyncio.to_thread(BATCHES.prepare, setting)
                async with _Gateway(ready, bench, Path(folder)) as gateway:
                    return await _Run(gateway, bench, Path(folder), tell, lines=lines, kills=kills).outcome()
    finally:
        os.sched_setaffinity(0, cores)


class _Gateway:
    """The gateway's process, which can be killed and started again."""

    def __init__(self, ready: ReadyRelay, bench: RelayBench, folder: Path) -> None:
        (self._command,) = ready.commands
        self._bench = bench
        self._folder = folder
        self.url = f"http://{HOST}:{ready.port}"
        self.key = ready.key or ""
        self.port = ready.port
        self.pid = 0
        self._starts = 0
        self._life = AsyncExitStack()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def subject(self) -> Subject:
        return Subject(BATCHES.name, self.port, {self._command.name: self.pid}, self.key)

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.aclose()

    async def restart(self) -> None:
        """Kill the process (SIGKILL), and start it again."""
        assert self._process is not None, "it was started"
        self._process.kill()
        await self._process.wait()
        await self._life.aclose()
        await self._start()

    async def _start(self) -> None:
        self._starts += 1
        log = self._folder / f"gateway-{self._starts}.log"
        self._life = AsyncExitStack()
        self._process = await self._life.enter_async_context(running(self._command, log))
        self.pid = self._process.pid
        await ask_until_ready(self.subject, self._bench, wait_max_s=_READY_S)

    def memory_kib(self, name: str) -> int:
        """Field of the process's memory, in /proc/PID/status."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise BenchFailure(f"/proc/{self.pid}/status has no {name}")


@dataclass(slots=True)
class _Progress:
    """Lines that had ended at two moments, and the CPU time of the gateway between them."""

    first_ns: int = 0
    first_done: int = 0
    first_cpu_ns: int = 0
    last_ns: int = 0
    last_done: int = 0
    last_cpu_ns: int = 0

    def note(self, done: int, now_ns: int, cpu_ns: int) -> None:
        if not self.first_done:
            self.first_ns, self.first_done, self.first_cpu_ns = now_ns, done, cpu_ns
        self.last_ns, self.last_done, self.last_cpu_ns = now_ns, done, cpu_ns


class _Run:
    def __init__(
        self,
        gateway: _Gateway,
        bench: RelayBench,
        folder: Path,
        tell: Callable[[str], None],
        *,
        lines: int,
        kills: int,
    ) -> None:
        self._gateway = gateway
        self._bench = bench
        self._lines = lines
        self._kills = kills
        self._folder = folder
        self._tell = tell
        self._clock = Clock()
        self._killed = 0
        self._peak_kib = 0
        self._progress = _Progress()
        self._key_file = folder / "key"
        self._key_file.touch(mode=0o600)
        self._key_file.write_text(gateway.key)

    async def outcome(self) -> LargeFileRun:
        file = self._folder / "requests.jsonl"
        await asyncio.to_thread(write_file, file, self._lines, self._bench.rng)
        size = file.stat().st_size
        before = await self._saturated()
        idle_kib = self._gateway.memory_kib("VmRSS")
        began_ns = self._clock.now_ns()
        batch_id = await self._submit(file)
        uploaded_ns = self._clock.now_ns()
        self._tell(f"{self._lines:,} lines, {size:,} bytes: handed in as {batch_id}")
        batch = await self._until_ended(batch_id)
        after = await self._saturated()
        lost, doubled = await self._count(batch)
        progress = self._progress
        ran = max(1, progress.last_done - progress.first_done)
        ran_s = max(progress.last_ns - progress.first_ns, 1) / _SECOND_NS
        rate, per_cpu_s = (fmean(pair) for pair in zip(before, after, strict=True))
        return LargeFileRun(
            lines=self._lines,
            file_bytes=size,
            upload_s=(uploaded_ns - began_ns) / _SECOND_NS,
            check_s=(progress.first_ns - uploaded_ns) / _SECOND_NS,
            run_s=ran_s,
            requests_per_s=rate,
            lines_per_s=ran / ran_s,
            request_cpu_us=1e6 / per_cpu_s,
            line_cpu_us=(progress.last_cpu_ns - progress.first_cpu_ns) / 1e3 / ran,
            idle_kib=idle_kib,
            peak_kib=self._peak_kib,
            kills=self._killed,
            failed=batch["request_counts"]["failed"],
            lost=lost,
            doubled=doubled,
        )

    async def _saturated(self) -> tuple[float, float]:
        """Requests per second of clients that never pause, and per second of the gateway's CPU time."""
        values = {each.figure: each.value for each in await measure_saturation(self._bench, self._gateway.subject)}
        return values[RelayFigure.REQUESTS_PER_S], values[RelayFigure.REQUESTS_PER_CPU_S]

    async def _submit(self, file: Path) -> str:
        return (await self._command(_UPLOAD_S, "submit", str(file))).strip()

    async def _command(self, most_s: float, *arguments: str) -> str:
        """Output of a command of `nightside batch`. Raises BenchFailure."""
        name, *others = arguments
        process = await asyncio.create_subprocess_exec(
            *nightside("batch", name, *others, "--url", self._gateway.url, "--key-file", str(self._key_file)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(most_s):
                output, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            raise BenchFailure(f"nightside batch {name} did not end within {most_s:.0f} s") from None
        if process.returncode and name != "fetch":  # the exit code of fetch also tells that lines failed
            raise BenchFailure(f"nightside batch {name}: {errors.decode(errors='replace').strip()}")
        return output.decode()

    async def _until_ended(self, batch_id: str) -> dict[str, Any]:
        """Follow the batch to its end. Raises BenchFailure where it gets no further."""
        headers = {"authorization": f"Bearer {self._gateway.key}"}
        timeout = aiohttp.ClientTimeout(total=_CALL_S)
        done_before, moved_ns = -1, self._clock.now_ns()
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while True:
                batch = await self._asked(session, batch_id)
                now_ns = self._clock.now_ns()
                done = 0 if batch is None else _ended_lines(batch)
                if batch is not None and done != done_before:
                    self._moved(done, now_ns)
                    done_before, moved_ns = done, now_ns
                if batch is not None and batch["status"] in ("completed", "failed", "expired", "cancelled"):
                    return batch
                if now_ns - moved_ns > _STALLED_S * _SECOND_NS:
                    raise BenchFailure(f"{batch_id} got no further for {_STALLED_S:.0f} s: {batch}")
                if done >= self._lines * (self._killed + 1) // (self._kills + 1) and self._killed < self._kills:
                    self._killed += 1
                    self._tell(f"{done:,} lines: kill {self._killed} of {self._kills}")
                    await self._gateway.restart()
                await asyncio.sleep(_STEP_S)

    async def _asked(self, session: aiohttp.ClientSession, batch_id: str) -> dict[str, Any] | None:
        """Batch; None while the gateway does not answer."""
        try:
            async with session.get(f"{self._gateway.url}/v1/batches/{batch_id}") as answer:
                return await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _moved(self, done: int, now_ns: int) -> None:
        self._peak_kib = max(self._peak_kib, self._gateway.memory_kib("VmHWM"))
        if done:
            self._progress.note(done, now_ns, machine.cpu_ns([self._gateway.pid]))

    async def _count(self, batch: dict[str, Any]) -> tuple[int, int]:
        """Lines that have no result, and those that have several."""
        output, errors = self._folder / "output.jsonl", self._folder / "errors.jsonl"
        await self._command(_UPLOAD_S, "fetch", batch["id"], "--out", str(output), "--errors", str(errors))
        return await asyncio.to_thread(lost_and_doubled, [output, errors], self._lines)


def _ended_lines(batch: dict[str, Any]) -> int:
    counts: dict[str, int] = batch["request_counts"]
    return counts["completed"] + counts["failed"]


def write_file(file: Path, lines: int, rng: random.Random) -> None:
    """Write an input file of so many short requests that ask for whole answers."""
    texts = wire.prompts(64, _PROMPT_BYTES, rng)
    with file.open("wb") as opened:
        for number in range(lines):
            body = {
                "model": wire.MODEL,
                "messages": [{"role": "user", "content": texts[number % 64]}],
                "max_tokens": 32,
            }
            line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            opened.write(msgspec.json.encode(line) + b"\n")


def lost_and_doubled(files: list[Path], lines: int) -> tuple[int, int]:
    """Lines of the input that have no result in these files, and those that have several."""
    found: Counter[str] = Counter()
    for file in files:
        with file.open("rb") as opened:
            found.update(msgspec.json.decode(line)["custom_id"] for line in opened)
    return lines - len(found), sum(count > 1 for count in found.values())
