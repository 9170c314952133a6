"""State that the parts of the controller's core share: registered gateways and replicas, their health, the policies.

The state is held and queried here; each part makes its own decisions.
"""

from __future__ import annotations

from controller.core.config import ControllerConfig
from controller.core.geography import Geography
from controller.core.health import GatewayHealth
from controller.core.vocabulary import Condition, GatewayEntry, GrantRefusal, ReplicaEntry
from gateway.core.kernel.narrowing import narrowed
from gateway.core.kernel.residency import ResidencyPolicy, accepted_origins
from gateway.core.vocabulary import GatewayId, PlaceRule, RegionName, ReplicaId

HOLDS = frozenset({Condition.UP, Condition.UNKNOWN, Condition.ALONE})
"""Conditions in which a gateway keeps its replicas."""


class MeshState:
    """One mesh as the controller knows it."""

    def __init__(self) -> None:
        self.config = ControllerConfig()
        self.gateways: dict[GatewayId, GatewayEntry] = {}
        self.replicas: dict[ReplicaId, ReplicaEntry] = {}
        self.health: dict[GatewayId, GatewayHealth] = {}
        self.policies: dict[RegionName, ResidencyPolicy] = {}
        """Policy of each region: what all policies allow that its gateways have reported; adoptions rest on it."""
        self.told_ns: dict[GatewayId, int] = {}
        """Time of each gateway's last report on its peers."""
        self.reported: dict[GatewayId, ResidencyPolicy] = {}
        """Last policy that each gateway has reported for its region since the controller began."""
        self.narrowings: dict[RegionName, ResidencyPolicy] = {}
        """Policy by which the controller narrows a region's own, by region; elsewhere the region's own stands alone."""
        self._effective: dict[RegionName, tuple[ResidencyPolicy, ResidencyPolicy, ResidencyPolicy]] = {}
        """Region's own policy, the controller's, and the result of narrowing the one by the other, by region."""
        self.refusals: dict[GatewayId, dict[ReplicaId, GrantRefusal]] = {}
        """Granted replicas that gateways report as left out and are not offered again for a while, by gateway. A
        gateway's own replicas are never among them."""
        self.geography = Geography()
        self.frozen = ""
        """Reason why failover and reassignment are suspended; empty while they are not."""

    def effective_policy(self, region: RegionName) -> ResidencyPolicy | None:
        """Return the policy in force in a region: its own, narrowed by the controller's where there is one. None where
        its own is not known: the controller's alone allows nothing."""
        own, ours = self.policies.get(region), self.narrowings.get(region)
        if own is None or ours is None:
            return own
        known = self._effective.get(region)
        if known is None or known[0] is not own or known[1] is not ours:
            known = self._effective[region] = own, ours, narrowed(own, ours)
        return known[2]

    def accepted_origins(self, home: GatewayId) -> PlaceRule:
        """Return the places where a request may have entered the mesh for an adopter to send it to a replica of `home`;
        no place while the policy of the home's region is not known."""
        entry = self.gateways.get(home)
        policy = None if entry is None else self.effective_policy(entry.place.region)
        return PlaceRule() if policy is None else accepted_origins(policy)

    def living(self) -> list[GatewayEntry]:
        """Gateways that are up, or have announced themselves and are not known to be down."""
        return [entry for entry in self.gateways.values() if self._lives(entry)]

    def _lives(self, entry: GatewayEntry) -> bool:
        condition = self.health[entry.gateway_id].condition
        return condition is Condition.UP or (condition is Condition.UNKNOWN and entry.is_announced)

    def holds(self, gateway_id: GatewayId) -> bool:
        """True if the gateway keeps its replicas."""
        return self.health[gateway_id].condition in HOLDS

    def takers(self) -> list[GatewayEntry]:
        """Gateways that may be given replicas: up and not drained; never one not heard from yet."""
        return [
            entry
            for entry in self.gateways.values()
            if not entry.is_drained and self.health[entry.gateway_id].condition is Condition.UP
        ]

    def alone(self) -> set[GatewayId]:
        """Gateways that are given their own replicas and no others."""
        return {
            gateway_id
            for gateway_id, entry in self.gateways.items()
            if not entry.is_drained and self.health[gateway_id].condition is Condition.ALONE
        }

    def heard(self) -> dict[GatewayId, int]:
        """Gateways with an open stream, each with the time of its last report on its peers; 0 before the first."""
        return {each: self.told_ns.get(each, 0) for each, health in self.health.items() if health.connected}
