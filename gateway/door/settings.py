"""Limits of the HTTP edge, in the units that it works with. It decides nothing and reads no file."""

from __future__ import annotations

from typing import Self

from msgspec import Struct, field

from gateway.config.sections import CorsConfig, GatewayConfig
from gateway.core.block_sizes import BLOCKS_MAX
from gateway.core.vocabulary import GatewayId, Place
from gateway.request.cache_salts import CacheSalts

_SECOND_NS = 1_000_000_000
_OPERATORS_CONNECTIONS = 256


def operators_connections_max(clients_max: int) -> int:
    """Connections at the admin address: operators are few, and the memory of their connections adds to the clients'."""
    return min(clients_max, _OPERATORS_CONNECTIONS)


class HttpSettings(Struct, frozen=True):
    gateway_id: GatewayId
    place: Place
    requests_max: int = 10_000
    body_bytes_max: int = 16 << 20
    bodies_bytes_max: int = 512 << 20
    """Bytes of all request bodies in memory."""
    key_share: float = 0.5
    """Share of the bytes that others leave, for one key, or for one address where clients need no key."""
    tenant_share: float = 0.75
    """Share of the bytes that others leave, for all keys of a tenant."""
    body_rate_min: float = 16 << 10
    """Bytes per second that a client has to send of its body, once the grace is over."""
    body_grace_s: float = 10.0
    request_deadline_ns: int = 600 * _SECOND_NS
    stall_s: float = 60.0
    """Seconds that a client may take to send its body, or to read what is ready for it."""
    silence_s: float = 2.0
    """Seconds for which the host of a client whose request runs may give no sign of life."""
    keep_alive_comments_s: float | None = None
    """Seconds of silence after which a waiting stream gets a comment; None: it gets none."""
    trust_tenant_header: bool = False
    pass_priority: bool = False
    prefix_block_bytes: int = 256
    prefix_blocks_max: int = BLOCKS_MAX
    """Blocks of one prompt that are hashed; prompts that differ only behind them look alike."""
    output_tokens_reserved: int = 1024
    """Tokens reserved of a key's limit for a request without a limit of its own, until it has ended."""
    connections_max: int = 20_000
    """Connections per listener."""
    headers_bytes_max: int = 64 << 10
    """Bytes of request line and headers together."""
    header_line_bytes_max: int = 16 << 10
    header_count_max: int = 128
    headers_s: float = 10.0
    """Seconds that a client may take to send its headers, once it has begun."""
    idle_connection_s: float = 75.0
    shutdown_s: float = 2.0
    """Seconds that handlers have to end after they are cancelled at the end of a drain."""
    cors: CorsConfig = field(default_factory=CorsConfig)
    cache_salts: CacheSalts = field(default_factory=CacheSalts)

    @classmethod
    def from_config(cls, config: GatewayConfig) -> Self:
        limits = config.limits
        return cls(
            config.gateway_id,
            config.place,
            requests_max=limits.requests_max,
            body_bytes_max=limits.body_max_bytes,
            bodies_bytes_max=limits.bodies_held_max_bytes,
            key_share=limits.bodies_held_key_share,
            tenant_share=limits.bodies_held_tenant_share,
            body_rate_min=limits.body_rate_min_bytes,
            body_grace_s=limits.body_grace_ns / _SECOND_NS,
            request_deadline_ns=limits.request_deadline_ns,
            stall_s=limits.client_stall_ns / _SECOND_NS,
            silence_s=limits.client_silence_ns / _SECOND_NS,
            keep_alive_comments_s=None
            if limits.keep_alive_comments_ns is None
            else limits.keep_alive_comments_ns / _SECOND_NS,
            cors=config.cors,
            trust_tenant_header=config.trust_tenant_header,
            pass_priority=config.pass_priority,
            prefix_block_bytes=config.prefix_block_bytes,
            prefix_blocks_max=limits.prompt_blocks_max,
            output_tokens_reserved=limits.output_tokens_reserved,
            connections_max=limits.connections_max,
            headers_bytes_max=limits.headers_max_bytes,
            header_line_bytes_max=limits.header_line_max_bytes,
            header_count_max=limits.header_count_max,
            headers_s=limits.headers_wait_ns / _SECOND_NS,
            idle_connection_s=limits.idle_connection_ns / _SECOND_NS,
            cache_salts=cache_salts_of(config),
        )


def cache_salts_of(config: GatewayConfig) -> CacheSalts:
    """Salts for the engines' prefix caches, as the region file says who shares one."""
    cache = config.engine_cache
    return CacheSalts(config.cache_secret, isolate_tenants=cache.isolate_tenants, shared_tenants=cache.shared_tenants)
