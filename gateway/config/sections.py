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

from msgspec import Struct, field

from gateway.config.content import ContentConfig
from gateway.config.oidc import OidcConfig
from gateway.config.targets import DnsReplicasConfig, KubernetesReplicasConfig, PeerConfig, ReplicaConfig
from gateway.config.tracing import TracingConfig
from gateway.core.kernel.config import CoreConfig
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
    http: Address = _CLIENTS
    """Address of the OpenAI-compatible API, for clients."""
    peers: Address = _PEERS
    """Address of the gRPC service, for peers."""
    admin: Address = _OPERATORS
    """Address of health, metrics and state, for operators."""
    tls: ListenTlsConfig | None = None
    """TLS of the clients' address, and of the admin address where that is not loopback."""
    reuse_port: bool = False
    """Share the clients' port with other gateways on this machine; the system spreads connections over them."""
    admin_hosts: tuple[HostName, ...] = ()
    """Host names accepted on the admin address besides its own when that is loopback: those of a proxy on this
    machine."""

    @property
    def admin_tls(self) -> ListenTlsConfig | None:
        return None if self.admin.is_loopback else self.tls


class LimitsConfig(Struct, frozen=True):
    """Bounds on the resources that clients and slow readers may use."""

    requests_max: int = 10_000
    """Requests held at once, queued or running."""
    body_max_bytes: int = 16 * MEBIBYTE
    bodies_held_max_bytes: int = 512 * MEBIBYTE
    """Request bodies in memory together, counting the bytes received so far."""
    bodies_held_key_share: float = 0.5
    """Share of the room left by other clients' bodies that one key's bodies may take. Where clients need no key it
    counts per address, except this machine's own."""
    bodies_held_tenant_share: float = 0.75
    """Share of that room that the bodies of all keys of one tenant may take."""
    body_rate_min_bytes: int = 16 * 2**10
    """Minimum upload rate, in bytes per second: a client that sends its body slower on average is refused, once
    `body_grace` has passed."""
    body_grace_ns: int = 10 * SECOND_NS
    """Time from the start of a body after which `body_rate_min` is enforced."""
    request_deadline_ns: int = 600 * SECOND_NS
    """Time from a request's arrival to the last byte of its response."""
    prompt_blocks_max: int = 4096
    """Blocks of one prompt that are compared; prompts that differ only beyond them count as equal."""
    output_tokens_reserved: int = 1024
    """Output tokens reserved from a key's tokens per minute until the request ends, where the request sets no limit
    itself."""
    connections_max: int = 20_000
    """Client connections open at once; operators' connections are counted separately, with the same bound but at most
    256."""
    headers_max_bytes: int = 64 * 2**10
    """Size of the request line and headers together."""
    header_line_max_bytes: int = 16 * 2**10
    header_count_max: int = 128
    headers_wait_ns: int = 10 * SECOND_NS
    """Time that a client may take to send its headers once it has begun."""
    idle_connection_ns: int = 75 * SECOND_NS
    """Time after which a connection without a request is closed."""
    keep_alive_comments_ns: int | None = None
    """Silence after which a stream gets a comment line, so that intermediaries do not take its connection for dead.
    None: no bytes are sent before the answer, and the HTTP status tells how the request ended."""
    client_stall_ns: int = 60 * SECOND_NS
    """Time after which a client that is still sending its body, or reads no data, is given up."""
    engine_connect_ns: int = 5 * SECOND_NS
    engine_stall_ns: int = 120 * SECOND_NS
    """Silence after which an event stream that has begun counts as failed."""
    drain_ns: int = 30 * SECOND_NS
    """Time that running requests may take to finish after SIGTERM."""


class ProbeConfig(Struct, frozen=True):
    interval_ns: int = 100 * MILLISECOND_NS
    timeout_ns: int = 1 * SECOND_NS
    timeouts_max: int = 3
    """Timed-out probes in a row after which an engine counts as dead, unless it gives another sign of life: a slow
    engine is busy."""
    slow_max_ns: int = 60 * SECOND_NS
    """Time without a load reading after which an engine counts as dead, whatever other signs of life it gives."""
    health_interval_ns: int = 1 * SECOND_NS
    """Interval of health probes, for engines whose load page outlives their engine core."""
    life_interval_ns: int = 2 * SECOND_NS
    """Interval of liveness probes, for engines that report no load."""
    models_interval_ns: int = 60 * SECOND_NS
    """Interval of asking an engine for its models, where its models are `auto`."""
    models_max: int = 512
    """Most models that an engine may list; a longer list is rejected."""
    adopted_per_s: int = 256
    """Probes per second of all adopted engines together; bounded because other gateways supply their addresses."""


