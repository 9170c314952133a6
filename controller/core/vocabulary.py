"""Terms of the controller beside those of the mesh: registered gateways and replicas, and a gateway's condition.

The module decides nothing.
"""

from __future__ import annotations

from msgspec import Struct

from gateway.core.vocabulary import GatewayId, Place, ReplicaId, Word


class Location(Struct, frozen=True):
    """A point on the globe, in degrees."""

    latitude: float
    longitude: float


class GatewayEntry(Struct, frozen=True):
    """A gateway as an operator registered it."""

    gateway_id: GatewayId
    place: Place
    addresses: tuple[str, ...]
    """Addresses to which clients connect, IPv4 or IPv6."""
    location: Location | None = None
    is_drained: bool = False
    """The gateway is going out of service: it is given nothing new."""
    abilities: frozenset[str] = frozenset()
    """Requirements of pools that the gateway says it meets."""
    is_announced: bool = True
    """The gateway has announced itself, and was not merely added by an operator. Until then it is neither named nor
    called down."""


class ReplicaEntry(Struct, frozen=True):
    """A replica as an operator registered it. Its address is known only outside the core."""

    replica_id: ReplicaId
    home: GatewayId
    """Gateway that owns the replica as long as that gateway lives."""
    pinned_to: GatewayId | None = None
    """Gateway to which an operator has moved the replica, until told otherwise."""
    pool: str = ""
    """Pool of the home gateway to which the replica belongs; empty: none. All replicas of a pool have one owner:
    prefill and decode workers are of no use apart."""
    part: str = ""
    """Part of the pool's work that the replica does: a pool needs a replica for each part."""
    needs: frozenset[str] = frozenset()
    """Requirements of the pool, which only a gateway with these abilities may adopt."""
    digest: str = ""
    """Digest of the replica's description: gateways that left the replica out are offered a changed one anew."""


class GrantRefusal(Struct, frozen=True):
    """A gateway's report that it leaves a granted replica out."""

    reason: str
    until_ns: int
    """Time from which the replica is offered to the gateway again."""


class Condition(Word):
    """State of a gateway, as far as the controller can tell."""

    UNKNOWN = "unknown"
    """Gateway not heard from since the controller began; it keeps its replicas."""
    UP = "up"
    DOWN = "down"
    RETURNING = "returning"
    """Gateway whose stream is open again after it was down; it is watched for a while before it gets replicas back,
    unless it was merely silent, for the first time, and answers a probe."""
    ALONE = "alone"
    """Gateway that returned, answered a probe, and was all that its region's clients had. It is watched for as long,
    but has its own replicas, is named to these clients while no other may serve them, and is down only as one that
    was up would be."""


class HeardPeer(Struct, frozen=True):
    """Report of one gateway on another."""

    gateway_id: GatewayId
    heard_ns: int | None
    """Time at which the other was last heard, on the controller's clock; None: never."""
    is_broken: bool
    """The connection to the other broke or cannot be made: the other counts as silent at once, whatever was heard
    before."""
    rtt_ns: int | None = None
