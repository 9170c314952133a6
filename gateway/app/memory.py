"""Upper bound of a gateway process's memory, with every limit of its region file reached at once: one sum, part by
part.

The parts are bounds that the edges keep to, with what the allocator loses between pieces of a body. The simulator, the
files of journal and log, and the system's socket buffers are not included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from gateway.config.placement_plug_ins import policy_by_name
from gateway.config.region_file import RegionFile
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.config import PlacementConfig
from gateway.core.placement.cost import CostPolicy
from gateway.door.settings import operators_connections_max
from gateway.features.catalogue import KINDS
from gateway.http1.server import READ_BYTES
from mesh.allocator import describe_allocator
from mesh.naming.limits import DnsLimits
from mesh.values import MEBIBYTE

_KIBIBYTE = 1024
_PROGRAM_BYTES = 120 * MEBIBYTE
"""Python, its libraries, and an idle gateway."""
_CONNECTION_BYTES = READ_BYTES + 256 * _KIBIBYTE + 32 * _KIBIBYTE
"""One connection: what it reads of a body that is not consumed, and one read of the event loop beyond that, or as much
of requests ahead of their turn; its headers come on top."""
_TLS_BYTES = 640 * _KIBIBYTE
"""Buffers of one TLS connection, both ways."""
_STREAM_BYTES = 1152 * _KIBIBYTE
"""One answer in progress: a piece of 256 KiB from the engine and what came after it, twice, the 64 KiB that a client
may leave unread, and the request's state."""
_BODY_COPIES = 1.75
"""Copies of a body: itself, and what the allocator loses while many grow side by side."""
_FORWARDED_COPIES = 4
"""Copies of a body forwarded to a peer: also in its message, in the part being sent, and in what gRPC would send
again."""
_ARRIVED_COPIES = 4
"""Copies of an arriving forward: its message as received, in one piece, and as a body, and what the allocator keeps of
the first two."""
_COPIES_BEING_MADE = 3
"""Copies of the one body that is being assembled or parsed."""
_NAMES_CONNECTION_BYTES = 128 * _KIBIBYTE
"""One DNS connection: two queries, and the 64 KiB of answers that its client may leave unread."""
_NAMES_NETWORK_BYTES = 512
"""One network remembered for its DNS queries."""

_TRACING_BYTES = 16 * MEBIBYTE
"""Trace exporter, with one batch."""
_TRACED_BYTES = 16 * _KIBIBYTE
"""One finished request whose spans wait: its record, with some attempts and their candidates."""


MEMORY_SHARE = 0.8
"""Share of the machine's memory that all limits together may need by default; the system's socket buffers come on
top."""
_LEAST = {"connections_max": 256, "requests_max": 128, "forwards_max": 64}
_SCALED = {
    "limits": ("connections_max", "requests_max", "bodies_held_max_bytes"),
    "peering": ("forwards_max", "forwards_held_max_bytes", "forwards_held_peer_max_bytes"),
}
"""Limits that scale with the machine's memory, by section."""
_STEPS = 32


def memory_max(config: GatewayConfig) -> Mapping[str, int]:
    """Bytes by part."""
    limits, peering, core = config.limits, config.peering, config.core
    connection = _CONNECTION_BYTES + limits.headers_max_bytes + (_TLS_BYTES if config.listen.tls else 0)
    has_peers = bool(config.peers or config.control.controllers)
    copies = _FORWARDED_COPIES if has_peers else _BODY_COPIES
    unwritten = config.audit.unwritten_max_bytes if config.audit.folder else 0
    networks_max = DnsLimits.from_config(config.dns).networks_max
    names = config.dns.connections_max * _NAMES_CONNECTION_BYTES + networks_max * _NAMES_NETWORK_BYTES
    return {
        "program": _PROGRAM_BYTES,
        "connections": (limits.connections_max + operators_connections_max(limits.connections_max)) * connection,
        "bodies": round(copies * limits.bodies_held_max_bytes) + _COPIES_BEING_MADE * limits.body_max_bytes,
        "answers": limits.requests_max * (_STREAM_BYTES + (peering.forward_window_bytes if has_peers else 0)),
        "forwards": _ARRIVED_COPIES * peering.forwards_held_max_bytes
        + _COPIES_BEING_MADE * peering.message_max_bytes
        + peering.forwards_max * _STREAM_BYTES,
        "placement": _indexes(core.placement) * core.placement.prefix_index_bytes_max
        + sum(kind.placement_bytes_max(config) for kind in KINDS),
        "records": config.decisions.held_max_bytes + unwritten,
        **({"names": names} if config.dns.listen else {}),
        **({"traces": _TRACING_BYTES + config.tracing.queue_max * _TRACED_BYTES} if config.tracing.is_on else {}),
    }


