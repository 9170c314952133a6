"""Interfaces of observers of simulated gateways and controllers. Observers are passed in; a gateway depends on nothing
else of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.core.effects import Effect as Order
from controller.core.events import Event as News
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, PeerSpec, Place, RegionName, ReplicaSpec
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import ControlSnapshot


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """Start parameters of one gateway."""

    gateway_id: GatewayId
    place: Place
    replicas: tuple[ReplicaSpec, ...]
    peers: tuple[PeerSpec, ...]
    policy: ResidencyPolicy
    config: CoreConfig


class GatewayObserver(Protocol):
    """Observer of every step of every gateway, once and in order, before its effects are performed."""

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore, /) -> None:
        """Report that a gateway begins a life, with a fresh core and under this policy, which may differ from its
        spec's."""
        ...

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None: ...


class ControlObserver(Protocol):
    """Observer of every step of the controllers, and of the gateways' knowledge of them."""

    def on_controller_start(self, now_ns: int, term: int, /) -> None:
        """Report that a controller begins a life."""
        ...

    def on_controller_step(self, now_ns: int, clock_ns: int, event: News, effects: list[Order], /) -> None:
        """Report a step; `clock_ns` is the time by the controller's own clock."""
        ...

    def on_store_taken(self, now_ns: int, process: str, /) -> None:
        """Report that a controller's process has taken the store."""
        ...

    def on_store_written(self, now_ns: int, process: str, /) -> None:
        """Report that a controller's write to the store is done."""
        ...

    def on_acting(self, now_ns: int, process: str, /) -> None:
        """Report that a controller acts as the leader in a way that no store token guards."""
        ...

    def on_snapshot_sent(
        self, now_ns: int, snapshot: ControlSnapshot, policies: Mapping[RegionName, ResidencyPolicy], /
    ) -> None:
        """Report a snapshot on its way to its gateway, with the policies that the store has by then."""
        ...

    def on_history_sent(
        self,
        now_ns: int,
        gateway_id: GatewayId,
        history: PoolHistory,
        policies: Mapping[RegionName, ResidencyPolicy],
        /,
    ) -> None:
        """Report the history of a pool on its way to a gateway, before the snapshot that grants the pool, with the
        policies that the store has by then."""
        ...

    def on_snapshot_taken(self, now_ns: int, gateway_id: GatewayId, version: ControlVersion, /) -> None:
        """Report that the gateway serves by this version from now on: the latest it received, or at its start the one
        on disk."""
        ...

    def on_newer_heard(self, now_ns: int, gateway_id: GatewayId, peer: GatewayId, version: ControlVersion, /) -> None:
        """Report a heartbeat by which a peer serves by this version, which is newer than the gateway's own."""
        ...

    def on_struck(self, now_ns: int, gateway_id: GatewayId, /) -> None:
        """Report that a gateway's process, or its host, is gone."""
        ...
