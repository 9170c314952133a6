"""What has to be true after any fault, whoever caused it: nothing of it is left, and the next clients are served.

It looks at the core's and the driver's own books, and from outside at sockets, tasks, objects and memory, so that it
holds for whatever the edges are made of.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, LimitsConfig, ProbeConfig
from gateway.core.requests import RequestState
from gateway.request.event_scanner import EventScanner
from gateway.request.legs import OutboundRequest
from gateway.request.mailbox import Mailbox
from gateway.request.owner import RequestOwner
from tests.fakes.engine import GOOD_STREAM, FakeEngine, Tally, stream
from tests.support.core import EU, MS, US
from tests.support.gateways import free_replicas, knowing, region_config, until, usable_peers, write_policy
from tests.support.rest import unrest
from tests.support.wire import CHAT_BODY, CHAT_PATH

BODY_BYTES_MAX = 16 << 20
REQUESTS_MAX = 4
_REST_S = 15.0
"""Longer than anything may take to end; what has not come to rest by then never will."""
_KEPT_BYTES_MAX = 2 << 20
"""A rest may differ from the one before by what a gateway learns: a prefix, a decision, a few steps of its tail."""
_OF_A_REQUEST = (RequestOwner, Mailbox, RequestState, OutboundRequest, EventScanner)
"""What lives only as long as its request."""


@dataclass(frozen=True, slots=True)
class Books:
    """What stands where nobody asks anything: to be found again once everybody has left."""

    tasks: int
    objects: Counter[str]
    bytes: int


@dataclass
class Stand:
    """Gateways and fake engines as one fault needs them. The first gateway is where clients ask."""

    gateways: list[GatewayHandle]
    engines: list[FakeEngine]
    session: aiohttp.ClientSession

    @property
    def gateway(self) -> GatewayHandle:
        return self.gateways[0]

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]

    @property
    def arrived(self) -> int:
        return sum(engine.arrived.count for engine in self.engines)

    @property
    def aborted(self) -> int:
        return sum(engine.aborted.count for engine in self.engines)

    async def become_busy(self) -> None:
        """Whoever asks now has to wait."""
        for engine in self.engines:
            engine.waiting = 1
        await until(lambda: free_replicas(self.gateways[-1]) == 0)
        if len(self.gateways) > 1:
            await until(lambda: available_elsewhere(self.gateway) == 0)

    async def become_free(self) -> None:
        for engine in self.engines:
            engine.waiting = 0
        await until(lambda: free_replicas(self.gateways[-1]) > 0)

    def left_over(self) -> list[str]:
        """In words; empty once all is quiet."""
        found: list[str] = []
        for gateway in self.gateways:
            found += [f"{gateway.config.gateway_id}: {each}" for each in left_in(gateway)]
        for number, engine in enumerate(self.engines):
            if engine.playing:
                found.append(f"engine {number}: works on {engine.playing} requests")
        return found

    def books(self) -> Books:
        gc.collect()
        kinds = [type(each).__name__ for each in gc.get_objects() if isinstance(each, _OF_A_REQUEST)]
        return Books(self.tasks(), Counter(kinds), tracemalloc.get_traced_memory()[0])

    def tasks(self) -> int:
        """All but those that wait on an engine's side of a connection that the gateway keeps for later."""
        return len(asyncio.all_tasks()) - sum(connections_at(engine.port) for engine in self.engines)

    async def comes_to_rest(self, before: Books | None = None) -> None:
        """Raises AssertionError with what is left in words."""
        found: list[str] = []
        try:
            async with asyncio.timeout(_REST_S):
                while found := self.left_over():  # noqa: ASYNC110 - as `until`
                    await asyncio.sleep(0.01)
                while before is not None and (found := more_than(before, self.books())):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)  # looking at every object takes long enough to hold up a heartbeat
        except TimeoutError:
            tasks = Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]
            raise AssertionError(f"not at rest: {found}; all tasks: {dict(tasks)}") from None

    async def serves(self) -> None:
        """As many as there is room for at once, and then one that takes all the room there is for bodies."""
        for engine in self.engines:
            engine.plays(stream(*GOOD_STREAM))
        await self.become_free()
        async with asyncio.timeout(_REST_S), asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS_MAX):
                tasks.create_task(self.is_served(None))
        await self.is_served(_of_unknown_length())

    async def is_served(self, upload: AsyncIterator[bytes] | None) -> None:
        url = self.gateway.http_url + CHAT_PATH
        async with self.session.post(url, data=CHAT_BODY if upload is None else upload) as response:
            body = await response.read()
        assert (response.status, body) == (200, b"".join(GOOD_STREAM))


