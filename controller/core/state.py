"""What the parts of the controller's core share: who is registered, how they fare, which policies they live by.

It holds and answers; each part decides about its own.
"""

from __future__ import annotations

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.health import GatewayHealth
from controller.core.vocabulary import Condition, GatewayEntry, ReplicaEntry
from gateway.core.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, RegionName, ReplicaId

HOLDS = frozenset({Condition.UP, Condition.UNKNOWN})
"""Whoever fares so keeps what it has."""


class MeshState:
    """One mesh, as the controller knows it."""

    def __init__(self) -> None:
        self.config = ControllerConfig()
        self.gateways: dict[GatewayId, GatewayEntry] = {}
        self.replicas: dict[ReplicaId, ReplicaEntry] = {}
        self.health: dict[GatewayId, GatewayHealth] = {}
        self.policies: dict[RegionName, ResidencyPolicy] = {}
        """By region, the last one that a gateway of it lived by. What was adopted under it rests on it."""
        self.geography = Geography()
        self.frozen = ""
        """Why nothing is taken from anybody; empty while that is not so."""

    def living(self) -> list[GatewayEntry]:
        """With those that nobody can say are dead."""
        return [entry for entry in self.gateways.values() if self.health[entry.gateway_id].condition in HOLDS]

    def takers(self) -> list[GatewayEntry]:
        """Who may be given anything new: never one that was not heard of yet."""
        return [
            entry
            for entry in self.gateways.values()
            if not entry.is_drained and self.health[entry.gateway_id].condition is Condition.UP
        ]

    def heard(self) -> list[GatewayId]:
        """Those with an open stream."""
        return [gateway_id for gateway_id, health in self.health.items() if health.connected]