class DiscoveryConfig(Struct, frozen=True):
    """Settings of DNS discovery. The next lookup comes when an answer's TTL is over, within the interval's bounds."""

    interval_min_ns: int = 5 * SECOND_NS
    interval_max_ns: int = 30 * SECOND_NS
    timeout_ns: int = 2 * SECOND_NS
    replicas_max: int = 256
    """Addresses accepted behind one name; further ones are left out, with an error in the log."""
    misses_max: int = 3
    """Answers in a row without an address after which that address is removed. Failed lookups and answers without any
    address do not count."""


class ReloadConfig(Struct, frozen=True):
    """Automatic reloading of changed files; SIGHUP reloads all files."""

    watch_ns: int | None = 2 * SECOND_NS
    """Interval of checking policy, keys and certificates for changes. None: no file is watched."""
    region_file: bool = False
    """Watch the region file as well."""


class ReadinessConfig(Struct, frozen=True):
    """Settings of the readiness check at `/ready`."""

    unserved_max_ns: int | None = None
    """Time without an engine here or an allowed peer that could serve a request, after which the gateway is not ready
    while another gateway has room. None: engines do not affect readiness."""


class PeeringConfig(Struct, frozen=True):
    """Timings and limits of the connections between gateways, and of the resources that each peer may use."""

    ping_interval_ns: int = 1 * SECOND_NS
    ping_timeout_ns: int = 3 * SECOND_NS
    rtt_window: int = 64
    """Round trips that the median and the p99 are computed over."""
    connect_timeout_ns: int = 5 * SECOND_NS
    accept_timeout_ns: int = 10 * SECOND_NS
    """Time after which a forward that is neither accepted nor refused counts as failed."""
    silence_max_ns: int = 10 * SECOND_NS
    """Silence after which a heartbeat subscription is closed and opened again."""
    heartbeats_time_max_ns: int = 50 * MILLISECOND_NS
    """Time in each second that one peer's heartbeats may take to process; a peer that exceeds it is not read until the
    next second."""
    reconnect_min_ns: int = 100 * MILLISECOND_NS
    reconnect_max_ns: int = 10 * SECOND_NS
    keepalive_interval_ns: int = 10 * SECOND_NS
    """Interval of keep-alive checks on a silent connection, so that a network partition is noticed."""
    keepalive_timeout_ns: int = 10 * SECOND_NS
    """Time to wait for a keep-alive answer; long enough for one that queues behind a large body on a slow line."""
    subscribers_max: int = 256
    forwards_max: int = 4096
    """Forwards from all peers that run or wait here at once."""
    forwards_held_max_bytes: int = 512 * MEBIBYTE
    """Requests of these forwards in memory together, each with the length that it announces."""
    forwards_held_peer_max_bytes: int = 256 * MEBIBYTE
    """Share of these bytes that one peer may hold."""
    message_max_bytes: int = 32 * MEBIBYTE
    connection_age_ns: int = 300 * SECOND_NS
    """Age after which a connection takes no new calls, so that old certificates go out of use."""
    connection_grace_ns: int = 3600 * SECOND_NS
    """Time that running calls may continue on a connection that takes no new ones."""
    forward_window_bytes: int = MEBIBYTE // 4
    """Window of each answer on the stream that forwards to a peer share: bytes in flight to this gateway or buffered
    here unread."""
    batch_gap_ns: int = 1 * MILLISECOND_NS
    """Pause between two messages on such a stream, once for each frame of the earlier one and three times at most, so
    that frames of several forwards go out together. A frame after a silence, or data beyond one message, does not wait.
    0: one message per turn of the event loop."""
    tls: MeshTlsConfig | None = None


class JournalConfig(Struct, frozen=True):
    """Journal of every event and effect, for replay. It holds no text and is off unless a folder is named. A full disk
    ends it; only a restart begins another."""

    folder: Path | None = None
    file_max_bytes: int = 64 * MEBIBYTE
    files_max: int = 8


class DecisionsConfig(Struct, frozen=True):
    """Bounds on the latest requests that are remembered with their decisions, for `nightside explain`."""

    requests_max: int = 10_000
    held_max_bytes: int = 32 * MEBIBYTE


class AuditConfig(Struct, frozen=True):
    """Audit log: a durable record of where each request ran and under which policy. It holds no text and is off unless
    a folder is named."""

    folder: Path | None = None
    required: bool = False
    """Refuse new requests while the log cannot be written."""
    sync: AuditSync = AuditSync.FLUSH
    flush_interval_ns: int = 500 * MILLISECOND_NS
    file_max_bytes: int = 64 * MEBIBYTE
    files_max: int | None = None
    """Number of files above which this gateway's oldest is deleted. None: no file is ever deleted."""
    signing_key: Path | None = None
    """Ed25519 key in PEM that signs the heads of the chain, so that the log cannot be rewritten without the key."""
    head_interval_ns: int = 60 * SECOND_NS
    """Interval of signing and logging a new head of the chain."""
    unwritten_max_bytes: int = 16 * MEBIBYTE
    """Log lines held in memory while the disk cannot be written; further lines are lost, and counted."""