@asynccontextmanager
async def stand(
    folder: Path,
    ports: Callable[[], int],
    *,
    across: bool = False,
    engines: int = 1,
    change: Callable[[GatewayConfig], GatewayConfig] = lambda config: config,
) -> AsyncIterator[Stand]:
    """With `across` the engines stand in another region, and the gateway that is asked has none.

    Once the block is left everything has to be as it was before it, and the next clients have to be served.
    """
    async with AsyncExitStack() as stack:
        gc.freeze()  # the collector passes over what there is already, a hundred times what a gateway is made of
        stack.callback(gc.unfreeze)
        fakes = [await stack.enter_async_context(FakeEngine().serving()) for _ in range(engines)]
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        )
        urls = [fake.url for fake in fakes]
        policy = write_policy(folder, US)
        us = region_config("us-1", US, [] if across else urls, policy_file=policy, peers_port=ports())
        configs = [change(_with_little_room(us))]
        if across:
            eu = region_config("eu-1", EU, urls, policy_file=write_policy(folder, EU), peers_port=ports())
            eu = change(_with_little_room(eu))
            configs = [knowing(configs[0], eu), knowing(eu, configs[0])]
        gateways = [await stack.enter_async_context(serve_gateway(config)) for config in configs]
        made = Stand(gateways, fakes, session)
        for gateway in gateways:
            await until(lambda gateway=gateway: usable_peers(gateway) == len(gateways) - 1)  # type: ignore[misc]
        await until(lambda: free_replicas(gateways[-1]) == engines)
        if across:
            await until(lambda: available_elsewhere(gateways[0]) > 0)
        with tracing_memory():
            await made.serves()
            await made.comes_to_rest()
            before = made.books()
            for fake in fakes:
                fake.arrived, fake.aborted = Tally(), Tally()
                fake.received.clear()
            yield made
            await made.comes_to_rest(before)
            await made.serves()


def left_in(gateway: GatewayHandle) -> list[str]:
    assert not gateway.driver.failed.is_set(), gateway.driver.crash
    clients = connections_at(gateway.http_address.port)
    return unrest(gateway) + ([f"{clients} client connections"] if clients else [])


def connections_at(port: int) -> int:
    """Open sockets of this process that were accepted at this port."""
    found = 0
    for path in Path("/dev/fd").iterdir():
        try:
            if not stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as each:
                is_listening = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                found += not is_listening and each.family == socket.AF_INET and each.getsockname()[1] == port
        except OSError:
            continue  # closed meanwhile
    return found


def more_than(before: Books, now: Books) -> list[str]:
    found = [f"{count} more of {name}" for name, count in (now.objects - before.objects).items()]
    if now.tasks > before.tasks:
        found.append(f"{now.tasks - before.tasks} more tasks")
    if now.bytes > before.bytes + _KEPT_BYTES_MAX:
        found.append(f"{now.bytes - before.bytes} more bytes")
    return found


def available_elsewhere(gateway: GatewayHandle) -> int:
    reports = [state.report for state in gateway.core.peers if state.report is not None]
    return sum(capacity.available for report in reports for capacity in report.capacities)


@contextmanager
def tracing_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def _with_little_room(config: GatewayConfig) -> GatewayConfig:
    """So that a place which is not given back is missed at once."""
    limits = LimitsConfig(
        requests_max=REQUESTS_MAX, body_max_bytes=BODY_BYTES_MAX, bodies_held_max_bytes=BODY_BYTES_MAX
    )
    return replace(config, limits=limits, probes=ProbeConfig(interval_ns=10 * MS))


async def _of_unknown_length() -> AsyncIterator[bytes]:
    yield CHAT_BODY
