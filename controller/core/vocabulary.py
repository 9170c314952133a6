"""The controller's own words, beside those of the mesh: what is registered, and how somebody fares.

Nothing here decides anything.
"""

from __future__ import annotations

from gateway.core.value import value
from gateway.core.vocabulary import GatewayId, Place, ReplicaId, Word


@value
class Location:
    """A point on the globe, in degrees."""

    latitude: float
    longitude: float


@value
class GatewayEntry:
    """A gateway as an operator registered it."""

    gateway_id: GatewayId
    place: Place
    addresses: tuple[str, ...]
    """What clients are told to connect to, IPv4 or IPv6."""
    location: Location | None = None
    is_drained: bool = False
    """It is going out of service: nothing new is sent its way."""


@value
class ReplicaEntry:
    """A replica as an operator registered it. How to reach it is the edges' business."""

    replica_id: ReplicaId
    home: GatewayId
    """Whose it is as long as that gateway lives."""
    pinned_to: GatewayId | None = None
    """An operator has moved it there, until told otherwise."""
    pool: str = ""
    """Of its home, where those of one pool have one owner: prefill and decode workers are of no use apart."""


class Condition(Word):
    """How a gateway fares, as far as the controller can tell."""

    UNKNOWN = "unknown"
    """Not heard of since the controller began: it is left what it had."""
    UP = "up"
    DOWN = "down"
    RETURNING = "returning"
    """It answers again after it was down, and is watched for a while before it gets anything back."""


@value
class HeardPeer:
    """What one gateway last heard of another."""

    gateway_id: GatewayId
    heard_ns: int | None
    """When, on the controller's clock; None: never."""
    is_broken: bool
    """Its connection there broke, or cannot be made: silence at once, whatever was heard before."""
    rtt_ns: int | None = None
