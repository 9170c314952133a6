"""The replicas that are ours while the gateway runs: named in the region file, found by name, probed, and followed when
the file changes. It wires the edges that take part and decides nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from structlog.typing import FilteringBoundLogger

from gateway.config.sections import GatewayConfig
from gateway.config.targets import DnsReplicasConfig, ReplicaConfig
from gateway.core.events import Event
from gateway.discovery.assignments import Assignments
from gateway.discovery.discovery import Discovery
from gateway.discovery.dns import DnsSource
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.models import ModelWatcher
from gateway.engines.prober import Prober
from gateway.engines.tls import TlsContexts
from gateway.ground.clock import Clock

_SECOND_NS = 1_000_000_000
_GRACE_S = 0.5
"""On top of what the first lookups and lists may take, before the gateway goes on without them."""


class Fleet:
    """One gateway's replicas."""

    def __init__(
        self,
        config: GatewayConfig,
        submit: Callable[[Event], None],
        clock: Clock,
        log: FilteringBoundLogger,
        on_restart: Callable[[str, Exception], None],
    ) -> None:
        """Raises ConfigError where an engine's certificates cannot be used."""
        self.endpoints = ReplicaEndpoints()
        self._config = config
        self._log = log
        self._contexts = _contexts(config)
        self._assignments = Assignments(submit, self._follow)
        self._prober = Prober(self.endpoints, clock, config.probes, submit, on_restart)
        self._models = ModelWatcher(
            self.endpoints, clock, config.probes, self._assignments.listed, log=log, on_restart=on_restart
        )
        self._discovery = Discovery(map(self._source, config.dns_replicas), self._assignments.found)
        self._configure(config)

    def loops(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What has to run for as long as the gateway does, by name."""
        return [
            ("discovery", self._discovery.run),
            ("prober", self._prober.run),
            ("models", self._models.run),
        ]

    async def start(self) -> None:
        """Tell the core of the first replicas, once the loops run. Names and engines that do not answer in time are
        waited for no longer; what they say later is taken in then."""
        await _within(self._discovery.first_look(), self._config.discovery.timeout_ns / _SECOND_NS + _GRACE_S)
        self._assignments.start()
        await _within(self._models.first_round(), self._config.probes.timeout_ns / _SECOND_NS + _GRACE_S)

    def prepare(self, config: GatewayConfig) -> Callable[[], None]:
        """What puts another config in force, at once. Raises ConfigError here, and never then."""
        contexts = _contexts(config, self._contexts)

        def apply() -> None:
            self._contexts = contexts
            sources = {source.config: source for source in self._dns_sources()}
            is_kept = config.discovery == self._config.discovery
            self._config = config
            self._discovery.replace(
                sources[each] if is_kept and each in sources else self._source(each) for each in config.dns_replicas
            )
            self._prober.configure(config.probes)
            self._models.configure(config.probes)
            self._configure(config)

        return apply

    def _configure(self, config: GatewayConfig) -> None:
        names = [source.name for source in self._discovery.sources]
        self._assignments.configure(config.replicas, (peer.spec for peer in config.peers), names)

    def _follow(self, replicas: Iterable[ReplicaConfig]) -> None:
        self.endpoints.replace(ReplicaEndpoint.from_config(each, self._contexts) for each in replicas)

    def _source(self, config: DnsReplicasConfig) -> DnsSource:
        return DnsSource(config, self._config.discovery, self._log)

    def _dns_sources(self) -> list[DnsSource]:
        return [source for source in self._discovery.sources if isinstance(source, DnsSource)]


def check_engine_certificates(config: GatewayConfig) -> None:
    """Raises ConfigError."""
    _contexts(config)


def _contexts(config: GatewayConfig, older: TlsContexts | None = None) -> TlsContexts:
    """With every certificate read, so that replicas found later need none."""
    contexts = TlsContexts(older)
    for replica in (*config.replicas, *(each.template for each in config.dns_replicas)):
        if replica.tls is not None:
            contexts.get(replica.tls)
    return contexts


async def _within(wait: Awaitable[None], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait
    except TimeoutError:
        pass  # whoever is late is taken in when it comes
