"""The region file: parsed once, checked wholly, turned into frozen objects. The only reader of the environment.

It must never repair a file silently: an unknown key, a key written twice or a number without its unit is an error that
names the file and the path of the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from dataclasses import Field as DataclassField
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Self, TypeVar, get_args, get_type_hints
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

_MILLISECOND_NS = 1_000_000
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
    """A region file that cannot be used. One line per fault: `us.yaml: replicas[2].url: what is wrong`."""


class Dialect(StrEnum):
    """Which engine speaks at a replica's URL: how load is read from it."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


class LogFormat(StrEnum):
    AUTO = "auto"
    """Readable on a terminal, JSON everywhere else."""
    JSON = "json"
    CONSOLE = "console"


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


@dataclass(frozen=True, slots=True)
class ListenConfig:
    http: Address
    """The OpenAI-compatible API, for clients."""
    peers: Address
    """gRPC, for other gateways."""
    admin: Address
    """Health, metrics and state, for operators."""


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One engine: what the core knows of it, and how the edge reaches it."""

    spec: ReplicaSpec
    url: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)


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
    client_stall_ns: int = 60 * _SECOND_NS
    """A client that reads nothing for this long is treated as gone."""
    engine_connect_ns: int = 5 * _SECOND_NS
    drain_ns: int = 30 * _SECOND_NS
    """How long running requests may take to finish after SIGTERM."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    interval_ns: int = 100 * _MILLISECOND_NS
    timeout_ns: int = 1 * _SECOND_NS


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


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """A record of every event and effect, for replay. It holds no text; off unless a folder is named."""

    folder: Path | None = None
    file_max_bytes: int = 64 * _MEBIBYTE
    files_max: int = 8


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
    peering: PeeringConfig = field(default_factory=PeeringConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    trust_tenant_header: bool = False
    """Take the tenant from a header that something in front of us sets. Off: every client is the default tenant."""
    prefix_block_bytes: int = 256
    seed: int | None = None
    """Fixes the core's chance, for replay and tests; by default each start draws its own."""


def load_config(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> GatewayConfig:
    """Read a region file. Raises ConfigError, with one line per fault."""
    return read_region_file(path, environ).as_config()


def read_region_file(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> RegionFile:
    """The region file with every default filled in. Raises ConfigError."""
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
    try:
        file = RegionFile.model_validate(document, context=_Surroundings(path.parent.resolve(), environ))
    except ValidationError as error:
        lines = [f"{path.name}: {line}" for each in error.errors() for line in _fault_lines(each)]
        raise ConfigError("\n".join(lines)) from error
    return _with_environment(file, environ)


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
MODEL_NAME_LENGTH_MAX = 256


def _check_id(text: str) -> str:
    if ID_PATTERN.fullmatch(text) is None:
        raise ValueError(f"{text!r} should be 1 to 64 letters, digits, dots, dashes or underscores")
    return text


def _check_model_name(text: str) -> str:
    if not text.isprintable() or " " in text or not 0 < len(text) <= MODEL_NAME_LENGTH_MAX:
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
    return _File if hint is Path else hint


def _file_value(field_name: str, value: Any) -> Any:
    if value is None:
        return None
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


class ReplicaFile(_FileModel):
    id: _Id
    url: _Url
    models: Annotated[tuple[_Model, ...], Field(min_length=1)]
    adapters: tuple[_Model, ...] = ()
    """LoRA adapters that clients may name as a model."""
    dialect: Dialect = Dialect.VLLM
    pool: _Id = DEFAULT_POOL
    region: _Id | None = None
    """Where the engine runs, if not in the gateway's own region."""
    jurisdiction: _Id | None = None
    api_key_file: _File | None = None
    api_key_env: str | None = None
    _api_key: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check_whole(self, info: ValidationInfo) -> Self:
        if len(set(self.models + self.adapters)) < len(self.models + self.adapters):
            raise ValueError("names a model or adapter twice")
        if (self.region is None) != (self.jurisdiction is None):
            raise ValueError("region and jurisdiction are written together or not at all")
        self._api_key = _read_api_key(self.api_key_file, self.api_key_env, _surroundings(info).environ)
        return self

    def as_config(self, home: Place) -> ReplicaConfig:
        place = (
            Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
            if self.region and self.jurisdiction
            else home
        )
        models = tuple(ModelName(name) for name in self.models + self.adapters)
        spec = ReplicaSpec(ReplicaId(self.id), place, models, PoolName(self.pool))
        return ReplicaConfig(spec, self.url, self.dialect, self._api_key)


class PeerFile(_FileModel):
    gateway: _Id
    region: _Id
    jurisdiction: _Id
    address: _Address

    def as_config(self) -> PeerConfig:
        place = Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
        return PeerConfig(PeerSpec(GatewayId(self.gateway), place), self.address)


class RegionFile(_FileModel):
    """The region file as written, with every default filled in."""

    gateway: _Id
    region: _Id
    jurisdiction: _Id
    policy: _File | None = None
    listen: ListenFile = ListenFile()
    insecure: bool = False
    """Listen and dial beyond this machine without TLS."""
    replicas: tuple[ReplicaFile, ...] = ()
    peers: tuple[PeerFile, ...] = ()
    trust_tenant_header: bool = False
    prefix_block: _Size = 256
    seed: _CountOrNone | None = None
    placement: Annotated[PlacementConfig, _Settings()] = PlacementConfig()
    pushing: Annotated[PushingConfig, _Settings()] = PushingConfig()
    queue: Annotated[QueueConfig, _Settings()] = QueueConfig()
    attempt: Annotated[AttemptConfig, _Settings()] = AttemptConfig()
    observation: Annotated[ObservationConfig, _Settings()] = ObservationConfig()
    limits: Annotated[LimitsConfig, _Settings()] = LimitsConfig()
    probes: Annotated[ProbeConfig, _Settings()] = ProbeConfig()
    peering: Annotated[PeeringConfig, _Settings()] = PeeringConfig()
    journal: Annotated[JournalConfig, _Settings()] = JournalConfig()
    logging: Annotated[LoggingConfig, _Settings()] = LoggingConfig()

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        faults = [*self._name_faults(), *self._jurisdiction_faults(), *self._exposure_faults(), *self._number_faults()]
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def as_config(self) -> GatewayConfig:
        home = Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
        return GatewayConfig(
            gateway_id=GatewayId(self.gateway),
            place=home,
            listen=ListenConfig(self.listen.http, self.listen.peers, self.listen.admin),
            policy_file=self.policy,
            replicas=tuple(each.as_config(home) for each in self.replicas),
            peers=tuple(each.as_config() for each in self.peers),
            core=CoreConfig(self.placement, self.pushing, self.queue, self.attempt, self.observation),
            limits=self.limits,
            probes=self.probes,
            peering=self.peering,
            journal=self.journal,
            logging=self.logging,
            trust_tenant_header=self.trust_tenant_header,
            prefix_block_bytes=self.prefix_block,
            seed=self.seed,
        )

    def as_document(self) -> dict[str, Any]:
        """The effective file, JSON-able; secrets are named by where they come from, never by value."""
        return self.model_dump(mode="json", exclude_none=True)

    def _name_faults(self) -> Iterator[str]:
        replica_ids = [each.id for each in self.replicas]
        gateway_ids = [self.gateway, *(each.gateway for each in self.peers)]
        for index, each in enumerate(replica_ids):
            if each in replica_ids[:index]:
                yield f"replicas[{index}].id: {each!r} is used twice"
        for index, peer in enumerate(self.peers):
            if peer.gateway in gateway_ids[: index + 1]:
                yield f"peers[{index}].gateway: {peer.gateway!r} is used twice, or is this gateway"
            if peer.address.port == 0:
                yield f"peers[{index}].address: needs a port"

    def _jurisdiction_faults(self) -> Iterator[str]:
        """One region lies in one jurisdiction, whoever names it."""
        known = {self.region: self.jurisdiction}
        named = [
            *((f"replicas[{index}]", each.region, each.jurisdiction) for index, each in enumerate(self.replicas)),
            *((f"peers[{index}]", each.region, each.jurisdiction) for index, each in enumerate(self.peers)),
        ]
        for path, region, jurisdiction in named:
            if region is None or jurisdiction is None:
                continue
            if known.setdefault(region, jurisdiction) != jurisdiction:
                yield f"{path}.jurisdiction: region {region} is in {known[region]} elsewhere in this file"

    def _exposure_faults(self) -> Iterator[str]:
        if self.insecure:
            return
        listening = [(f"listen.{name}", getattr(self.listen, name)) for name in ("http", "peers", "admin")]
        dialled = [(f"peers[{index}].address", each.address) for index, each in enumerate(self.peers)]
        for path, address in listening + dialled:
            if not address.is_loopback:
                yield f"{path}: {address} is beyond this machine, without TLS; to allow that, write `insecure: true`"

    def _number_faults(self) -> Iterator[str]:
        if self.peering.message_max_bytes <= self.limits.body_max_bytes:
            yield "peering.message_max: should exceed limits.body_max, or large requests could never be forwarded"
        if self.peering.reconnect_max_ns < self.peering.reconnect_min_ns:
            yield "peering.reconnect_max: is below peering.reconnect_min"
        if self.attempt.breaker_open_max_ns < self.attempt.breaker_open_ns:
            yield "attempt.breaker_open_max: is below attempt.breaker_open"
        if self.observation.replica_stale_ns <= self.probes.interval_ns:
            yield "observation.replica_stale: should be longer than probes.interval"
        if self.observation.keep_alive_ns < self.observation.publish_interval_ns:
            yield "observation.keep_alive: is below observation.publish_interval"


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