class EngineCacheConfig(Struct, frozen=True):
    """Sharing of the engines' prefix caches between tenants. Every region needs the same settings, or a prompt cached
    in one is not recognised in another."""

    isolate_tenants: bool = True
    """Each tenant's requests carry a `cache_salt` of its own. Off: bodies are sent unchanged."""
    shared_tenants: tuple[str, ...] = ()
    """Tenants that share one `cache_salt`, as if they were one tenant."""


class CorsConfig(Struct, frozen=True):
    """Web pages that may call this gateway from browsers (CORS): none, unless their origins are listed."""

    origins: tuple[Origin, ...] = ()
    max_age_ns: int = 600 * SECOND_NS
    """Time that a browser may cache a preflight answer."""


class UsageConfig(Struct, frozen=True):
    """Usage records by key, tenant and day. With `state.folder` they survive a restart."""

    days_max: int = 400
    """Days before today that are kept."""
    flush_interval_ns: int = 1 * SECOND_NS
    """Interval of writing usage to disk; a process that is killed loses at most this much."""


class StateConfig(Struct, frozen=True):
    """Folder for state that survives a restart; without one no state does."""

    folder: Path | None = None


class ParametersRule(StrEnum):
    """Handling of region file sections that a controller sends."""

    TAKE = "take"
    IGNORE = "ignore"


class ControlConfig(Struct, frozen=True):
    """Connection to controllers, which assign replicas to this gateway besides those of its file, and this gateway's
    own description for them. Off unless controllers are named."""

    controllers: tuple[AddressText, ...] = ()
    """Addresses of controllers. The gateway listens to one at a time and goes on to the next when that one falls
    silent."""
    client_addresses: tuple[HostAddress, ...] = ()
    """IPv4 or IPv6 addresses that clients connect to. Without any, clients are not sent here."""
    peer_address: Address | None = None
    """Address that peers reach this gateway at; by default `listen.peers`."""
    health_url: WebUrl | None = None
    """Base URL of `/health`; by default that of the first of `client_addresses`."""
    latitude: Latitude | None = None
    longitude: Longitude | None = None
    """Degrees. Latitude and longitude of this gateway; distances to it are measured from there."""
    parameters: ParametersRule = ParametersRule.TAKE
    credentials: tuple[str, ...] = ()
    """Environment variables, key files and folders of key files that replicas of other regions may use here, besides
    those that this file itself names. A replica that needs any other is not served here."""
    adopted_max: int = 256
    """Replicas of other gateways that are served here at once, each with its ranks; their ranks together may be four
    times as many. Every home gateway gets a share of them."""
    adopted_silent_max_ns: int = 300 * SECOND_NS
    """Time without an answer after which an adopted engine is given up."""
    adopted_retry_ns: int = 600 * SECOND_NS
    """Time after which an adopted engine that was given up is tried again."""
    report_interval_ns: int = 1 * SECOND_NS
    silence_max_ns: int = 5 * SECOND_NS
    """Silence after which a controller counts as gone; so does a controller that reads no data for this long."""
    connect_timeout_ns: int = 5 * SECOND_NS
    reconnect_min_ns: int = 200 * MILLISECOND_NS
    reconnect_max_ns: int = 10 * SECOND_NS
    keepalive_interval_ns: int = 10 * SECOND_NS
    keepalive_timeout_ns: int = 10 * SECOND_NS
    message_max_bytes: int = 16 * MEBIBYTE


class Sections(FeatureSections, frozen=True, kw_only=True):
    """Sections of the region file, by their keys there."""

    listen: ListenConfig = field(default_factory=ListenConfig)
    trust_tenant_header: bool = False
    """Take the tenant from a request header set by a proxy in front; where keys are in use, only from keys with
    `may_name_tenant`. Off: the tenant is the key's, or the default one."""
    pass_priority: bool = False
    """Pass the field `priority` of clients' requests on to engines, for engines that schedule by it."""
    prefix_block_bytes: int = 256
    """Size of the blocks in which prompts are compared; the same in every region."""
    seed: int | None = None
    """Seed of the core's random numbers, for replay and tests; by default each start draws its own."""
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

    @property
    def templates(self) -> tuple[ReplicaConfig, ...]:
        """Templates of discovered replicas."""
        by_name = (each.template for each in self.dns_replicas)
        return (*by_name, *(each.template for each in self.kubernetes_replicas))
