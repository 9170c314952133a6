"""Endpoints of the replicas that this gateway owns, by the newest assignment. It opens no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.vocabulary import Connector, ModelName, Place, ReplicaId
from gateway.engines.handoff.bootstrap import PORT_DEFAULT, Bootstrap
from gateway.engines.tls import EngineTls, TlsContexts
from gateway.request.legs import RanAt
from gateway.request.side_channels import NOWHERE, SideChannel

RANK_HEADER = "x-data-parallel-rank"
"""Header that pins a request to one data-parallel rank; vLLM and SGLang read the same one."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One server, known by its URL. Several replicas may be its data-parallel ranks."""

    url: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)
    ranks: int = 1
    tls: EngineTls | None = None

    def authorization(self) -> dict[str, str]:
        """Header with the gateway's own key for this engine; a client's key is never sent to engines."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True, slots=True)
class ReplicaEndpoint:
    replica_id: ReplicaId
    place: Place
    url: str
    """Base URL without a trailing slash; the path of each API call is appended."""
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)
    ranks: int = 1
    rank: int | None = None
    """Data-parallel rank that this replica is; None if it is a whole engine."""
    tls: EngineTls | None = None
    lists_models: bool = False
    takes_cache_salt: bool = False
    connector: Connector | None = None
    """Connector by which the pool of a prefill or decode worker hands over."""
    is_met: bool = False
    """True for a prefill worker that has to say where decode workers meet it."""
    bootstrap_port: int = PORT_DEFAULT
    side_channel: SideChannel = NOWHERE
    """Side channel configured for a prefill worker whose answers name one, in addition to the worker's own address."""
    is_adopted: bool = False
    """True if another gateway has told the address of this replica."""
    asks_identity: bool = False
    """True if no identity is declared for its models, so that the engine is asked."""
    identities: Mapping[ModelName, str] = field(default_factory=dict, hash=False)
    """Known identities of its models."""
    engine: Engine = field(init=False, repr=False, compare=False)
    ran_at: RanAt = field(init=False, repr=False, compare=False)
    own_headers: dict[str, str] = field(init=False, repr=False, compare=False)
    """Headers that every request to the replica carries besides the client's own."""

    def __post_init__(self) -> None:
        engine = Engine(self.url, self.dialect, self.api_key, self.ranks, self.tls)
        rank = {} if self.rank is None else {RANK_HEADER: str(self.rank)}
        object.__setattr__(self, "engine", engine)
        object.__setattr__(self, "ran_at", RanAt(self.replica_id, self.place))
        object.__setattr__(self, "own_headers", {"accept-encoding": "identity", **engine.authorization(), **rank})

    @classmethod
    def from_config(cls, config: ReplicaConfig, contexts: TlsContexts) -> ReplicaEndpoint:
        """Endpoint of a configured replica. Raises ConfigError if its certificates cannot be used."""
        return cls(
            config.spec.replica_id,
            config.spec.place,
            config.url,
            config.dialect,
            config.api_key,
            ranks=config.ranks,
            rank=config.rank,
            tls=None if config.tls is None else contexts.get(config.tls),
            lists_models=config.lists_models,
            takes_cache_salt=config.takes_cache_salt,
            connector=config.connector,
            is_met=config.is_met,
            bootstrap_port=config.bootstrap_port or PORT_DEFAULT,
            side_channel=_side_channel(config),
            is_adopted=config.is_adopted,
            asks_identity=not config.spec.identity,
            identities={model: config.spec.identity_of(model) for model in config.spec.models},
        )


def _side_channel(config: ReplicaConfig) -> SideChannel:
    hosts = {each for each in config.side_channel_hosts if "/" not in each}
    networks = tuple(each for each in config.side_channel_hosts if "/" in each)
    own = urlsplit(config.url).hostname
    return SideChannel(
        frozenset(map(_spelt, {*hosts, *filter(None, (own,))})), networks, _first_port(config), config.ranks
    )


