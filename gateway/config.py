"""The region file: parsed once, checked wholly, turned into frozen objects. The only reader of the environment.

It must never repair a file silently: an unknown key, a key written twice or a number without its unit is an error that
names the file and the path of the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from dataclasses import Field as DataclassField
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_type_hints
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PrivateAttr,
    Strict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from gateway.core.config import (
    AttemptConfig,
    CoreConfig,
    ObservationConfig,
    PlacementConfig,
    PushingConfig,
    QueueConfig,
)
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    GatewayId,
    Jurisdiction,
    ModelName,
    PeerSpec,
    Place,
    PoolName,
    RegionName,
    ReplicaId,
    ReplicaSpec,
)
from gateway.ground.placement_plug_ins import placement_faults, with_version

_MILLISECOND_NS = 1_000_000
_HEARTBEATS_TIME_MIN_NS = 5 * _MILLISECOND_NS
_SECOND_NS = 1_000_000_000
_MEBIBYTE = 2**20

DURATION_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": _MILLISECOND_NS,
    "s": _SECOND_NS,
    "m": 60 * _SECOND_NS,
    "h": 3600 * _SECOND_NS,
}
SIZE_UNITS_BYTES = {"B": 1, "KiB": 2**10, "MiB": _MEBIBYTE, "GiB": 2**30}

PROCESS_ENVIRONMENT: Mapping[str, str] = os.environ  # noqa: TID251 - this module is the one reader
LOG_FORMAT_VARIABLE = "NIGHTSIDE_LOG_FORMAT"
LOG_LEVEL_VARIABLE = "NIGHTSIDE_LOG_LEVEL"


class ConfigError(Exception):
    """A region or keys file that cannot be used. One line per fault: `us.yaml: replicas[2].url: what is wrong`."""


class Dialect(StrEnum):
    """Which engine speaks at a replica's URL: how load is read from it."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


class DnsRecord(StrEnum):
    """Which records of a name lead to its replicas."""

    ADDRESS = "address"
    """A and AAAA: one replica at each address, all at one port."""
    SRV = "srv"
    """One replica at each address and port that an SRV record names; priorities and weights are not looked at."""


class LogFormat(StrEnum):
    AUTO = "auto"
    """Readable on a terminal, JSON everywhere else."""
    JSON = "json"
    CONSOLE = "console"


class AuditSync(StrEnum):
    """When what was written is forced onto the disk."""

    NONE = "none"
    """When the operating system pleases."""
    FLUSH = "flush"
    """After each writing, once per `flush_interval`."""
    LINE = "line"
    """As soon as a request is over; those that end meanwhile go together."""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on or to dial; port 0 lets the system choose one to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_numeric(self) -> bool:
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class ListenTlsConfig:
    """What clients are shown, and what they are asked for."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """Authorities of clients' certificates; with it, a client without one is turned away."""


@dataclass(frozen=True, slots=True)
class MeshTlsConfig:
    """What this gateway shows other members of the mesh, and whom it believes."""

    certificate: Path
    key: Path
    roots: Path


@dataclass(frozen=True, slots=True)
class ListenConfig:
    http: Address
    """The OpenAI-compatible API, for clients."""
    peers: Address
    """gRPC, for other gateways."""
    admin: Address
    """Health, metrics and state, for operators."""
    tls: ListenTlsConfig | None = None
    """For clients, and for operators beyond this machine."""
    reuse_port: bool = False
    """Share the clients' port with other gateways on this machine; the system spreads connections over them."""

    @property
    def admin_tls(self) -> ListenTlsConfig | None:
        return None if self.admin.is_loopback else self.tls


@dataclass(frozen=True, slots=True)
class EngineTlsConfig:
    """How a gateway and an engine make sure of each other, where its URL begins with https."""

    ca_file: Path | None = None
    """Who may vouch for the engine; without it, those whom the machine trusts."""
    client_certificate: Path | None = None
    client_key: Path | None = None
    server_name: str | None = None
    """The name in the engine's certificate, where it is not the one in the URL."""
    insecure_skip_verify: bool = False
    """Take any certificate: encrypted, but to whom is unknown."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One engine, or one data-parallel rank of it: what the core knows of it, and how the edge reaches it."""

    spec: ReplicaSpec
    url: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)
    tls: EngineTlsConfig | None = None
    ranks: int = 1
    """Data-parallel ranks behind the URL."""
    rank: int | None = None
    """The one of them that this is; None for an engine that balances its ranks itself."""
    lists_models: bool = False
    """The engine itself says which models it serves; those in `spec` are what it said last."""

    def by_rank(self) -> tuple[ReplicaConfig, ...]:
        """A replica `ID@0`, `ID@1` ... for each rank, where there are several."""
        if self.ranks == 1:
            return (self,)
        return tuple(
            replace(self, rank=rank, spec=replace(self.spec, replica_id=ReplicaId(f"{self.spec.replica_id}@{rank}")))
            for rank in range(self.ranks)
        )


