"""Messages between a gateway and its controller as plain values. Both programs use these, and only the codec beside
them knows their form on the wire.
"""

from __future__ import annotations

from msgspec import Struct

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import ControlVersion, GatewayId, Place, PlaceRule, ReplicaId
from mesh.control.pool_history import PoolHistory
from mesh.naming.tree import RecordTree
from mesh.totals import Totals

CONNECTOR_ABILITY = "connector"
"""First word of the ability to serve pools of a connector, which follows."""
DECODE_POLICY_ABILITY = "decode_policy"
"""First word of the ability to serve pools that name a decode policy, which follows."""
ABILITIES_MAX = 256
"""Most abilities of one gateway."""


class Announcement(Struct, frozen=True):
    """Facts about a gateway from its own region file, which the controller needs as well."""

    client_addresses: tuple[str, ...] = ()
    """Addresses that clients may connect to, IPv4 or IPv6."""
    peer_address: str = ""
    """HOST:PORT of the gateway's listener for other gateways."""
    health_url: str = ""
    latitude: float | None = None
    longitude: float | None = None
    replicas: tuple[str, ...] = ()
    """Replicas of the gateway, each a JSON object with the keys of a replica in a region file. A secret is given by the
    place where it is read, never by value."""
    abilities: tuple[str, ...] = ()
    """Requirements of other gateways' pools that the gateway meets, such as `connector nixl`."""


class Hello(Struct, frozen=True):
    """First message of a gateway."""

    gateway_id: GatewayId
    place: Place
    taken: ControlVersion
    """Version of the snapshot that the gateway serves by, perhaps one from its disk."""
    announcement: Announcement
    policy: ResidencyPolicy
    """Policy of the region, before any narrowing."""


class PeerHeard(Struct, frozen=True):
    """State of a gateway's link to a peer."""

    gateway_id: GatewayId
    heard_ago_ns: int | None
    """Nanoseconds since the peer's last heartbeat; None where there was none."""
    is_broken: bool
    """The connection broke, or cannot be made."""
    rtt_ns: int | None = None


class WantedReplicas(Struct, frozen=True):
    """Number of replicas that a pool in a gateway's region should have, as the gateway reports it."""

    model: str
    pool: str
    replicas: int
    ready: int
    reason: str


class GatewayLoad(Struct, frozen=True):
    """Replicas and load of one gateway, for views of the whole mesh. No decision depends on it."""

    replicas: int = 0
    available: int = 0
    down: int = 0
    running: int = 0
    """Requests on the gateway's replicas, begun or not."""
    waiting: int = 0
    """Requests in the gateway's queues."""
    is_draining: bool = False
    is_locked_down: bool = False
    slots: int = 0
    """Requests that the engines run at once, of the replicas for which that is known."""
    slots_used: int = 0
    kv_usage: float | None = None
    """Mean share of the KV cache in use, of the replicas that answer; None where none does, or it is not reported."""


class ForwardsTo(Struct, frozen=True):
    """Forwards from the reporting gateway to another one."""

    gateway_id: GatewayId
    per_minute: int
    running: int


class LeftOut(Struct, frozen=True):
    """Granted replica that a gateway cannot serve."""

    replica_id: ReplicaId
    reason: str


LEFT_OUT_MAX = 1024
"""Most replicas left out in one report."""


class Report(Struct, frozen=True):
    peers: tuple[PeerHeard, ...]
    open_requests: int = 0
    load: GatewayLoad | None = None
    """Load of the gateway; None from a gateway that does not report it."""
    forwards: tuple[ForwardsTo, ...] = ()
    wanted: tuple[WantedReplicas, ...] = ()
    totals: Totals | None = None
    """Counts since the process started; None from a gateway that does not report them. `waiting` is that of `load`."""
    left_out: tuple[LeftOut, ...] = ()
    """Granted replicas of other gateways that cannot be served as they are described."""


class SnapshotTaken(Struct, frozen=True):
    """The gateway serves by this snapshot."""

    version: ControlVersion


class SnapshotRejected(Struct, frozen=True):
    """The gateway refuses this snapshot, and keeps the one before."""

    version: ControlVersion
    reason: str


class QuestionAnswer(Struct, frozen=True):
    """Answer to the question with this number."""

    number: int
    document: bytes
    """JSON; empty where the gateway knows nothing of it."""


class Alive(Struct, frozen=True):
    """Sign of life: of a controller that has nothing new to send, and of a gateway at each of its beats."""


AfterHello = (
    Announcement | ResidencyPolicy | Report | SnapshotTaken | SnapshotRejected | QuestionAnswer | PoolHistory | Alive
)
"""Messages of a gateway once it has said who it is."""
FromGateway = Hello | AfterHello


class ReplicaGrant(Struct, frozen=True):
    """Replica that a gateway is to serve."""

    document: str
    """Description as in an announcement, with the replica's region and jurisdiction."""
    home: GatewayId
    home_place: Place
    accepts: PlaceRule | None = None
    """Places where requests for this replica may have arrived. None for a gateway's own replicas, which its own policy
    rules; an empty rule, which allows no place, where the home's policy is unknown."""


NO_GATEWAY = GatewayId("")


class ReplicaOwner(Struct, frozen=True):
    """Replica that another gateway than its home serves."""

    replica_id: ReplicaId
    home: GatewayId
    owner: GatewayId
    """Gateway that serves the replica; empty where an operator has taken it out of service, so that its home does not
    serve it either."""


class PeerGrant(Struct, frozen=True):
    gateway_id: GatewayId
    place: Place
    address: str


FEATURES_MAX = 64
"""Most documents for optional features in one snapshot."""
FEATURE_DOCUMENT_LENGTH_MAX = 256 * 1024
"""Most characters of a document for an optional feature."""


class ControlSnapshot(Struct, frozen=True):
    """Complete state that a gateway is to serve by."""

    version: ControlVersion
    gateway_id: GatewayId
    replicas: tuple[ReplicaGrant, ...] = ()
    away: tuple[ReplicaOwner, ...] = ()
    """Replicas of the whole mesh that are served away from home."""
    peers: tuple[PeerGrant, ...] = ()
    narrowing: ResidencyPolicy | None = None
    """Policy that narrows the region's own; None where there is none."""
    parameters: str = ""
    """JSON object with sections of a region file; empty where there are none."""
    records: RecordTree | None = None
    documents: tuple[tuple[str, str], ...] = ()
    """Documents for optional features as JSON, each with the feature's name."""
    is_drained: bool = False
    """An operator has drained the gateway: its clients and replicas go to others."""


class Question(Struct, frozen=True):
    """Question about a gateway's decisions, for an operator who looks at the whole mesh. A gateway that does not know
    this message skips it."""

    number: int
    wanted: str = ""
    """Id of a request or of a decision; empty for the last decisions."""


class HistoriesWanted(Struct, frozen=True):
    """The controller takes histories of disaggregated pools. Without this message a gateway sends none."""

    place: Place
    """Place of the controller, where the policies of the pools' regions have to allow the histories."""


FromController = ControlSnapshot | Alive | Question | HistoriesWanted | PoolHistory


class Ownership(Struct, frozen=True):
    """Replicas that are served away from home, with the version of the snapshot that says so."""

    version: ControlVersion = ControlVersion()
    away: tuple[ReplicaOwner, ...] = ()
