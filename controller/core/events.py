"""Events of the controller's core. Times are of the driver's clock, in nanoseconds."""

from __future__ import annotations

from msgspec import Struct

from controller.core.config import ControllerConfig
from controller.core.vocabulary import GatewayEntry, HeardPeer, ReplicaEntry
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, ReplicaId


class ControllerConfigApplied(Struct, frozen=True):
    config: ControllerConfig


class RegistryApplied(Struct, frozen=True):
    """All registered gateways and replicas; replaces the earlier registry."""

    gateways: tuple[GatewayEntry, ...]
    replicas: tuple[ReplicaEntry, ...]


class StateRestored(Struct, frozen=True):
    """Owners, gateways that were down and policies in force, as the controller last stored them. Comes before the
    registry."""

    version: int
    owners: tuple[tuple[ReplicaId, GatewayId], ...]
    policies: tuple[ResidencyPolicy, ...]
    """One policy per region."""
    down: tuple[GatewayId, ...] = ()
    """Gateways known to be down; they stay down until they answer."""


class NarrowingApplied(Struct, frozen=True):
    """All policies by which the controller narrows the regions' own; replaces earlier ones. After a start the event
    comes before the registry, so that nothing is assigned against it."""

    policies: tuple[ResidencyPolicy, ...]
    """One policy per region."""


class GatewayConnected(Struct, frozen=True):
    """A gateway's stream is open; the gateway reports the policy in force in its region."""

    gateway_id: GatewayId
    policy: ResidencyPolicy


class PolicyAccepted(Struct, frozen=True):
    """A gateway has switched to another policy."""

    gateway_id: GatewayId
    policy: ResidencyPolicy


class GatewayDisconnected(Struct, frozen=True):
    gateway_id: GatewayId
    detail: str


class GatewayProbed(Struct, frozen=True):
    """Result of a health probe that the controller made itself."""

    gateway_id: GatewayId
    healthy: bool
    detail: str = ""
    was_refused: bool = False
    """The gateway's host refused the connection: the process is gone, since no network fault in between looks like
    that."""


class PeersHeard(Struct, frozen=True):
    """Report of a connected gateway on its peers. The report says nothing about gateways that it does not name."""

    gateway_id: GatewayId
    peers: tuple[HeardPeer, ...]


class GrantsLeftOut(Struct, frozen=True):
    """Report of a connected gateway on granted replicas that it cannot serve. It says nothing about others."""

    gateway_id: GatewayId
    left_out: tuple[tuple[ReplicaId, str], ...]
    """Replicas, with reasons."""


class FreezeOrdered(Struct, frozen=True):
    reason: str


class FreezeLifted(Struct, frozen=True):
    """An operator lifted the freeze, having seen that the missing gateways are really gone. Holds until no gateway is
    missing."""


class ControllerTimePassed(Struct, frozen=True):
    """A wake-up that the core asked for."""


Event = (
    ControllerConfigApplied
    | RegistryApplied
    | StateRestored
    | NarrowingApplied
    | GatewayConnected
    | PolicyAccepted
    | GatewayDisconnected
    | GatewayProbed
    | PeersHeard
    | GrantsLeftOut
    | FreezeOrdered
    | FreezeLifted
    | ControllerTimePassed
)
