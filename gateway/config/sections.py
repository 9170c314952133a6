"""Sections of a region file that are used as they are written, and the gateway's config made of them.

A new section is a dataclass here and a line in `Sections`; a section that decisions depend on belongs in
`gateway.core.kernel.config` and its `CoreConfig`, and the section of an optional feature in
`gateway.features.sections`. Keys in the file, their checks and the defaults shown by `nightside gateway check` follow
from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gateway.config.content import ContentConfig
from gateway.config.oidc import OidcConfig
from gateway.config.targets import DnsReplicasConfig, KubernetesReplicasConfig, PeerConfig, ReplicaConfig
from gateway.config.tracing import TracingConfig
from gateway.core.block_sizes import BLOCKS_MAX
from gateway.core.config import CoreConfig
from gateway.core.vocabulary import GatewayId, ModelName, Place, PoolSpec
from gateway.features.sections import FeatureSections
from mesh.config import DnsConfig, ListenTlsConfig, LoggingConfig, MeshTlsConfig
from mesh.operators_config import OperatorsConfig
from mesh.values import (
    MEBIBYTE,
    MILLISECOND_NS,
    SECOND_NS,
    Address,
    AddressText,
    HostAddress,
    HostName,
    Latitude,
    Longitude,
    Origin,
    WebUrl,
)

_CLIENTS, _PEERS, _OPERATORS = (Address("127.0.0.1", port) for port in (8080, 7070, 9900))


class AuditSync(StrEnum):
    """Policy for forcing written audit lines onto the disk."""

    NONE = "none"
    """Leave it to the operating system."""
    FLUSH = "flush"
    """Sync after each write, once per `flush_interval`."""
    LINE = "line"
    """Sync as soon as a request ends; lines of requests that end meanwhile share one sync."""


class ListenConfig(Struct, frozen=True):
    """Addresses that the gateway listens on."""

    http: Address = _CLIENTS
    """Address of the client APIs."""
    peers: Address = _PEERS
    """Address of the gRPC service for other gateways."""
    admin: Address = _OPERATORS
    """Address of health, metrics and the admin API, for operators."""
    tls: ListenTlsConfig | None = None
    """TLS of the client address, and of the admin address where that is not loopback. None: plain HTTP, on loopback
    only unless `insecure` is set."""
    reuse_port: bool = False
    """Share the clients' port with other gateways on this machine; the system spreads connections over them."""
    admin_hosts: tuple[HostName, ...] = ()
    """Host names accepted in requests to a loopback admin address, besides its own, such as that of a reverse proxy."""

    @property
    def admin_tls(self) -> ListenTlsConfig | None:
        return None if self.admin.is_loopback else self.tls


class LimitsConfig(Struct, frozen=True):
    """Bounds on the resources that clients and slow readers may use. The defaults of `connections_max`, `requests_max`
    and `bodies_held_max` are smaller on machines with little memory."""

    requests_max: int = 10_000
    """Requests held at once, queued or running."""
    body_max_bytes: int = 16 * MEBIBYTE
    """Largest request body; a larger one is refused with status 413."""
    bodies_held_max_bytes: int = 512 * MEBIBYTE
    """Total size of request bodies in memory, counting the bytes received so far."""
    bodies_held_key_share: float = 0.5
    """Maximum share of the memory for bodies that one key may use, out of what other clients leave free. Without keys,
    it applies per client address, except loopback."""
    bodies_held_tenant_share: float = 0.75
    """Maximum share of the memory for bodies that all keys of one tenant may use, out of what other clients leave
    free."""
    body_rate_min_bytes: int = 16 * 2**10
    """Minimum average upload rate in bytes per second; a slower client is refused once `body_grace` has passed."""
    body_grace_ns: int = 10 * SECOND_NS
    """Time from the start of a body after which `body_rate_min` is enforced."""
    request_deadline_ns: int = 600 * SECOND_NS
    """Time from a request's arrival to the last byte of its response."""
    prompt_blocks_max: int = BLOCKS_MAX
    """Blocks of one prompt that are compared; prompts that differ only beyond them count as equal. The first 4,096 have
    the size `prefix_block`; later ones grow with the text before them."""
    output_tokens_reserved: int = 1024
    """Output tokens reserved from a key's tokens per minute until the request ends, where the request sets no limit
    itself."""
    connections_max: int = 20_000
    """Client connections open at once; operators' connections are counted separately, with the same bound but at most
    256."""
    headers_max_bytes: int = 64 * 2**10
    """Largest size of the request line and all headers together."""
    header_line_max_bytes: int = 16 * 2**10
    """Largest size of the request target and of each header line."""
    header_count_max: int = 128
    """Most headers of one request."""
    headers_wait_ns: int = 10 * SECOND_NS
    """Time that a client may take to send its headers once it has begun."""
    idle_connection_ns: int = 75 * SECOND_NS
    """Time after which a connection without a request is closed."""
    keep_alive_comments_ns: int | None = None
    """Silence after which a stream gets a comment line, so that intermediaries keep its connection open. None: no bytes
    are sent before the answer, so that the HTTP status tells how the request ended."""
    client_stall_ns: int = 60 * SECOND_NS
    """Longest time for which a client may take to send its body, or may read nothing of its response; then it is
    disconnected."""
    client_silence_ns: int = 2 * SECOND_NS
    """Time without a sign of life from the host of a client, which TCP asks for each second, after which its running
    request is cancelled. More suits clients whose network fails for seconds, such as telephones; only Linux tells."""
    engine_connect_ns: int = 5 * SECOND_NS
    """Time limit of connecting to an engine, TLS included."""
    engine_stall_ns: int = 120 * SECOND_NS
    """Silence after which an event stream that has begun counts as failed."""
    drain_ns: int = 30 * SECOND_NS
    """Time that running requests may take to finish after SIGTERM."""


