"""What the controller's core orders. Whoever drives it performs these in order; only differences are ordered."""

from __future__ import annotations

from controller.core.vocabulary import Condition
from gateway.core.residency import ResidencyPolicy
from gateway.core.value import value
from gateway.core.vocabulary import GatewayId, ReplicaId
from gateway.ground.naming.tree import RecordTree


@value
class Assign:
    """From this version on these replicas, and no others, are that gateway's. It may be told late, or never."""

    gateway_id: GatewayId
    version: int
    replicas: tuple[ReplicaId, ...]
    """By name."""


@value
class KeepOwners:
    """Write down who has what, before any gateway is told."""

    version: int
    owners: tuple[tuple[ReplicaId, GatewayId], ...]
    """Of the replicas that changed hands."""
    orphans: tuple[ReplicaId, ...]
    """Those that nobody has any more."""


@value
class KeepPolicy:
    """Write down the policy that a region lives by: what it had another region take rests on it."""

    policy: ResidencyPolicy


@value
class PublishRecords:
    tree: RecordTree


@value
class StartRecovery:
    """A gateway is down: whatever brings it back may begin."""

    gateway_id: GatewayId
    why: str


@value
class TellCondition:
    """For the log, the alerts and whoever asks."""

    gateway_id: GatewayId
    condition: Condition
    why: str


@value
class TellFrozen:
    """Nothing is taken from anybody while this lasts."""

    reason: str
    """Empty: it is over."""


@value
class TellOrphans:
    """Replicas of one gateway that nobody may take."""

    gateway_id: GatewayId
    replicas: int
    why: str


Effect = Assign | KeepOwners | KeepPolicy | PublishRecords | StartRecovery | TellCondition | TellFrozen | TellOrphans
