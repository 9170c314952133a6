"""Where spans of requests go, and of which requests. It checks, and decides nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from gateway.ground.faults import Fault, KeyFaults
from gateway.ground.values import SECOND_NS, Address, WebUrl, checked_secret, read_secret

EXTRA = "otel"
_QUEUE_MAX = 1_000_000
_BATCH_MAX = 10_000
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
"""What gRPC takes as well."""


class Protocol(StrEnum):
    """Of OTLP, the OpenTelemetry protocol; always in protobuf."""

    GRPC = "grpc"
    HTTP = "http"

    @property
    def module(self) -> str:
        return f"opentelemetry.exporter.otlp.proto.{self}.trace_exporter"


@dataclass(frozen=True, slots=True)
class TailConfig:
    """Requests whose spans are kept for how they went, though the beginning said no."""

    slow_first_token_ns: int | None = 5 * SECOND_NS
    """The first token took longer than this."""
    failed: bool = True
    """It failed, or an engine or a peer failed it on the way."""
    forwarded: bool = False
    """It was forwarded, or came as a forward."""
    resumed: bool = True
    """Its answer broke, and somebody went on with it."""
    kept_per_s: int = 50
    """More of them in one second are let go: where everything is slow, some of it will do."""


@dataclass(frozen=True, slots=True)
class CollectorTlsConfig:
    """Beyond the authorities of this machine, for a collector that is reached by https."""

    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Off unless a collector is named."""

    endpoint: WebUrl | None = None
    """Of an OpenTelemetry collector, or of anything else that takes OTLP."""
    protocol: Protocol = Protocol.GRPC
    tls: CollectorTlsConfig | None = None
    headers_file: Path | None = None
    """It holds `NAME=VALUE,NAME=VALUE`, sent along with every export: keys, as a rule."""
    headers_env: str | None = None
    """A variable that holds the same."""
    service_name: str = "nightside"
    trust_client: bool = True
    """A client's traceparent names the parent of our span, and whether it is sampled. False: each request begins a
    trace of its own, with a link to what the client named."""
    sampled_share: float = 0.01
    """Of the requests that begin a trace here."""
    tail: TailConfig = field(default_factory=TailConfig)
    queue_max: int = 2048
    """Requests whose spans wait to be sent; more are let go, and counted."""
    batch_max: int = 16
    """Requests that are sent together. Each batch is encoded in one go, for which all else in the process waits."""
    interval_ns: int = 1 * SECOND_NS
    """So long the first of them waits for others."""
    timeout_ns: int = 10 * SECOND_NS
    """For one batch, with all that is tried again."""
    shutdown_wait_ns: int = 2 * SECOND_NS
    """What is left may be sent for so long when the gateway stops."""

    @property
    def is_on(self) -> bool:
        return self.endpoint is not None

    @property
    def collector(self) -> Address | None:
        if self.endpoint is None:
            return None
        url = urlsplit(self.endpoint)
        return Address(url.hostname or "", url.port or (443 if url.scheme == "https" else 80))


def tracing_faults(config: TracingConfig) -> Iterator[Fault]:
    """What does not go together, and what is not there."""
    if config.endpoint is None:
        return
    url = urlsplit(config.endpoint)
    if not url.hostname or url.username or url.query or url.fragment:
        yield Fault("tracing.endpoint", "should name a host, and no user, query or fragment")
    if config.protocol is Protocol.GRPC and url.path.strip("/"):
        yield Fault("tracing.endpoint", "should have no path with protocol: grpc")
    if config.protocol is Protocol.HTTP and not url.path.strip("/"):
        yield Fault("tracing.endpoint", "should have its path with protocol: http, as a rule /v1/traces")
    is_encrypted = url.scheme == "https"
    if config.tls is not None:
        if not is_encrypted:
            yield Fault("tracing.tls", "the collector is not reached by https")
        if (config.tls.certificate is None) != (config.tls.key is None):
            yield Fault("tracing.tls", "certificate and key are written together or not at all")
    if config.headers_file is not None and config.headers_env is not None:
        yield Fault("tracing", "headers_file and headers_env exclude each other")
    has_headers = config.headers_file is not None or config.headers_env is not None
    collector = config.collector
    if has_headers and not is_encrypted and collector is not None and not collector.is_loopback:
        yield Fault("tracing.endpoint", "keys would go beyond this machine in the clear: use https, or no headers")
    if config.queue_max > _QUEUE_MAX:
        yield Fault("tracing.queue_max", f"should be at most {_QUEUE_MAX}")
    if not config.batch_max <= min(config.queue_max, _BATCH_MAX):
        yield Fault("tracing.batch_max", f"should be at most {_BATCH_MAX}, and tracing.queue_max")
    if not is_installed(config.protocol):
        yield Fault("tracing.endpoint", f"tracing is not installed: install nightside[{EXTRA}]")


def is_installed(protocol: Protocol) -> bool:
    """Whether what speaks OTLP is there. Nothing of it is imported."""
    try:
        return find_spec(protocol.module) is not None
    except ModuleNotFoundError:  # not even the packages around it
        return False


def collector_headers(config: TracingConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Raises KeyFaults, which quote nothing of them."""
    if config.endpoint is None:
        return {}
    key = "tracing.headers_file"
    if config.headers_file is not None:
        written = read_secret(config.headers_file, key)
    elif config.headers_env is not None:
        key = "tracing.headers_env"
        written = checked_secret(environ.get(config.headers_env, ""), key, f"environment variable {config.headers_env}")
    else:
        return {}
    headers = _headers(key, written)
    if config.protocol is Protocol.GRPC and any(name.endswith("-bin") for name in headers):
        raise KeyFaults(Fault(key, "names a header that ends in -bin, which over gRPC are for bytes and not for text"))
    return headers


def _headers(key: str, written: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in written.split(",") if pair.strip()]
    headers = {name.strip().lower(): text.strip() for name, _, text in pairs}
    if not all(map(_HEADER_NAME.fullmatch, headers)) or not all(headers.values()):
        raise KeyFaults(Fault(key, "is not of the form NAME=VALUE,NAME=VALUE"))
    return headers
