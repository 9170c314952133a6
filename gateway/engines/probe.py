"""Probes one engine's load, and interprets silence: an engine that is slow counts as busy, not as dead, while it shows
other signs of life.

It reports what it saw and makes no placement.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urljoin, urlsplit

from msgspec.structs import replace

from gateway.config.sections import ProbeConfig
from gateway.engines.dialects import DIALECTS, LoadReading
from gateway.engines.endpoints import Engine
from gateway.engines.exposition import BadProbe
from gateway.engines.origins import origin_of
from gateway.http1.client import ConnectionPool, Fetched
from mesh.shortage import is_our_shortage

_SECOND_NS = 1_000_000_000
_PAGE_BYTES_MAX = 8 << 20
_DETAIL_LENGTH_MAX = 300
_NOT_OFFERED = (404, 405, 501)
_REDIRECTS = (301, 302, 307, 308)
_REDIRECTS_MAX = 2
_CONNECT_S = 30.0
"""Seconds to connect; callers have a shorter time-out of their own on the whole question."""
FAULTS = (OSError, ValueError, BadProbe)
"""Exceptions that a page, its server or the network can cause. TimeoutError is an OSError: check for it first."""


def probe_connections(idle_connection_s: float) -> ConnectionPool:
    """Connection pool for probes, apart from the requests', so that a request never waits for a probe."""
    return ConnectionPool(connect_s=_CONNECT_S, idle_s=idle_connection_s)


class EngineProbe:
    """Probes one engine, and keeps what it needs from one probe to the next."""

    def __init__(self, connections: ConnectionPool, engine: Engine, config: ProbeConfig) -> None:
        self.config = config
        self._connections = connections
        self._engine = engine
        self._dialect = DIALECTS[engine.dialect]
        self._question = 0
        self._last = [LoadReading()] * engine.ranks
        self._timeouts_in_row = 0
        self._silent_since_ns: int | None = None
        self._health_due_ns = 0

    @property
    def interval_ns(self) -> int:
        return self.config.interval_ns if self._dialect.tells_load else self.config.life_interval_ns

    async def look(self, sent_ns: int) -> list[LoadReading] | None:
        """Probe the engine: a reading for each rank. None if its silence proves nothing yet, or if this gateway lacked
        the resources to ask."""
        try:
            async with asyncio.timeout(self._timeout_s):
                readings = await self._ask(sent_ns)
        except TimeoutError:
            return await self._read_silence(sent_ns)
        except FAULTS as error:
            if isinstance(error, OSError) and is_our_shortage(error):
                return None  # the engine was not asked
            self._question = 0
            readings = self._unfit(f"{type(error).__name__}: {error}"[:_DETAIL_LENGTH_MAX])
        else:
            self._last = readings
        self._timeouts_in_row, self._silent_since_ns = 0, None
        return readings

    async def _ask(self, sent_ns: int) -> list[LoadReading]:
        if self._dialect.health_path is not None and sent_ns >= self._health_due_ns:
            await self._check_health(self._dialect.health_path)
            self._health_due_ns = sent_ns + self.config.health_interval_ns
        return await self._read_load()

    async def _check_health(self, path: str) -> None:
        """Check the health page. Once it is bad, it is asked again with every probe."""
        status, _ = await self._get(path)
        if status != 200 and status not in _NOT_OFFERED:
            raise BadProbe(f"{path} has status {status}")

    async def _read_load(self) -> list[LoadReading]:
        questions = self._dialect.load
        while True:
            question = questions[self._question]
            status, page = await self._get(question.path)
            if status == 200:
                return question.read(page, self._engine.ranks)
            if status not in _NOT_OFFERED or self._question + 1 == len(questions):
                raise BadProbe(f"{question.path} has status {status}")
            self._question += 1

    async def _read_silence(self, sent_ns: int) -> list[LoadReading] | None:
        self._timeouts_in_row += 1
        self._silent_since_ns = sent_ns if self._silent_since_ns is None else self._silent_since_ns
        is_long = sent_ns - self._silent_since_ns >= self.config.slow_max_ns
        if not is_long and await self._lives():
            return [replace(last, waiting=max(last.waiting, 1)) for last in self._last]
        if self._timeouts_in_row < self.config.timeouts_max:
            return None
        return self._unfit(f"{self._timeouts_in_row} probes in a row took too long")

    async def _lives(self) -> bool:
        if self._dialect.life_path is None:
            return False
        try:
            async with asyncio.timeout(self._timeout_s):
                status, _ = await self._get(self._dialect.life_path)
        except FAULTS:
            return False
        return status == 200

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await get_page(self._connections, self._engine, path)

    def _unfit(self, detail: str) -> list[LoadReading]:
        return [LoadReading(unfit=detail)] * self._engine.ranks

    @property
    def _timeout_s(self) -> float:
        return self.config.timeout_ns / _SECOND_NS


async def get_page(connections: ConnectionPool, engine: Engine, path: str) -> tuple[int, bytes]:
    """Status and body of one GET; an error's body counts as empty. Raises what is in FAULTS."""
    origin, prefix = origin_of(engine.url, engine.tls)
    headers = [("accept", "*/*"), ("accept-encoding", "identity"), *engine.authorization().items()]
    target = prefix + path
    for _ in range(_REDIRECTS_MAX + 1):
        page = await connections.fetch("GET", origin, target, headers, b"", bytes_max=_PAGE_BYTES_MAX)
        if page.status == 200:
            return 200, page.body
        if page.status not in _REDIRECTS:
            return page.status, b""
        target = _redirected(engine.url, target, page)
    raise BadProbe(f"{path} is redirected again and again")


def _redirected(url: str, target: str, page: Fetched) -> str:
    """Path of a redirect. Raises BadProbe unless it leads to the same server: the engine's API key is sent to no
    other."""
    location = next((value for name, value in page.headers if name.lower() == "location"), "")
    there = urljoin(urljoin(url, target), location)
    if not location or _server_of(there) != _server_of(url):
        raise BadProbe(f"{target} is redirected elsewhere")
    parts = urlsplit(there)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _server_of(url: str) -> tuple[str, int, bool]:
    origin = origin_of(url)[0]
    return origin.host.lower(), origin.port, origin.tls is not None