def _first_port(config: ReplicaConfig) -> int | None:
    """Port of the first rank's side channel; None for vllm-ascend with several ranks: it leaves an unknown number of
    ports between two ranks for its tensor- and context-parallel workers."""
    is_spread = config.connector is Connector.ASCEND and config.ranks > 1
    return None if is_spread else config.side_channel_port


def _spelt(host: str) -> str:
    """Canonical spelling of a host."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


class ReplicaEndpoints:
    """Current set of endpoints. It is replaced as a whole; loops that follow it wait for a change."""

    def __init__(self, endpoints: Iterable[ReplicaEndpoint] = ()) -> None:
        self._changed = asyncio.Event()
        self._by_id: dict[ReplicaId, ReplicaEndpoint] = {}
        self._by_engine: dict[Engine, list[ReplicaEndpoint]] = {}
        self._closing_until_ns: dict[str, int] = {}
        self._bootstraps: dict[ReplicaId, Bootstrap] = {}
        self._put(endpoints)

    def get(self, replica_id: ReplicaId) -> ReplicaEndpoint | None:
        return self._by_id.get(replica_id)

    def ids(self) -> list[ReplicaId]:
        return list(self._by_id)

    def engines(self) -> list[Engine]:
        return list(self._by_engine)

    def of(self, engine: Engine) -> list[ReplicaEndpoint]:
        """Replicas that this engine serves; none once it is no longer this gateway's."""
        return self._by_engine.get(engine, [])

    def is_adopted(self, engine: Engine) -> bool:
        """True if the engine is known from other gateways alone and named by no configuration here."""
        return all(each.is_adopted for each in self.of(engine))

    def replace(self, endpoints: Iterable[ReplicaEndpoint]) -> None:
        self._put(endpoints)
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_replaced(self) -> None:
        await self._changed.wait()

    # Bootstraps of prefill workers, for connectors that start both engines at once: each worker reports its own.

    def meets_at(self, endpoint: ReplicaEndpoint, bootstrap: Bootstrap) -> None:
        """Store where a prefill worker is met. Ignored if another engine has taken the replica's id while this one was
        asked."""
        known = self._by_id.get(endpoint.replica_id)
        if known is not None and _asked_of(known) == _asked_of(endpoint):
            self._bootstraps[endpoint.replica_id] = bootstrap

    def bootstrap_of(self, endpoint: ReplicaEndpoint) -> Bootstrap | None:
        return self._bootstraps.get(endpoint.replica_id)

    # Engines that are shutting down: they answer probes as before, and look more and more idle.

    def closes(self, url: str, until_ns: int) -> None:
        """Note that the engine refused a request because it shuts down. The note expires, since nothing reports its
        return."""
        self._closing_until_ns[url] = until_ns

    def is_closing(self, url: str, now_ns: int) -> bool:
        return now_ns < self._closing_until_ns.get(url, now_ns)

    def has_closed(self, url: str) -> None:
        """Remove the note that the engine shuts down: no server answers there, and the next one to start is another."""
        self._closing_until_ns.pop(url, None)

    def _put(self, endpoints: Iterable[ReplicaEndpoint]) -> None:
        asked_before = {each: _asked_of(self._by_id[each]) for each in self._bootstraps}
        self._by_id = {endpoint.replica_id: endpoint for endpoint in endpoints}
        self._by_engine = {}
        for endpoint in self._by_id.values():
            self._by_engine.setdefault(endpoint.engine, []).append(endpoint)
        self._bootstraps = {
            each: met
            for each, met in self._bootstraps.items()
            if each in self._by_id and _asked_of(self._by_id[each]) == asked_before[each]
        }
        urls = {endpoint.url for endpoint in self._by_id.values()}
        self._closing_until_ns = {url: ns for url, ns in self._closing_until_ns.items() if url in urls}


def _asked_of(endpoint: ReplicaEndpoint) -> tuple[Engine, int | None, int, Connector | None]:
    """Identity of the source of a bootstrap; once it changes, the worker has to be asked anew."""
    return endpoint.engine, endpoint.rank, endpoint.bootstrap_port, endpoint.connector
