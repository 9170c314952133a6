"""What a gateway and its controller tell each other, as plain values: both programs speak in these, and only the codec
beside them knows how they look on the wire.
"""

from __future__ import annotations

from gateway.core.residency import ResidencyPolicy
from gateway.core.value import value
from gateway.core.vocabulary import ControlVersion, GatewayId, Place, PlaceRule, ReplicaId
from gateway.ground.naming.tree import RecordTree


@value
class Announcement:
    """What a gateway's own region file says of it, so that nobody has to write it down twice."""

    client_addresses: tuple[str, ...] = ()
    """What clients may connect to, IPv4 or IPv6."""
    peer_address: str = ""
    """HOST:PORT of its own listener for other gateways."""
    health_url: str = ""
    latitude: float | None = None
    longitude: float | None = None
    replicas: tuple[str, ...] = ()
    """Its own, each a JSON object with the keys of a replica in a region file. A secret is named by where it is read
    from, never by value."""


@value
class Hello:
    """The first thing that a gateway says."""

    gateway_id: GatewayId
    place: Place
    taken: ControlVersion
    """Of the snapshot that it serves by, perhaps one that it kept on its disk."""
    announcement: Announcement
    policy: ResidencyPolicy
    """The region's own, not narrowed by anybody."""


@value
class PeerHeard:
    """What a gateway last heard of a peer."""

    gateway_id: GatewayId
    heard_ago_ns: int | None
    """Since its last heartbeat; None: never."""
    is_broken: bool
    """Its connection broke, or cannot be made."""
    rtt_ns: int | None = None


@value
class Wanted:
    """How many replicas of a pool a gateway's region is to have, by its word."""

    model: str
    pool: str
    replicas: int
    ready: int
    reason: str


@value
class GatewayLoad:
    """What there is at one gateway, and how busy that is: for whoever looks at the whole mesh. Nothing is decided by
    it."""

    replicas: int = 0
    available: int = 0
    down: int = 0
    running: int = 0
    """On its replicas, begun or not."""
    waiting: int = 0
    """In its queues."""
    is_draining: bool = False
    is_locked_down: bool = False


@value
class ForwardsTo:
    """Another gateway, and what is sent there."""

    gateway_id: GatewayId
    per_minute: int
    running: int


@value
class Report:
    peers: tuple[PeerHeard, ...]
    open_requests: int = 0
    load: GatewayLoad | None = None
    """None from gateways that do not say so yet."""
    forwards: tuple[ForwardsTo, ...] = ()
    wanted: tuple[Wanted, ...] = ()


@value
class Taken:
    """The gateway serves by this snapshot from now on."""

    version: ControlVersion


@value
class Rejected:
    """The gateway goes on as before."""

    version: ControlVersion
    reason: str


@value
class Answer:
    """To a question of that number."""

    number: int
    document: bytes
    """JSON; empty: nothing is known of it there."""


FromGateway = Hello | Announcement | ResidencyPolicy | Report | Taken | Rejected | Answer


@value
class ReplicaGrant:
    """A replica that a gateway is to serve."""

    document: str
    """As in an announcement, with its region and jurisdiction."""
    home: GatewayId
    home_place: Place
    accepts: PlaceRule | None = None
    """Where requests must have arrived that it may take. None for a gateway's own replicas, which its own policy rules;
    an empty rule where the home's policy is unknown: it takes none."""


NOBODY = GatewayId("")


@value
class ReplicaOwner:
    """A replica that somebody other than its home serves."""

    replica_id: ReplicaId
    home: GatewayId
    owner: GatewayId
    """NOBODY: an operator has taken it out of service, and its home does not serve it either."""


@value
class PeerGrant:
    gateway_id: GatewayId
    place: Place
    address: str


PRICES_LENGTH_MAX = 256 * 1024
"""Of a price list."""


@value
class Snapshot:
    """Everything that a gateway is to serve by, whole."""

    version: ControlVersion
    gateway_id: GatewayId
    replicas: tuple[ReplicaGrant, ...] = ()
    away: tuple[ReplicaOwner, ...] = ()
    """Of the whole mesh."""
    peers: tuple[PeerGrant, ...] = ()
    narrowing: ResidencyPolicy | None = None
    """What narrows the region's own policy; None: nothing does."""
    parameters: str = ""
    """JSON object with sections of a region file; empty: none."""
    records: RecordTree | None = None
    prices: str = ""
    """A price list, as JSON with the keys of a prices file; empty: none."""
    is_drained: bool = False
    """By an operator's order: clients and replicas of this gateway go to others."""


@value
class Alive:
    """The controller is there, and has nothing new to say."""


@value
class Question:
    """What was decided there, for an operator who looks at the whole mesh. A gateway of before passes it over."""

    number: int
    wanted: str = ""
    """Id of a request or of a decision; empty: the last decisions."""


FromController = Snapshot | Alive | Question


@value
class Ownership:
    """Who serves what is not at home, as the snapshot says that somebody serves by."""

    version: ControlVersion = ControlVersion()
    away: tuple[ReplicaOwner, ...] = ()
