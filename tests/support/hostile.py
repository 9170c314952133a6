"""One gateway for many hostile cases: after each, it must serve an innocent client at once and hold no resources."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from msgspec.structs import replace
from structlog.typing import EventDict, FilteringBoundLogger

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, LimitsConfig, ProbeConfig
from gateway.core.config import CoreConfig
from gateway.core.kernel.config import AttemptConfig
from gateway.door.body_memory import BodyMemory
from tests.fakes.engine import GOOD_STREAM, FakeEngine, stream
from tests.support.core import MS, US, unresumed
from tests.support.gateways import counted, free_replicas, region_config, until, write_policy
from tests.support.rest import unrest
from tests.support.wire import posted, wire

ENOUGH_S = 20.0
"""Seconds after which a request counts as never ending."""
BODY_BYTES_MAX = 1 << 20
COUNTING_ONLY = CoreConfig(
    attempt=AttemptConfig(attempts_max=1, breaker_failures_in_row=10**6, breaker_window=10**6, breaker_open_ns=1)
)
"""Config with one attempt per request and a breaker that counts but never opens, so that each case sees only its own
failures."""
NO_STATUS = 0
"""Status for a connection that ended without an answer."""


@dataclass
class Besieged:
    """A gateway with one engine of its own."""

    gateway: GatewayHandle
    engine: FakeEngine
    room: BodyMemory
    told: list[EventDict]
    """Log records of the gateway."""

    def failures(self, target: str) -> float:
        """Failed attempts at this kind of target, which its breakers count."""
        return counted(self.gateway, "attempts_total", target=target, result="failed")

    async def goes_on(self) -> None:
        """Assert that the gateway met no internal error, holds no request, no byte and no leg, and serves the next
        client."""
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
    """Status of a good request, and whether its answer is whole."""
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
    """Send bytes over a connection of their own. Returns all that comes back until the connection ends, or with
    `leaves` until an answer has begun."""
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
    """Logger that appends its records to a list."""

    def keep(_: object, method: str, record: EventDict) -> EventDict:
        told.append(record)
        raise structlog.DropEvent

    wrapper = structlog.make_filtering_bound_logger(logging.INFO)
    made: FilteringBoundLogger = structlog.wrap_logger(None, processors=[keep], wrapper_class=wrapper)
    return made


def with_little_room(config: GatewayConfig) -> GatewayConfig:
    limits = LimitsConfig(requests_max=16, body_max_bytes=BODY_BYTES_MAX, bodies_held_max_bytes=4 * BODY_BYTES_MAX)
    return replace(config, limits=limits, probes=ProbeConfig(interval_ns=50 * MS), core=unresumed(COUNTING_ONLY))


def rooms() -> list[BodyMemory]:
    """Rooms of all gateways in this process, found by the garbage collector, since no gateway exposes its own."""
    return [each for each in gc.get_objects() if isinstance(each, BodyMemory)]
