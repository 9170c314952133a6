"""The sections of a region file that are used as they are written, and the config that they are part of.

A new section is a dataclass here and a line in `Sections`; one that decisions depend on, in `gateway.core.config` and
its `CoreConfig`. Its keys in the file, their checks and the defaults shown by `nightside gateway check` follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gateway.config.content import ContentConfig
from gateway.config.locality import LocalityConfig
from gateway.config.oidc import OidcConfig
from gateway.config.prediction import PredictionConfig
from gateway.config.scaling import ScalingConfig
from gateway.config.targets import DnsReplicasConfig, KubernetesReplicasConfig, PeerConfig, ReplicaConfig
from gateway.config.tracing import TracingConfig
from gateway.core.config import CoreConfig
from gateway.core.vocabulary import GatewayId, ModelName, Place, PoolSpec
from gateway.ground.config import DnsConfig, ListenTlsConfig, LoggingConfig, MeshTlsConfig
from gateway.ground.operators_config import OperatorsConfig
from gateway.ground.values import (
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
    """When what was written is forced onto the disk."""

    NONE = "none"
    """When the operating system pleases."""
    FLUSH = "flush"
    """After each writing, once per `flush_interval`."""
    LINE = "line"
    """As soon as a request is over; those that end meanwhile go together."""


@dataclass(frozen=True, slots=True)
class ListenConfig:
    http: Address = _CLIENTS
    """The OpenAI-compatible API, for clients."""
    peers: Address = _PEERS
    """gRPC, for other gateways."""
    admin: Address = _OPERATORS
    """Health, metrics and state, for operators."""
    tls: ListenTlsConfig | None = None
    """For clients, and for operators beyond this machine."""
    reuse_port: bool = False
    """Share the clients' port with other gateways on this machine; the system spreads connections over them."""
    admin_hosts: tuple[HostName, ...] = ()
    """Names under which the admin address may be asked for on this machine, besides its own: those of a proxy."""

    @property
    def admin_tls(self) -> ListenTlsConfig | None:
        return None if self.admin.is_loopback else self.tls


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Bounds on what clients and slow readers may cost us."""

    requests_max: int = 10_000
    """Requests held at once, waiting or running."""
    body_max_bytes: int = 16 * MEBIBYTE
    bodies_held_max_bytes: int = 512 * MEBIBYTE
    """All request bodies in memory together, as much of them as has come."""
    bodies_held_key_share: float = 0.5
    """Of that, less what others hold: what the bodies of one key may take. Where clients need no key it is one address,
    unless that is this machine's own."""
    bodies_held_tenant_share: float = 0.75
    """The same for all keys of a tenant."""
    body_rate_min_bytes: int = 16 * 2**10
    """Per second: a client that sends its body slower than this on average is given up,"""
    body_grace_ns: int = 10 * SECOND_NS
    """but not before this is over."""
    request_deadline_ns: int = 600 * SECOND_NS
    """From arrival to the last byte."""
    prompt_blocks_max: int = 4096
    """Blocks of one prompt that are compared; what follows them is not told apart."""
    output_tokens_reserved: int = 1024
    """Set aside of a key's tokens per minute for a request that names no limit of its own, until it has ended."""
    connections_max: int = 20_000
    """Of clients, open at once; of operators, by themselves, as many, and 256 at most."""
    headers_max_bytes: int = 64 * 2**10
    """Request line and headers together."""
    header_line_max_bytes: int = 16 * 2**10
    header_count_max: int = 128
    headers_wait_ns: int = 10 * SECOND_NS
    """How long a client may take over its headers once it has begun."""
    idle_connection_ns: int = 75 * SECOND_NS
    """A connection without a request is closed after this."""
    keep_alive_comments_ns: int | None = None
    """A stream that has brought nothing for so long gets a comment, so that nobody in between takes its connection for
    dead. None: nothing is sent before there is an answer, and its status says what became of the request."""
    client_stall_ns: int = 60 * SECOND_NS
    """A client that takes longer to send its body, or reads nothing for this long, is treated as gone."""
    engine_connect_ns: int = 5 * SECOND_NS
    engine_stall_ns: int = 120 * SECOND_NS
    """An event stream that has begun and then brings nothing for this long has failed."""
    drain_ns: int = 30 * SECOND_NS
    """How long running requests may take to finish after SIGTERM."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    interval_ns: int = 100 * MILLISECOND_NS
    timeout_ns: int = 1 * SECOND_NS
    timeouts_max: int = 3
    """Slow is busy, not dead: this many in a row are dead, unless the engine gives another sign of life."""
    slow_max_ns: int = 60 * SECOND_NS
    """An engine that tells no load for this long is dead, whatever other signs of life it gives."""
    health_interval_ns: int = 1 * SECOND_NS
    """How often an engine is asked for its health, where its load page would outlive it."""
    life_interval_ns: int = 2 * SECOND_NS
    """How often an engine that tells no load is asked whether it lives."""
    models_interval_ns: int = 60 * SECOND_NS
    """How often an engine is asked which models it serves, where its models are `auto`."""
    models_max: int = 512
    """A longer list of models is not believed."""
    adopted_per_s: int = 256
    """Looks at all adopted engines together: others have said where those are."""


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """How names are looked up. The next lookup comes when an answer's TTL is over, within the interval's bounds."""

    interval_min_ns: int = 5 * SECOND_NS
    interval_max_ns: int = 30 * SECOND_NS
    timeout_ns: int = 2 * SECOND_NS
    replicas_max: int = 256
    """Addresses behind one name; what is over it is left out, loudly."""
    misses_max: int = 3
    """An address is gone once this many answers in a row leave it out. No answer, or one without any address, says
    nothing."""


@dataclass(frozen=True, slots=True)
class ReloadConfig:
    """Which changed files are taken in without being asked to; SIGHUP takes in all of them."""

    watch_ns: int | None = 2 * SECOND_NS
    """The pause between two looks at policy, keys and certificates. None: nothing is watched."""
    region_file: bool = False
    """Watch the region file too."""


@dataclass(frozen=True, slots=True)
class ReadinessConfig:
    """What `/ready` says."""

    unserved_max_ns: int | None = None
    """Not ready once neither an engine here nor an allowed peer could have served anybody for this long, while another
    gateway has room. None: engines change nothing."""


@dataclass(frozen=True, slots=True)
class PeeringConfig:
    """How gateways talk to each other, and what each peer may cost us."""

    ping_interval_ns: int = 1 * SECOND_NS
    ping_timeout_ns: int = 3 * SECOND_NS
    rtt_window: int = 64
    """Round trips that the median and the p99 are taken over."""
    connect_timeout_ns: int = 5 * SECOND_NS
    accept_timeout_ns: int = 10 * SECOND_NS
    """A forward that is neither accepted nor refused within this counts as failed."""
    silence_max_ns: int = 10 * SECOND_NS
    """A subscription that brings nothing for this long is torn down and opened again."""
    heartbeats_time_max_ns: int = 50 * MILLISECOND_NS
    """Of each second, what one peer's heartbeats may take of our time; then we do not listen to it for the rest."""
    reconnect_min_ns: int = 100 * MILLISECOND_NS
    reconnect_max_ns: int = 10 * SECOND_NS
    keepalive_interval_ns: int = 10 * SECOND_NS
    """How often an otherwise silent connection is checked, so that a cut network is noticed."""
    keepalive_timeout_ns: int = 10 * SECOND_NS
    """Long enough for an answer that queues behind a large body on a slow line."""
    subscribers_max: int = 256
    forwards_max: int = 4096
    """Forwards running or waiting here at once, from all peers."""
    forwards_held_max_bytes: int = 512 * MEBIBYTE
    """All their requests in memory together. One that is still to come counts as large as a message may be, since
    nothing but that bounds it."""
    forwards_held_peer_max_bytes: int = 256 * MEBIBYTE
    """Of these, what one peer may have."""
    message_max_bytes: int = 32 * MEBIBYTE
    connection_age_ns: int = 300 * SECOND_NS
    """Connections this old take no new calls, so that old certificates pass away."""
    connection_grace_ns: int = 3600 * SECOND_NS
    """How long calls may go on on a connection that takes no new ones."""
    exchange: bool = True
    """Forwards share a long stream, where the other side knows how. Off: each is a call of its own, both ways, as with
    gateways of the version before."""
    forward_window_bytes: int = MEBIBYTE // 4
    """Of each answer on such a stream, what may be on its way to us or lie here unread."""
    batch_gap_ns: int = 1 * MILLISECOND_NS
    """Between two messages on such a stream: what forwards say meanwhile goes out together. Whoever speaks after a
    silence, or has more to say than a message takes, does not wait. 0: a message a turn."""
    tls: MeshTlsConfig | None = None


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """A record of every event and effect, for replay. It holds no text; off unless a folder is named. When the disk is
    full it ends; only a restart begins another."""

    folder: Path | None = None
    file_max_bytes: int = 64 * MEBIBYTE
    files_max: int = 8