class ProbeConfig(Struct, frozen=True):
    """Probes of engines, for their load and health."""

    interval_ns: int = 100 * MILLISECOND_NS
    """Interval between two load probes of one engine."""
    timeout_ns: int = 1 * SECOND_NS
    """Time limit of one probe."""
    timeouts_max: int = 3
    """Consecutive timed-out probes after which an engine counts as dead, unless other responses show that it is alive
    but slow."""
    slow_max_ns: int = 60 * SECOND_NS
    """Time without a load reading after which an engine counts as dead in any case."""
    health_interval_ns: int = 1 * SECOND_NS
    """Interval of health probes, for engines whose load page outlives their engine core."""
    life_interval_ns: int = 2 * SECOND_NS
    """Interval of liveness probes, for engines that report no load."""
    models_interval_ns: int = 60 * SECOND_NS
    """Interval of reading the list of models from an engine with `models: auto`."""
    models_max: int = 512
    """Most models that an engine may list; a longer list is rejected."""
    adopted_per_s: int = 256
    """Probes per second of all adopted engines together; the bound exists because other gateways supply their
    addresses."""


class DiscoveryConfig(Struct, frozen=True):
    """Discovery of replicas by DNS. The next lookup takes place when the answer's TTL ends, within the bounds of the
    interval."""

    interval_min_ns: int = 5 * SECOND_NS
    """Minimum time between two lookups of a name, even if the TTL is shorter."""
    interval_max_ns: int = 30 * SECOND_NS
    """Maximum time between two lookups of a name, even if the TTL is longer."""
    timeout_ns: int = 2 * SECOND_NS
    """Time limit of one lookup."""
    replicas_max: int = 256
    """Addresses accepted behind one name; further ones are left out, with an error in the log."""
    misses_max: int = 3
    """Consecutive answers without an address after which its replica is removed. Failed lookups and empty answers do
    not count."""


class ReloadConfig(Struct, frozen=True):
    """Automatic reloading of changed files; SIGHUP reloads all files."""

    watch_ns: int | None = 2 * SECOND_NS
    """Interval of checking policy, keys and certificates for changes. None: files are read again only on SIGHUP."""
    region_file: bool = False
    """Watch the region file as well, and apply it when it changes."""


class ReadinessConfig(Struct, frozen=True):
    """Settings of the readiness check at `/ready`."""

    unserved_max_ns: int | None = None
    """Time without a usable engine or permitted peer after which the gateway is not ready, provided that another
    gateway has capacity. None: engines do not affect readiness."""


