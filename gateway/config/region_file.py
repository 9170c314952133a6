"""Region file as it is written: its keys, the values that each may hold, and the config made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self

from msgspec.structs import asdict, replace
from pydantic import Field, PrivateAttr, Strict, StrictBool, ValidationInfo, model_validator

from gateway.config.kubernetes import Namespace, Network, PortName, Selector, as_network, cluster_around
from gateway.config.names import AUTO_MODELS, DnsName, Model, ModelIdentity, Models, SideChannelHost, Url
from gateway.config.placement_plug_ins import placement_faults, with_version
from gateway.config.pools import PoolFile, PoolMember
from gateway.config.sections import GatewayConfig, ProbeConfig, Sections
from gateway.config.targets import (
    APPENDING_DIALECTS,
    SALTED_DIALECTS,
    Dialect,
    DnsRecord,
    DnsReplicasConfig,
    EngineTlsConfig,
    KubernetesApi,
    KubernetesKind,
    KubernetesReplicasConfig,
    PeerConfig,
    ReplicaConfig,
)
from gateway.config.tracing import collector_headers
from gateway.core.config import CoreConfig
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    Connector,
    GatewayId,
    Jurisdiction,
    ModelName,
    PeerSpec,
    Place,
    PoolName,
    PoolSpec,
    RegionName,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
)
from gateway.features.sections import CORE_CHECKS
from mesh.faults import FileFault, KeyFaults
from mesh.settings import AnySections, FileModel, Section, SectionsFile
from mesh.values import AddressText, FileContext, FilePath, Id, WebUrl, checked_secret, read_secret
from mesh.yaml_file import YamlFile

SIDE_CHANNEL_HOSTS_MAX = 64
NO_CONNECTORS: Mapping[str, Connector | None] = {}
_TEMPLATE_ID_LENGTH_MAX = 40
_RANKS_MAX = 256
_PORT_MAX = 65_535
_SLOTS_MAX = 65536
_ALIASES_MAX = 1000
_MEANT_MAX = 16
_NETWORKS_MAX = 64


class RegionSections(SectionsFile[AnySections], Generic[AnySections]):
    """Base of the region file and of its sections that a core needs alone."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset(
        {
            "considered_max",
            "interruptions_max",
            "length_max",
            "peer_queue_length_max",
            "prefix_slack_tokens",
            "priority",
            "refusals_max",
            "retry_budget_min",
            "seed",
        }
    )


