"""Checks that hold after any fault, whatever caused it: all its resources are released, and the next clients are
served.

It reads the books of core and driver, and looks from outside at sockets, tasks, objects and memory, so that it works
for any implementation of the edges.
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
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, LimitsConfig, ProbeConfig
from gateway.core.kernel.requests import RequestState
from gateway.request.event_scanner import EventScanner
from gateway.request.legs import OutboundRequest
from gateway.request.proxied import ProxiedRequest
from tests.fakes.engine import GOOD_STREAM, FakeEngine, Tally, stream
from tests.support.core import EU, MS, US
from tests.support.gateways import free_replicas, knowing, region_config, until, usable_peers, write_policy
from tests.support.rest import unrest
from tests.support.wire import CHAT_BODY, CHAT_PATH

BODY_BYTES_MAX = 16 << 20
REQUESTS_MAX = 4
_REST_S = 15.0
"""Seconds, longer than any request may take to end; a gateway that is not at rest by then never will be."""
_LOOK_AGAIN_MIN_S, _LOOK_AGAIN_MAX_S = 0.01, 0.5
"""Seconds between two looks at every object, doubled each time: a look takes long enough to hold up a heartbeat."""
_KEPT_BYTES_MAX = 2 << 20
"""Bytes by which two rests may differ, for what a gateway learns: a prefix, a decision, a few steps of its tail."""
_OF_A_REQUEST = (ProxiedRequest, RequestState, OutboundRequest, EventScanner)
"""Classes whose objects live only as long as their request."""


@dataclass(frozen=True, slots=True)
class Books:
    """Resources in use while no request runs; they must be the same once all clients have left."""

    tasks: int
    objects: Counter[str]
    bytes: int


@dataclass
class Stand:
    """Gateways and fake engines as one fault needs them. Clients ask the first gateway."""

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
        """Make all engines busy, so that new requests have to wait."""
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
        """Resources still in use, in words; empty once all is quiet."""
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
        """Number of tasks, without those on an engine's side of a connection that the gateway keeps for later."""
        return len(asyncio.all_tasks()) - sum(connections_at(engine.port) for engine in self.engines)

    async def comes_to_rest(self, before: Books | None = None) -> None:
        """Wait until all is at rest. Raises AssertionError with the resources still in use."""
        found: list[str] = []
        try:
            async with asyncio.timeout(_REST_S):
                while found := self.left_over():  # noqa: ASYNC110 - as `until`
                    await asyncio.sleep(0.01)
                pause_s = _LOOK_AGAIN_MIN_S
                while before is not None and (found := more_than(before, self.books())):
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LOOK_AGAIN_MAX_S)
        except TimeoutError:
            tasks = Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]
            raise AssertionError(f"not at rest: {found}; all tasks: {dict(tasks)}") from None

    async def serves(self) -> None:
        """Assert that as many clients are served at once as there is room for, and then one whose body takes all the
        room for bodies."""
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
    """Serve gateways and engines. With `across`, the engines stand in another region, and the gateway that clients ask
    has none.

    At the end of the block, all resources must be as before it, and the next clients must be served.
    """
    async with AsyncExitStack() as stack:
        gc.freeze()  # spares the collector the objects that exist already, a hundred times a gateway's
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
    """Number of open sockets of this process that were accepted at this port."""
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
    """Limit the room, so that a place which is not given back is noticed at once."""
    limits = LimitsConfig(
        requests_max=REQUESTS_MAX, body_max_bytes=BODY_BYTES_MAX, bodies_held_max_bytes=BODY_BYTES_MAX
    )
    return replace(config, limits=limits, probes=ProbeConfig(interval_ns=10 * MS))


async def _of_unknown_length() -> AsyncIterator[bytes]:
    yield CHAT_BODY