class PeeringConfig(Struct, frozen=True):
    """Timings and limits of the connections between gateways, and of the resources that each peer may use. The defaults
    of `forwards_max`, `forwards_held_max` and `forwards_held_peer_max` are smaller on machines with little memory."""

    ping_interval_ns: int = 1 * SECOND_NS
    """Interval of pings, which measure the round trip time to each peer."""
    ping_timeout_ns: int = 3 * SECOND_NS
    """Time limit of one ping."""
    rtt_window: int = 64
    """Number of round trips over which the median and the p99 are computed."""
    connect_timeout_ns: int = 5 * SECOND_NS
    """Time limit of connecting to a peer, TLS included."""
    accept_timeout_ns: int = 10 * SECOND_NS
    """Time after which a forward that is neither accepted nor refused counts as failed."""
    silence_max_ns: int = 10 * SECOND_NS
    """Silence after which a heartbeat subscription is closed and opened again. The peer is lost before: after 1.5 s
    where its signs of life are not late, later by 7 times their greatest recent lateness, up to 6 s."""
    heartbeats_time_max_ns: int = 50 * MILLISECOND_NS
    """Processing time in each second for the heartbeats of one peer; the rest is read in the next second."""
    reconnect_min_ns: int = 100 * MILLISECOND_NS
    """First delay before reconnecting to a peer; it doubles with each failure."""
    reconnect_max_ns: int = 10 * SECOND_NS
    """Longest delay before reconnecting to a peer. It ends when the peer connects itself, or another peer or a
    controller is found again."""
    keepalive_interval_ns: int = 2 * SECOND_NS
    """Interval of keep-alive checks on a silent connection, so that a network partition is noticed."""
    keepalive_timeout_ns: int = 5 * SECOND_NS
    """Time to wait for a keep-alive answer, or for TCP's acknowledgement, after which the connection breaks; long
    enough for an answer that queues behind a large body on a slow line."""
    subscribers_max: int = 256
    """Most subscriptions of peers to the heartbeats of this gateway."""
    forwards_max: int = 4096
    """Forwards from all peers that run or wait here at once. One peer has the share of them that
    `forwards_held_peer_max` is of `forwards_held_max`."""
    forwards_held_max_bytes: int = 512 * MEBIBYTE
    """Total size of forwarded requests in memory, each counted with its announced length."""
    forwards_held_peer_max_bytes: int = 256 * MEBIBYTE
    """Total size of the forwarded requests of one peer in memory."""
    message_max_bytes: int = 32 * MEBIBYTE
    """Largest gRPC message that is accepted from a peer."""
    connection_age_ns: int = 300 * SECOND_NS
    """Age after which a connection takes no new calls, so that old certificates go out of use."""
    connection_grace_ns: int = 3600 * SECOND_NS
    """Time that running calls may continue on a connection that takes no new ones."""
    forward_window_bytes: int = MEBIBYTE // 4
    """Flow control window of each answer on the shared stream to a peer: bytes in flight to this gateway or buffered
    here."""
    batch_gap_ns: int = 1 * MILLISECOND_NS
    """Pause between two messages on the shared stream, per frame of the earlier one and at most three times, so that
    frames of several forwards share a message. Frames after a silence, and data beyond one message, do not wait. 0: one
    message per turn of the event loop."""
    tls: MeshTlsConfig | None = None
    """Mutual TLS with peers. None: plain gRPC, on loopback only unless `insecure` is set."""


class JournalConfig(Struct, frozen=True):
    """Journal of every event and effect, for replay. It holds no text and is off unless a folder is named. A full disk
    ends it; only a restart begins another."""

    folder: Path | None = None
    """Folder of the journal's files. None: no journal."""
    file_max_bytes: int = 64 * MEBIBYTE
    """Size at which a new file of the journal is begun."""
    files_max: int = 8
    """Most files of the journal; beyond it, the oldest is deleted."""


class DecisionsConfig(Struct, frozen=True):
    """Bounds on the latest requests whose decisions are kept in memory, for `nightside explain`."""

    requests_max: int = 10_000
    """Most requests that are kept; beyond it, the oldest is dropped."""
    held_max_bytes: int = 32 * MEBIBYTE
    """Most memory for the kept decisions; beyond it, the oldest request is dropped."""


class AuditConfig(Struct, frozen=True):
    """Audit log: a durable record of where each request ran and under which policy. It holds no text and is off unless
    a folder is named."""

    folder: Path | None = None
    """Folder of the audit log's files. None: no audit log."""
    required: bool = False
    """Refuse new requests while the log cannot be written."""
    sync: AuditSync = AuditSync.FLUSH
    """Time at which written lines are forced onto the disk."""
    flush_interval_ns: int = 500 * MILLISECOND_NS
    """Interval at which lines are written to the file."""
    file_max_bytes: int = 64 * MEBIBYTE
    """Size at which a new file of the audit log is begun."""
    files_max: int | None = None
    """Most files of this gateway's audit log; beyond it, the oldest is deleted. None: no file is deleted."""
    signing_key: Path | None = None
    """File of the Ed25519 private key (PEM) that signs the audit heads. None: heads are not signed."""
    head_interval_ns: int = 60 * SECOND_NS
    """Interval of logging, and with a key signing, a new audit head."""
    unwritten_max_bytes: int = 16 * MEBIBYTE
    """Size of unwritten lines in memory while the disk fails; further lines are lost and counted."""


