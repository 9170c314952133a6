"""The controller's file as written: its sections, the values of each key, and the constraints between keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

from msgspec import Struct, field
from pydantic import Field, PrivateAttr, field_validator, model_validator

from controller.aws_regions import aws_region_faults
from controller.core.config import ControllerConfig
from controller.dns.config import RecordsConfig
from controller.dns.expressible import lease_faults, record_faults, zone_of
from controller.store.config import StoreConfig, StoreKind, store_faults
from gateway.core.kernel.regions import RegionTable
from gateway.core.vocabulary import Place, RegionName
from mesh.config import DnsConfig, ListenTlsConfig, LoggingConfig, MeshTlsConfig
from mesh.control.pool_history import MESSAGE_BYTES_MIN
from mesh.environment import PROCESS_ENVIRONMENT
from mesh.faults import FileError, FileFault, KeyFaults
from mesh.naming.tree import FURTHER_MAX, NameServer
from mesh.operators_config import OperatorsConfig, operator_faults
from mesh.regions import NamedRegions, table_of
from mesh.settings import AnySections, FileModel, SectionsFile
from mesh.values import (
    CERTIFICATE_NAME_PATTERN,
    MEBIBYTE,
    MILLISECOND_NS,
    SECOND_NS,
    Address,
    FileContext,
    FilePath,
    HostName,
    Id,
    WebUrl,
    read_secret,
)
from mesh.yaml_file import YamlFile, read_yaml

_GATEWAYS, _OPERATORS = (Address("127.0.0.1", port) for port in (7090, 9091))


class ControllerListenConfig(Struct, frozen=True):
    """Addresses that the controller listens on."""

    grpc: Address = _GATEWAYS
    """Address of the gRPC service for gateways."""
    admin: Address = _OPERATORS
    """Address of health, metrics and the admin API, for operators."""
    admin_tls: ListenTlsConfig | None = None
    """TLS of the admin address. None: plain HTTP, on loopback only unless `insecure` is set."""
    admin_hosts: tuple[HostName, ...] = ()
    """Host names accepted in requests to a loopback admin address, besides its own, such as that of a reverse proxy."""


class LinkConfig(Struct, frozen=True):
    """Connections from gateways, and the limits of each."""

    alive_interval_ns: int = 1 * SECOND_NS
    """Interval of keep-alive messages to a gateway without other messages."""
    silence_max_ns: int = 6 * SECOND_NS
    """Longest time in which a gateway sends nothing, or reads nothing, after which its connection is closed. Silence
    closes it after 1.5 s where its signs of life are not late, later by 7 times their greatest recent lateness."""
    gateways_max: int = 1024
    """Most gateways connected at once."""
    replicas_max: int = 1024
    """Most replicas that one gateway may announce; a gateway with more is refused."""
    message_max_bytes: int = 32 * MEBIBYTE
    """Largest gRPC message that is accepted from a gateway; at least 64KiB."""
    keepalive_interval_ns: int = 2 * SECOND_NS
    """Interval of keep-alive checks on a silent connection."""
    keepalive_timeout_ns: int = 5 * SECOND_NS
    """Time to wait for the answer to a keep-alive check, or for TCP's acknowledgement; then the connection breaks."""
    connection_age_ns: int = 86_400 * SECOND_NS
    """Age at which a connection is closed, so that old certificates go out of use; gateways reconnect at once."""
    connection_grace_ns: int = 1 * SECOND_NS
    """Time that running calls may continue on a connection that has reached its maximum age."""
    tls: MeshTlsConfig | None = None
    """Mutual TLS with gateways. None: plain gRPC, on loopback only unless `insecure` is set."""


class HistoryConfig(Struct, frozen=True):
    """Operator audit log, with one JSON object per line."""

    path: Path | None = None
    """File of the operator audit log. None: a file beside the SQLite store, named after it with the suffix
    `.history`."""
    file_max_bytes: int = 16 * MEBIBYTE
    """Size at which the file is renamed to `.1`, which replaces the earlier one."""


