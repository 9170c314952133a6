"""What the parts of the controller's core share: who is registered, how they fare, which policies they live by.

It holds and answers; each part decides about its own.
"""

from __future__ import annotations

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.health import GatewayHealth
from controller.core.vocabulary import Condition, GatewayEntry, ReplicaEntry
from gateway.core.narrowing import narrowed
from gateway.core.residency import ResidencyPolicy, accepted_origins
from gateway.core.vocabulary import GatewayId, PlaceRule, RegionName, ReplicaId

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
        self.narrowings: dict[RegionName, ResidencyPolicy] = {}
        """By region, what we narrow it by; elsewhere the region's own stands alone."""
        self._effective: dict[RegionName, tuple[ResidencyPolicy, ResidencyPolicy, ResidencyPolicy]] = {}
        """By region, its own policy, ours, and what is left of the two."""
        self.geography = Geography()
        self.frozen = ""
        """Why nothing is taken from anybody; empty while that is not so."""

    def effective_policy(self, region: RegionName) -> ResidencyPolicy | None:
        """What a region lives by: its own policy and ours, where there is one. None: its own is not known, and ours
        alone allows nobody anything."""
        own, ours = self.policies.get(region), self.narrowings.get(region)
        if own is None or ours is None:
            return own
        known = self._effective.get(region)
        if known is None or known[0] is not own or known[1] is not ours:
            known = self._effective[region] = own, ours, narrowed(own, ours)
        return known[2]

    def accepted_origins(self, home: GatewayId) -> PlaceRule:
        """Where a request must have arrived that an adopter may give to a replica of this gateway; nowhere while the
        policy of its region is not known."""
        entry = self.gateways.get(home)
        policy = None if entry is None else self.effective_policy(entry.place.region)
        return PlaceRule() if policy is None else accepted_origins(policy)

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