class EngineCacheConfig(Struct, frozen=True):
    """Sharing of the engines' prefix caches between tenants; every region needs the same settings, so that a cached
    prompt is recognised in each."""

    isolate_tenants: bool = True
    """Send a `cache_salt` of its own with each tenant's requests. False: bodies are sent unchanged."""
    shared_tenants: tuple[str, ...] = ()
    """Tenants that share one `cache_salt`, and so each other's cached prefixes. Empty: no tenants share."""


class CorsConfig(Struct, frozen=True):
    """Web pages that may call the client APIs from a browser (CORS)."""

    origins: tuple[Origin, ...] = ()
    """Origins of the permitted pages, such as `https://chat.example.net`. Empty: no page is permitted."""
    max_age_ns: int = 600 * SECOND_NS
    """Time for which a browser may cache the answer to a preflight request."""


class UsageConfig(Struct, frozen=True):
    """Usage records by key, tenant and day; with `state.folder` they survive a restart."""

    days_max: int = 400
    """Days before today for which usage is kept."""
    flush_interval_ns: int = 1 * SECOND_NS
    """Interval of writing usage to disk; a process that is killed loses at most this much."""


class StateConfig(Struct, frozen=True):
    """State that survives a restart, such as usage, learnt figures and a lockdown."""

    folder: Path | None = None
    """Folder of the state files. None: no state survives a restart."""


class ParametersRule(StrEnum):
    """Handling of region file sections that a controller sends."""

    TAKE = "take"
    """Apply them in place of those of the region file."""
    IGNORE = "ignore"
    """Discard them."""


class ControlConfig(Struct, frozen=True):
    """Connection to controllers, which assign replicas to gateways and publish DNS records; off unless controllers are
    listed."""

    controllers: tuple[AddressText, ...] = ()
    """Addresses of the controllers. The gateway is connected to one at a time, and tries the next when that one falls
    silent. Empty: no controller."""
    client_addresses: tuple[HostAddress, ...] = ()
    """IPv4 or IPv6 addresses that DNS records publish for clients of this gateway. Empty: no records point to this
    gateway."""
    peer_address: Address | None = None
    """Address at which peers connect to this gateway. None: `listen.peers`."""
    health_url: WebUrl | None = None
    """Base URL at which the controller probes `/health`. None: the first of `client_addresses`."""
    latitude: Latitude | None = None
    """Latitude of this gateway in degrees, for the distance to clients and regions. None: unknown."""
    longitude: Longitude | None = None
    """Longitude of this gateway in degrees, for the distance to clients and regions. None: unknown."""
    parameters: ParametersRule = ParametersRule.TAKE
    """Handling of the sections of this file that a controller sends."""
    credentials: tuple[str, ...] = ()
    """Environment variables, key files and folders of key files that adopted replicas may use, besides those in this
    file. A replica that needs another one is not served."""
    artifacts: tuple[str, ...] = ()
    """Files and folders of files that adopted pools may name for their predictor or expert locality. A pool that names
    another file is served without it."""
    adopted_max: int = 256
    """Most replicas of other gateways that are served here at once; their data-parallel ranks may be four times as
    many. Each home gateway has a share of the maximum."""
    adopted_silent_max_ns: int = 300 * SECOND_NS
    """Time without a response after which an adopted engine is no longer probed."""
    adopted_retry_ns: int = 600 * SECOND_NS
    """Time after which an adopted engine that is no longer probed is tried again."""
    report_interval_ns: int = 1 * SECOND_NS
    """Interval of the gateway's reports to the controller."""
    silence_max_ns: int = 5 * SECOND_NS
    """Silence, or time in which the controller reads nothing, after which the gateway disconnects from it."""
    connect_timeout_ns: int = 5 * SECOND_NS
    """Time limit of connecting to a controller, TLS included."""
    reconnect_min_ns: int = 200 * MILLISECOND_NS
    """First delay before reconnecting to a controller; it doubles with each failure."""
    reconnect_max_ns: int = 10 * SECOND_NS
    """Longest delay before reconnecting to a controller. It ends when a peer is found again."""
    keepalive_interval_ns: int = 2 * SECOND_NS
    """Interval of keep-alive checks on a silent connection to the controller."""
    keepalive_timeout_ns: int = 5 * SECOND_NS
    """Time to wait for the answer to a keep-alive check, or for TCP's acknowledgement; then the connection breaks."""
    message_max_bytes: int = 16 * MEBIBYTE
    """Largest gRPC message that is accepted from a controller; at least 64KiB."""