class GatewayProbeConfig(Struct, frozen=True):
    """Health probes of gateways."""

    interval_ns: int = 250 * MILLISECOND_NS
    """Interval between two probes of one gateway, or 0.1 s where its stream is lost between them. A probe does not wait
    for the answer to the last one; at most `timeout` / `interval` run at once, rounded up."""
    timeout_ns: int = 1 * SECOND_NS
    """Time limit of one probe."""
    ca_file: Path | None = None
    """CA bundle (PEM) that verifies gateways probed by https. None: the machine's trusted roots."""


class RecoveryKind(StrEnum):
    NONE = "none"
    """Gateways are not recovered."""
    COMMAND = "command"
    """A command is run for a gateway that is down."""
    AWS = "aws"
    """The EC2 instance of the gateway is replaced or rebooted."""


class AwsAction(StrEnum):
    REPLACE = "replace"
    """The instance is reported as unhealthy to its auto scaling group, which replaces it."""
    REBOOT = "reboot"
    """The instance is rebooted."""


class AwsRecoveryConfig(Struct, frozen=True):
    """Settings of recovery by AWS. Credentials are found as AWS's own tools find them."""

    action: AwsAction = AwsAction.REPLACE
    """Action on the gateway's instance."""
    tag: str = "nightside:gateway"
    """Tag whose value on an instance is the name of its gateway."""
    regions: Mapping[str, str] = field(default_factory=dict)
    """AWS region of the instances of each region whose own name is not that of an AWS region. A gateway in a region
    with neither is outside AWS, and nothing is done for it."""
    region: str | None = None
    """AWS region of the instances of all regions that `regions` does not name. None: the region's own name."""
    endpoint: WebUrl | None = None
    """URL of the service, in place of AWS's own. None: AWS's own."""


class RecoveryConfig(Struct, frozen=True):
    """Automatic recovery of gateways that are down."""

    kind: RecoveryKind = RecoveryKind.NONE
    """Method of recovery."""
    command: tuple[str, ...] = ()
    """Program and its arguments, run without a shell; the arguments `{gateway}`, `{region}` and `{why}` are replaced.
    Empty: only with another `kind`."""
    aws: AwsRecoveryConfig = field(default_factory=AwsRecoveryConfig)
    """Settings of recovery by AWS. Credentials are found as AWS's own tools find them."""
    timeout_ns: int = 300 * SECOND_NS
    """Time limit of one recovery; then its process is killed."""
    running_max: int = 4
    """Most recoveries at once; others wait, and a gateway never has two."""


class ControllerJournalConfig(Struct, frozen=True):
    """Journal of every event and effect, for replay; off unless a folder is named."""

    folder: Path | None = None
    """Folder of the journal's files. None: no journal."""
    file_max_bytes: int = 64 * MEBIBYTE
    """Size at which a new file of the journal is begun."""
    files_max: int = 8
    """Most files of the journal; beyond it, the oldest is deleted."""


class ControllerReloadConfig(Struct, frozen=True):
    """Automatic reloading of changed files; SIGHUP reloads all files."""

    watch_ns: int | None = 2 * SECOND_NS
    """Interval of checking certificates for changes. None: files are read again only on SIGHUP."""
    controller_file: bool = False
    """Watch the controller file as well, and apply it when it changes."""


