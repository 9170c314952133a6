"""Settings of span export: the collector, and which requests are sampled. The checks here decide nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct, field

from mesh.faults import FileFault, KeyFaults
from mesh.values import SECOND_NS, Address, WebUrl, checked_secret, read_secret

EXTRA = "otel"
_QUEUE_MAX = 1_000_000
_BATCH_MAX = 10_000
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
"""Header names, restricted to those that gRPC accepts as well."""


class Protocol(StrEnum):
    """Transport of OTLP, the OpenTelemetry protocol; always with protobuf."""

    GRPC = "grpc"
    HTTP = "http"

    @property
    def module(self) -> str:
        return f"opentelemetry.exporter.otlp.proto.{self}.trace_exporter"


class TailConfig(Struct, frozen=True):
    """Tail sampling: which requests are kept by how they ended, though head sampling dropped them."""

    slow_first_token_ns: int | None = 5 * SECOND_NS
    """Time to first token above which a request is kept. None: no request is kept for it."""
    failed: bool = True
    """Keep requests that failed, or that an engine or a peer failed in one attempt."""
    forwarded: bool = False
    """Keep requests that were forwarded, or arrived as a forward."""
    resumed: bool = True
    """Keep requests whose answer broke and was resumed elsewhere."""
    kept_per_s: int = 50
    """Requests kept per second; further ones are dropped, since a sample suffices where everything is slow."""


class CollectorTlsConfig(Struct, frozen=True):
    """TLS to the collector."""

    ca_file: Path | None = None
    """CA bundle (PEM) that verifies the collector, besides the machine's trusted roots. None: those roots alone."""
    certificate: Path | None = None
    """File of the client certificate (PEM) that is shown to the collector. None: none is shown."""
    key: Path | None = None
    """File of the client certificate's private key (PEM). None: there is no client certificate."""


class TracingConfig(Struct, frozen=True):
    """Export of traces to an OpenTelemetry collector; off unless `endpoint` is set."""

    endpoint: WebUrl | None = None
    """URL of an OTLP receiver, such as an OpenTelemetry collector. None: tracing is off, and trace headers pass
    unchanged."""
    protocol: Protocol = Protocol.GRPC
    """Transport of OTLP, always with protobuf; for `http` the endpoint includes the path, such as `/v1/traces`."""
    tls: CollectorTlsConfig | None = None
    """TLS to a collector at an https URL. None: the machine's trusted roots, and no client certificate."""
    headers_file: Path | None = None
    """File of `NAME=VALUE,NAME=VALUE`, the headers of each export, such as an API key. None: no headers from a file."""
    headers_env: str | None = None
    """Environment variable that holds such headers, in place of a file. None: no headers from the environment."""
    service_name: str = "nightside"
    """Value of `service.name` in the exported resource."""
    trust_client: bool = True
    """Continue the trace of a client's `traceparent`, sampling decision included. False: each request begins its own
    trace, with a link to the client's."""
    sampled_share: float = 0.01
    """Share of the requests without a parent trace that are sampled."""
    tail: TailConfig = field(default_factory=TailConfig)
    """Tail sampling: requests that are exported because of how they ended, though they were not sampled."""
    queue_max: int = 2048
    """Requests whose spans wait for export; further ones are dropped, and counted."""
    batch_max: int = 16
    """Requests exported together. Encoding a batch blocks the rest of the process meanwhile."""
    interval_ns: int = 1 * SECOND_NS
    """Longest wait of a batch's first request for further ones."""
    timeout_ns: int = 10 * SECOND_NS
    """Time limit of exporting one batch, retries included."""
    shutdown_wait_ns: int = 2 * SECOND_NS
    """Time for exporting the remaining spans when the gateway stops."""

    @property
    def is_on(self) -> bool:
        return self.endpoint is not None

    @property
    def collector(self) -> Address | None:
        if self.endpoint is None:
            return None
        url = urlsplit(self.endpoint)
        return Address(url.hostname or "", url.port or (443 if url.scheme == "https" else 80))


def tracing_faults(config: TracingConfig) -> Iterator[FileFault]:
    """Faults between tracing settings, and a missing OpenTelemetry installation."""
    if config.endpoint is None:
        return
    url = urlsplit(config.endpoint)
    if not url.hostname or url.username or url.query or url.fragment:
        yield FileFault("tracing.endpoint", "should name a host, and no user, query or fragment")
    if config.protocol is Protocol.GRPC and url.path.strip("/"):
        yield FileFault("tracing.endpoint", "should have no path with protocol: grpc")
    if config.protocol is Protocol.HTTP and not url.path.strip("/"):
        yield FileFault("tracing.endpoint", "should have its path with protocol: http, as a rule /v1/traces")
    is_encrypted = url.scheme == "https"
    if config.tls is not None:
        if not is_encrypted:
            yield FileFault("tracing.tls", "the collector is not reached by https")
        if (config.tls.certificate is None) != (config.tls.key is None):
            yield FileFault("tracing.tls", "certificate and key are written together or not at all")
    if config.headers_file is not None and config.headers_env is not None:
        yield FileFault("tracing", "headers_file and headers_env exclude each other")
    has_headers = config.headers_file is not None or config.headers_env is not None
    collector = config.collector
    if has_headers and not is_encrypted and collector is not None and not collector.is_loopback:
        yield FileFault("tracing.endpoint", "keys would go beyond this machine in the clear: use https, or no headers")
    if config.queue_max > _QUEUE_MAX:
        yield FileFault("tracing.queue_max", f"should be at most {_QUEUE_MAX}")
    if not config.batch_max <= min(config.queue_max, _BATCH_MAX):
        yield FileFault("tracing.batch_max", f"should be at most {_BATCH_MAX}, and tracing.queue_max")
    if not is_installed(config.protocol):
        yield FileFault("tracing.endpoint", f"tracing is not installed: install nightside[{EXTRA}]")


def is_installed(protocol: Protocol) -> bool:
    """True if the OTLP exporter is installed; it is not imported."""
    try:
        return find_spec(protocol.module) is not None
    except ModuleNotFoundError:  # parent packages are missing too
        return False


def collector_headers(config: TracingConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Headers for the collector, read from the file or environment variable. Raises KeyFaults, which quote no part of
    them."""
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
        raise KeyFaults(
            FileFault(key, "names a header that ends in -bin, which over gRPC are for bytes and not for text")
        )
    return headers


def _headers(key: str, written: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in written.split(",") if pair.strip()]
    headers = {name.strip().lower(): text.strip() for name, _, text in pairs}
    if not all(map(_HEADER_NAME.fullmatch, headers)) or not all(headers.values()):
        raise KeyFaults(FileFault(key, "is not of the form NAME=VALUE,NAME=VALUE"))
    return headers
