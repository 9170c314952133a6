"""Effects of the controller's core. The driver performs them in order; only differences are emitted."""

from __future__ import annotations

from msgspec import Struct

from controller.core.vocabulary import Condition
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, ReplicaId
from mesh.naming.tree import RecordTree


class Assign(Struct, frozen=True):
    """Give a gateway these replicas and no others from this version on. The message may arrive late, or never."""

    gateway_id: GatewayId
    version: int
    replicas: tuple[ReplicaId, ...]
    """Sorted by name."""


class KeepOwners(Struct, frozen=True):
    """Store the assignment, before any gateway is told of it."""

    version: int
    owners: tuple[tuple[ReplicaId, GatewayId], ...]
    """New owners of the replicas whose owner changed."""
    orphans: tuple[ReplicaId, ...]
    """Replicas that had an owner and have none."""


class KeepPolicy(Struct, frozen=True):
    """Store the policy in force in a region: adoptions by other regions rest on it."""

    policy: ResidencyPolicy


class PublishRecords(Struct, frozen=True):
    tree: RecordTree


class StartRecovery(Struct, frozen=True):
    """Start the recovery of a gateway that is down, by the configured means."""

    gateway_id: GatewayId
    why: str


class TellCondition(Struct, frozen=True):
    """Report a gateway's condition to the log, the alerts and status queries."""

    gateway_id: GatewayId
    condition: Condition
    why: str


class TellFrozen(Struct, frozen=True):
    """Report a freeze, in which failover and reassignment are suspended."""

    reason: str
    """Reason of the freeze; empty: it is over."""


class TellOrphans(Struct, frozen=True):
    """Report the number of a home gateway's replicas that no gateway may serve; 0: none is left."""

    gateway_id: GatewayId
    replicas: int
    why: str


Effect = Assign | KeepOwners | KeepPolicy | PublishRecords | StartRecovery | TellCondition | TellFrozen | TellOrphans