class ControllerSections(Struct, frozen=True):
    """Sections of the file that are used as written."""

    store: StoreConfig
    listen: ControllerListenConfig = ControllerListenConfig()
    link: LinkConfig = LinkConfig()
    decisions: ControllerConfig = field(default_factory=ControllerConfig)
    probes: GatewayProbeConfig = GatewayProbeConfig()
    dns: DnsConfig = field(default_factory=DnsConfig)
    records: RecordsConfig = field(default_factory=RecordsConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    history: HistoryConfig = HistoryConfig()
    journal: ControllerJournalConfig = ControllerJournalConfig()
    reload: ControllerReloadConfig = ControllerReloadConfig()
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    operators: OperatorsConfig = field(default_factory=OperatorsConfig)


class NameServerFile(FileModel):
    name: HostName
    """Host name of the name server."""
    addresses: tuple[str, ...] = ()
    """IP addresses of the name server, for glue records. Empty: its name lies outside of the zone."""

    @field_validator("addresses")
    @classmethod
    def _check_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for each in addresses:
            ip_address(each)
        return addresses


class NamingFile(FileModel):
    """Zone of the mesh in DNS, and its name servers."""

    zone: HostName | None = None
    """DNS name at which clients reach the mesh. None: no records are published."""
    name_servers: tuple[NameServerFile, ...] = ()
    """Name servers of the zone, at least two, which may be the controller and gateways with `dns.listen`. Empty: the
    zone is served by others."""
    networks: dict[Id, tuple[str, ...]] = Field(default_factory=dict)
    """Networks (CIDR) of the clients of each region; clients in none of them have no known region."""
    port: int = Field(443, ge=1, le=65535)
    """Port of the client listeners, for SRV and HTTPS records."""
    tls: bool = True
    """Client listeners use TLS. False: there are no HTTPS records, and SRV records are for http."""

    @field_validator("networks")
    @classmethod
    def _check_networks(cls, networks: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        seen: dict[str, str] = {}
        for region, cidrs in networks.items():
            for index, cidr in enumerate(cidrs):
                try:
                    network = str(ip_network(cidr))
                except ValueError as error:
                    raise KeyFaults(FileFault(f"{region}[{index}]", f"{cidr!r} is not a network: {error}")) from error
                if seen.setdefault(network, region) != region:
                    raise KeyFaults(FileFault(f"{region}[{index}]", f"{cidr} is {seen[network]}'s already"))
        return networks

    @model_validator(mode="after")
    def _check_servers(self) -> Self:
        if self.name_servers and self.zone is None:
            raise KeyFaults(FileFault("zone", "is missing, and there are name servers for it"))
        if self.zone is not None and len(self.name_servers) == 1:
            raise KeyFaults(FileFault("name_servers", "a zone has two name servers at least, or none of ours"))
        return self

    @property
    def zone_name(self) -> str:
        """Name of the mesh, fully qualified, with the final dot; empty without one."""
        return zone_of(self.zone)

    @property
    def servers(self) -> tuple[NameServer, ...]:
        return tuple(NameServer(f"{each.name.rstrip('.').lower()}.", each.addresses) for each in self.name_servers)

    @property
    def region_networks(self) -> Mapping[RegionName, tuple[str, ...]]:
        return {RegionName(region): cidrs for region, cidrs in self.networks.items()}


class _ControllerKeys(SectionsFile[AnySections], Generic[AnySections]):
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"further_gateways"})


class ControllerFile(_ControllerKeys[ControllerSections]):
    """The file as written, with every default filled in."""

    controller: Id
    """Name of this controller, in logs and in its certificate."""
    insecure: bool = False
    """Listen beyond this machine without TLS or authentication."""
    admin_token_file: FilePath | None = None
    """File of the bearer token that operators present for all calls but health. None: no token, which is permitted only
    on loopback."""
    naming: NamingFile = NamingFile()
    """Zone of the mesh in DNS, and its name servers."""
    regions: NamedRegions
    """Table of all regions with their jurisdictions, or the name of a file that holds it; a region that is not listed
    is assigned no replicas."""
    region: Id | None = None
    """Region of this controller. Needed to pass histories of disaggregated pools on, since policies have to allow them
    there. None: histories are not passed on."""

    _admin_token: str | None = PrivateAttr(None)
    _records_key: str = PrivateAttr("")
    _source: YamlFile = PrivateAttr()

    @model_validator(mode="after")
    def _read_admin_token(self) -> Self:
        if self.admin_token_file is not None:
            self._admin_token = read_secret(self.admin_token_file, "admin_token_file")
        return self

    @model_validator(mode="after")
    def _read_records_key(self) -> Self:
        key_file = self.sections.records.rfc2136.key_file
        if key_file is not None:
            self._records_key = read_secret(key_file, "records.rfc2136.key_file")
        return self

    def come_from(self, source: YamlFile) -> Self:
        self._source = source
        return self

    @property
    def source(self) -> YamlFile:
        """Text from which the file was read."""
        return self._source

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def region_table(self) -> RegionTable:
        return table_of(self.regions)

    @property
    def place(self) -> Place | None:
        """Place of the controller; None where none is named."""
        known = None if self.region is None else self.region_table.regions.get(RegionName(self.region))
        return None if known is None else Place(RegionName(str(self.region)), known.jurisdiction)

    @property
    def admin_token(self) -> str | None:
        return self._admin_token

    @property
    def records_key(self) -> str:
        """Key that signs dynamic updates, in base64."""
        return self._records_key

    @property
    def sections(self) -> ControllerSections:
        return self.take(ControllerSections)

    def as_document(self) -> dict[str, Any]:
        """Return the effective file, JSON-able; secrets are named by their source, never by value."""
        document = self.model_dump(mode="json", exclude_none=True)
        own = {key: document[key] for key in ControllerFile.__annotations__ if key in document}
        return own | document


