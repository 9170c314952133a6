"""An hour's requests of a modest region in minutes, with faults mixed in: no count may grow. A slice runs with every
other test; `make soak` runs the whole of it.

Requests come in rounds with a rest after each, so that counts between rounds show what the rounds left behind. Before
the first round everything bounded is filled to its bound at each gateway: all later growth is a leak.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, linear_regression

import aiohttp
import msgspec
import pytest

from gateway.core import vocabulary
from gateway.core.kernel import effects, events
from gateway.core.kernel.requests import AttemptState, LegState, RequestRecord, RequestState
from gateway.core.placement.index_nodes import IndexNode
from gateway.core.placement.index_sizes import NODE_BYTES
from gateway.door.call import ClientCall
from gateway.http1.server import Exchange as ClientExchange
from gateway.peers.client import PeerLeg
from gateway.peers.exchange.serving_stream import ServedForward
from gateway.request.answer import ClientAnswer
from gateway.request.event_scanner import EventScanner
from gateway.request.leg_answer import LegAnswer
from gateway.request.proxied import ProxiedRequest
from mesh.pump import TAIL_STEPS_DEFAULT
from mesh.steps import Step
from tests.fakes.engine import (
    GOOD_ANSWER,
    GOOD_STREAM,
    ROLE,
    Exchange,
    FakeEngine,
    answer,
    hang,
    stream,
    stream_and_cut,
    token,
)
from tests.support.core import MODEL
from tests.support.gateways import until
from tests.support.processes import Process, gateway_process, two_regions


def name_of(kind: type) -> str:
    """Name of a type in a census."""
    return f"{kind.__module__}.{kind.__qualname__}"


ROUNDS = 8
CLIENTS = 24
RECORDS_MAX = 60
LEGS_MAX = 4
"""Legs of a record on average, at most."""
PREFIX_INDEX_KIB = 16
PREFIX_INDEXES = 3
"""Prefix indexes of a gateway: prompts sent to replicas, prompts sent to peers, and contents of replicas' caches."""
WARM_UP = 2 * RECORDS_MAX
"""Requests to each gateway before the first round: enough to fill its records and the driver's tail, though some leave
no record.
"""
MIX = 2 * 4 * RECORDS_MAX
"""Requests of the rounds' mix before the first round, a quarter of them at the gateway with the fewest; kept records
are then of the kinds that rounds leave, since requests of the warm-up are never forwarded.
"""
SETTINGS: dict[str, object] = {
    "logging": {"level": "error"},
    "decisions": {"requests_max": RECORDS_MAX},
    "placement": {"prefix_index_max": f"{PREFIX_INDEX_KIB}KiB"},
    "pushing": {"mode": "outstanding", "outstanding_max": 8},
    "attempt": {"breaker_open": "100ms", "breaker_open_max": "100ms", "ramp_step": "50ms"},
}
GONE_AT_REST = tuple(
    name_of(kind)
    for kind in (
        ProxiedRequest,
        ClientAnswer,
        LegAnswer,
        RequestState,
        AttemptState,
        ClientCall,
        ClientExchange,
        PeerLeg,
        ServedForward,
        EventScanner,
    )
)
"""Types of one request's own objects; without a request no such object exists."""
OBJECTS_OF_A_CONNECTION = 60
"""Approximate number of objects per connection; the number of clients' connections open at rest varies by chance."""
OBJECTS_OF_A_FORWARD = 12
"""Approximate number of sets and tuples in the policy of a forward that arrived: the number of forwards among the
driver's recent steps varies by chance.
"""
RESIDENT_GROWTH_BYTES_MAX = 4 << 20
OBJECTS_WAVER_MAX = 24
"""Variation in objects of any one type of the product, as connections and remembered prefixes come and go."""
OBJECTS_LEFT_SHARE_MAX = 0.005
"""Objects left behind of any one type, as a share of the rounds' requests: a leak in one of a hundred requests shows
among thousands. A leaked object of GONE_AT_REST shows singly.
"""
BOUNDED = {
    name_of(RequestRecord): RECORDS_MAX + 1,  # the core has that of the last arrival, too
    name_of(LegState): RECORDS_MAX * LEGS_MAX,
    name_of(IndexNode): PREFIX_INDEXES * (PREFIX_INDEX_KIB * 1024 // NODE_BYTES),
}
"""Largest number of each bounded type, which is nearly reached at all times."""
TOLD = (f"{effects.__name__}.", f"{events.__name__}.", f"{vocabulary.__name__}.", name_of(Step))
"""Types in the driver's tail of recent steps: a constant number in all, of changing types."""


class Census(msgspec.Struct):
    tasks: int
    open_files: int
    resident_bytes: int
    objects: int
    ours: dict[str, int]


@dataclass
class Watched:
    """One gateway under the soak."""

    process: Process
    census_file: Path
    rounds: list[Census] = field(default_factory=list)

    async def count(self) -> None:
        self.census_file.unlink(missing_ok=True)
        self.process.signal(signal.SIGUSR1)
        await until(self.census_file.exists)
        self.rounds.append(msgspec.json.decode(self.census_file.read_bytes(), type=Census))


class Clients:
    """Clients that send requests in every way, well or badly."""

    def __init__(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self.ends = Counter[str]()
        self._session = session
        self._rng = rng

    async def ask(self, requests: int, urls: Sequence[str]) -> None:
        """Send requests to these gateways, each chosen with equal chance."""
        left = iter(range(requests))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(self._ask_on(left, urls))

    async def _ask_on(self, left: Iterator[int], urls: Sequence[str]) -> None:
        for _ in left:
            self.ends[await self._ask(self._rng.choice(urls))] += 1

    async def _ask(self, url: str) -> str:
        patience_s = 0.02 if self._rng.random() < 0.12 else 1.0
        try:
            async with asyncio.timeout(patience_s):
                return await self._post(url)
        except TimeoutError:
            return "left"
        except aiohttp.ClientError:
            return "cut"

    async def _post(self, url: str) -> str:
        rng = self._rng
        body = {
            "model": MODEL if rng.random() > 0.02 else "nobody-has-it",
            "messages": [{"role": "user", "content": f"{rng.random()} " * rng.choice((1, 20, 400))}],
            "stream": rng.random() < 0.8,
        }
        headers = {"connection": "close"} if rng.random() < 0.1 else {}
        async with self._session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            await response.read()
            return str(response.status)


def faulty_engine(rng: random.Random) -> FakeEngine:
    """Engine that mostly answers well, and now and then fails in one of the ways that engines do."""
    failures = (
        answer(500, b'{"error": "no"}'),
        answer(503, b'{"error": "full"}'),
        answer(400, b'{"error": {"message": "too long", "code": 400}}'),
        stream_and_cut(ROLE + token("Hel")),
        stream(ROLE),
        hang,
    )

    async def script(exchange: Exchange) -> None:
        if rng.random() < 0.06:
            await rng.choice(failures)(exchange)
        elif json.loads(exchange.received.body)["stream"]:
            await stream(*GOOD_STREAM)(exchange)
        else:
            await answer(200, GOOD_ANSWER)(exchange)

    engine = FakeEngine()
    engine.plays(script)
    return engine


@asynccontextmanager
async def soaked(
    folder: Path, ports: Callable[[], int], us_engine: FakeEngine, eu_engine: FakeEngine
) -> AsyncIterator[list[Watched]]:
    """Both regions, with engines and clients that keep no record of their requests either."""
    async with AsyncExitStack() as stack:
        for engine in (us_engine, eu_engine):
            await stack.enter_async_context(engine.serving())
        watched = []
        for file in two_regions(folder, ports, us_engine, eu_engine, **SETTINGS):
            census_file = file.with_suffix(".census")
            run = [sys.executable, "-m", "tests.support.counted_gateway", str(file), str(census_file)]
            watched.append(Watched(await stack.enter_async_context(gateway_process(file, run=run)), census_file))
        yield watched


@pytest.mark.timeout(1800)
async def test_nothing_grows_however_many_requests_end_however_badly(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], request: pytest.FixtureRequest
) -> None:
    requests = request.config.getoption("--soak-requests")
    in_rounds = requests - 2 * WARM_UP
    rng = random.Random(5)
    engines = [faulty_engine(rng), faulty_engine(rng)]
    async with soaked(tmp_path, unused_tcp_port_factory, *engines) as watched, aiohttp.ClientSession() as session:
        us, eu = watched
        await us.process.until_metric(session, lambda usable: usable == 1, "nightside_peers_usable")
        clients = Clients(session, rng)
        for each in watched:
            await clients.ask(WARM_UP, [each.process.http_url])
        urls = [us.process.http_url] * 3 + [eu.process.http_url]
        await clients.ask(MIX, urls)
        for _ in range(ROUNDS):
            await clients.ask(in_rounds // ROUNDS, urls)
            for each in watched:
                await each.process.until_at_rest(session)
                await each.count()
            for engine in engines:
                await until(lambda engine=engine: engine.playing == 0)  # type: ignore[misc]
                engine.received.clear()
                engine.connections.clear()
        forwarded = await us.process.metric(session, "nightside_forwards_sent_total")
        assert_mixed(clients.ends, requests, forwarded)
    for name, each in zip(("us", "eu"), watched, strict=True):
        report(name, each.rounds)
        assert_nothing_left(each.rounds)
        assert_no_growth(each.rounds, in_rounds)


def assert_mixed(ends: Counter[str], requests: int, forwarded: float) -> None:
    """Assert that the soak met every kind of outcome: one that met a single kind would prove little."""
    print(f"requests {requests}, forwarded {forwarded:.0f}, ends {dict(ends)}")  # noqa: T201 - shown with -s or on failure
    assert ends["200"] > requests / 2
    assert min(ends[kind] for kind in ("left", "404", "400")) > 0
    assert forwarded > requests / 200


def report(name: str, rounds: list[Census]) -> None:
    for number, each in enumerate(rounds):
        print(  # noqa: T201 - shown with -s or on failure
            f"{name} round {number}: {each.resident_bytes / 2**20:.1f} MiB, {each.open_files} files,"
            f" {each.tasks} tasks, {each.objects} objects, {sum(each.ours.values())} of ours"
        )


def assert_nothing_left(rounds: list[Census]) -> None:
    for number, each in enumerate(rounds):
        left = {kind: each.ours[kind] for kind in GONE_AT_REST if each.ours.get(kind)}
        assert not left, f"after round {number}"


def assert_no_growth(rounds: list[Census], requests: int) -> None:
    ours_max = max(OBJECTS_WAVER_MAX, OBJECTS_LEFT_SHARE_MAX * requests)
    for kind in sorted({kind for each in rounds for kind in each.ours} - BOUNDED.keys()):
        grown = growth([each.ours.get(kind, 0) for each in rounds])
        most = TAIL_STEPS_DEFAULT if kind.startswith(TOLD) else ours_max
        assert grown <= most, f"{grown:.0f} more of {kind}"
    assert growth([each.open_files for each in rounds]) <= CLIENTS / 2
    assert growth([each.tasks for each in rounds]) <= CLIENTS / 2
    more_connections = max(0.0, growth([each.open_files for each in rounds]))
    # Objects of the product were checked by type: bounded ones come and go below their bound by the hundred.
    others = [each.objects - sum(each.ours.values()) for each in rounds]
    more_forwards = max(0.0, growth([each.ours.get(name_of(events.ForwardArrived), 0) for each in rounds]))
    objects_max = (
        0.05 * fmean(each.objects for each in rounds)
        + OBJECTS_OF_A_CONNECTION * more_connections
        + OBJECTS_OF_A_FORWARD * more_forwards
    )
    assert growth(others) <= objects_max
    assert growth([each.resident_bytes for each in rounds]) <= RESIDENT_GROWTH_BYTES_MAX
    for kind, most in BOUNDED.items():
        assert max(each.ours.get(kind, 0) for each in rounds) <= most, kind


def growth(values: list[int]) -> float:
    """Growth from the first to the last round along the line of best fit, which a single round's deviation hardly
    moves.
    """
    return linear_regression(range(len(values)), values).slope * (len(values) - 1)