class _EngineFile(FileModel):
    """Keys common to a single replica and to replicas behind a name."""

    id: Id
    """Name of the replica, unique in the mesh; for discovered replicas, the prefix of each name."""
    models: Models
    """Models that the engine serves. `auto`: those that the engine lists, adapters included."""
    adapters: tuple[Model, ...] = ()
    """LoRA adapters that clients may name as a model."""
    dialect: Dialect = Dialect.VLLM
    """Kind of the engine, which decides how load is read and which body fields are understood."""
    pool: Id | PoolFile = DEFAULT_POOL
    """Name of the replica's pool, or the pool's whole description."""
    role: ReplicaRole = ReplicaRole.UNIFIED
    """Role of the replica in its pool."""
    group: Id | None = None
    """Group of a decode worker, whose members run their steps in lockstep. None: its own ranks are the group."""
    bootstrap_port: Annotated[int, Strict(), Field(ge=1, le=65535)] | None = None
    """Port of a prefill worker that decode workers connect to for the handoff. None: the connector's usual port, or the
    one that the engine reports."""
    side_channel_hosts: Annotated[tuple[SideChannelHost, ...], Field(max_length=SIDE_CHANNEL_HOSTS_MAX)] = ()
    """Hosts and networks, besides the engine's own address, from which decode workers may fetch this prefill worker's
    KV cache; for workers whose answers name the host."""
    side_channel_port: Annotated[int, Strict(), Field(ge=1, le=65535)] | None = None
    """First of the ports at which a prefill worker's ranks serve KV cache, one per rank. None: any port of those hosts,
    as with several ranks over ascend."""
    region: Id | None = None
    """Region in which the engine runs; written together with `jurisdiction`. None: the gateway's region."""
    jurisdiction: Id | None = None
    """Jurisdiction of the region in which the engine runs; written together with `region`. None: the gateway's
    jurisdiction."""
    identity: ModelIdentity | None = None
    """Identity of the models: text that is equal for engines with the same revision, quantization and chat template,
    and different for all others. None: that of the pool, else `root` of each model in the engine's /v1/models. Where
    the engines of one model have more than 8, peers are told that none is known."""
    slots: Annotated[int, Strict(), Field(ge=1, le=_SLOTS_MAX)] | None = None
    """Requests that each data-parallel rank of the engine runs at once (vLLM's --max-num-seqs). None: as the engine
    reports, or learnt from the load at which requests first wait in it."""
    data_parallel_ranks: Annotated[int, Strict(), Field(ge=1, le=_RANKS_MAX)] = 1
    """Data-parallel ranks of the engine, each of them a replica that requests are pinned to."""
    api_key_file: FilePath | None = None
    """File of the API key that the engine requires. None: no key from a file."""
    api_key_env: str | None = None
    """Environment variable that holds the engine's API key, in place of a file. None: no key from the environment."""
    tls: Annotated[EngineTlsConfig, Section()] | None = None
    """TLS to an engine whose URL begins with https. None: the machine's trusted roots, and no client certificate."""
    kv_events_port: Annotated[int, Strict(), Field(ge=1, le=65535)] | None = None
    """Port at which the engine publishes its KV events (`endpoint` of --kv-events-config), or the first of as many as
    it has ranks. None: it publishes none."""
    kv_events_replay_port: Annotated[int, Strict(), Field(ge=1, le=65535)] | None = None
    """Port at which the engine repeats KV events (`replay_endpoint`), or the first of as many. None: it repeats none,
    and the gateway begins anew whenever it misses one."""
    cache_salt: StrictBool | None = None
    """Engine separates cached prompts by the body field `cache_salt`. None: true for vllm and sglang, else false."""
    _api_key: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check_whole(self, info: ValidationInfo) -> Self:
        if len(set(self.models + self.adapters)) < len(self.models + self.adapters):
            raise ValueError("names a model or adapter twice")
        if self.adapters and self.models == AUTO_MODELS:
            raise _fault("adapters", "are listed by the engine itself where models is auto")
        if (self.region is None) != (self.jurisdiction is None):
            raise ValueError("region and jurisdiction are written together or not at all")
        if self.data_parallel_ranks > 1 and self.dialect not in (Dialect.VLLM, Dialect.SGLANG):
            raise _fault("data_parallel_ranks", f"{self.dialect} has no ranks that can be asked for")
        if self.tls is not None and (self.tls.client_certificate is None) != (self.tls.client_key is None):
            raise _fault("tls", "client_certificate and client_key are written together or not at all")
        if self.bootstrap_port is not None and self.role is not ReplicaRole.PREFILL:
            raise _fault("bootstrap_port", "belongs to a prefill worker")
        for key in ("side_channel_hosts", "side_channel_port"):
            if getattr(self, key) and self.role is not ReplicaRole.PREFILL:
                raise _fault(key, "belongs to a prefill worker")
        if self.kv_events_port is not None:
            if self.dialect not in (Dialect.VLLM, Dialect.SGLANG) or self.role is not ReplicaRole.UNIFIED:
                raise _fault("kv_events_port", "belongs to a unified replica of vllm or sglang")
            if self._is_encrypted:
                raise _fault("kv_events_port", "events are not encrypted, and the engine is reached by https")
        elif self.kv_events_replay_port is not None:
            raise _fault("kv_events_replay_port", "belongs to an engine with a kv_events_port")
        self._check_event_ports()
        if self.tls is not None and not self._is_encrypted:
            raise _fault("tls", "the engine is not reached by https")
        self._api_key = self._read_api_key(FileContext.of(info).environ)
        return self

    def _check_event_ports(self) -> None:
        ranks, port, replay_port = self.data_parallel_ranks, self.kv_events_port, self.kv_events_replay_port
        for key, first in (("kv_events_port", port), ("kv_events_replay_port", replay_port)):
            if first is not None and first + ranks - 1 > _PORT_MAX:
                raise _fault(key, f"leaves no port for each of {ranks} ranks: the last would be {first + ranks - 1}")
        if port is not None and replay_port is not None and abs(port - replay_port) < ranks:
            raise _fault(
                "kv_events_replay_port", f"is within the ports of kv_events_port, one for each of {ranks} ranks"
            )

    def _read_api_key(self, environ: Mapping[str, str]) -> str | None:
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("api_key_file and api_key_env exclude each other")
        if self.api_key_file is not None:
            return read_secret(self.api_key_file, "api_key_file")
        if self.api_key_env is None:
            return None
        return checked_secret(
            environ.get(self.api_key_env, ""), "api_key_env", f"environment variable {self.api_key_env}"
        )

    @property
    def _is_encrypted(self) -> bool:
        raise NotImplementedError

    @property
    def pool_name(self) -> PoolName:
        return PoolName(self.pool if isinstance(self.pool, str) else self.pool.name)

    def as_member(self, path: str, home: str, pools: Mapping[str, str | None]) -> PoolMember:
        """Replica as a member of its pool. `pools`: identity that each described pool declares, by name."""
        models = frozenset((*self.models, *self.adapters))
        identity = self.identity or pools.get(self.pool_name)
        return PoolMember(
            path, self.pool_name, self.role, self.group, self.dialect, self.region or home, models, identity
        )

    def files(self) -> Iterator[Path]:
        """Files of its secrets and certificates."""
        tls = self.tls or EngineTlsConfig()
        yield from filter(None, (self.api_key_file, tls.ca_file, tls.client_certificate, tls.client_key))

    def _as_config(
        self, home: Place, url: str, probes: ProbeConfig, connectors: Mapping[str, Connector | None]
    ) -> ReplicaConfig:
        place = (
            Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
            if self.region and self.jurisdiction
            else home
        )
        models = tuple(ModelName(name) for name in self.models + self.adapters)
        sign_of_life_ns = probes.life_interval_ns if self.dialect is Dialect.OPENAI else None
        spec = ReplicaSpec(
            ReplicaId(self.id),
            place,
            models,
            self.pool_name,
            sign_of_life_ns,
            role=self.role,
            group=(self.group or self.id) if self.role is ReplicaRole.DECODE else "",
            appends=self.dialect in APPENDING_DIALECTS,
            slots=self.slots or 0,
            identity=self.identity or ("" if isinstance(self.pool, str) else self.pool.identity or ""),
            tells_cache=self.kv_events_port is not None,
        )
        return ReplicaConfig(
            spec,
            url,
            self.dialect,
            self._api_key,
            tls=self.tls,
            ranks=self.data_parallel_ranks,
            lists_models=self.models == AUTO_MODELS,
            takes_cache_salt=self.dialect in SALTED_DIALECTS if self.cache_salt is None else self.cache_salt,
            connector=connectors.get(self.pool) if isinstance(self.pool, str) else self.pool.connector,
            bootstrap_port=self.bootstrap_port,
            side_channel_hosts=self.side_channel_hosts,
            side_channel_port=self.side_channel_port,
            kv_events_port=self.kv_events_port,
            kv_events_replay_port=self.kv_events_replay_port,
        )

    def _as_template(
        self, home: Place, probes: ProbeConfig, connectors: Mapping[str, Connector | None]
    ) -> ReplicaConfig:
        """Template for discovered replicas."""
        template = self._as_config(home, "", probes, connectors)
        if self.group is None:  # alone in a group named after its own id, which discovery supplies
            template = replace(template, spec=replace(template.spec, group=""))
        return template