def read_controller_file(path: Path, environ: Mapping[str, str] = PROCESS_ENVIRONMENT) -> ControllerFile:
    """Read the file, with every default filled in. Raises ConfigError, with one line per fault."""
    source = read_yaml(path)
    source.mapping()
    file = source.read_as(ControllerFile, context=FileContext(path.parent.resolve(), environ))
    if faults := source.located(_faults_between(file)):
        raise FileError(path, faults)
    logging = file.sections.logging.overridden(environ)
    return file.model_copy(update={"logging": logging}).come_from(source)


def _faults_between(file: ControllerFile) -> Iterator[FileFault]:
    """Yield faults between keys that are each valid by themselves."""
    sections = file.sections
    if file.region is not None and file.place is None:
        yield FileFault("region", f"{file.region} is not in the table of regions", beside="regions")
    listen, link, recovery = sections.listen, sections.link, sections.recovery
    if link.message_max_bytes < MESSAGE_BYTES_MIN:
        yield FileFault("link.message_max", "is below 64KiB, so that the history of a pool would break a stream")
    if CERTIFICATE_NAME_PATTERN.fullmatch(file.controller) is None and link.tls is not None:
        yield FileFault("controller", "with link.tls, it should be small letters, digits and inner dashes")
    for key, address, tls, tls_key in (
        ("listen.grpc", listen.grpc, link.tls, "link.tls"),
        ("listen.admin", listen.admin, listen.admin_tls, "listen.admin_tls"),
    ):
        if tls is None and not address.is_loopback and not file.insecure:
            yield FileFault(
                key, f"{address} is beyond this machine, without {tls_key}; to allow that, write `insecure: true`"
            )
    if file.admin_token_file is None and not sections.operators.are_any and not listen.admin.is_loopback:
        yield FileFault(
            "listen.admin",
            f"{listen.admin} is beyond this machine, and there is no `admin_token_file`, nor `operators`",
        )
    yield from operator_faults(sections.operators, insecure=file.insecure)
    if link.silence_max_ns <= link.alive_interval_ns:
        yield FileFault("link.silence_max", "should be longer than link.alive_interval", beside="link.alive_interval")
    if recovery.kind is RecoveryKind.COMMAND and not recovery.command:
        yield FileFault("recovery.command", "is missing, and recovery.kind is command")
    if recovery.kind is not RecoveryKind.COMMAND and recovery.command:
        yield FileFault(
            "recovery.command", f"is never run, since recovery.kind is {recovery.kind}", beside="recovery.kind"
        )
    yield from aws_region_faults(recovery.aws.regions, "recovery.aws.regions")
    if sections.store.kind is not StoreKind.SQLITE and sections.history.path is None:
        yield FileFault("history.path", "is missing: without a file as the store there is nothing for it to lie beside")
    yield from store_faults(sections.store, insecure=file.insecure)
    decisions = sections.decisions
    if decisions.return_after_max_ns < decisions.return_after_ns:
        yield FileFault(
            "decisions.return_after_max", "is below decisions.return_after", beside="decisions.return_after"
        )
    if decisions.further_gateways > FURTHER_MAX:
        yield FileFault("decisions.further_gateways", f"is over {FURTHER_MAX}, the most that an answer names")
    if sections.dns.listen and file.naming.zone is None:
        yield FileFault("naming.zone", "is missing, and dns.listen answers for it", beside="dns.listen")
    naming = file.naming
    yield from record_faults(
        sections.records,
        naming.zone_name,
        decisions.closed_jurisdictions,
        {"naming.networks": bool(naming.networks), "naming.name_servers": bool(naming.name_servers)},
        file.records_key,
        regions=file.region_table,
    )
    store = sections.store
    if store.kind is not StoreKind.SQLITE:
        yield from lease_faults(sections.records, store.lease_ns - store.margin_ns - store.renew_interval_ns)
