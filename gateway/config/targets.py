"""Replicas and peers of a region file as the core and the edges take them: frozen, checked, ready to dial."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.vocabulary import Connector, PeerSpec, ReplicaId, ReplicaRole, ReplicaSpec
from mesh.values import Address


class Dialect(StrEnum):
    """Kind of the engine; it decides how load is read and which body fields are understood."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


SALTED_DIALECTS = frozenset({Dialect.VLLM, Dialect.SGLANG})
"""Dialects of engines that separate prompts by the body field `cache_salt`."""


APPENDING_DIALECTS = frozenset({Dialect.VLLM, Dialect.SGLANG, Dialect.LLAMACPP})
"""Dialects of engines that append to a text begun by another engine. `openai` is left out: the engine behind it is
unknown and might begin the text again."""


class DnsRecord(StrEnum):
    """DNS record type that leads to a name's replicas."""

    ADDRESS = "address"
    """A and AAAA records: one replica at each address, all at one port."""
    SRV = "srv"
    """SRV records: one replica at each address and port; priorities and weights are ignored."""


class EngineTlsConfig(Struct, frozen=True):
    """TLS to an engine whose URL begins with https."""

    ca_file: Path | None = None
    """CA bundle (PEM) that verifies the engine. None: the machine's trusted roots."""
    client_certificate: Path | None = None
    """File of the client certificate (PEM) that is shown to the engine. None: none is shown."""
    client_key: Path | None = None
    """File of the client certificate's private key (PEM). None: there is no client certificate."""
    server_name: str | None = None
    """Host name expected in the engine's certificate. None: that of the URL."""
    insecure_skip_verify: bool = False
    """Accept any certificate: the connection is encrypted, but the engine's identity is unverified."""


class ReplicaConfig(Struct, frozen=True):
    """One engine, or one data-parallel rank of it: the core's view of it, and how the edge reaches it."""

    spec: ReplicaSpec
    url: str
    dialect: Dialect
    api_key: str | None = None
    tls: EngineTlsConfig | None = None
    ranks: int = 1
    """Data-parallel ranks behind the URL."""
    rank: int | None = None
    """Rank that this replica is; None for an engine that balances its ranks itself."""
    lists_models: bool = False
    """Engine lists its own models; those in `spec` are the last that it listed."""
    takes_cache_salt: bool = False
    """Engine separates prompts by the body field `cache_salt`."""
    connector: Connector | None = None
    """Connector by which the pool of a prefill or decode worker hands over KV caches."""
    bootstrap_port: int | None = None
    """Port of a prefill worker that decode workers connect to; None: the connector's usual one, or the one that the
    worker reports."""
    side_channel_hosts: tuple[str, ...] = ()
    """Hosts and networks, besides its own address, from which decode workers may fetch a prefill worker's KV cache."""
    side_channel_port: int | None = None
    """First of as many ports as the prefill worker has ranks; None, or with several ranks over ascend: any port of
    those hosts."""
    kv_events_port: int | None = None
    """Port at which the engine publishes what its KV cache stores and removes, or the first of as many as it has ranks;
    None: it does not."""
    kv_events_replay_port: int | None = None
    """Port, or the first of as many, at which the engine repeats what it published; None: it repeats nothing."""
    leaves_at_s: float | None = None
    """Time, in seconds since 1970, by which an orchestrator ends the engine; None: it does not."""
    is_adopted: bool = False
    """Replica is at home at another gateway, which has announced its address."""

    def __repr__(self) -> str:
        """Name of the replica alone, since the config holds a secret."""
        return f"ReplicaConfig({self.spec.replica_id})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:  # rich would prefer the struct's own to `__repr__`
        return [("id", self.spec.replica_id)]

    @property
    def is_met(self) -> bool:
        """True for a prefill worker whose bootstrap address decode workers need: its connector runs both legs at
        once."""
        is_concurrent = self.connector is not None and not self.connector.is_sequential
        return is_concurrent and self.spec.role is ReplicaRole.PREFILL

    def by_rank(self) -> tuple[ReplicaConfig, ...]:
        """Return one replica per rank, with ids `ID@0`, `ID@1` ..., where there are several."""
        if self.ranks == 1:
            return (self,)
        return tuple(
            replace(self, rank=rank, spec=replace(self.spec, replica_id=ReplicaId(f"{self.spec.replica_id}@{rank}")))
            for rank in range(self.ranks)
        )


class DnsReplicasConfig(Struct, frozen=True):
    """Replicas found by looking up a name, alike except for their addresses."""

    template: ReplicaConfig
    """Config common to all of them: its id is the prefix of theirs, its URL is empty, and so is its group unless all
    share one."""
    name: str
    record: DnsRecord
    scheme: str
    port: int | None
    """Port of every replica; None where SRV records name it."""
    nameservers: tuple[Address, ...] = ()
    """Name servers to ask; empty: those of the machine."""


class KubernetesKind(StrEnum):
    """Kind of cluster objects that lead to replicas."""

    ENDPOINT_SLICES = "endpoint_slices"
    """EndpointSlices of Services; the labels are those of the Service."""
    PODS = "pods"
    """Pods, which need no Service."""


class KubernetesApi(Struct, frozen=True):
    """Cluster's API and the credentials for it. Files are read again for each call: tokens last an hour."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    """CA bundle that verifies the API; without it, the machine's trusted authorities."""


class KubernetesReplicasConfig(Struct, frozen=True):
    """Replicas found by the labels of a cluster's objects, alike except for their addresses."""

    template: ReplicaConfig
    """Config common to all of them, as in `DnsReplicasConfig`."""
    kind: KubernetesKind
    api: KubernetesApi
    namespace: str
    selector: str
    """Label selector, in the syntax of `kubectl --selector`."""
    scheme: str
    port: int | str
    """Port of every replica, or the port's name in the Service or the container."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks that the replicas' addresses have to lie in. Without any: those of the operators' table for their
    region, if it names networks; in no case an address that no pod can have."""


class PeerConfig(Struct, frozen=True):
    """Peer: the core's view of it, and its own address (never a load balancer's)."""

    spec: PeerSpec
    address: Address
