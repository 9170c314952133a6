"""One gateway for many hostile cases: after each it serves an innocent client at once, and holds nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, LimitsConfig, ProbeConfig
from gateway.core.config import AttemptConfig, CoreConfig
from gateway.http.room import Room
from tests.fakes.engine import GOOD_STREAM, FakeEngine, stream
from tests.support.core import MS, US, unresumed
from tests.support.gateways import counted, free_replicas, region_config, until, write_policy
from tests.support.rest import unrest
from tests.support.wire import posted, wire

ENOUGH_S = 20.0
"""What has not ended by then never will."""
BODY_BYTES_MAX = 1 << 20
COUNTING_ONLY = CoreConfig(
    attempt=AttemptConfig(attempts_max=1, breaker_failures_in_row=10**6, breaker_window=10**6, breaker_open_ns=1)
)
"""One attempt a request, and a breaker that counts without ever opening: a case sees the failures of its own alone."""
NO_STATUS = 0
"""The connection ended without an answer."""


@dataclass
class Besieged:
    """A gateway with one engine of its own."""

    gateway: GatewayHandle
    engine: FakeEngine
    room: Room
    told: list[EventDict]
    """What the gateway logged."""

    def failures(self, target: str) -> float:
        """What its targets' breakers have counted."""
        return counted(self.gateway, "attempts_total", target=target, result="failed")

    async def goes_on(self) -> None:
        """It is whole, met no error of its own, holds no request, no byte and no leg, and serves whoever is next."""
        assert not self.gateway.driver.failed.is_set(), self.gateway.driver.crash
        faults = [each for each in self.told if each.get("exc_info")]
        self.told.clear()
        assert not faults, "an exception of ours"
        async with asyncio.timeout(ENOUGH_S):
            await until(lambda: not self.held())
            assert await innocent_answer(self.gateway) == (200, True)

    def held(self) -> list[str]:
        found = unrest(self.gateway)
        found += [f"{self.engine.playing} requests at the engine"] if self.engine.playing else []
        return found + ([f"{self.room}"] if self.room.requests or self.room.bytes else [])


async def innocent_answer(gateway: GatewayHandle) -> tuple[int, bool]:
    """The status that a good request gets, and whether its answer is whole."""
    received = await sent(gateway, posted("connection: close"))
    return int(received[9:12]), b'"content":"Hello"' in received and b"[DONE]" in received


async def sent(
    gateway: GatewayHandle,
    raw: bytes,
    *,
    closes: bool = False,
    leaves: bool = False,
    on_first: Callable[[], None] = lambda: None,
) -> bytes:
    """All that comes back over a connection of its own until it ends, or with `leaves` until there is an answer."""
    async with asyncio.timeout(ENOUGH_S), wire(gateway) as connection:
        connection.send(raw)
        if closes:
            connection.writer.write_eof()
        if leaves:
            return await connection.reader.readuntil(b"}}")
        first = await connection.reader.read(1)
        on_first()
        return first + await connection.until_closed()


@asynccontextmanager
async def besieged(
    folder: Path,
    change: Callable[[GatewayConfig], GatewayConfig] = lambda config: config,
    engine: FakeEngine | None = None,
    *,
    has_engine: bool = True,
) -> AsyncIterator[Besieged]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context((engine or FakeEngine()).serving())
        engine.plays(stream(*GOOD_STREAM))
        told: list[EventDict] = []
        config = region_config("us-1", US, [engine.url] * has_engine, policy_file=write_policy(folder, US))
        others = rooms()
        gateway = await stack.enter_async_context(serve_gateway(change(with_little_room(config)), log=keeping(told)))
        await until(lambda: free_replicas(gateway) == has_engine)
        (room,) = [each for each in rooms() if each not in others]
        yield Besieged(gateway, engine, room, told)


def keeping(told: list[EventDict]) -> FilteringBoundLogger:
    """A log in a list."""

    def keep(_: object, method: str, record: EventDict) -> EventDict:
        told.append(record)
        raise structlog.DropEvent

    wrapper = structlog.make_filtering_bound_logger(logging.INFO)
    made: FilteringBoundLogger = structlog.wrap_logger(None, processors=[keep], wrapper_class=wrapper)
    return made


def with_little_room(config: GatewayConfig) -> GatewayConfig:
    limits = LimitsConfig(requests_max=16, body_max_bytes=BODY_BYTES_MAX, bodies_held_max_bytes=4 * BODY_BYTES_MAX)
    return replace(config, limits=limits, probes=ProbeConfig(interval_ns=50 * MS), core=unresumed(COUNTING_ONLY))


def rooms() -> list[Room]:
    """Of all gateways in this process. None hands its own out: what holds bodies is nobody else's business."""
    return [each for each in gc.get_objects() if isinstance(each, Room)]
