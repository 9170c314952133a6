"""The measurements: each puts one load on one running relay and reads its cost. They compare nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from loadgen.bench.relay import client, machine, published, wire
from loadgen.bench.relay.client import HeldStreams, RelayTally, arrivals, closed_loop, now_s, open_streams
from loadgen.bench.relay.engine import PACE_PATH
from loadgen.bench.relay.figures import RelayFigure
from loadgen.bench.relay.setting import HOST
from loadgen.bench.relay.wire import Likeness, Recipient
from loadgen.report import quantile

_LONG_PROMPT_BYTES = 8 * 1024
_SHORT_PROMPT_BYTES = 256
_USUAL_PROMPT_BYTES = 2 * 1024
_PROMPTS = 64
_LONG_PROMPTS = 2
"""Prompts of each length in LiteLLM's load, of each form of answer."""
USERS = 16
USERS_AT_SATURATION = 64
TOKENS_PER_S = 20
_STALLED_TOKENS_PER_S = 2
_HOLD_S = 600.0
_SLACK_S = 60.0
_ANSWERS_MIN = 100
"""Answers that a window has at least, but for the slowest relays."""
_LONGER_MAX = 6
"""Number of times that a window may be as long for them."""
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Effort:
    """Durations and sizes of the measurements."""

    rounds: int = 5
    warm_s: float = 1.0
    window_s: float = 2.5
    stream_window_s: float = 5.0
    ramp_s: float = 2.0
    """Time over which streams begin, each at its own moment."""
    settle_s: float = 1.0
    """Pause between the start of the last stream and the reading of memory."""
    streams: int = 200
    arrivals: int = 300
    arrivals_per_s: float = 50.0
    stalled: int = 1000
    """Open streams, one in a hundred of which is not read by its client."""
    large_body_bytes: int = 32 * 1024 * 1024
    held: tuple[int, int] = (200, 1000)
    """Numbers of open streams at which memory is read."""


QUICK = Effort(rounds=1, warm_s=0.7, window_s=1.5, stream_window_s=3.0, arrivals=200, held=(200, 600))


@dataclass(frozen=True, slots=True)
class Subject:
    """A running relay, or an engine in its place."""

    name: str
    port: int
    processes: Mapping[str, int] = field(default_factory=dict)
    """PIDs of the relay's processes by name; empty where there is no relay."""
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    likeness: Likeness = Likeness.BYTES
    fewer_streams: int = 1

    @property
    def recipient(self) -> Recipient:
        return Recipient(f"{HOST}:{self.port}", self.key, self.headers, self.likeness)


@dataclass(frozen=True, slots=True)
class Value:
    figure: RelayFigure
    value: float
    part: str = ""


@dataclass(frozen=True, slots=True)
class RelayBench:
    """Settings and engines that the measurements share."""

    effort: Effort
    engines: Sequence[int]
    rng: random.Random

    def requests(
        self, subject: Subject, size_bytes: int, stream_tokens: int = 0, prompts: int = _PROMPTS
    ) -> list[wire.Wanted]:
        texts = wire.prompts(prompts, size_bytes, self.rng)
        return wire.requests(texts, subject.recipient, stream_tokens=stream_tokens)

    async def pace(self, gap_s: float) -> None:
        """Set the pause between tokens of all engines."""
        body = str(round(gap_s * 1e6)).encode()
        head = b"POST %s HTTP/1.1\r\nhost: %s\r\ncontent-length: %d\r\n\r\n" % (PACE_PATH, HOST.encode(), len(body))
        async with asyncio.timeout(_SLACK_S):
            reader, writer = await asyncio.open_connection(HOST, self.engines[0])
            writer.write(head + body)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()