class ReplicaDocument(_EngineFile):
    """Replica at a fixed URL as another gateway announces it, with its pool's description, since a gateway that adopts
    the replica lacks the region file."""

    url: Url
    """Base URL of the engine, without `/v1`."""

    @property
    def _is_encrypted(self) -> bool:
        return self.url.startswith("https:")

    def as_configs(
        self, home: Place, probes: ProbeConfig, connectors: Mapping[str, Connector | None] = NO_CONNECTORS
    ) -> tuple[ReplicaConfig, ...]:
        """One config per data-parallel rank. `connectors` are those of the pools described elsewhere, by pool name."""
        return self._as_config(home, self.url, probes, connectors).by_rank()


class ReplicaFile(ReplicaDocument):
    """Replica at a fixed URL."""

    pool: Id = DEFAULT_POOL
    """Name of the replica's pool."""

    def as_document(self, home: Place, pools: Mapping[str, PoolFile]) -> str:
        """Replica document: JSON of the same keys with region and pool written out, readable without this region
        file."""
        told = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        told |= {"region": self.region or home.region, "jurisdiction": self.jurisdiction or home.jurisdiction}
        if self.pool_name in pools:
            told["pool"] = pools[self.pool_name].model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return json.dumps(told)


class DnsReplicasFile(_EngineFile):
    """Replicas behind a DNS name, with ids `ID-ADDRESS`, or `ID-ADDRESS-PORT` where SRV records name the port."""

    id: Annotated[Id, Field(max_length=_TEMPLATE_ID_LENGTH_MAX)]
    pool: Id = DEFAULT_POOL
    """Name of the replicas' pool."""
    name: DnsName
    """DNS name that is looked up; `/etc/hosts` is not read."""
    record: DnsRecord = DnsRecord.ADDRESS
    """Type of the DNS records that are looked up."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the engines' URLs."""
    port: Annotated[int, Strict(), Field(ge=1, le=65535)] | None = None
    """Port of every replica. None: only with `record: srv`, whose records name the port."""
    nameservers: tuple[AddressText, ...] = ()
    """Name servers that are asked. Empty: those of the machine."""

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if (self.port is None) != (self.record is DnsRecord.SRV):
            raise _fault("port", "belongs to record: address, and SRV records name their own")
        for server in self.nameservers:
            if server.port == 0 or not server.is_numeric:
                raise _fault("nameservers", f"{server} is not an address and a port such as 10.0.0.2:53")
        return self

    @property
    def _is_encrypted(self) -> bool:
        return self.scheme == "https"

    def as_config(
        self, home: Place, probes: ProbeConfig, connectors: Mapping[str, Connector | None]
    ) -> DnsReplicasConfig:
        template = self._as_template(home, probes, connectors)
        return DnsReplicasConfig(template, self.name, self.record, self.scheme, self.port, self.nameservers)