@dataclass(frozen=True, slots=True)
class DnsReplicasConfig:
    """Replicas that are found by asking for a name, all alike but for their address."""

    template: ReplicaConfig
    """Its id begins theirs; its URL is empty."""
    name: str
    record: DnsRecord
    scheme: str
    port: int | None
    """Of every replica; None where SRV records name it."""
    nameservers: tuple[Address, ...] = ()
    """Empty: those that the machine asks."""


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Another gateway: what the core knows of it, and where its own address is (never a load balancer's)."""

    spec: PeerSpec
    address: Address


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Bounds on what clients and slow readers may cost us."""

    requests_max: int = 10_000
    """Requests held at once, waiting or running."""
    body_max_bytes: int = 16 * _MEBIBYTE
    bodies_held_max_bytes: int = 512 * _MEBIBYTE
    """All request bodies in memory together."""
    request_deadline_ns: int = 600 * _SECOND_NS
    """From arrival to the last byte."""
    prompt_blocks_max: int = 4096
    """Blocks of one prompt that are compared; what follows them is not told apart."""
    output_tokens_reserved: int = 1024
    """Set aside of a key's tokens per minute for a request that names no limit of its own, until it has ended."""
    connections_max: int = 20_000
    """Of clients, open at once; also, by themselves, of operators."""
    headers_max_bytes: int = 64 * 2**10
    """Request line and headers together."""
    header_line_max_bytes: int = 16 * 2**10
    header_count_max: int = 128
    headers_wait_ns: int = 10 * _SECOND_NS
    """How long a client may take over its headers once it has begun."""
    idle_connection_ns: int = 75 * _SECOND_NS
    """A connection without a request is closed after this."""
    client_stall_ns: int = 60 * _SECOND_NS
    """A client that takes longer to send its body, or reads nothing for this long, is treated as gone."""
    engine_connect_ns: int = 5 * _SECOND_NS
    engine_stall_ns: int = 120 * _SECOND_NS
    """An event stream that has begun and then brings nothing for this long has failed."""
    drain_ns: int = 30 * _SECOND_NS
    """How long running requests may take to finish after SIGTERM."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    interval_ns: int = 100 * _MILLISECOND_NS
    timeout_ns: int = 1 * _SECOND_NS
    timeouts_max: int = 3
    """Slow is busy, not dead: this many in a row are dead, unless the engine gives another sign of life."""
    slow_max_ns: int = 60 * _SECOND_NS
    """An engine that tells no load for this long is dead, whatever other signs of life it gives."""
    health_interval_ns: int = 1 * _SECOND_NS
    """How often an engine is asked for its health, where its load page would outlive it."""
    life_interval_ns: int = 2 * _SECOND_NS
    """How often an engine that tells no load is asked whether it lives."""
    models_interval_ns: int = 60 * _SECOND_NS
    """How often an engine is asked which models it serves, where its models are `auto`."""
    models_max: int = 512
    """A longer list of models is not believed."""


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """How names are looked up. The next lookup comes when an answer's TTL is over, within the interval's bounds."""

    interval_min_ns: int = 5 * _SECOND_NS
    interval_max_ns: int = 30 * _SECOND_NS
    timeout_ns: int = 2 * _SECOND_NS
    replicas_max: int = 256
    """Addresses behind one name; what is over it is left out, loudly."""
    misses_max: int = 3
    """An address is gone once this many answers in a row leave it out. No answer, or one without any address, says
    nothing."""


@dataclass(frozen=True, slots=True)
class ReloadConfig:
    """Which changed files are taken in without being asked to; SIGHUP takes in all of them."""

    watch_ns: int | None = 2 * _SECOND_NS
    """The pause between two looks at policy, keys and certificates. None: nothing is watched."""
    region_file: bool = False
    """Watch the region file too."""


@dataclass(frozen=True, slots=True)
class PeeringConfig:
    """How gateways talk to each other, and what each peer may cost us."""

    ping_interval_ns: int = 1 * _SECOND_NS
    ping_timeout_ns: int = 3 * _SECOND_NS
    rtt_window: int = 64
    """Round trips that the median and the p99 are taken over."""
    connect_timeout_ns: int = 5 * _SECOND_NS
    accept_timeout_ns: int = 10 * _SECOND_NS
    """A forward that is neither accepted nor refused within this counts as failed."""
    silence_max_ns: int = 10 * _SECOND_NS
    """A subscription that brings nothing for this long is torn down and opened again."""
    heartbeats_time_max_ns: int = 50 * _MILLISECOND_NS
    """Of each second, what one peer's heartbeats may take of our time; then we do not listen to it for the rest."""
    reconnect_min_ns: int = 100 * _MILLISECOND_NS
    reconnect_max_ns: int = 10 * _SECOND_NS
    keepalive_interval_ns: int = 10 * _SECOND_NS
    """How often an otherwise silent connection is checked, so that a cut network is noticed."""
    keepalive_timeout_ns: int = 10 * _SECOND_NS
    """Long enough for an answer that queues behind a large body on a slow line."""
    subscribers_max: int = 256
    forwards_max: int = 4096
    """Forwards running or waiting here at once, from all peers."""
    message_max_bytes: int = 32 * _MEBIBYTE
    connection_age_ns: int = 300 * _SECOND_NS
    """Connections this old take no new calls, so that old certificates pass away."""
    connection_grace_ns: int = 3600 * _SECOND_NS
    """How long calls may go on on a connection that takes no new ones."""
    tls: MeshTlsConfig | None = None


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """A record of every event and effect, for replay. It holds no text; off unless a folder is named. When the disk is
    full it ends; only a restart begins another."""

    folder: Path | None = None
    file_max_bytes: int = 64 * _MEBIBYTE
    files_max: int = 8


@dataclass(frozen=True, slots=True)
class DecisionsConfig:
    """How many of the latest requests are remembered with the decisions about them, for `nightside explain`."""

    requests_max: int = 10_000
    held_max_bytes: int = 32 * _MEBIBYTE


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """A lasting record of where each request ran, under which policy. It holds no text; off unless a folder is
    named."""

    folder: Path | None = None
    required: bool = False
    """Refuse new requests while the record cannot be written."""
    sync: AuditSync = AuditSync.FLUSH
    flush_interval_ns: int = 500 * _MILLISECOND_NS
    file_max_bytes: int = 64 * _MEBIBYTE
    files_max: int | None = None
    """Over it, this gateway's oldest file is deleted. None: nothing is ever deleted."""
    unwritten_max_bytes: int = 16 * _MEBIBYTE
    """Held in memory while the disk cannot be written; what comes after that is lost, and counted."""


@dataclass(frozen=True, slots=True)
class StateConfig:
    """What has to survive a restart; nothing does unless a folder is named."""

    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything one gateway process was told, checked."""

    gateway_id: GatewayId
    place: Place
    listen: ListenConfig
    policy_file: Path | None
    replicas: tuple[ReplicaConfig, ...]
    peers: tuple[PeerConfig, ...]
    core: CoreConfig = field(default_factory=CoreConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    probes: ProbeConfig = field(default_factory=ProbeConfig)
    dns_replicas: tuple[DnsReplicasConfig, ...] = ()
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    reload: ReloadConfig = field(default_factory=ReloadConfig)
    peering: PeeringConfig = field(default_factory=PeeringConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    decisions: DecisionsConfig = field(default_factory=DecisionsConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    state: StateConfig = field(default_factory=StateConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    keys_file: Path | None = None
    """Who may call, and what for. None: everybody who can reach us."""
    admin_token: str | None = field(default=None, repr=False)
    """What operators have to show, health apart. None: nothing."""
    trust_tenant_header: bool = False
    """Take the tenant from a header that something in front of us sets. Off: it is the key's, or the default one."""
    pass_priority: bool = False
    prefix_block_bytes: int = 256
    seed: int | None = None
    """Fixes the core's chance, for replay and tests; by default each start draws its own."""


def load_config(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> GatewayConfig:
    """Read a region file. Raises ConfigError, with one line per fault."""
    return read_region_file(path, environ).as_config()


def read_region_file(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> RegionFile:
    """The region file with every default filled in. Raises ConfigError."""
    return _region_file(path, read_yaml_mapping(path), environ)


def read_named_files(file: RegionFile, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> RegionFile:
    """The same region file, with the keys and certificates that it names read anew. Raises ConfigError."""
    return _region_file(file.path, file.as_document(), environ)


def _region_file(path: Path, document: dict[str, Any], environ: Mapping[str, str]) -> RegionFile:
    try:
        file = RegionFile.model_validate(document, context=_Surroundings(path.parent.resolve(), environ))
    except ValidationError as error:
        raise config_error(path, error) from error
    return _with_environment(file, environ).come_from(path)


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """A file of ours as YAML without its traps. Raises ConfigError."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_RegionFileLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path.name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name}: is not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path.name}: {_yaml_fault(error)}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path.name}: should be a mapping of keys to values")
    return document


def config_error(path: Path, error: ValidationError) -> ConfigError:
    """Each fault in plain words, under the path of its key."""
    lines = [f"{path.name}: {line}" for each in error.errors() for line in _fault_lines(each)]
    return ConfigError("\n".join(lines))


def parse_duration_ns(text: object) -> int:
    """`100ms`, `2s`, `1.5m` as nanoseconds. Raises ValueError in words."""
    return _parse_quantity(text, DURATION_UNITS_NS, "a duration such as 100ms or 2s")


def parse_size_bytes(text: object) -> int:
    """`64MiB`, `1GiB` as bytes. Raises ValueError in words."""
    return _parse_quantity(text, SIZE_UNITS_BYTES, "a size such as 64MiB or 4KiB")


def format_duration(duration_ns: int) -> str:
    return _format_quantity(duration_ns, DURATION_UNITS_NS)


def format_size(size_bytes: int) -> str:
    return _format_quantity(size_bytes, SIZE_UNITS_BYTES)


def parse_address(text: object) -> Address:
    """`127.0.0.1:8080`, `[::1]:8080` or `gw.example.net:7000`. Raises ValueError in words."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host and not bracketed) or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address such as 127.0.0.1:8080 or [::1]:8080")
    return Address(host, int(port))


def _parse_quantity(text: object, units: Mapping[str, int], expected: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not {expected}")
    whole, _, fraction = match[1].partition(".")
    scaled, rest = divmod(int(whole + fraction) * units[match[2]], int("1" + "0" * len(fraction)))
    if rest:
        raise ValueError(f"{text!r} is finer than 1{next(iter(units))}")
    return scaled


def _format_quantity(amount: int, units: Mapping[str, int]) -> str:
    """In the largest unit that divides it, so that it parses back to the same number."""
    divisors = [name for name, factor in units.items() if amount % factor == 0]
    unit = divisors[-1] if amount else divisors[0]
    return f"{amount // units[unit]}{unit}"


# What one key may hold. Ids end up in logs, metrics and on the wire, so they are short and plain.

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
REPLICA_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,95}")
"""Also of replicas that were found: a template's id, an address, a port and a rank."""
_TEMPLATE_ID_LENGTH_MAX = 40
_RANKS_MAX = 256
CERTIFICATE_NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""What a gateway or region has to look like for a certificate to name it: one label of a host name."""
MODEL_NAME_LENGTH_MAX = 256
PROMPT_BLOCKS_MAX = 2**20


def _check_id(text: str) -> str:
    if ID_PATTERN.fullmatch(text) is None:
        raise ValueError(f"{text!r} should be 1 to 64 letters, digits, dots, dashes or underscores")
    return text


def is_model_name(text: str) -> bool:
    return text.isprintable() and " " not in text and 0 < len(text) <= MODEL_NAME_LENGTH_MAX


def _check_model_name(text: str) -> str:
    if not is_model_name(text):
        raise ValueError(f"a model name is 1 to {MODEL_NAME_LENGTH_MAX} printable characters without spaces")
    return text


def _check_engine_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{text!r} is not an address such as http://10.0.0.7:8000")
    if url.username or url.password or url.query or url.fragment:
        raise ValueError("should hold no user, password, query or fragment; keys go into api_key_file or api_key_env")
    if url.path.rstrip("/").endswith("/v1"):
        raise ValueError("should end before /v1: the gateway adds the path of each API call")
    return text.rstrip("/")


_DNS_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def _check_dns_name(text: str) -> str:
    labels = text.rstrip(".").split(".")
    if len(text) > 253 or not all(map(_DNS_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is not a name that DNS can be asked for")
    return text.rstrip(".").lower()


def _listed_or_auto(value: object, handler: ValidatorFunctionWrapHandler) -> Any:
    return AUTO_MODELS if value == "auto" else handler(value)


def _resolve_path(text: object, info: ValidationInfo) -> object:
    return _surroundings(info).folder / text if isinstance(text, str) and text else text


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a file's meaning depends on besides its text."""

    folder: Path
    """Relative paths start at the region file's folder."""
    environ: Mapping[str, str]


def _surroundings(info: ValidationInfo) -> _Surroundings:
    assert isinstance(info.context, _Surroundings), "region files are validated by read_region_file alone"
    return info.context


_Id = Annotated[str, Strict(), AfterValidator(_check_id)]
_Model = Annotated[str, Strict(), AfterValidator(_check_model_name)]
_Url = Annotated[str, Strict(), AfterValidator(_check_engine_url)]
_DnsName = Annotated[str, Strict(), AfterValidator(_check_dns_name)]
AUTO_MODELS: tuple[str, ...] = ()
"""What `models: auto` is read as: no list can be empty."""
_Models = Annotated[
    tuple[_Model, ...],
    Field(min_length=1),
    WrapValidator(_listed_or_auto),
    PlainSerializer(lambda models: list(models) or "auto"),
]
_File = Annotated[Path, BeforeValidator(_resolve_path), PlainSerializer(str)]
_Address = Annotated[Address, BeforeValidator(parse_address), PlainSerializer(str)]
_Duration = Annotated[int, BeforeValidator(parse_duration_ns), Field(gt=0), PlainSerializer(format_duration)]
_Size = Annotated[int, BeforeValidator(parse_size_bytes), Field(gt=0), PlainSerializer(format_size)]
_Share = Annotated[float, Strict(), Field(ge=0, le=1)]
_Count = Annotated[int, Strict(), Field(ge=1)]
_CountOrNone = Annotated[int, Strict(), Field(ge=0)]


class _FileModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


# Settings whose dataclass is the file's section: `wait_max_ns: int` is the key `wait_max`, written `60s`.

_MAY_BE_ZERO = frozenset({"considered_max", "length_max", "peer_queue_length_max", "refusals_max", "retry_budget_min"})


def _file_key(field_name: str) -> str:
    return field_name.removesuffix("_ns").replace("_bytes", "")


def _file_type(field_name: str, hint: Any) -> Any:
    if NoneType in get_args(hint):
        (present,) = (each for each in get_args(hint) if each is not NoneType)
        return _file_type(field_name, present) | None
    if field_name.endswith("_ns"):
        return _Duration
    if "_bytes" in field_name:
        return _Size
    if field_name.endswith("_share"):
        return _Share
    if hint is int:
        return _CountOrNone if field_name in _MAY_BE_ZERO else _Count
    if is_dataclass(hint):
        return Annotated[hint, _Settings()]
    return _File if hint is Path else hint


def _file_value(field_name: str, value: Any) -> Any:
    if value is None:
        return None
    if is_dataclass(value):
        return _settings_as_file(value)
    if field_name.endswith("_ns"):
        return format_duration(value)
    if "_bytes" in field_name:
        return format_size(value)
    return str(value) if isinstance(value, Path) else value


def _file_default(each: DataclassField[Any]) -> Any:
    if each.default_factory is MISSING:
        return each.default
    return Field(default_factory=each.default_factory)


def _settings_model(settings: type[Any]) -> type[_FileModel]:
    hints = get_type_hints(settings)
    keys: dict[str, Any] = {
        _file_key(each.name): (_file_type(each.name, hints[each.name]), _file_default(each))
        for each in fields(settings)
    }
    return create_model(settings.__name__, __base__=_FileModel, **keys)


def _settings_from(settings: type[Any], section: _FileModel) -> Any:
    return settings(**{each.name: getattr(section, _file_key(each.name)) for each in fields(settings)})


def _settings_as_file(settings: Any) -> dict[str, Any]:
    return {_file_key(each.name): _file_value(each.name, getattr(settings, each.name)) for each in fields(settings)}


class _Settings:
    """Makes pydantic read and write a dataclass of settings as a section of the file."""

    def __get_pydantic_core_schema__(self, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            partial(_settings_from, source),
            handler.generate_schema(_settings_model(source)),
            serialization=core_schema.plain_serializer_function_ser_schema(_settings_as_file),
        )


class ListenFile(_FileModel):
    http: _Address = Address("127.0.0.1", 8080)
    peers: _Address = Address("127.0.0.1", 7070)
    admin: _Address = Address("127.0.0.1", 9090)
    tls: Annotated[ListenTlsConfig, _Settings()] | None = None
    reuse_port: bool = False


class _EngineFile(_FileModel):
    """What is said alike of one replica and of those behind a name."""

    id: _Id
    models: _Models
    adapters: tuple[_Model, ...] = ()
    """LoRA adapters that clients may name as a model."""
    dialect: Dialect = Dialect.VLLM
    pool: _Id = DEFAULT_POOL
    region: _Id | None = None
    """Where the engine runs, if not in the gateway's own region."""
    jurisdiction: _Id | None = None
    data_parallel_ranks: Annotated[int, Strict(), Field(ge=1, le=_RANKS_MAX)] = 1
    api_key_file: _File | None = None
    api_key_env: str | None = None
    tls: Annotated[EngineTlsConfig, _Settings()] | None = None
    _api_key: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check_whole(self, info: ValidationInfo) -> Self:
        if len(set(self.models + self.adapters)) < len(self.models + self.adapters):
            raise ValueError("names a model or adapter twice")
        if self.adapters and self.models == AUTO_MODELS:
            raise ValueError("adapters are listed by the engine itself where models is auto")
        if (self.region is None) != (self.jurisdiction is None):
            raise ValueError("region and jurisdiction are written together or not at all")
        if self.data_parallel_ranks > 1 and self.dialect not in (Dialect.VLLM, Dialect.SGLANG):
            raise ValueError(f"data_parallel_ranks: {self.dialect} has no ranks that can be asked for")
        if self.tls is not None and (self.tls.client_certificate is None) != (self.tls.client_key is None):
            raise ValueError("tls: client_certificate and client_key are written together or not at all")
        if self.tls is not None and not self._is_encrypted:
            raise ValueError("tls: the engine is not reached by https")
        self._api_key = _read_api_key(self.api_key_file, self.api_key_env, _surroundings(info).environ)
        return self

    @property
    def _is_encrypted(self) -> bool:
        raise NotImplementedError

    def files(self) -> Iterator[Path]:
        """Those it takes secrets or certificates from."""
        tls = self.tls or EngineTlsConfig()
        yield from filter(None, (self.api_key_file, tls.ca_file, tls.client_certificate, tls.client_key))

    def _as_config(self, home: Place, url: str, probes: ProbeConfig) -> ReplicaConfig:
        place = (
            Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
            if self.region and self.jurisdiction
            else home
        )
        models = tuple(ModelName(name) for name in self.models + self.adapters)
        sign_of_life_ns = probes.life_interval_ns if self.dialect is Dialect.OPENAI else None
        return ReplicaConfig(
            ReplicaSpec(ReplicaId(self.id), place, models, PoolName(self.pool), sign_of_life_ns),
            url,
            self.dialect,
            self._api_key,
            tls=self.tls,
            ranks=self.data_parallel_ranks,
            lists_models=self.models == AUTO_MODELS,
        )


class ReplicaFile(_EngineFile):
    url: _Url

    @property
    def _is_encrypted(self) -> bool:
        return self.url.startswith("https:")

    def as_configs(self, home: Place, probes: ProbeConfig) -> tuple[ReplicaConfig, ...]:
        return self._as_config(home, self.url, probes).by_rank()


class DnsReplicasFile(_EngineFile):
    """Replicas behind a name; they are called `ID-ADDRESS`, and `ID-ADDRESS-PORT` where SRV records name the port."""

    id: Annotated[_Id, Field(max_length=_TEMPLATE_ID_LENGTH_MAX)]
    name: _DnsName
    record: DnsRecord = DnsRecord.ADDRESS
    scheme: Literal["http", "https"] = "http"
    port: Annotated[int, Strict(), Field(ge=1, le=65535)] | None = None
    nameservers: tuple[_Address, ...] = ()

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if (self.port is None) != (self.record is DnsRecord.SRV):
            raise ValueError("port: belongs to record: address, and SRV records name their own")
        for server in self.nameservers:
            if server.port == 0 or not server.is_numeric:
                raise ValueError(f"nameservers: {server} is not an address and a port such as 10.0.0.2:53")
        return self

    @property
    def _is_encrypted(self) -> bool:
        return self.scheme == "https"

    def as_config(self, home: Place, probes: ProbeConfig) -> DnsReplicasConfig:
        template = self._as_config(home, "", probes)
        return DnsReplicasConfig(template, self.name, self.record, self.scheme, self.port, self.nameservers)


class PeerFile(_FileModel):
    gateway: _Id
    region: _Id
    jurisdiction: _Id
    address: _Address

    def as_config(self) -> PeerConfig:
        place = Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
        return PeerConfig(PeerSpec(GatewayId(self.gateway), place), self.address)


class CoreFile(_FileModel):
    """The sections of a region file that decisions depend on, for whoever drives a core without the rest of it."""

    placement: Annotated[PlacementConfig, _Settings()] = PlacementConfig()
    pushing: Annotated[PushingConfig, _Settings()] = PushingConfig()
    queue: Annotated[QueueConfig, _Settings()] = QueueConfig()
    attempt: Annotated[AttemptConfig, _Settings()] = AttemptConfig()
    observation: Annotated[ObservationConfig, _Settings()] = ObservationConfig()

    @model_validator(mode="after")
    def _check_placement(self) -> Self:
        if faults := [f"placement.{fault}" for fault in placement_faults(self.placement)]:
            raise ValueError("\n".join(faults))
        return self

    def as_config(self) -> CoreConfig:
        return CoreConfig(with_version(self.placement), self.pushing, self.queue, self.attempt, self.observation)


class RegionFile(_FileModel):
    """The region file as written, with every default filled in."""

    gateway: _Id
    region: _Id
    jurisdiction: _Id
    policy: _File | None = None
    listen: ListenFile = ListenFile()
    insecure: bool = False
    """Listen and dial beyond this machine without protection."""
    replicas: tuple[ReplicaFile, ...] = ()
    dns_replicas: tuple[DnsReplicasFile, ...] = ()
    peers: tuple[PeerFile, ...] = ()
    keys: _File | None = None
    admin_token_file: _File | None = None
    trust_tenant_header: bool = False
    pass_priority: bool = False
    prefix_block: _Size = 256
    seed: _CountOrNone | None = None
    placement: Annotated[PlacementConfig, _Settings()] = PlacementConfig()
    pushing: Annotated[PushingConfig, _Settings()] = PushingConfig()
    queue: Annotated[QueueConfig, _Settings()] = QueueConfig()
    attempt: Annotated[AttemptConfig, _Settings()] = AttemptConfig()
    observation: Annotated[ObservationConfig, _Settings()] = ObservationConfig()
    limits: Annotated[LimitsConfig, _Settings()] = LimitsConfig()
    probes: Annotated[ProbeConfig, _Settings()] = ProbeConfig()
    discovery: Annotated[DiscoveryConfig, _Settings()] = DiscoveryConfig()
    reload: Annotated[ReloadConfig, _Settings()] = ReloadConfig()
    peering: Annotated[PeeringConfig, _Settings()] = PeeringConfig()
    journal: Annotated[JournalConfig, _Settings()] = JournalConfig()
    decisions: Annotated[DecisionsConfig, _Settings()] = DecisionsConfig()
    audit: Annotated[AuditConfig, _Settings()] = AuditConfig()
    state: Annotated[StateConfig, _Settings()] = StateConfig()
    logging: Annotated[LoggingConfig, _Settings()] = LoggingConfig()

    _admin_token: str | None = PrivateAttr(None)
    _path: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _read_admin_token(self) -> Self:
        self._admin_token = _read_token(self.admin_token_file)
        return self

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        faults = [
            *self._name_faults(),
            *self._certificate_name_faults(),
            *self._jurisdiction_faults(),
            *self._exposure_faults(),
            *self._identity_faults(),
            *self._number_faults(),
            *(f"placement.{fault}" for fault in placement_faults(self.placement)),
        ]
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def as_config(self) -> GatewayConfig:
        home = Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
        return GatewayConfig(
            gateway_id=GatewayId(self.gateway),
            place=home,
            listen=ListenConfig(
                self.listen.http, self.listen.peers, self.listen.admin, self.listen.tls, self.listen.reuse_port
            ),
            policy_file=self.policy,
            replicas=tuple(replica for each in self.replicas for replica in each.as_configs(home, self.probes)),
            dns_replicas=tuple(each.as_config(home, self.probes) for each in self.dns_replicas),
            peers=tuple(each.as_config() for each in self.peers),
            core=CoreConfig(with_version(self.placement), self.pushing, self.queue, self.attempt, self.observation),
            limits=self.limits,
            probes=self.probes,
            discovery=self.discovery,
            reload=self.reload,
            peering=self.peering,
            journal=self.journal,
            decisions=self.decisions,
            audit=self.audit,
            state=self.state,
            logging=self.logging,
            keys_file=self.keys,
            admin_token=self._admin_token,
            trust_tenant_header=self.trust_tenant_header,
            pass_priority=self.pass_priority,
            prefix_block_bytes=self.prefix_block,
            seed=self.seed,
        )

    def as_document(self) -> dict[str, Any]:
        """The effective file, JSON-able; secrets are named by where they come from, never by value."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def path(self) -> Path:
        """Where it was read."""
        return self._path

    def come_from(self, path: Path) -> Self:
        self._path = path
        return self

    def engine_files(self) -> list[Path]:
        """Keys and certificates for engines: read with the region file, and again when they change."""
        return list(dict.fromkeys(path for each in (*self.replicas, *self.dns_replicas) for path in each.files()))

    def _name_faults(self) -> Iterator[str]:
        replica_ids = [each.id for each in self.replicas]
        gateway_ids = [self.gateway, *(each.gateway for each in self.peers)]
        for index, each in enumerate(replica_ids):
            if each in replica_ids[:index]:
                yield f"replicas[{index}].id: {each!r} is used twice"
        for index, template in enumerate(self.dns_replicas):
            if template.id in [*replica_ids, *(each.id for each in self.dns_replicas[:index])]:
                yield f"dns_replicas[{index}].id: {template.id!r} is used twice"
        for index, peer in enumerate(self.peers):
            if peer.gateway in gateway_ids[: index + 1]:
                yield f"peers[{index}].gateway: {peer.gateway!r} is used twice, or is this gateway"
            if peer.address.port == 0:
                yield f"peers[{index}].address: needs a port"

    def _certificate_name_faults(self) -> Iterator[str]:
        """With other characters, two gateways could share one host name."""
        if self.peering.tls is None:
            return
        named = [
            ("gateway", self.gateway),
            ("region", self.region),
            *((f"peers[{index}].gateway", each.gateway) for index, each in enumerate(self.peers)),
            *((f"peers[{index}].region", each.region) for index, each in enumerate(self.peers)),
        ]
        for path, name in named:
            if CERTIFICATE_NAME_PATTERN.fullmatch(name) is None:
                yield (
                    f"{path}: with peering.tls, {name!r} should be up to 63 small letters, digits and inner dashes,"
                    " to be part of a host name in certificates"
                )

    def _jurisdiction_faults(self) -> Iterator[str]:
        """One region lies in one jurisdiction, whoever names it."""
        known = {self.region: self.jurisdiction}
        named = [
            *((f"replicas[{index}]", each.region, each.jurisdiction) for index, each in enumerate(self.replicas)),
            *(
                (f"dns_replicas[{index}]", each.region, each.jurisdiction)
                for index, each in enumerate(self.dns_replicas)
            ),
            *((f"peers[{index}]", each.region, each.jurisdiction) for index, each in enumerate(self.peers)),
        ]
        for path, region, jurisdiction in named:
            if region is None or jurisdiction is None:
                continue
            if known.setdefault(region, jurisdiction) != jurisdiction:
                yield f"{path}.jurisdiction: region {region} is in {known[region]} elsewhere in this file"

    def _exposure_faults(self) -> Iterator[str]:
        """The one place that says what it takes to listen or dial beyond this machine."""
        if self.insecure:
            return
        for path, address, has_tls, key in self._exposed():
            if not has_tls and not address.is_loopback:
                yield (
                    f"{path}: {address} is beyond this machine, without TLS ({key}); to allow that,"
                    " write `insecure: true`"
                )

    def _exposed(self) -> Iterator[tuple[str, Address, bool, str]]:
        """Each address with whether its traffic is protected, and the key that would do so."""
        for name in ("http", "admin"):
            yield f"listen.{name}", getattr(self.listen, name), self.listen.tls is not None, "listen.tls"
        has_mesh_tls = self.peering.tls is not None
        yield "listen.peers", self.listen.peers, has_mesh_tls, "peering.tls"
        for index, each in enumerate(self.peers):
            yield f"peers[{index}].address", each.address, has_mesh_tls, "peering.tls"

    def _identity_faults(self) -> Iterator[str]:
        """Whoever can reach us from elsewhere has to show something."""
        if not self.insecure and self.keys is None and not self.listen.http.is_loopback:
            address = self.listen.http
            yield f"listen.http: {address} is beyond this machine, and no `keys` file says who may call"
        if self.admin_token_file is None and not self.listen.admin.is_loopback:
            yield f"listen.admin: {self.listen.admin} is beyond this machine, and there is no `admin_token_file`"

    def _number_faults(self) -> Iterator[str]:
        if self.limits.prompt_blocks_max > PROMPT_BLOCKS_MAX:
            yield f"limits.prompt_blocks_max: should be at most {PROMPT_BLOCKS_MAX}: no forward carries more"
        if self.peering.message_max_bytes <= self.limits.body_max_bytes:
            yield "peering.message_max: should exceed limits.body_max, or large requests could never be forwarded"
        if self.peering.reconnect_max_ns < self.peering.reconnect_min_ns:
            yield "peering.reconnect_max: is below peering.reconnect_min"
        if self.peering.connection_grace_ns < max(self.limits.request_deadline_ns, self.peering.connection_age_ns):
            yield (
                "peering.connection_grace: is below limits.request_deadline or peering.connection_age,"
                " so running calls would be cut"
            )
        if self.peering.heartbeats_time_max_ns < _HEARTBEATS_TIME_MIN_NS:
            yield "peering.heartbeats_time_max: is below 5ms, too little for a peer that behaves"
        if self.attempt.breaker_open_max_ns < self.attempt.breaker_open_ns:
            yield "attempt.breaker_open_max: is below attempt.breaker_open"
        if self.observation.replica_stale_ns <= self.probes.interval_ns:
            yield "observation.replica_stale: should be longer than probes.interval"
        if self.probes.slow_max_ns < self.probes.timeout_ns:
            yield "probes.slow_max: is below probes.timeout"
        if self.discovery.interval_max_ns < self.discovery.interval_min_ns:
            yield "discovery.interval_max: is below discovery.interval_min"
        if self.observation.keep_alive_ns < self.observation.publish_interval_ns:
            yield "observation.keep_alive: is below observation.publish_interval"


def _read_token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return _checked_key(file.read_text(encoding="utf-8"), f"admin_token_file: {file}")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"admin_token_file: {file} cannot be read") from error


def _read_api_key(file: Path | None, variable: str | None, environ: Mapping[str, str]) -> str | None:
    if file is not None and variable is not None:
        raise ValueError("api_key_file and api_key_env exclude each other")
    if variable is not None:
        return _checked_key(environ.get(variable, ""), f"api_key_env: environment variable {variable}")
    if file is None:
        return None
    try:
        return _checked_key(file.read_text(encoding="utf-8"), f"api_key_file: {file}")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"api_key_file: {file} cannot be read") from error


def _checked_key(text: str, source: str) -> str:
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(f"{source} holds no usable key")
    return key


def _with_environment(file: RegionFile, environ: Mapping[str, str]) -> RegionFile:
    """The environment may say how to log, since that belongs to the machine and not to the region."""
    logging = LoggingConfig(
        _choice(environ, LOG_FORMAT_VARIABLE, LogFormat, file.logging.format),
        _choice(environ, LOG_LEVEL_VARIABLE, LogLevel, file.logging.level),
    )
    return file.model_copy(update={"logging": logging})


_Choice = TypeVar("_Choice", bound=StrEnum)


def _choice(environ: Mapping[str, str], variable: str, choices: type[_Choice], default: _Choice) -> _Choice:
    text = environ.get(variable, default)
    try:
        return choices(text)
    except ValueError as error:
        raise ConfigError(f"environment: {variable}: {text!r} is not one of {', '.join(choices)}") from error


# YAML without its traps: `NO` is Norway and not false, `08:30` is not a number, a key written twice is a mistake.


class _RegionFileLoader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute, emptied

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is written twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?[0-9]+\.[0-9]+", list("-0123456789")),
):
    _RegionFileLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


# Faults in plain words.


def _yaml_fault(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return f"is not YAML: {error}"


def _fault_lines(error: ErrorDetails) -> Iterator[str]:
    path = _key_path(error["loc"])
    for message in _fault_message(error).splitlines():
        yield f"{path}: {message}" if path else message


def _key_path(location: tuple[int | str, ...]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _fault_message(error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "is not a known key"
        case "too_short":
            return "should not be empty"
        case "value_error":
            return str(error["ctx"]["error"])
        case _:
            return error["msg"].replace("Input should be", "should be", 1)
