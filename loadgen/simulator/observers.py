"""What those who watch simulated gateways are told. They are handed in, and a gateway knows no more of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.core.config import CoreConfig
from gateway.core.effects import Effect
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, PeerSpec, Place, ReplicaSpec


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What one gateway is told when it starts."""

    gateway_id: GatewayId
    place: Place
    replicas: tuple[ReplicaSpec, ...]
    peers: tuple[PeerSpec, ...]
    policy: ResidencyPolicy
    config: CoreConfig


class GatewayObserver(Protocol):
    """Sees every step of every gateway once and in order, before its effects are performed."""

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        """A gateway begins a life, with a fresh core and under this policy, which need not be that of its spec."""
        ...

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None: ...
