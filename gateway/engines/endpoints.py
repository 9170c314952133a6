"""Where the replicas we own are reached, as the newest assignment says. It opens no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.vocabulary import Connector, Place, ReplicaId
from gateway.engines.handoff.bootstrap import PORT_DEFAULT, Bootstrap
from gateway.engines.tls import EngineTls, TlsContexts
from gateway.request.legs import RanAt
from gateway.request.side_channels import NOWHERE, SideChannel

RANK_HEADER = "x-data-parallel-rank"
"""Pins a request to one rank; vLLM and SGLang read the same one."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One server: whoever speaks at a URL. Several replicas may stand for its data-parallel ranks."""

    url: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)
    ranks: int = 1
    tls: EngineTls | None = None

    def authorization(self) -> dict[str, str]:
        """The gateway's own key for this engine; a client's key never gets this far."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True, slots=True)
class ReplicaEndpoint:
    replica_id: ReplicaId
    place: Place
    url: str
    """Without a slash at the end; the path of each API call is added to it."""
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)
    ranks: int = 1
    rank: int | None = None
    """The data-parallel rank that this replica is, if it is one."""
    tls: EngineTls | None = None
    lists_models: bool = False
    takes_cache_salt: bool = False
    connector: Connector | None = None
    """Of a prefill or decode worker: how its pool hands over."""
    is_met: bool = False
    """It is a prefill worker that decode workers meet: it has to say where."""
    bootstrap_port: int = PORT_DEFAULT
    side_channel: SideChannel = NOWHERE
    """Of a prefill worker whose answers name one: what is said of it, besides where the worker itself is reached."""
    is_adopted: bool = False
    """Another gateway has said where it is."""
    engine: Engine = field(init=False, repr=False, compare=False)
    ran_at: RanAt = field(init=False, repr=False, compare=False)
    own_headers: dict[str, str] = field(init=False, repr=False, compare=False)
    """What every request to it carries besides the client's own headers."""

    def __post_init__(self) -> None:
        engine = Engine(self.url, self.dialect, self.api_key, self.ranks, self.tls)
        rank = {} if self.rank is None else {RANK_HEADER: str(self.rank)}
        object.__setattr__(self, "engine", engine)
        object.__setattr__(self, "ran_at", RanAt(self.replica_id, self.place))
        object.__setattr__(self, "own_headers", {"accept-encoding": "identity", **engine.authorization(), **rank})

    @classmethod
    def from_config(cls, config: ReplicaConfig, contexts: TlsContexts) -> ReplicaEndpoint:
        """Raises ConfigError where its certificates cannot be used."""
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
        )


def _side_channel(config: ReplicaConfig) -> SideChannel:
    hosts = {each for each in config.side_channel_hosts if "/" not in each}
    networks = tuple(each for each in config.side_channel_hosts if "/" in each)
    own = urlsplit(config.url).hostname
    return SideChannel(
        frozenset(map(_spelt, {*hosts, *filter(None, (own,))})), networks, _first_port(config), config.ranks
    )


def _first_port(config: ReplicaConfig) -> int | None:
    """vllm-ascend leaves room for its tensor and context parallel workers between the ports of two ranks, and how many
    those are is not known here."""
    is_spread = config.connector is Connector.ASCEND and config.ranks > 1
    return None if is_spread else config.side_channel_port


def _spelt(host: str) -> str:
    """In the usual spelling."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


class ReplicaEndpoints:
    """The current set. Replaced whole; whoever follows it waits for a change."""

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
        """The replicas that this engine is; none once it is no longer ours."""
        return self._by_engine.get(engine, [])

    def is_adopted(self, engine: Engine) -> bool:
        """Nobody here has named it."""
        return all(each.is_adopted for each in self.of(engine))

    def replace(self, endpoints: Iterable[ReplicaEndpoint]) -> None:
        self._put(endpoints)
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_replaced(self) -> None:
        await self._changed.wait()

    # Where a prefill worker is met, of connectors that start both engines at once: it says so itself.

    def meets_at(self, endpoint: ReplicaEndpoint, bootstrap: Bootstrap) -> None:
        """Nothing, where another engine has taken the replica's id while this one was asked."""
        known = self._by_id.get(endpoint.replica_id)
        if known is not None and _asked_of(known) == _asked_of(endpoint):
            self._bootstraps[endpoint.replica_id] = bootstrap

    def bootstrap_of(self, endpoint: ReplicaEndpoint) -> Bootstrap | None:
        return self._bootstraps.get(endpoint.replica_id)

    # An engine that is shutting down answers probes as before, and idler from one to the next.

    def closes(self, url: str, until_ns: int) -> None:
        """It said so to a request. Believed for a while, since nothing tells when it has come back."""
        self._closing_until_ns[url] = until_ns

    def is_closing(self, url: str, now_ns: int) -> bool:
        return now_ns < self._closing_until_ns.get(url, now_ns)

    def has_closed(self, url: str) -> None:
        """Nobody listens there any more: whoever comes up next is another."""
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
    """Who said where a prefill worker is met, and of what: from anybody else it has to be heard anew."""
    return endpoint.engine, endpoint.rank, endpoint.bootstrap_port, endpoint.connector