def _indexes(placement: PlacementConfig) -> int:
    """Number of prefix indexes: of prompts sent to replicas and to peers, and by cost also of what replicas' caches
    still hold."""
    policy = policy_by_name(placement.policy)
    return 3 if policy is not None and issubclass(policy, CostPolicy) else 2


def describe_memory(config: GatewayConfig, memory_bytes: int | None = None) -> str:
    """Describe the bound in one line for operators."""
    parts = memory_max(config)
    each = ", ".join(f"{name} {_in_words(size)}" for name, size in parts.items())
    total = sum(parts.values())
    there_is = "" if memory_bytes is None else f" of {_in_words(memory_bytes)}"
    too_much = " That is more than there is: lower the limit of the largest part."
    line = f"memory: at most {_in_words(total)}{there_is} with every limit reached: {each}."
    line += too_much if memory_bytes is not None and total > memory_bytes else ""
    return f"{line} {describe_allocator()}"


# Limits that the region file does not name


def fitted(file: RegionFile, memory_bytes: int | None) -> RegionFile:
    """Return the file with the limits that it does not name reduced until the process needs at most `MEMORY_SHARE` of
    this memory with every limit reached: all by one factor, byte limits by its square root, and never below what a
    small gateway needs."""
    if memory_bytes is None:
        return file
    config, budget = file.as_config(), MEMORY_SHARE * memory_bytes
    if sum(memory_max(config).values()) <= budget:
        return file
    fits, too_much = 0.0, 1.0
    for _ in range(_STEPS):
        factor = (fits + too_much) / 2
        is_enough = sum(memory_max(_scaled(config, file, factor)).values()) <= budget
        fits, too_much = (factor, too_much) if is_enough else (fits, factor)
    return _with(file, _scaled(config, file, fits))


def fitted_like(file: RegionFile, running: RegionFile) -> RegionFile:
    """Return the file as read again; a limit that neither file names keeps the running one's value."""
    config = running.as_config()
    kept = {
        section: {key: getattr(getattr(config, section), key) for key in keys if not _is_named(running, section, key)}
        for section, keys in _unnamed(file)
    }
    return _with(file, _replaced(file.as_config(), kept))


def _scaled(config: GatewayConfig, file: RegionFile, factor: float) -> GatewayConfig:
    return _replaced(
        config,
        {
            section: {
                key: _smaller(getattr(getattr(config, section), key), key, factor, _least(file, key)) for key in keys
            }
            for section, keys in _unnamed(file)
        },
    )


def _smaller(value: int, key: str, factor: float, least: int) -> int:
    """Value scaled and rounded down to a readable figure, not below `least`."""
    is_size = key.endswith("_bytes")
    scaled = int(value * (factor**0.5 if is_size else factor))
    unit = MEBIBYTE if is_size else 10 ** max(0, len(str(scaled)) - 2)
    return min(value, max(least, scaled // unit * unit))


def _least(file: RegionFile, key: str) -> int:
    """Least value of a limit: what a small gateway needs, and what other keys require of it."""
    if key == "bodies_held_max_bytes":
        return file.sections.limits.body_max_bytes
    if key == "forwards_held_max_bytes" and _is_named(file, "peering", "forwards_held_peer_max_bytes"):
        return file.sections.peering.forwards_held_peer_max_bytes
    if key.startswith("forwards_held"):
        return file.sections.peering.message_max_bytes
    return _LEAST[key]


def _unnamed(file: RegionFile) -> Iterator[tuple[str, list[str]]]:
    return ((section, [key for key in keys if not _is_named(file, section, key)]) for section, keys in _SCALED.items())


def _is_named(file: RegionFile, section: str, key: str) -> bool:
    return key.removesuffix("_bytes") in (file.source.mapping().get(section) or {})


def _replaced(config: GatewayConfig, changes: Mapping[str, Mapping[str, int]]) -> GatewayConfig:
    sections: dict[str, Any] = {name: replace(getattr(config, name), **keys) for name, keys in changes.items()}
    return replace(config, **sections)


def _with(file: RegionFile, config: GatewayConfig) -> RegionFile:
    return file.model_copy(update={"limits": config.limits, "peering": config.peering})


def _in_words(size: int) -> str:
    return f"{size / 2**30:.1f}GiB" if size >= 2**30 else f"{-(-size // MEBIBYTE)}MiB"