class Sections(FeatureSections, frozen=True, kw_only=True):
    """Sections of the region file, by their keys there."""

    listen: ListenConfig = field(default_factory=ListenConfig)
    trust_tenant_header: bool = False
    """Take the tenant from a request header that a proxy sets; with keys, only for keys with `may_name_tenant`. False:
    the tenant is that of the key, or `default`."""
    pass_priority: bool = False
    """Pass the body field `priority` on to engines, for engines that schedule by it. False: requests with the field are
    refused."""
    prefix_block_bytes: int = 256
    """Size of the blocks in which prompts are compared; the same in every region."""
    seed: int | None = None
    """Seed of the core's random number generator, for replay and tests. None: each start draws a new one."""
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    probes: ProbeConfig = field(default_factory=ProbeConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    reload: ReloadConfig = field(default_factory=ReloadConfig)
    readiness: ReadinessConfig = field(default_factory=ReadinessConfig)
    peering: PeeringConfig = field(default_factory=PeeringConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    decisions: DecisionsConfig = field(default_factory=DecisionsConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    state: StateConfig = field(default_factory=StateConfig)
    cors: CorsConfig = field(default_factory=CorsConfig)
    usage: UsageConfig = field(default_factory=UsageConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    engine_cache: EngineCacheConfig = field(default_factory=EngineCacheConfig)
    dns: DnsConfig = field(default_factory=DnsConfig)
    content: ContentConfig = field(default_factory=ContentConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    operators: OperatorsConfig = field(default_factory=OperatorsConfig)
    oidc: OidcConfig = field(default_factory=OidcConfig)


class GatewayConfig(Sections, frozen=True, kw_only=True):
    """Complete, checked config of one gateway process."""

    gateway_id: GatewayId
    place: Place
    policy_file: Path | None
    replicas: tuple[ReplicaConfig, ...]
    peers: tuple[PeerConfig, ...]
    dns_replicas: tuple[DnsReplicasConfig, ...] = ()
    kubernetes_replicas: tuple[KubernetesReplicasConfig, ...] = ()
    core: CoreConfig = field(default_factory=CoreConfig)
    models: Mapping[ModelName, tuple[ModelName, ...]] = field(default_factory=dict)
    """Alias names of models, each with the models that it stands for, the most wanted first."""
    keys_file: Path | None = None
    """Keys of clients and their rights. None: every client that can reach the gateway is served."""
    admin_token: str | None = None
    """Bearer token that operators have to present, except for health. None: no token is needed."""
    secret_files: tuple[Path, ...] = ()
    """All files that hold keys or tokens."""
    pools: tuple[PoolSpec, ...] = ()
    """Pools that the file describes; any other pool has only a name."""
    replica_documents: tuple[str, ...] = ()
    """Own replicas as a controller is sent them: JSON, with keys named by where they are read from."""
    engine_credentials: frozenset[str] = frozenset()
    """Environment variables and files from which this gateway reads engines' keys."""
    insecure: bool = False
    """Listen and dial beyond this machine without TLS or authentication."""
    folder: Path = Path()
    """Folder that relative paths start from."""
    cache_secret: str | None = None
    """Secret that every tenant's `cache_salt` is derived from."""
    collector_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers sent to the trace collector."""

    def __repr__(self) -> str:
        """Name of the gateway alone, since the config holds secrets."""
        return f"GatewayConfig({self.gateway_id})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:  # rich would prefer the struct's own to `__repr__`
        return [("id", self.gateway_id)]

    @property
    def templates(self) -> tuple[ReplicaConfig, ...]:
        """Templates of discovered replicas."""
        by_name = (each.template for each in self.dns_replicas)
        return (*by_name, *(each.template for each in self.kubernetes_replicas))
