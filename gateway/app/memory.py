"""What a gateway's process takes at most, with every limit of its region file reached at once: one sum, part by part.

The parts are what the edges hold themselves to; what the allocator loses between pieces of a body is in them. The
simulator, the journal's and the log's files, and what the system keeps for sockets are not.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.sections import GatewayConfig
from gateway.core.config import PlacementConfig, PlacementPolicy
from gateway.ground.naming.limits import DnsLimits
from gateway.ground.values import MEBIBYTE
from gateway.http.connections import READ_BYTES

_KIBIBYTE = 1024
_PROGRAM_BYTES = 128 * MEBIBYTE
"""Python, its libraries, and a gateway that nobody asks anything."""
_CONNECTION_BYTES = 2 * READ_BYTES + 32 * _KIBIBYTE
"""Of a body that nobody takes it reads twice a piece; its headers come on top."""
_TLS_BYTES = 640 * _KIBIBYTE
"""What is encrypted and decrypted in between, both ways."""
_STREAM_BYTES = 1152 * _KIBIBYTE
"""An answer on its way: a piece of 256 KiB from the engine and what came after it, twice, the 64 KiB that a client may
leave unread, and what is known of the request."""
_BODY_COPIES = 1.75
"""A body, and what the allocator loses while many grow beside each other."""
_FORWARDED_COPIES = 4
"""A body that goes to a peer is also in its message, in what is sent of that, and in what gRPC would send again."""
_ARRIVED_COPIES = 4
"""A forward's message as it comes, in one piece, and as a body, and what the allocator keeps of the first two."""
_COPIES_BEING_MADE = 3
"""Of the one body that is being put together or taken apart."""
_STORED_RESPONSE_BYTES = 512
_NAMES_CONNECTION_BYTES = 128 * _KIBIBYTE
"""Of a client of names: two questions, and the 64 KiB of answers that it may leave unread."""
_NAMES_NETWORK_BYTES = 512
"""A network that is remembered to have asked."""

_TRACING_BYTES = 16 * MEBIBYTE
"""What exports traces, and a batch of them."""
_TRACED_BYTES = 16 * _KIBIBYTE
"""A finished request whose spans wait: its record, with some attempts and who was looked at for each."""


def memory_max(config: GatewayConfig) -> Mapping[str, int]:
    """By part, in bytes."""
    limits, peering, core = config.limits, config.peering, config.core
    connection = _CONNECTION_BYTES + limits.headers_max_bytes + (_TLS_BYTES if config.listen.tls else 0)
    copies = _FORWARDED_COPIES if config.peers else _BODY_COPIES
    unwritten = config.audit.unwritten_max_bytes if config.audit.folder else 0
    networks_max = DnsLimits.from_config(config.dns).networks_max
    names = config.dns.connections_max * _NAMES_CONNECTION_BYTES + networks_max * _NAMES_NETWORK_BYTES
    return {
        "program": _PROGRAM_BYTES,
        "connections": 2 * limits.connections_max * connection,  # clients', and by themselves operators'
        "bodies": round(copies * limits.bodies_held_max_bytes) + _COPIES_BEING_MADE * limits.body_max_bytes,
        "answers": limits.requests_max * (_STREAM_BYTES + (peering.forward_window_bytes if config.peers else 0)),
        "forwards": _ARRIVED_COPIES * peering.forwards_held_max_bytes
        + _COPIES_BEING_MADE * peering.message_max_bytes
        + peering.forwards_max * _STREAM_BYTES,
        "placement": _indexes(core.placement) * core.placement.prefix_index_bytes_max
        + core.placement.stored_responses_max * _STORED_RESPONSE_BYTES,
        "records": config.decisions.held_max_bytes + unwritten,
        **({"names": names} if config.dns.listen else {}),
        **({"traces": _TRACING_BYTES + config.tracing.queue_max * _TRACED_BYTES} if config.tracing.is_on else {}),
    }


def _indexes(placement: PlacementConfig) -> int:
    """Of what was sent to replicas and to other gateways; and of what replicas' caches still hold of it."""
    return 3 if placement.policy in (PlacementPolicy.COST, PlacementPolicy.PRICE) else 2


def describe_memory(config: GatewayConfig) -> str:
    """One line for operators."""
    parts = memory_max(config)
    each = ", ".join(f"{name} {_in_words(size)}" for name, size in parts.items())
    return f"memory: at most {_in_words(sum(parts.values()))} with every limit reached: {each}"


def _in_words(size: int) -> str:
    return f"{size / 2**30:.1f}GiB" if size >= 2**30 else f"{-(-size // MEBIBYTE)}MiB"
