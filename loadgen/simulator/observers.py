"""What those who watch simulated gateways are told. They are handed in, and a gateway knows no more of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from controller.core.effects import Effect as Order
from controller.core.events import Event as News
from gateway.core.config import CoreConfig
from gateway.core.effects import Effect
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, PeerSpec, Place, ReplicaSpec
from gateway.ground.control.vocabulary import Snapshot


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

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore, /) -> None:
        """A gateway begins a life, with a fresh core and under this policy, which need not be that of its spec."""
        ...

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None: ...


class ControlObserver(Protocol):
    """Sees every step of the controller, and what gateways get to know of it."""

    def on_controller_start(self, now_ns: int, term: int, /) -> None:
        """It begins a life."""
        ...

    def on_controller_step(self, now_ns: int, clock_ns: int, event: News, effects: list[Order], /) -> None:
        """`clock_ns` is what the controller takes for the time."""
        ...

    def on_store_taken(self, now_ns: int, process: str, /) -> None:
        """A controller's process has come to have the store."""
        ...

    def on_store_written(self, now_ns: int, process: str, /) -> None:
        """What it wanted to be written is."""
        ...

    def on_acting(self, now_ns: int, process: str, /) -> None:
        """It takes itself for the leader, and changes something that asks for no token."""
        ...

    def on_snapshot_sent(self, now_ns: int, snapshot: Snapshot, /) -> None: ...

    def on_snapshot_taken(self, now_ns: int, gateway_id: GatewayId, version: ControlVersion, /) -> None:
        """The gateway serves by this one from now on: the last it got, or at its start the one on its disk."""
        ...

    def on_newer_heard(self, now_ns: int, gateway_id: GatewayId, peer: GatewayId, version: ControlVersion, /) -> None:
        """A heartbeat says that this peer serves by this one, which is newer than the gateway's own."""
        ...

    def on_struck(self, now_ns: int, gateway_id: GatewayId, /) -> None:
        """A gateway's process, or its host, is gone."""
        ...
