"""KV events, outside the core: subscriptions to the engines that publish them, and their series."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.config.targets import ReplicaConfig
from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.core.features.kv_events.engine_cache import TieResult
from gateway.core.features.kv_events.events import CacheChange, EngineTold, EngineUnheard, UnheardReason
from gateway.core.features.kv_events.feature import kv_events_of
from gateway.core.gateway_core import GatewayCore
from gateway.core.vocabulary import ReplicaId
from gateway.features.extension import Extension, Host
from gateway.features.kv_events.metrics import KvEventLevels
from gateway.features.kv_events.subscriber import EventsAddress, KvEventsSubscriber
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor

_BLOCK_BYTES = 600
"""Memory of a block of an engine."""
_CHAINS_BYTES = 2 * 16 * 2**20
"""Memory of the prompts' chains that blocks of one engine are tied to, and of those that wait to be."""
_ANSWERS_BYTES = 2**20
"""Memory of an engine's answers that wait, beside their chains."""


class KvEventsExtension(Extension):
    """Subscribers of engines' events, one for each replica that publishes them."""

    name = "kv_events"
    is_live = True
    labels: ClassVar = {
        ("nightside_kv_events_answers_total", "result"): Label(
            "Result of tying blocks to its prompt.", tuple(TieResult)
        ),
        ("nightside_kv_events_unheard_total", "reason"): Label("Reason.", tuple(UnheardReason)),
        ("nightside_kv_events_blocks", "tie"): Label("`tied` to a prompt, or `untied`.", ("tied", "untied")),
    }

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        self._host = host
        self._bounds = config.core.kv_events
        self._loops: Supervisor | None = None
        self._wanted: dict[ReplicaId, EventsAddress] = {}
        self._subscribers: dict[ReplicaId, KvEventsSubscriber] = {}
        self._stops: dict[ReplicaId, Callable[[], object]] = {}
        self._rng = random.Random(config.gateway_id)
        levels = KvEventLevels(kv_events_of(host.core), lambda: self._subscribers)
        host.metrics.registry.register(levels)

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:
        registry.register(KvEventLevels(kv_events_of(core), dict))

    @staticmethod
    def placement_bytes_max(config: GatewayConfig, /) -> int:
        telling = sum(each.spec.tells_cache for each in (*config.replicas, *config.templates))
        if not telling:
            return 0
        blocks = telling * (config.core.kv_events.blocks_max * _BLOCK_BYTES + _CHAINS_BYTES + _ANSWERS_BYTES)
        return blocks + config.core.placement.prefix_index_bytes_max

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:  # noqa: ARG002
        self._bounds = orders.core.kv_events

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:  # noqa: ARG002
        self._loops = loops
        self._subscribe()

    def follow(self, replicas: Sequence[ReplicaConfig], /) -> None:
        addresses = ((each.spec.replica_id, address_of(each)) for each in replicas)
        self._wanted = {replica_id: address for replica_id, address in addresses if address is not None}
        self._subscribe()

    def describe(self) -> dict[str, object]:
        told = kv_events_of(self._host.core)
        return {
            replica_id: {"is_followed": each.is_connected, "fault": each.fault, **told.described(replica_id)}
            for replica_id, each in self._subscribers.items()
        }

    def _subscribe(self) -> None:
        """Follow the wanted engines, and no others."""
        if self._loops is None:
            return
        for replica_id, subscriber in list(self._subscribers.items()):
            if self._wanted.get(replica_id) != subscriber.address:
                del self._subscribers[replica_id]
                self._stops.pop(replica_id)()
                _CoreOfOne(replica_id, self._host).unhear(UnheardReason.STOPPED)
        for replica_id, address in self._wanted.items():
            if replica_id not in self._subscribers:
                subscriber = self._subscribers[replica_id] = self._made(replica_id, address)
                self._stops[replica_id] = self._loops.run("kv_events", subscriber.run)

    def _made(self, replica_id: ReplicaId, address: EventsAddress) -> KvEventsSubscriber:
        host = self._host
        return KvEventsSubscriber(
            replica_id,
            address,
            _CoreOfOne(replica_id, host),
            bounds=self._bounds_in_force,
            clock=host.clock,
            log=host.log,
            rng=self._rng,
        )

    def _bounds_in_force(self) -> KvEventsConfig:
        return self._bounds


class _CoreOfOne:
    """Core of the gateway, as the subscriber of one engine sees it."""

    def __init__(self, replica_id: ReplicaId, host: Host) -> None:
        self._replica_id = replica_id
        self._host = host

    def tell(self, changes: tuple[CacheChange, ...], *, is_first: bool) -> None:
        self._host.submit(EngineTold(self._replica_id, changes, is_first))

    def unhear(self, reason: UnheardReason) -> None:
        self._host.submit(EngineUnheard(self._replica_id, reason))

    def hears(self) -> bool:
        return kv_events_of(self._host.core).hears(self._replica_id)


def address_of(replica: ReplicaConfig) -> EventsAddress | None:
    """Address at which a replica's engine publishes; None: it does not. Each rank has ports of its own."""
    host = urlsplit(replica.url).hostname
    if replica.kv_events_port is None or host is None:
        return None
    rank, replay = replica.rank or 0, replica.kv_events_replay_port
    return EventsAddress(host, replica.kv_events_port + rank, None if replay is None else replay + rank, replica.url)