class _Meter:
    """CPU time of a relay's processes since the meter was made."""

    def __init__(self, subject: Subject) -> None:
        self._trees = {name: machine.process_tree(pid) for name, pid in subject.processes.items()}
        self._started_ns = self._now_ns()
        self._started_s = now_s()

    def _now_ns(self) -> dict[str, int]:
        return {name: machine.cpu_ns(pids) for name, pids in self._trees.items()}

    def values(self, figure: RelayFigure, *, per: float, scale: float) -> list[Value]:
        """CPU time of all processes per unit of `per`, and of each process where there are several."""
        used_ns = {name: now - self._started_ns[name] for name, now in self._now_ns().items()}
        if not used_ns or not per:
            return []
        parts = [Value(figure, ns * scale / per, name) for name, ns in used_ns.items()] if len(used_ns) > 1 else []
        return [Value(figure, sum(used_ns.values()) * scale / per), *parts]

    def used_s(self) -> float:
        return (sum(self._now_ns().values()) - sum(self._started_ns.values())) / 1e9

    def elapsed_s(self) -> float:
        return now_s() - self._started_s


_MICROSECONDS = 1e-3


@asynccontextmanager
async def _answered(
    bench: RelayBench, subject: Subject, size_bytes: int, users: int
) -> AsyncIterator[tuple[_Meter, int]]:
    """Run a warmed-up closed loop for a window; yields the window's meter and the number of answers in it."""
    effort = bench.effort
    wanted = bench.requests(subject, size_bytes)
    max_s = effort.warm_s + effort.window_s + _SLACK_S
    async with closed_loop(subject.port, wanted, users, max_s=max_s) as tally:
        await asyncio.sleep(effort.warm_s)
        meter, before = _Meter(subject), tally.answers
        yield meter, await _count(meter, tally, before, effort.window_s)


async def _count(meter: _Meter, tally: RelayTally, before: int, window_s: float) -> int:
    """Wait for the window, or longer for a relay that is so slow that few answers would fit; returns their number."""
    await asyncio.sleep(window_s)
    while tally.answers - before < _ANSWERS_MIN and meter.elapsed_s() < _LONGER_MAX * window_s:  # noqa: ASYNC110 - connections count
        await asyncio.sleep(_LOOK_S)
    return tally.answers - before


async def measure_requests(bench: RelayBench, subject: Subject) -> list[Value]:
    """CPU per request that is not streamed, with short and with long prompts."""
    values: list[Value] = []
    for figure, size in (
        (RelayFigure.CPU_PER_REQUEST, _SHORT_PROMPT_BYTES),
        (RelayFigure.CPU_PER_LONG_REQUEST, _LONG_PROMPT_BYTES),
    ):
        async with _answered(bench, subject, size, USERS) as (meter, answers):
            values += meter.values(figure, per=answers, scale=_MICROSECONDS)
    return values


async def measure_saturation(bench: RelayBench, subject: Subject) -> list[Value]:
    """Requests per second of clients that never pause; without a relay, the capacity of the bench itself."""
    async with _answered(bench, subject, _SHORT_PROMPT_BYTES, USERS_AT_SATURATION) as (meter, answers):
        elapsed_s, used_s = meter.elapsed_s(), meter.used_s()
    if not answers:
        return []
    rate = [Value(RelayFigure.REQUESTS_PER_S, answers / elapsed_s)]
    return [*rate, Value(RelayFigure.REQUESTS_PER_CPU_S, answers / used_s)] if used_s else rate


async def measure_chunks(bench: RelayBench, subject: Subject) -> list[Value]:
    """CPU per streamed chunk while streams run steadily: none begins or ends within the window."""
    effort = bench.effort
    stream_s = effort.ramp_s + effort.warm_s + effort.stream_window_s + bench.effort.settle_s
    wanted = bench.requests(subject, _USUAL_PROMPT_BYTES, round(stream_s * TOKENS_PER_S))
    await bench.pace(1 / TOKENS_PER_S)
    streams = effort.streams // subject.fewer_streams
    async with open_streams(
        subject.port, wanted, streams, ramp_s=effort.ramp_s, rng=bench.rng, max_s=stream_s + _SLACK_S
    ) as tally:
        await asyncio.sleep(effort.ramp_s + effort.warm_s)
        meter, before = _Meter(subject), tally.events
        await asyncio.sleep(effort.stream_window_s)
        return meter.values(RelayFigure.CPU_PER_CHUNK, per=tally.events - before, scale=_MICROSECONDS)


