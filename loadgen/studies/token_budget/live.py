"""Measures live on this machine: one gateway in front of four emulated engines, short chat, and during it a burst of
prompts of 16,000 tokens; as one pool and as two. It measures what clients see, in real time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import aiohttp
import yaml

from gateway.core.vocabulary import ModelName
from loadgen.demo.members import until_ready
from loadgen.demo.processes import running_child
from loadgen.demo.region_files import LOOPBACK, free_ports
from loadgen.live_client import AnswerFailure, EndpointDialect, PartialAnswer, exchange
from loadgen.workload import Message
from mesh.clock import Clock
from mesh.task_group import TaskGroup

MODEL = ModelName("llama-3-70b")
PRESET = "token-budget-a100"
ENGINES = 4
SHORT_WINDOW, LONG_WINDOW, THRESHOLD = 8_192, 65_536, 8_192
SHORT_SLOTS, LONG_SLOTS = 120, 16
"""Whole windows that fit into the cache, less eight: a preset's batch leaves room for a chunk."""
BLIND = "one pool, pushed blindly"
DESIGNS = (BLIND, "one pool", "split")
CHAT_PER_S, CHAT_TOKENS, CHAT_ANSWER = 6.0, 200, 30
BURST, BURST_TOKENS, BURST_ANSWER = 72, 16_000, 400
_CALM_S, _AFTER_S = 5.0, 20.0
"""Duration of the chat alone, and from the burst on."""
_ANSWER_S = 180.0
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class FirstTokens:
    """Seconds to the first token as clients saw them, of the requests that had one."""

    chat_calm_s: list[float] = field(default_factory=list)
    chat_burst_s: list[float] = field(default_factory=list)
    long_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Planned:
    """One request: its time, its length, and the list that its time to first token is added to."""

    at_s: float
    words: int
    output_tokens: int
    seen: list[float]


async def play(design: str, seed: int, folder: Path) -> FirstTokens:
    """Play one design. Raises DemoFailure where a process does not come up or dies."""
    seen = FirstTokens()
    folder.mkdir(parents=True)  # noqa: ASYNC240 - before any request runs
    async with TaskGroup() as tasks, _running(design, folder, tasks) as url:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            await _ask(session, url, Planned(0.0, CHAT_TOKENS, 2, []), 0, seen)
            clock = Clock()
            begun_ns = clock.now_ns()
            async with TaskGroup() as asking:
                for number, planned in enumerate(plans(seed, seen)):
                    wait_s = planned.at_s - (clock.now_ns() - begun_ns) / _SECOND_NS
                    await asyncio.sleep(max(0.0, wait_s))
                    asking.create_task(_ask(session, url, planned, number, seen))
    return seen


def plans(seed: int, seen: FirstTokens) -> Iterator[Planned]:
    """Requests in the order in which they are sent. A seed gives every design the same ones."""
    rng = random.Random(f"{seed}/live")
    plans = [Planned(_CALM_S + 0.001 * number, BURST_TOKENS, BURST_ANSWER, seen.long_s) for number in range(BURST)]
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(CHAT_PER_S)) < _CALM_S + _AFTER_S:
        counted = seen.chat_calm_s if at_s < _CALM_S else seen.chat_burst_s
        plans.append(Planned(at_s, CHAT_TOKENS, CHAT_ANSWER, counted))
    return iter(sorted(plans, key=lambda each: each.at_s))


async def _ask(session: aiohttp.ClientSession, url: str, planned: Planned, number: int, seen: FirstTokens) -> None:
    """Send a request that begins with a unique word, so that no prefix cache has it."""
    text = f"{number:03}" + " abc" * planned.words
    body = EndpointDialect(MODEL).body([Message(role="user", content=text)], planned.output_tokens)
    clock = Clock()
    began_ns, first_ns = clock.now_ns(), 0

    def on_text() -> None:
        nonlocal first_ns
        first_ns = first_ns or clock.now_ns()

    try:
        await exchange(
            session, f"{url}/v1/chat/completions", headers={}, body=body, answer=PartialAnswer(), on_text=on_text
        )
    except (AnswerFailure, aiohttp.ClientError, OSError, TimeoutError) as error:
        seen.failures.append(str(error) or type(error).__name__)
    if first_ns:
        planned.seen.append((first_ns - began_ns) / _SECOND_NS)


@asynccontextmanager
async def _running(design: str, folder: Path, tasks: TaskGroup) -> AsyncIterator[str]:
    """Run engines and a gateway; yields the URL for clients."""
    ports = free_ports(ENGINES + 3, random.Random())
    engines, listen = ports[:ENGINES], ports[ENGINES:]
    (folder / "policy.yaml").write_text(yaml.safe_dump({"version": 1, "region": "us-east-1", "jurisdiction": "US"}))
    (folder / "gateway.yaml").write_text(yaml.safe_dump(region_file(design, engines, listen, folder), sort_keys=False))
    async with AsyncExitStack() as stack:
        for number, port in enumerate(engines):
            is_short = design == "split" and number < ENGINES // 2
            window, slots = (SHORT_WINDOW, SHORT_SLOTS) if is_short else (LONG_WINDOW, LONG_SLOTS)
            options = ["--model", MODEL, "--preset", PRESET, "--port", f"{port}", "--ignore-eos",
                       "--max-model-len", f"{window}", "--max-num-seqs", f"{slots}"]  # fmt: skip
            running = running_child(
                f"engine {number}", ["nightside", "engine", *options], folder / f"{number}.log", tasks
            )
            child = await stack.enter_async_context(running)
            await until_ready(child, [f"http://{LOOPBACK}:{port}/health"])
        command = ["nightside", "gateway", "run", str(folder / "gateway.yaml")]
        gateway = await stack.enter_async_context(running_child("the gateway", command, folder / "gateway.log", tasks))
        await until_ready(gateway, [f"http://{LOOPBACK}:{listen[1]}/ready"])
        yield f"http://{LOOPBACK}:{listen[0]}"


def region_file(design: str, engines: Sequence[int], listen: Sequence[int], folder: Path) -> dict[str, object]:
    """Configuration of one gateway in front of all engines: half of them in each of two pools, or all in one."""
    replicas = [
        {"id": f"engine-{number}", "url": f"http://{LOOPBACK}:{port}", "models": [MODEL]}
        for number, port in enumerate(engines)
    ]
    document: dict[str, object] = {
        "gateway": "us-east-1a",
        "region": "us-east-1",
        "jurisdiction": "US",
        "policy": str(folder / "policy.yaml"),
        "listen": {"http": f"{LOOPBACK}:{listen[0]}", "admin": f"{LOOPBACK}:{listen[1]}",
                   "peers": f"{LOOPBACK}:{listen[2]}"},
        "replicas": replicas,
    }  # fmt: skip
    if design == BLIND:
        document |= {"placement": {"policy": "round_robin"}, "pushing": {"mode": "blind"}}
    if design == "split":
        pools = ["short" if number < ENGINES // 2 else "long" for number in range(ENGINES)]
        document["replicas"] = [{**each, "pool": pool} for each, pool in zip(replicas, pools, strict=True)]
        document["pools"] = [
            {"name": "short", "context_tokens_max": SHORT_WINDOW, "threshold_tokens": THRESHOLD},
            {"name": "long", "context_tokens_max": LONG_WINDOW},
        ]
    return document


def at(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def middle(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None
