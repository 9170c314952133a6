"""Asks engines which models they serve, where the region file leaves that to them (`models: auto`), and of which
identity, where none is declared.

A list that cannot be used changes nothing: an engine's last usable list holds until it gives another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial

from structlog.typing import FilteringBoundLogger

from gateway.config.names import is_model_identity, is_model_name
from gateway.config.sections import ProbeConfig
from gateway.core.vocabulary import ModelName, ReplicaId, Roots
from gateway.engines.dialects import ListedModel, listed_models
from gateway.engines.endpoints import Engine, ReplicaEndpoints
from gateway.engines.exposition import BadProbe
from gateway.engines.loops import QUESTIONS_SHARE, EngineLoops, ProbeRateLimit
from gateway.engines.probe import FAULTS, get_page, probe_connections
from gateway.http1.client import ConnectionPool
from mesh.clock import Clock
from mesh.supervisor import Backoff, OnFailure

_SECOND_NS = 1_000_000_000
_RETRY_S = 1.0
"""Seconds between questions to an engine that has never listed its models: it serves none until then."""
_IDLE_CONNECTION_S = 2.0

Listed = Callable[[tuple[ReplicaId, ...], tuple[ModelName, ...]], None]
Identified = Callable[[tuple[ReplicaId, ...], Roots], None]


class ModelWatcher:
    """Asks the engines of the current endpoints for their models, again and again."""

    def __init__(
        self,
        endpoints: ReplicaEndpoints,
        clock: Clock,
        config: ProbeConfig,
        on_listed: Listed,
        on_identified: Identified,
        *,
        log: FilteringBoundLogger,
        on_restart: OnFailure | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    ) -> None:
        """`on_listed` is called with an engine's replicas and its models, base models first, each time it lists
        them, and `on_identified` with the replicas without a declared identity and those that the engine tells."""
        self._endpoints = endpoints
        self._config = config
        self._on_listed = on_listed
        self._on_identified = on_identified
        self._log = log
        self._budget = ProbeRateLimit(clock)
        self._loops = EngineLoops(endpoints, clock, backoff, on_restart)
        self._asked: set[Engine] = set()
        self._has_asked = asyncio.Event()

    def configure(self, config: ProbeConfig) -> None:
        self._config = config

    async def run(self) -> None:
        """Run until cancelled."""
        with closing(probe_connections(_IDLE_CONNECTION_S)) as connections:
            await self._loops.run(partial(self._watch, connections))

    async def first_round(self) -> None:
        """Wait until every engine has been asked once, whatever it answered."""
        while any(engine not in self._asked for engine in self._endpoints.engines() if self._listing_replicas(engine)):
            self._has_asked.clear()
            await self._has_asked.wait()

    async def _watch(self, connections: ConnectionPool, engine: Engine) -> None:
        told, trouble = False, ""
        while self._is_wanted(engine):
            try:
                if self._endpoints.is_adopted(engine):
                    await asyncio.sleep(self._budget.wait_s(QUESTIONS_SHARE * self._config.adopted_per_s))
                listed = await self._ask(connections, engine)
            except FAULTS as error:
                fault = f"{type(error).__name__}: {error}"
                if fault != trouble and self._listing_replicas(engine):  # once per fault, not once per question
                    self._log.warning("model_list_query_failed", engine=engine.url, reason=fault)
                trouble = fault
            else:
                told, trouble = True, ""
                if listing := self._listing_replicas(engine):
                    self._on_listed(listing, routable(listed))
                if asking := self._asking_replicas(engine):
                    self._on_identified(asking, identities_of(listed))
            self._asked.add(engine)
            self._has_asked.set()
            is_urgent = not told and self._listing_replicas(engine)
            await asyncio.sleep(_RETRY_S if is_urgent else self._config.models_interval_ns / _SECOND_NS)
        self._asked.discard(engine)

    def _is_wanted(self, engine: Engine) -> bool:
        return bool(self._listing_replicas(engine) or self._asking_replicas(engine))

    def _listing_replicas(self, engine: Engine) -> tuple[ReplicaId, ...]:
        return tuple(endpoint.replica_id for endpoint in self._endpoints.of(engine) if endpoint.lists_models)

    def _asking_replicas(self, engine: Engine) -> tuple[ReplicaId, ...]:
        return tuple(endpoint.replica_id for endpoint in self._endpoints.of(engine) if endpoint.asks_identity)

    async def _ask(self, connections: ConnectionPool, engine: Engine) -> list[ListedModel]:
        """Ask the engine for its models. Raises what is in FAULTS."""
        async with asyncio.timeout(self._config.timeout_ns / _SECOND_NS):
            status, page = await get_page(connections, engine, "/v1/models")
        if status != 200:
            raise BadProbe(f"status {status}")
        return checked_models(page, self._config.models_max)


def checked_models(page: bytes, models_max: int) -> list[ListedModel]:
    """Models that can be routed by. Raises BadProbe for a list with an unusable name, with more than `models_max`
    names, or with none."""
    listed = listed_models(page)
    if not 0 < len(listed) <= models_max:
        raise BadProbe(f"{len(listed)} models are listed, and 1 to {models_max} are believed")
    if not all(is_model_name(model.name) for model in listed):
        raise BadProbe("a listed model has no usable name")
    return listed


def routable(listed: list[ListedModel]) -> tuple[ModelName, ...]:
    """Names of the models, each once."""
    return tuple(dict.fromkeys(ModelName(model.name) for model in listed))


def identities_of(listed: list[ListedModel]) -> Roots:
    """Known identities of the models. That of an adapter includes its base model's."""
    roots = {model.name: model.root for model in listed}
    found: dict[ModelName, str] = {}
    for model in listed:
        base = "" if model.parent is None else roots.get(model.parent, "")
        if model.root and (model.parent is None or base):
            identity = f"{base} {model.root}".lstrip()
            if is_model_identity(identity):
                found.setdefault(ModelName(model.name), identity)
    return found
