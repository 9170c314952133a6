"""What a region file says of replicas and peers, as the core and the edges take it: frozen, checked, ready to dial."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from gateway.core.vocabulary import Connector, PeerSpec, ReplicaId, ReplicaRole, ReplicaSpec
from gateway.ground.values import Address


class Dialect(StrEnum):
    """Which engine speaks at a replica's URL: how load is read from it."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


SALTED_DIALECTS = frozenset({Dialect.VLLM, Dialect.SGLANG})
"""Of engines that keep prompts apart by a field of the body, `cache_salt`."""


CONTINUING_DIALECTS = frozenset({Dialect.VLLM, Dialect.SGLANG, Dialect.LLAMACPP})
"""Of engines that go on with a text that another one began. Who knows what else may stand behind a dialect that all
speak: it might begin anew."""


class DnsRecord(StrEnum):
    """Which records of a name lead to its replicas."""

    ADDRESS = "address"
    """A and AAAA: one replica at each address, all at one port."""
    SRV = "srv"
    """One replica at each address and port that an SRV record names; priorities and weights are not looked at."""


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
    takes_cache_salt: bool = False
    """The engine keeps prompts apart by the body's `cache_salt`."""
    connector: Connector | None = None
    """Of a prefill or decode worker: how its pool hands over."""
    bootstrap_port: int | None = None
    """Of a prefill worker that decode workers meet; None: the usual one, or what it says."""
    side_channel_hosts: tuple[str, ...] = ()
    """Of a prefill worker: hosts and networks besides its own address where decode workers may fetch what it read."""
    side_channel_port: int | None = None
    """The first of as many as it has ranks; None, or with several ranks over ascend: any port of those hosts."""
    is_adopted: bool = False
    """It is at home at another gateway, which has said where it is."""

    @property
    def is_met(self) -> bool:
        """Is it a prefill worker that has to say where decode workers meet it?"""
        is_concurrent = self.connector is not None and not self.connector.is_sequential
        return is_concurrent and self.spec.role is ReplicaRole.PREFILL

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
    """Its id begins theirs; its URL is empty. So is its group, unless they are all of one."""
    name: str
    record: DnsRecord
    scheme: str
    port: int | None
    """Of every replica; None where SRV records name it."""
    nameservers: tuple[Address, ...] = ()
    """Empty: those that the machine asks."""


class KubernetesKind(StrEnum):
    """Which objects of a cluster lead to its replicas."""

    ENDPOINT_SLICES = "endpoint_slices"
    """What Services stand for; their labels are those of the Service."""
    PODS = "pods"
    """Pods that no Service has to stand for."""


@dataclass(frozen=True, slots=True)
class KubernetesApi:
    """Where a cluster's API is, and what it is shown. Files are read anew for each call: tokens last an hour."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    """Who vouches for it; without it, those whom the machine trusts."""


@dataclass(frozen=True, slots=True)
class KubernetesReplicasConfig:
    """Replicas that are found by the labels of a cluster's objects, all alike but for their address."""

    template: ReplicaConfig
    """As that of replicas behind a name."""
    kind: KubernetesKind
    api: KubernetesApi
    namespace: str
    selector: str
    """As `kubectl --selector` takes it."""
    scheme: str
    port: int | str
    """Of every replica, or its name in the Service or the container."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Where their addresses may be. Without any: where the operators' table has replicas of their region, if it names
    networks, and in no case at an address that no pod has."""


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Another gateway: what the core knows of it, and where its own address is (never a load balancer's)."""

    spec: PeerSpec
    address: Address
