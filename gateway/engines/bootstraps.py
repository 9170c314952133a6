"""Asks prefill workers where their decode workers meet them, for connectors that start both engines at once. A prefill
worker that has not answered yet takes no request; its last answer holds until it gives another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import ProbeConfig
from gateway.core.vocabulary import Connector
from gateway.engines.endpoints import Engine, ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.exposition import BadProbe
from gateway.engines.handoff.bootstrap import QUERY_PATHS, Bootstrap, bootstrap_of, read_query, read_server_info
from gateway.engines.loops import QUESTIONS_SHARE, EngineLoops, ProbeRateLimit
from gateway.engines.probe import FAULTS, get_page, probe_connections
from gateway.http1.client import ConnectionPool
from mesh.clock import Clock
from mesh.supervisor import Backoff, OnFailure

_SECOND_NS = 1_000_000_000
_RETRY_S = 1.0
"""Seconds between questions to a prefill worker that has not answered yet: it serves nothing until then."""
_IDLE_CONNECTION_S = 2.0


class BootstrapWatcher:
    """Asks the prefill workers of the current endpoints, again and again, since an engine that restarts is met
    elsewhere."""

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        config: ProbeConfig,
        *,
        log: FilteringBoundLogger,
        on_restart: OnFailure | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    ) -> None:
        self._endpoints = endpoints
        self._config = config
        self._log = log
        self._budget = ProbeRateLimit(clock)
        self._loops = EngineLoops(endpoints, clock, backoff, on_restart)

    def configure(self, config: ProbeConfig) -> None:
        self._config = config

    async def run(self) -> None:
        """Run until cancelled."""
        with closing(probe_connections(_IDLE_CONNECTION_S)) as connections:
            await self._loops.run(partial(self._watch, connections))

    async def _watch(self, connections: ConnectionPool, engine: Engine) -> None:
        trouble = ""
        while members := self._members(engine):
            try:
                if self._endpoints.is_adopted(engine):
                    await asyncio.sleep(self._budget.wait_s(QUESTIONS_SHARE * self._config.adopted_per_s))
                met = await self._ask(connections, engine, members[0])
            except FAULTS as error:
                fault = f"{type(error).__name__}: {error}"
                if fault != trouble:  # once per fault, not once per question
                    self._log.warning("prefill_bootstrap_query_failed", engine=engine.url, reason=fault)
                trouble = fault
                await asyncio.sleep(_RETRY_S)
            else:
                trouble = ""
                for member in members:
                    self._endpoints.meets_at(member, met[member.rank or 0])
                await asyncio.sleep(self._config.health_interval_ns / _SECOND_NS)

    def _members(self, engine: Engine) -> list[ReplicaEndpoint]:
        return [each for each in self._endpoints.of(engine) if each.is_met]

    async def _ask(self, connections: ConnectionPool, engine: Engine, member: ReplicaEndpoint) -> Sequence[Bootstrap]:
        """Ask for the bootstrap of each of the engine's ranks. Raises what is in FAULTS."""
        bootstrap = bootstrap_of(engine.url, member.bootstrap_port)
        assert member.connector is not None, "each member has a connector"
        is_mooncake = member.connector is Connector.MOONCAKE
        asked = Engine(bootstrap.address, engine.dialect) if is_mooncake else engine
        async with asyncio.timeout(self._config.timeout_ns / _SECOND_NS):
            status, page = await get_page(connections, asked, QUERY_PATHS[member.connector])
        if status != 200:
            raise BadProbe(f"status {status}")
        read: Callable[[bytes], Sequence[Bootstrap]] = partial(_mooncake if is_mooncake else _sglang, bootstrap, engine)
        return read(page)


def _mooncake(bootstrap: Bootstrap, engine: Engine, page: bytes) -> Sequence[Bootstrap]:
    return [replace(bootstrap, engine_id=engine_id) for engine_id in read_query(page, engine.ranks)]


def _sglang(bootstrap: Bootstrap, engine: Engine, page: bytes) -> Sequence[Bootstrap]:
    met = read_server_info(page, bootstrap)
    if engine.ranks == 1:
        return [met]
    if met.ranks != engine.ranks:
        raise BadProbe(f"the engine tells of {met.ranks} ranks, and {engine.ranks} are configured")
    return [replace(met, rank=rank) for rank in range(engine.ranks)]