@dataclass(frozen=True, slots=True)
class DecisionsConfig:
    """How many of the latest requests are remembered with the decisions about them, for `nightside explain`."""

    requests_max: int = 10_000
    held_max_bytes: int = 32 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """A lasting record of where each request ran, under which policy. It holds no text; off unless a folder is
    named."""

    folder: Path | None = None
    required: bool = False
    """Refuse new requests while the record cannot be written."""
    sync: AuditSync = AuditSync.FLUSH
    flush_interval_ns: int = 500 * MILLISECOND_NS
    file_max_bytes: int = 64 * MEBIBYTE
    files_max: int | None = None
    """Over it, this gateway's oldest file is deleted. None: nothing is ever deleted."""
    signing_key: Path | None = None
    """An Ed25519 key in PEM. With it the chain's heads are signed, so that nobody without it can write the record
    anew."""
    head_interval_ns: int = 60 * SECOND_NS
    """How soon a new head of the chain is signed and logged."""
    unwritten_max_bytes: int = 16 * MEBIBYTE
    """Held in memory while the disk cannot be written; what comes after that is lost, and counted."""


@dataclass(frozen=True, slots=True)
class EngineCacheConfig:
    """Who shares what engines keep of prompts. The same in every region, or a prompt is not known again elsewhere."""

    isolate_tenants: bool = True
    """Each tenant's requests carry a `cache_salt` of its own. Off: bodies go out as they came."""
    shared_tenants: tuple[str, ...] = ()
    """These share with each other, as if they were one."""