class KubernetesReplicasFile(_EngineFile):
    """Replicas that a cluster selects by labels, with ids `ID-ADDRESS`, or `ID-ADDRESS-PORT` if the port is given by
    name."""

    id: Annotated[Id, Field(max_length=_TEMPLATE_ID_LENGTH_MAX)]
    pool: Id = DEFAULT_POOL
    """Name of the replicas' pool."""
    selector: Selector
    """Label selector of the objects, in the syntax of `kubectl --selector`."""
    kind: KubernetesKind = KubernetesKind.ENDPOINT_SLICES
    """Kind of the objects that are selected."""
    namespace: Namespace | None = None
    """Namespace of the objects. None: the namespace that this gateway runs in."""
    scheme: Literal["http", "https"] = "http"
    """Scheme of the engines' URLs."""
    port: Annotated[int, Strict(), Field(ge=1, le=65535)] | PortName
    """Port of every replica: its number, or its name in the Service or container."""
    networks: Annotated[tuple[Network, ...], Field(max_length=_NETWORKS_MAX)] = ()
    """Networks in which the replicas' addresses have to lie. Empty: those of the operators' table of regions."""
    api: WebUrl | None = None
    """URL of the cluster's API. None: the cluster that this gateway runs in, with the pod's token."""
    token_file: FilePath | None = None
    """File of the bearer token for the API; it is read again for each call. None: no token."""
    ca_file: FilePath | None = None
    """CA bundle (PEM) that verifies the API. None: the machine's trusted roots."""
    _api: KubernetesApi = PrivateAttr()
    _namespace: str = PrivateAttr()

    @model_validator(mode="after")
    def _find_api(self, info: ValidationInfo) -> Self:
        inside = cluster_around(FileContext.of(info).environ)
        if self.api is None:
            if inside is None:
                raise _fault("api", "is missing, and this gateway runs in no cluster")
            if self.token_file is not None or self.ca_file is not None:
                raise _fault("api", "is missing beside token_file or ca_file")
            self._api = inside.api
        else:
            if self.token_file is not None and not self.api.startswith("https:"):
                raise _fault("api", "is not https, and a token would be sent there")
            self._api = KubernetesApi(self.api.rstrip("/"), self.token_file, self.ca_file)
        namespace = self.namespace or (inside.namespace if inside is not None and self.api is None else None)
        if namespace is None:
            raise _fault("namespace", "is missing")
        self._namespace = namespace
        return self

    @property
    def _is_encrypted(self) -> bool:
        return self.scheme == "https"

    def as_config(
        self, home: Place, probes: ProbeConfig, connectors: Mapping[str, Connector | None]
    ) -> KubernetesReplicasConfig:
        template = self._as_template(home, probes, connectors)
        return KubernetesReplicasConfig(
            template,
            self.kind,
            self._api,
            self._namespace,
            self.selector,
            self.scheme,
            self.port,
            tuple(map(as_network, self.networks)),
        )