async def measure_stalled(bench: RelayBench, subject: Subject) -> list[Value]:
    """CPU per streamed chunk with many streams, of which one in a hundred has a client that reads nothing of a long
    answer."""
    effort = bench.effort
    stream_s = 2 * effort.ramp_s + effort.warm_s + effort.stream_window_s + bench.effort.settle_s
    wanted = bench.requests(subject, _USUAL_PROMPT_BYTES, round(stream_s * _STALLED_TOKENS_PER_S))
    await bench.pace(1 / _STALLED_TOKENS_PER_S)
    unread = max(effort.stalled // 100, 1)
    stalled = HeldStreams(subject.port, bench.requests(subject, _USUAL_PROMPT_BYTES, wire.BURST_TOKENS))
    try:
        await stalled.begin(unread, max_s=_SLACK_S)
        async with open_streams(
            subject.port,
            wanted,
            effort.stalled - unread,
            ramp_s=2 * effort.ramp_s,
            rng=bench.rng,
            max_s=stream_s + _SLACK_S,
        ) as tally:
            await asyncio.sleep(2 * effort.ramp_s + effort.warm_s)
            meter, before = _Meter(subject), tally.events
            await asyncio.sleep(effort.stream_window_s)
            return meter.values(RelayFigure.CPU_PER_CHUNK_STALLED, per=tally.events - before, scale=_MICROSECONDS)
    finally:
        stalled.cut()


async def measure_large_body(bench: RelayBench, subject: Subject) -> list[Value]:
    """CPU per body of 32 MB, sent one after the other beside steady streams, and the longest pause that they cause in
    any stream, less the engines' own pace."""
    effort = bench.effort
    stream_s = effort.ramp_s + effort.warm_s + 2 * effort.stream_window_s + bench.effort.settle_s
    wanted = bench.requests(subject, _USUAL_PROMPT_BYTES, round(stream_s * TOKENS_PER_S))
    texts = wire.prompts(1, _USUAL_PROMPT_BYTES, bench.rng)
    (large,) = wire.requests(texts, subject.recipient, stream_tokens=0, padding_bytes=effort.large_body_bytes)
    await bench.pace(1 / TOKENS_PER_S)
    async with open_streams(
        subject.port, wanted, effort.streams, ramp_s=effort.ramp_s, rng=bench.rng, max_s=stream_s + _SLACK_S
    ) as tally:
        await asyncio.sleep(effort.ramp_s + effort.warm_s)
        quiet, before = _Meter(subject), tally.events
        await asyncio.sleep(effort.stream_window_s)
        per_event_s = quiet.used_s() / max(tally.events - before, 1)
        loaded, before, bodies, tally.longest_pause_s = _Meter(subject), tally.events, 0, 0.0
        while not bodies or loaded.elapsed_s() < effort.stream_window_s / 2:
            await client.ask_once(subject.port, large)
            bodies += 1
        used_s = loaded.used_s() - per_event_s * (tally.events - before)
        pause_s = tally.longest_pause_s - 1 / TOKENS_PER_S
    return [
        *([Value(RelayFigure.CPU_PER_LARGE_BODY, 1e3 * used_s / bodies)] if subject.processes else []),
        Value(RelayFigure.LARGE_BODY_GAP, 1e3 * max(pause_s, 0.0)),
    ]


async def measure_first_token(bench: RelayBench, subject: Subject) -> list[Value]:
    """Time to the first token of short streams that arrive at a modest rate, from engines that do not wait."""
    effort = bench.effort
    wanted = bench.requests(subject, _USUAL_PROMPT_BYTES, 8)
    await bench.pace(0.005)
    max_s = effort.arrivals / effort.arrivals_per_s + _SLACK_S
    warm = await _arrive(bench, subject, wanted, count=50, max_s=max_s)
    assert warm.answers == 50
    tally = await _arrive(bench, subject, wanted, count=effort.arrivals, max_s=max_s)
    return [
        Value(RelayFigure.TTFT_P50, 1e3 * quantile(tally.first_byte_s, 0.5)),
        Value(RelayFigure.TTFT_P99, 1e3 * quantile(tally.first_byte_s, 0.99)),
    ]


async def _arrive(
    bench: RelayBench, subject: Subject, wanted: Sequence[wire.Wanted], *, count: int, max_s: float
) -> RelayTally:
    rate = bench.effort.arrivals_per_s
    return await arrivals(subject.port, wanted, requests_per_s=rate, count=count, rng=bench.rng, max_s=max_s)


async def measure_memory(bench: RelayBench, subject: Subject) -> list[Value]:
    """Memory per open stream: the growth from some streams to many, all of them waiting for their next token."""
    low, high = bench.effort.held
    wanted = bench.requests(subject, _USUAL_PROMPT_BYTES, 2)
    await bench.pace(_HOLD_S)
    trees = {name: machine.process_tree(pid) for name, pid in subject.processes.items()}
    streams = HeldStreams(subject.port, wanted)
    try:
        readings = []
        for count in (low, high):
            await streams.grow_to(count, max_s=_SLACK_S)
            await asyncio.sleep(bench.effort.settle_s)
            readings.append({name: machine.pss_kib(pids) for name, pids in trees.items()})
    finally:
        streams.cut()
    grown = {name: (readings[1][name] - readings[0][name]) / (high - low) for name in trees}
    parts = [Value(RelayFigure.MEMORY_PER_STREAM, kib, name) for name, kib in grown.items()] if len(grown) > 1 else []
    return [Value(RelayFigure.MEMORY_PER_STREAM, sum(grown.values())), *parts]


async def measure_long_prompts(bench: RelayBench, subject: Subject) -> list[Value]:
    """Requests per second of the relay's CPU time with the prompts of LiteLLM's load test."""
    effort = bench.effort
    wanted: list[wire.Wanted] = []
    for tokens in published.PROMPT_TOKENS:
        size = tokens * published.BYTES_PER_TOKEN
        for stream_tokens in (0, published.ANSWER_TOKENS):
            texts = wire.prompts(_LONG_PROMPTS, size, bench.rng)
            wanted += wire.requests(texts, subject.recipient, stream_tokens=stream_tokens)
    bench.rng.shuffle(wanted)
    await bench.pace(0.0)
    max_s = effort.warm_s + effort.window_s + _SLACK_S
    async with closed_loop(subject.port, wanted, USERS, max_s=max_s) as tally:
        await asyncio.sleep(effort.warm_s)
        meter, before = _Meter(subject), tally.answers
        answers = await _count(meter, tally, before, effort.window_s)
        used_s = meter.used_s()
    return [Value(RelayFigure.LONG_PROMPTS_PER_CPU_S, answers / used_s)] if answers and used_s else []


async def measure_jobs(bench: RelayBench, subject: Subject) -> list[Value]:
    """Cores that llm-d's jobs take at their published rates, by the CPU time of some of their requests, from the first
    arrival to the last answer."""
    values = []
    for figure, job in published.JOBS.items():
        wanted = bench.requests(subject, job.prompt_tokens * published.BYTES_PER_TOKEN, job.answer_tokens, job.prompts)
        await bench.pace(job.pace_s)
        meter = _Meter(subject)
        tally = await arrivals(
            subject.port, wanted, requests_per_s=job.arrivals_per_s, count=job.count, rng=bench.rng, max_s=_SLACK_S
        )
        assert tally.answers == job.count
        values.append(Value(figure, job.published_per_s * meter.used_s() / job.count))
        values.append(Value(published.ELAPSED[figure], meter.elapsed_s()))
    return values


async def measure_idle(bench: RelayBench, subject: Subject) -> list[Value]:
    """CPU of the relay without requests, in hundredths of a core."""
    meter = _Meter(subject)
    await asyncio.sleep(bench.effort.window_s)
    return meter.values(RelayFigure.IDLE_CPU, per=meter.elapsed_s(), scale=1e-7)


class MeasureName(StrEnum):
    """Measurements that can be selected by name."""

    IDLE = "idle"
    REQUESTS = "requests"
    SATURATION = "saturation"
    CHUNKS = "chunks"
    STALLED = "stalled"
    LARGE_BODY = "large-body"
    FIRST_TOKEN = "first-token"  # noqa: S105 - a token of text
    MEMORY = "memory"
    LONG_PROMPTS = "long-prompts"
    JOBS = "jobs"


MEASURES: Mapping[MeasureName, Callable[[RelayBench, Subject], Awaitable[list[Value]]]] = {
    MeasureName.IDLE: measure_idle,
    MeasureName.REQUESTS: measure_requests,
    MeasureName.SATURATION: measure_saturation,
    MeasureName.CHUNKS: measure_chunks,
    MeasureName.STALLED: measure_stalled,
    MeasureName.LARGE_BODY: measure_large_body,
    MeasureName.FIRST_TOKEN: measure_first_token,
    MeasureName.LONG_PROMPTS: measure_long_prompts,
    MeasureName.JOBS: measure_jobs,
    MeasureName.MEMORY: measure_memory,
}
"""Measurements in the order in which they run."""
OF_A_FRESH_RELAY = (MeasureName.MEMORY,)
"""Measurements on a freshly started relay: memory left by thousands of earlier streams would hide that of some
hundreds."""

WITHOUT_RELAY = (MeasureName.SATURATION, MeasureName.FIRST_TOKEN)
"""Measurements that are also taken without a relay."""
OF_PAIRS = (MeasureName.STALLED, MeasureName.LARGE_BODY)
OF_SIBLINGS = (MeasureName.SATURATION,)
OF_SETTINGS = (MeasureName.REQUESTS,)
"""Measurements of the plain gateway's variants in a full run: only the first one, since later ones depend on what the
gateway did before."""

OF_LOADS = (MeasureName.LONG_PROMPTS, MeasureName.JOBS)
"""Loads that other projects publish figures of."""
OF_ATTACHED = (MeasureName.REQUESTS, MeasureName.CHUNKS)
"""Measurements of a gateway with a controller in a full run: those that it has an aim for."""
OF_SLOW = (MeasureName.REQUESTS, MeasureName.SATURATION, MeasureName.CHUNKS, MeasureName.LONG_PROMPTS)
"""Measurements of relays that cannot keep up with the arrivals of the others, in a full run."""
OF_THE_FIRST_ROUND = (MeasureName.IDLE, MeasureName.MEMORY, *OF_PAIRS)
"""Measurements that differ little between rounds, or take long; a full run takes them in its first round."""


async def ask_until_ready(subject: Subject, bench: RelayBench, *, wait_max_s: float) -> None:
    """Wait until a request has been answered. Raises TimeoutError with the last answer."""
    (wanted, *_) = bench.requests(subject, _SHORT_PROMPT_BYTES)
    last: Exception | None = None
    try:
        async with asyncio.timeout(wait_max_s):
            while True:
                try:
                    return await client.ask_once(subject.port, wanted)
                except (OSError, client.WrongAnswer) as error:
                    last = error
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise TimeoutError(f"no right answer within {wait_max_s:.0f} s: {last}") from error