@dataclass(frozen=True, slots=True)
class CorsConfig:
    """Which pages in browsers may call this gateway. None, unless their origins are listed."""

    origins: tuple[Origin, ...] = ()
    max_age_ns: int = 600 * SECOND_NS
    """How long a browser need not ask again."""


@dataclass(frozen=True, slots=True)
class UsageConfig:
    """What clients used, by key, tenant and day. With `state.folder` it outlives the process."""

    days_max: int = 400
    """Days before today that are remembered."""
    flush_interval_ns: int = 1 * SECOND_NS
    """How soon it is on the disk: what a process that is killed has used for so long is not counted."""


@dataclass(frozen=True, slots=True)
class StateConfig:
    """What has to survive a restart; nothing does unless a folder is named."""

    folder: Path | None = None


class ParametersRule(StrEnum):
    """What becomes of the sections of a region file that a controller sends."""

    TAKE = "take"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Who says which replicas are served here besides this file, and what is said there of this gateway. Nobody,
    unless controllers are named."""

    controllers: tuple[AddressText, ...] = ()
    """One of them is listened to at a time; whoever falls silent is left for the next."""
    client_addresses: tuple[HostAddress, ...] = ()
    """IPv4 or IPv6, for clients to connect to. Nobody is sent here without any."""
    peer_address: Address | None = None
    """Of this gateway's own listener for others; by default `listen.peers`."""
    health_url: WebUrl | None = None
    """Under which `/health` answers; by default that of the first of `client_addresses`."""
    latitude: Latitude | None = None
    longitude: Longitude | None = None
    """Of this gateway, in degrees: where distances to it are measured from."""
    parameters: ParametersRule = ParametersRule.TAKE
    credentials: tuple[str, ...] = ()
    """Variables, files and folders of keys for engines that are served for other regions, besides those that this file
    names itself. A replica that needs any other stays closed here."""
    adopted_max: int = 256
    """Replicas of other gateways that are served here at once, each with its ranks; ranks together may be four times as
    many. Each home has its share of them."""
    adopted_silent_max_ns: int = 300 * SECOND_NS
    """An adopted engine that has not answered for so long is given up,"""
    adopted_retry_ns: int = 600 * SECOND_NS
    """and asked again after this."""
    report_interval_ns: int = 1 * SECOND_NS
    silence_max_ns: int = 5 * SECOND_NS
    """A controller that says nothing for this long is gone, and so is one that reads nothing."""
    connect_timeout_ns: int = 5 * SECOND_NS
    reconnect_min_ns: int = 200 * MILLISECOND_NS
    reconnect_max_ns: int = 10 * SECOND_NS
    keepalive_interval_ns: int = 10 * SECOND_NS
    keepalive_timeout_ns: int = 10 * SECOND_NS
    message_max_bytes: int = 16 * MEBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """Their keys are those of the region file."""

    listen: ListenConfig = field(default_factory=ListenConfig)
    trust_tenant_header: bool = False
    """Take the tenant from a header that something in front of us sets; where there are keys, from those that
    `may_name_tenant`. Off: it is the key's, or the default one."""
    pass_priority: bool = False
    prefix_block_bytes: int = 256
    seed: int | None = None
    """Fixes the core's chance, for replay and tests; by default each start draws its own."""
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
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    locality: LocalityConfig = field(default_factory=LocalityConfig)
    content: ContentConfig = field(default_factory=ContentConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    operators: OperatorsConfig = field(default_factory=OperatorsConfig)
    oidc: OidcConfig = field(default_factory=OidcConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(Sections):
    """Everything one gateway process was told, checked."""

    gateway_id: GatewayId
    place: Place
    policy_file: Path | None
    replicas: tuple[ReplicaConfig, ...]
    peers: tuple[PeerConfig, ...]
    prices_file: Path | None = None
    """What replicas and egress cost, by time of day. None: what a controller says of it, or nothing."""
    dns_replicas: tuple[DnsReplicasConfig, ...] = ()
    kubernetes_replicas: tuple[KubernetesReplicasConfig, ...] = ()
    core: CoreConfig = field(default_factory=CoreConfig)
    models: Mapping[ModelName, tuple[ModelName, ...]] = field(default_factory=dict)
    """Further names for models, and what each stands for, the most wanted first."""
    keys_file: Path | None = None
    """Who may call, and what for. None: everybody who can reach us."""
    admin_token: str | None = field(default=None, repr=False)
    """What operators have to show, health apart. None: nothing."""
    secret_files: tuple[Path, ...] = ()
    """All files that hold keys or tokens, whoever reads them."""
    pools: tuple[PoolSpec, ...] = ()
    """Those that are described; of any other there is no more to say than its name."""
    replica_documents: tuple[str, ...] = ()
    """Its own replicas as a controller is told of them: JSON, with keys named by where they are read from."""
    engine_credentials: frozenset[str] = frozenset()
    """Variables and files that it reads keys for engines from."""
    insecure: bool = False
    """Listen and dial beyond this machine without protection."""
    folder: Path = Path()
    """Where relative paths start."""
    cache_secret: str | None = field(default=None, repr=False)
    """Goes into every tenant's `cache_salt`."""
    collector_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the collector of traces is shown."""

    @property
    def templates(self) -> tuple[ReplicaConfig, ...]:
        """Of replicas that are found."""
        by_name = (each.template for each in self.dns_replicas)
        return (*by_name, *(each.template for each in self.kubernetes_replicas))
