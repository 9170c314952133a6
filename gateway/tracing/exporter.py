"""Exports finished requests to a collector with OpenTelemetry's exporters: their retries, their time-outs, their TLS.
It runs in the outbox's thread and blocks.

Only this module and `encoding.py` import OpenTelemetry, so that it need not be installed without tracing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Protocol as Shape

import grpc
from opentelemetry.exporter.otlp.proto.grpc.exporter import OTLPExporterMixin
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from gateway.config.tracing import CollectorTlsConfig, Protocol, TracingConfig
from gateway.core.vocabulary import GatewayId, Place
from gateway.tracing.encoding import encoded
from gateway.tracing.spans import FinishedRequest, ServerOf, spans_of
from mesh.faults import ConfigError
from mesh.values import SECOND_NS
from mesh.whole_files import read_whole

_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)


class OtlpExporter:
    """Exporter of one gateway to its collector."""

    def __init__(
        self,
        config: TracingConfig,
        headers: Mapping[str, str],
        gateway_id: GatewayId,
        place: Place,
        server_of: ServerOf,
    ) -> None:
        """Raises ConfigError where certificates cannot be read."""
        self.problem = ""
        """Fault of the last export that failed, in the library's words."""
        self._gateway_id = gateway_id
        self._server_of = server_of
        told = {
            "service.name": config.service_name,
            "service.instance.id": gateway_id,
            "nightside.region": place.region,
            "nightside.jurisdiction": place.jurisdiction,
        }
        described = Resource.create(told).attributes
        self._resource = {name: value for name, value in described.items() if isinstance(value, str | int | float)}
        self._words = _ExportFailures.of_libraries()
        self._way = _way_to(config, headers)

    def export(self, requests: list[FinishedRequest]) -> bool:
        """Export requests. Returns True if the collector accepted all of them within its time."""
        self._words.forget()
        try:
            told = [(each, spans_of(each, self._gateway_id, self._server_of)) for each in requests]
            is_taken = self._way.send(encoded(told, self._resource))
        except Exception as error:  # noqa: BLE001 - any exception loses spans, and requests go on
            self.problem = f"{type(error).__name__}: {error}"
            return False
        if not is_taken:
            self.problem = self._words.last or "the collector did not take them"
        return is_taken

    def close(self) -> None:
        """Break off an export that is running."""
        self._way.shutdown()


class _Transport(Shape):
    def send(self, message: ExportTraceServiceRequest) -> bool: ...

    def shutdown(self) -> None: ...


class _GrpcTransport(
    OTLPExporterMixin[ExportTraceServiceRequest, ExportTraceServiceRequest, SpanExportResult, TraceServiceStub]  # type: ignore[type-var]
):
    """OpenTelemetry's gRPC exporter, for messages that are encoded already."""

    def send(self, message: ExportTraceServiceRequest) -> bool:
        return bool(self._export(message) is SpanExportResult.SUCCESS)

    def _translate_data(self, data: ExportTraceServiceRequest) -> ExportTraceServiceRequest:
        return data

    def _count_data(self, data: ExportTraceServiceRequest) -> int:
        return len(data.resource_spans)

    @property
    def _exporting(self) -> str:
        return "traces"


class _HttpTransport(OTLPSpanExporter):
    """OpenTelemetry's HTTP exporter, likewise; the client that it uses is that of a pinned version."""

    def send(self, message: ExportTraceServiceRequest) -> bool:
        return self._client.export(message.SerializeToString()).success


def _way_to(config: TracingConfig, headers: Mapping[str, str]) -> _Transport:
    timeout_s = config.timeout_ns / SECOND_NS
    tls = config.tls or CollectorTlsConfig()
    assert config.endpoint is not None, "tracing has a collector's endpoint"
    if config.protocol is Protocol.GRPC:
        is_encrypted = config.endpoint.startswith("https:")
        return _GrpcTransport(
            stub=TraceServiceStub,  # type: ignore[arg-type] # a class of stubs
            result=SpanExportResult,  # type: ignore[arg-type] # likewise
            endpoint=str(config.collector),
            insecure=not is_encrypted,
            credentials=_credentials(tls) if is_encrypted else None,
            headers=tuple(headers.items()),
            timeout=timeout_s,
            compression=grpc.Compression.Gzip,
        )
    return _HttpTransport(
        config.endpoint,
        certificate_file=None if tls.ca_file is None else str(tls.ca_file),
        client_certificate_file=None if tls.certificate is None else str(tls.certificate),
        client_key_file=None if tls.key is None else str(tls.key),
        headers=dict(headers),
        timeout=timeout_s,
        compression=HttpCompression.Gzip,
    )


def _credentials(tls: CollectorTlsConfig) -> grpc.ChannelCredentials:
    try:
        roots, key, chain = (
            None if path is None else read_whole(path) for path in (tls.ca_file, tls.key, tls.certificate)
        )
    except OSError as error:
        raise ConfigError(f"tracing.tls: {error.filename} cannot be read: {error.strerror}") from error
    return grpc.ssl_channel_credentials(roots, key, chain)


class _ExportFailures(logging.Filter):
    """Captures what the libraries log about an export that fails, at every try for as long as a collector is gone, so
    that the gateway can log it once. One for the process, whose gateways each export in a thread of their own."""

    _instance: _ExportFailures | None = None

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[int, str] = {}

    @classmethod
    def of_libraries(cls) -> _ExportFailures:
        if cls._instance is None:
            cls._instance = cls()
            for name in _LOGGERS:
                logging.getLogger(name).filters.insert(0, cls._instance)  # put ahead of a filter that drops repetitions
        return cls._instance

    def filter(self, record: logging.LogRecord) -> bool:
        self._said[threading.get_ident()] = record.getMessage()
        return False

    def forget(self) -> None:
        self._said.pop(threading.get_ident(), None)

    @property
    def last(self) -> str:
        return self._said.get(threading.get_ident(), "")
