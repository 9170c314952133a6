"""What the controller's core is told. Times are its driver's clock, in nanoseconds."""

from __future__ import annotations

from controller.core.config import ControllerConfig
from controller.core.vocabulary import GatewayEntry, HeardPeer, ReplicaEntry
from gateway.core.residency import ResidencyPolicy
from gateway.core.value import value
from gateway.core.vocabulary import GatewayId, ReplicaId


@value
class ConfigApplied:
    config: ControllerConfig


@value
class RegistryApplied:
    """Everything that is registered, from now on."""

    gateways: tuple[GatewayEntry, ...]
    replicas: tuple[ReplicaEntry, ...]


@value
class StateRestored:
    """Who had what, who was down and which policies were in force when the controller last wrote it down. Before the
    registry."""

    version: int
    owners: tuple[tuple[ReplicaId, GatewayId], ...]
    policies: tuple[ResidencyPolicy, ...]
    """One a region."""
    down: tuple[GatewayId, ...] = ()
    """Those that were known to be down: they are until they answer."""


@value
class NarrowingApplied:
    """Every policy by which the controller narrows a region's own, from now on. After a start it is told before the
    registry, so that nothing is assigned against it."""

    policies: tuple[ResidencyPolicy, ...]
    """One a region."""


@value
class GatewayConnected:
    """Its stream is open, and says which policy its region lives by."""

    gateway_id: GatewayId
    policy: ResidencyPolicy


@value
class PolicyAccepted:
    """A gateway lives by another policy now."""

    gateway_id: GatewayId
    policy: ResidencyPolicy


@value
class GatewayDisconnected:
    gateway_id: GatewayId
    detail: str


@value
class GatewayProbed:
    """We asked it for its health ourselves."""

    gateway_id: GatewayId
    healthy: bool
    detail: str = ""
    was_refused: bool = False
    """Its host answered that nobody listens there, which no network in between says: the process is gone."""


@value
class PeersHeard:
    """What a connected gateway says of the others. Whoever it does not name it says nothing of."""

    gateway_id: GatewayId
    peers: tuple[HeardPeer, ...]


@value
class FreezeOrdered:
    reason: str


@value
class FreezeLifted:
    """By an operator, who has seen that what is missing is really gone. Holds until everybody missing is accounted
    for."""


@value
class TimePassed:
    """A wake-up that the core asked for."""


Event = (
    ConfigApplied
    | RegistryApplied
    | StateRestored
    | NarrowingApplied
    | GatewayConnected
    | PolicyAccepted
    | GatewayDisconnected
    | GatewayProbed
    | PeersHeard
    | FreezeOrdered
    | FreezeLifted
    | TimePassed
)
