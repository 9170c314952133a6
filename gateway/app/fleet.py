"""Replicas of a running gateway: named in the region file or discovered, probed, and followed when the file changes. It
wires the edges that take part and decides nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from structlog.typing import FilteringBoundLogger

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.config.targets import DnsReplicasConfig, KubernetesReplicasConfig, ReplicaConfig
from gateway.core.events import Event
from gateway.core.vocabulary import PoolName
from gateway.discovery.adoptions import Adoptions
from gateway.discovery.assignments import Assignments
from gateway.discovery.discovery import Discovery
from gateway.engines.bootstraps import BootstrapWatcher
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.models import ModelWatcher
from gateway.engines.prober import EngineProber
from gateway.engines.tls import TlsContexts
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.regions import found_fault, network_fault
from mesh.supervisor import Supervisor

if TYPE_CHECKING:
    from gateway.discovery.dns import DnsSource
    from gateway.discovery.kubernetes import KubernetesSource

_SECOND_NS = 1_000_000_000
_GRACE_S = 0.5
"""Seconds added to the time-outs of the first lookups and lists, before the gateway goes on without them."""

_NO_TABLE = "this region has no usable policy, and so no table of regions, and its networks are not named"

FoundConfig = DnsReplicasConfig | KubernetesReplicasConfig


class ReplicaFleet:
    """Replicas of one gateway."""

    def __init__(
        self,
        config: GatewayConfig,
        orders: Orders,
        submit: Callable[[Event], None],
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        on_restart: Callable[[str, Exception], None],
        on_misplaced: Callable[[Mapping[str, str]], None],
        on_followed: Callable[[Sequence[ReplicaConfig]], None],
    ) -> None:
        """`on_followed` gets the replicas before the core does; `on_misplaced` those that a cluster reports where the
        operators' table does not allow them, with reasons. Raises ConfigError where an engine's certificates cannot be
        used."""
        self.endpoints = ReplicaEndpoints()
        self.left_out: dict[str, str] = {}
        """Reasons, by id, why replicas granted by a controller cannot be served here."""
        self.refused: dict[str, str] = {}
        """Reasons, by id, why granted replicas cannot be served as they are described."""
        self.unread: Mapping[PoolName, tuple[Path, ...]] = {}
        """Files that adopted pools name and that may not be read here."""
        self._config = config
        self._log = log
        self._on_misplaced = on_misplaced
        self._on_followed = on_followed
        self._found: dict[str, tuple[ReplicaConfig, ...]] = {}
        """Discovered replicas by source, before those that may not be used are removed."""
        self._contexts = _contexts(config)
        self._assignments = Assignments(submit, self._follow)
        self._adoptions = Adoptions(clock, config.control, self._apply_orders)
        self._prober = EngineProber(
            self.endpoints, clock, config.probes, submit, on_restart, on_adopted=self._adoptions.looked_at
        )
        self._models = ModelWatcher(
            self.endpoints,
            clock,
            config.probes,
            self._assignments.listed,
            self._assignments.identified,
            log=log,
            on_restart=on_restart,
        )
        self._bootstraps = BootstrapWatcher(self.endpoints, clock, config.probes, log=log, on_restart=on_restart)
        self._discovery = Discovery(map(self._source, _found_by(config)), self._take_in)
        self._configure(config, orders, _unusable(orders, self._contexts))

    async def start(self, loops: Supervisor) -> None:
        """Run the loops for the gateway's lifetime, and tell the core of the first replicas. Lookups and engines that
        miss their time-out are not waited for; their later answers are taken as they come."""
        loops.run("discovery", self._discovery.run)
        loops.run("prober", self._prober.run)
        loops.run("adoptions", self._adoptions.run)
        loops.run("models", self._models.run)
        loops.run("bootstraps", self._bootstraps.run)
        await _within(self._discovery.first_look(), self._config.discovery.timeout_ns / _SECOND_NS + _GRACE_S)
        self._assignments.start()
        await _within(self._models.first_round(), self._config.probes.timeout_ns / _SECOND_NS + _GRACE_S)

    def prepare(self, config: GatewayConfig, orders: Orders) -> Callable[[], None]:
        """Return a function that puts another config and other orders in force at once. Raises ConfigError here; the
        function never does."""
        contexts = _contexts(config, self._contexts)
        unusable = _unusable(orders, contexts)

        def apply() -> None:
            self._contexts = contexts
            kept = list(self._sources()) if config.discovery == self._config.discovery else []
            self._config = config
            self._discovery.replace(
                next((source for source in kept if source.config == each), None) or self._source(each)
                for each in _found_by(config)
            )
            self._prober.configure(config.probes)
            self._models.configure(config.probes)
            self._bootstraps.configure(config.probes)
            self._configure(config, orders, unusable)

        return apply

    def _configure(self, config: GatewayConfig, orders: Orders, unusable: dict[str, str]) -> None:
        self._orders, self._unusable = orders, unusable
        self.refused = {**orders.left_out, **unusable}
        self._adoptions.configure(config.control, (each for each in orders.replicas if each.is_adopted))
        names = [source.name for source in self._discovery.sources]
        self._assignments.configure(config.replicas, (peer.spec for peer in orders.peers), names, config.pools)
        self._found = {name: self._found[name] for name in names if name in self._found}
        self._place_found()
        self._apply_orders()

    def _take_in(self, source: str, replicas: tuple[ReplicaConfig, ...]) -> None:
        self._found[source] = replicas
        self._place_found()

    def _place_found(self) -> None:
        """Check discovered replicas: the addresses that a cluster reports count only within the operators' table, or
        within the region file's networks instead."""
        misplaced: dict[str, str] = {}
        for source, replicas in self._found.items():
            faults = self._faults(source, replicas)
            placed = tuple(each for each in replicas if each.spec.replica_id not in faults)
            self._assignments.found(source, placed)
            misplaced |= {f"replica {name}": why for name, why in faults.items()}
        self._on_misplaced(misplaced)

    def _faults(self, source: str, replicas: tuple[ReplicaConfig, ...]) -> dict[str, str]:
        """Reasons, by id, why discovered replicas are not used."""
        config = next(each.config for each in self._sources() if each.name == source)
        if not isinstance(config, KubernetesReplicasConfig):
            return {}
        found = {each.spec.replica_id: self._fault(config, each) for each in replicas}
        return {name: why for name, why in found.items() if why}

    def _fault(self, config: KubernetesReplicasConfig, replica: ReplicaConfig) -> str:
        """Fault of a replica's address. The source checked it by the region file of that time; after a change of the
        file it is checked again."""
        if config.networks:
            return network_fault(config.networks, replica.url)
        regions = self._orders.regions
        if regions is not None:
            return found_fault(regions, replica.spec.place, replica.url)
        return "" if self._config.policy_file is None else _NO_TABLE

    def _apply_orders(self) -> None:
        """Assign the controller's replicas, without those that cannot be served here."""
        orders, unusable = self._orders, {**self._unusable, **self._adoptions.given_up(self._orders.replicas)}
        self._tell_of_left_out({**orders.left_out, **unusable})
        self._tell_of_unread(orders.unread)
        ordered = (each for each in orders.replicas if each.spec.replica_id not in unusable)
        self._assignments.order(ordered, orders.away | self.left_out.keys(), orders.version, orders.pools)

    def _tell_of_left_out(self, left_out: dict[str, str]) -> None:
        """Log each replica left out, once per reason."""
        for replica_id, why in left_out.items():
            if self.left_out.get(replica_id) != why:
                self._log.error("assigned_replica_unservable", replica=replica_id, reason=why)
        self.left_out = left_out

    def _tell_of_unread(self, unread: Mapping[PoolName, tuple[Path, ...]]) -> None:
        """Log each file that an adopted pool does without, once."""
        for pool, paths in unread.items():
            if self.unread.get(pool) != paths:
                self._log.error("adopted_pool_file_not_read", pool=pool, files=[str(path) for path in paths])
        self.unread = unread

    def _follow(self, replicas: Sequence[ReplicaConfig]) -> None:
        self.endpoints.replace(ReplicaEndpoint.from_config(each, self._contexts) for each in replicas)
        self._on_followed(replicas)

    def _source(self, config: FoundConfig) -> DnsSource | KubernetesSource:
        """Import each kind of source only where it is configured: most gateways have neither, and start sooner."""
        match config:
            case DnsReplicasConfig():
                from gateway.discovery.dns import DnsSource  # noqa: PLC0415 - as above

                return DnsSource(config, self._config.discovery, self._log)
            case KubernetesReplicasConfig():
                from gateway.discovery.kubernetes import KubernetesSource  # noqa: PLC0415 - as above

                return KubernetesSource(config, self._config.discovery, self._log)

    def _sources(self) -> Iterator[DnsSource | KubernetesSource]:
        for source in self._discovery.sources:
            yield cast("DnsSource | KubernetesSource", source)  # all come from _source()


def _found_by(config: GatewayConfig) -> tuple[FoundConfig, ...]:
    return (*config.dns_replicas, *config.kubernetes_replicas)


def check_engine_certificates(config: GatewayConfig) -> None:
    """Check the engines' certificates. Raises ConfigError."""
    _contexts(config)


def _contexts(config: GatewayConfig, older: TlsContexts | None = None) -> TlsContexts:
    """Contexts with every certificate read, so that replicas discovered later need none read."""
    contexts = TlsContexts(older)
    for replica in (*config.replicas, *config.templates):
        if replica.tls is not None:
            contexts.get(replica.tls)
    return contexts


def _unusable(orders: Orders, contexts: TlsContexts) -> dict[str, str]:
    """Reasons, by id, why replicas' certificates cannot be used on this machine. The others' are read."""
    unusable: dict[str, str] = {}
    for replica in orders.replicas:
        try:
            if replica.tls is not None:
                contexts.get(replica.tls)
        except ConfigError as error:
            unusable[replica.spec.replica_id] = str(error)
    return unusable


async def _within(wait: Awaitable[None], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        pass  # late answers are taken when they come
