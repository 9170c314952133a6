"""Sizes gateways by what they are asked to carry: cores, memory, descriptors and bandwidth, each a sum of what was
measured for one. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

BUSY_MAX = 0.6
"""Share of a core that a gateway may use at its peak: beyond it, requests wait for each other."""
GATEWAYS_MAX = 10_000
"""Number beyond which no further gateway is tried."""


@dataclass(frozen=True, slots=True)
class CapacityCosts:
    """Costs of one process on one host. CPU in microseconds, memory in KiB, bandwidth in bytes."""

    request_us: float
    peered_request_us: float
    """CPU of a request beyond `request_us` where there are peers at all, however many."""
    peer_request_us: float
    """CPU of a request for each peer, which placement weighs."""
    prompt_kb_us: float
    """CPU of each further 1,000 bytes of a prompt."""
    chunk_us: float
    forward_us: float
    """CPU of a request that is forwarded, at both gateways together, and beyond the first 256 bytes of prompt."""
    forward_kb_us: float
    forwarded_chunk_us: float
    idle_stream_us: float
    """CPU a second of an open stream, beside that of its chunks."""
    base_us: float
    """CPU a second of a process without requests, replicas and peers."""
    peering_us: float
    """CPU a second of having peers at all, however many."""
    replica_us: float
    """CPU a second of a replica."""
    peer_us: float
    """CPU a second of a peer at rest."""
    busy_peer_us: float
    """CPU a second of a peer whose load changes all the time, by heartbeats as often as `publish_interval` permits."""
    base_kib: float
    peering_kib: float
    stream_kib: float
    replica_kib: float
    peer_kib: float
    base_files: float
    peering_files: float
    stream_files: float
    replica_files: float
    peer_files: float
    peer_bytes: float
    """Bytes a second between two gateways at rest, both ways and both links together."""
    busy_peer_bytes: float
    """The same while the load of both changes all the time, without any forward."""
    forward_bytes: float
    """Bytes of a forwarded request with a prompt of 256 bytes and a whole answer of 32 words, both ways."""
    forwarded_chunk_bytes: float
    """Bytes of each chunk of a streamed answer that is forwarded."""


@dataclass(frozen=True, slots=True)
class CarriedLoad:
    """Load of one gateway, or of a region."""

    requests_per_s: float = 0.0
    prompt_kb: float = 0.256
    """Mean length of a prompt, in 1,000 bytes."""
    chunks_per_s: float = 0.0
    streams: float = 0.0
    replicas: float = 0.0
    peers: float = 0.0
    forwards_per_s: float = 0.0
    """Requests a second that are forwarded, which are none of `requests_per_s`."""
    forwarded_chunks_per_s: float = 0.0
    served_share: float = 0.0
    """Forwards that it serves for others, for each that it sends. Costs of CPU are those of both gateways, so that one
    which serves as many has them already; bytes are carried once for each."""


@dataclass(frozen=True, slots=True)
class CapacityNeeded:
    cores: dict[str, float]
    """Cores, by what needs them."""
    memory_mib: float
    descriptors: float
    bytes_per_s: float
    """Bytes a second between this gateway and its peers, both ways."""

    @property
    def all_cores(self) -> float:
        return sum(self.cores.values())


_SHORT_KB = 0.256
"""Length of the prompts by which a request's own cost is measured."""


def needed(costs: CapacityCosts, load: CarriedLoad, *, is_busy: bool = True) -> CapacityNeeded:
    """Capacity that one process needs. `is_busy`: the load of peers changes all the time."""
    further_kb = max(0.0, load.prompt_kb - _SHORT_KB)
    peer_us = costs.busy_peer_us if is_busy else costs.peer_us
    has_peers = load.peers > 0
    peers_us = has_peers * costs.peered_request_us + load.peers * costs.peer_request_us
    cores_us = {
        "requests": load.requests_per_s * (costs.request_us + peers_us + further_kb * costs.prompt_kb_us),
        "chunks": load.chunks_per_s * costs.chunk_us,
        "forwards": load.forwards_per_s * (costs.forward_us + further_kb * costs.forward_kb_us)
        + load.forwarded_chunks_per_s * costs.forwarded_chunk_us,
        "idle streams": load.streams * costs.idle_stream_us,
        "replicas": load.replicas * costs.replica_us,
        "peers": load.peers * peer_us + has_peers * costs.peering_us,
        "the process": costs.base_us,
    }
    memory_kib = (
        costs.base_kib
        + load.streams * costs.stream_kib
        + load.replicas * costs.replica_kib
        + load.peers * costs.peer_kib
        + has_peers * costs.peering_kib
    )
    files = (
        costs.base_files
        + load.streams * costs.stream_files
        + load.replicas * costs.replica_files
        + load.peers * costs.peer_files
        + has_peers * costs.peering_files
    )
    peer_bytes = costs.busy_peer_bytes if is_busy else costs.peer_bytes
    sent_bytes = (
        load.forwards_per_s * (costs.forward_bytes + 1000 * further_kb)
        + load.forwarded_chunks_per_s * costs.forwarded_chunk_bytes
    )
    return CapacityNeeded(
        {what: us / 1e6 for what, us in cores_us.items()},
        memory_kib / 1024,
        files,
        load.peers * peer_bytes + sent_bytes * (1 + load.served_share),
    )


def share_of(load: CarriedLoad, gateways: int, regions: int) -> CarriedLoad:
    """Load of one of the gateways of a region, which split its requests and its replicas: all of the mesh are its
    peers."""
    split = {each.name: getattr(load, each.name) / gateways for each in fields(load)}
    kept = {"prompt_kb": load.prompt_kb, "served_share": load.served_share, "peers": float(gateways * regions - 1)}
    return CarriedLoad(**split | kept)


def mesh_max(costs: CapacityCosts, *, is_busy: bool) -> int:
    """Most gateways of a mesh of which each has CPU left beside the heartbeats of all others; at least one."""
    peer_us = costs.busy_peer_us if is_busy else costs.peer_us
    spare_us = max(0.0, 1e6 * BUSY_MAX - costs.base_us - costs.peering_us)
    return 1 + int(spare_us / peer_us) if peer_us else GATEWAYS_MAX


def gateways_for(costs: CapacityCosts, load: CarriedLoad, regions: int) -> int | None:
    """Fewest gateways of a region by which none needs more than its share of a core; None: however many there are, each
    hears too many peers."""
    for gateways in range(1, GATEWAYS_MAX):
        found = needed(costs, share_of(load, gateways, regions))
        if found.all_cores <= BUSY_MAX:
            return gateways
        if found.cores["peers"] + found.cores["the process"] > BUSY_MAX:
            return None
    return None