class PeerFile(FileModel):
    """Another gateway of the mesh."""

    gateway: Id
    """Name of the peer."""
    region: Id
    """Region of the peer."""
    jurisdiction: Id
    """Jurisdiction of the peer's region, spelt as in the residency policies."""
    address: AddressText
    """Address of the peer's gRPC service: the gateway's own, never a load balancer's."""

    def as_config(self) -> PeerConfig:
        place = Place(RegionName(self.region), Jurisdiction(self.jurisdiction))
        return PeerConfig(PeerSpec(GatewayId(self.gateway), place), self.address)


class CoreFile(RegionSections[CoreConfig]):
    """Sections of a region file that decisions depend on, for programs that drive a core without the rest of the
    file."""

    @model_validator(mode="after")
    def _check_placement(self) -> Self:
        core = self.take(CoreConfig)
        faults = [FileFault(f"placement.{key}", what) for key, what in placement_faults(core.placement)]
        if faults := [*faults, *(fault for check in CORE_CHECKS for fault in check(core))]:
            raise KeyFaults(*faults)
        return self

    def as_config(self) -> CoreConfig:
        config = self.take(CoreConfig)
        return replace(config, placement=with_version(config.placement))


class RegionFile(RegionSections[CoreConfig | Sections]):
    """Region file as written, with every default filled in."""

    gateway: Id
    """Name of this gateway, unique in the mesh."""
    region: Id
    """Region of this gateway and, unless they name another, of its replicas."""
    jurisdiction: Id
    """Jurisdiction of that region, spelt as in the residency policies."""
    policy: FilePath | None = None
    """File of the region's residency policy. None: no request is forwarded in either direction."""
    insecure: bool = False
    """Listen and dial beyond this machine without TLS or authentication."""
    pools: tuple[PoolFile, ...] = ()
    """Pools with settings of their own. Empty: every pool is unified."""
    replicas: tuple[ReplicaFile, ...] = ()
    """Replicas at fixed URLs. Empty: none."""
    dns_replicas: tuple[DnsReplicasFile, ...] = ()
    """Replicas behind DNS names, with ids `ID-ADDRESS`, or `ID-ADDRESS-PORT` for SRV records. Empty: none."""
    kubernetes_replicas: tuple[KubernetesReplicasFile, ...] = ()
    """Replicas that a Kubernetes cluster selects by labels, with ids `ID-ADDRESS`, or `ID-ADDRESS-PORT` for a named
    port. Empty: none."""
    peers: tuple[PeerFile, ...] = ()
    """Other gateways of the mesh. Empty: no request is forwarded."""
    models: Annotated[
        dict[Model, Annotated[tuple[Model, ...], Field(min_length=1, max_length=_MEANT_MAX)]],
        Field(max_length=_ALIASES_MAX),
    ] = Field(default_factory=dict)
    """Aliases that clients may use as model names, each with the models that it stands for, in order of preference."""
    keys: FilePath | None = None
    """File of clients' API keys, written by `nightside keys add`. None: clients need no key, and only loopback is
    served unless `insecure` or `oidc` is set."""
    admin_token_file: FilePath | None = None
    """File of the bearer token that operators present for all calls but health. None: no token, which is permitted only
    on loopback."""
    cache_secret_file: FilePath | None = None
    """File of the secret from which each tenant's `cache_salt` is derived; the same in every region. None: salts can be
    computed from a tenant's name."""

    _admin_token: str | None = PrivateAttr(None)
    _cache_secret: str | None = PrivateAttr(None)
    _collector_headers: dict[str, str] = PrivateAttr(default_factory=dict)
    _source: YamlFile = PrivateAttr()

    @model_validator(mode="after")
    def _read_admin_token(self) -> Self:
        if self.admin_token_file is not None:
            self._admin_token = read_secret(self.admin_token_file, "admin_token_file")
        return self

    @model_validator(mode="after")
    def _read_cache_secret(self) -> Self:
        if self.cache_secret_file is not None:
            self._cache_secret = read_secret(self.cache_secret_file, "cache_secret_file")
        return self

    @model_validator(mode="after")
    def _read_collector_headers(self, info: ValidationInfo) -> Self:
        self._collector_headers = collector_headers(self.sections.tracing, FileContext.of(info).environ)
        return self

    def overridden(self, environ: Mapping[str, str]) -> Self:
        """Return the file with the environment's overrides applied. Raises ConfigError."""
        return self.model_copy(update={"logging": self.sections.logging.overridden(environ)})

    def come_from(self, source: YamlFile) -> Self:
        self._source = source
        return self

    @property
    def source(self) -> YamlFile:
        """YAML text that the file was read from."""
        return self._source

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def sections(self) -> Sections:
        return self.take(Sections)

    @property
    def core(self) -> CoreConfig:
        return self.take(CoreConfig)

    def as_config(self) -> GatewayConfig:
        home, sections = Place(RegionName(self.region), Jurisdiction(self.jurisdiction)), self.sections
        pools = {each.name: each for each in self.pools}
        connectors = {each.name: each.connector for each in self.pools}
        return GatewayConfig(
            gateway_id=GatewayId(self.gateway),
            place=home,
            policy_file=self.policy,
            pools=tuple(self.pool_specs().values()),
            replicas=tuple(
                _identified(replica, pools)
                for each in self.replicas
                for replica in each.as_configs(home, sections.probes, connectors)
            ),
            dns_replicas=tuple(
                replace(found, template=_identified(found.template, pools))
                for found in (each.as_config(home, sections.probes, connectors) for each in self.dns_replicas)
            ),
            kubernetes_replicas=tuple(
                replace(found, template=_identified(found.template, pools))
                for found in (each.as_config(home, sections.probes, connectors) for each in self.kubernetes_replicas)
            ),
            peers=tuple(each.as_config() for each in self.peers),
            models={ModelName(name): tuple(map(ModelName, meant)) for name, meant in self.models.items()},
            core=replace(self.core, placement=with_version(self.core.placement)),
            keys_file=self.keys,
            admin_token=self._admin_token,
            replica_documents=tuple(each.as_document(home, pools) for each in self.replicas),
            engine_credentials=frozenset(self._engine_credentials()),
            insecure=self.insecure,
            folder=self.path.parent.resolve(),
            cache_secret=self._cache_secret,
            collector_headers=self._collector_headers,
            secret_files=tuple(self._secret_files()),
            **asdict(sections),
        )

    @property
    def keeps_state(self) -> bool:
        """True if there is a folder for state that survives a restart."""
        return self.sections.state.folder is not None

    def pool_specs(self) -> dict[PoolName, PoolSpec]:
        """Specs of the described pools, by name."""
        return {PoolName(each.name): each.as_spec() for each in self.pools}

    def as_document(self) -> dict[str, Any]:
        """Return the effective file, JSON-able; secrets appear by their source, never by value."""
        document = self.model_dump(mode="json", exclude_none=True)
        own = {key: document[key] for key in RegionFile.__annotations__ if key in document}
        return own | document

    def found(self) -> Iterator[tuple[str, int, DnsReplicasFile | KubernetesReplicasFile]]:
        """Each description of discovered replicas, with its key and index in the file."""
        yield from (("dns_replicas", index, each) for index, each in enumerate(self.dns_replicas))
        yield from (("kubernetes_replicas", index, each) for index, each in enumerate(self.kubernetes_replicas))

    def served_whole(self) -> set[tuple[str, str]]:
        """Pairs of model and pool served by unified replicas; empty where engines list their models themselves."""
        engines = self._engines()
        if any(each.models == AUTO_MODELS for each in engines):
            return set()
        whole = [each for each in engines if each.role is ReplicaRole.UNIFIED]
        return {(model, each.pool_name) for each in whole for model in (*each.models, *each.adapters)}

    def _engines(self) -> tuple[_EngineFile, ...]:
        return (*self.replicas, *self.dns_replicas, *self.kubernetes_replicas)

    def _secret_files(self) -> Iterator[Path]:
        listen, peering, tracing = self.sections.listen.tls, self.sections.peering.tls, self.sections.tracing
        engines = self._engines()
        own = (self.keys, self.admin_token_file, self.cache_secret_file, self.sections.audit.signing_key)
        yield from filter(None, (tracing.headers_file, None if tracing.tls is None else tracing.tls.key))
        yield from filter(None, (*own, *(each.api_key_file for each in engines)))
        yield from self.sections.operators.secret_files()
        if self.sections.oidc.subject_secret_file is not None:
            yield self.sections.oidc.subject_secret_file
        yield from (each.token_file for each in self.kubernetes_replicas if each.token_file is not None)
        yield from (each.key for each in (listen, peering) if each is not None)
        for section in self.sections.of_features():
            yield from section.secret_files()
        yield from (each.tls.client_key for each in engines if each.tls is not None and each.tls.client_key is not None)

    def _engine_credentials(self) -> Iterator[str]:
        for each in self._engines():
            yield from map(str, filter(None, (each.api_key_file, each.api_key_env)))

    def engine_files(self) -> list[Path]:
        """Key and certificate files for engines; they are read with the region file, and again when they change."""
        return list(dict.fromkeys(path for each in self._engines() for path in each.files()))


def _fault(key: str, message: str) -> KeyFaults:
    return KeyFaults(FileFault(key, message))


def _identified(config: ReplicaConfig, pools: Mapping[str, PoolFile]) -> ReplicaConfig:
    """Config of a replica with the identity that its pool declares, where it declares none itself."""
    pool = pools.get(config.spec.pool)
    if config.spec.identity or pool is None or pool.identity is None:
        return config
    return replace(config, spec=replace(config.spec, identity=pool.identity))
