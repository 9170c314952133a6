"""Takes finished requests to a collector with OpenTelemetry's own exporters. It runs in the outbox's thread and blocks;
nothing else of this gateway imports OpenTelemetry, so that without tracing none of it has to be there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from gateway.config.tracing import CollectorTlsConfig, Protocol, TracingConfig
from gateway.core.vocabulary import GatewayId, Place
from gateway.ground.faults import ConfigError
from gateway.ground.values import SECOND_NS
from gateway.request.trace_context import RequestTrace, SpanName
from gateway.tracing.spans import FinishedRequest, Kind, ServerOf, Span, spans_of

SCOPE = InstrumentationScope("nightside")
_KINDS = {Kind.SERVER: SpanKind.SERVER, Kind.CLIENT: SpanKind.CLIENT, Kind.INTERNAL: SpanKind.INTERNAL}
_NO_STATE = TraceState()
_FINE, _FAULTY = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)


class OtlpExporter:
    """One gateway's way to its collector."""

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
        """What was wrong with the last export that failed, in the library's words."""
        self._gateway_id = gateway_id
        self._server_of = server_of
        self._resource = Resource.create(
            {
                "service.name": config.service_name,
                "service.instance.id": gateway_id,
                "nightside.region": place.region,
                "nightside.jurisdiction": place.jurisdiction,
            }
        )
        self._words = _LastWords.of_libraries()
        self._exporter = _exporter(config, headers)

    def export(self, requests: list[FinishedRequest]) -> bool:
        """Whether the collector took all of it, within the time that it has."""
        self._words.forget()
        try:
            spans = [span for each in requests for span in self._spans(each)]
            is_taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever a library raises, spans are lost and requests go on
            self.problem = f"{type(error).__name__}: {error}"
            return False
        if not is_taken:
            self.problem = self._words.last or "the collector did not take them"
        return is_taken

    def close(self) -> None:
        """Breaks off what still goes on."""
        self._exporter.shutdown()

    def _spans(self, request: FinishedRequest) -> list[ReadableSpan]:
        translated = _Translated(request, self._resource)
        return [translated.span(each) for each in spans_of(request, self._gateway_id, self._server_of)]


class _Translated:
    """One request's spans, as OpenTelemetry has them."""

    def __init__(self, request: FinishedRequest, resource: Resource) -> None:
        self._offset_ns = request.wall_offset_ns
        self._resource = resource
        trace: RequestTrace = request.trace
        self._trace_id = int(trace.own.trace_id, 16)
        self._flags = TraceFlags(TraceFlags.SAMPLED)
        self._state = _state_of(trace.own)
        self._links = [] if trace.cause is None else [Link(_remote(trace.cause))]

    def span(self, span: Span) -> ReadableSpan:
        parent = self._context(span.parent_id, is_remote=span.has_remote_parent) if span.parent_id else None
        return ReadableSpan(
            span.name,
            self._context(span.span_id, is_remote=False),
            parent,
            self._resource,
            span.attributes,
            [Event(each.name, each.attributes, each.at_ns + self._offset_ns) for each in span.happenings],
            self._links if span.links_to_cause else (),
            _KINDS[span.kind],
            status=_FAULTY if span.is_error else _FINE,
            start_time=span.start_ns + self._offset_ns,
            end_time=span.end_ns + self._offset_ns,
            instrumentation_scope=SCOPE,
        )

    def _context(self, span_id: str, *, is_remote: bool) -> SpanContext:
        return SpanContext(self._trace_id, int(span_id, 16), is_remote, self._flags, self._state)


def _remote(named: SpanName) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if named.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(int(named.trace_id, 16), int(named.span_id, 16), is_remote=True, trace_flags=flags)


def _state_of(named: SpanName) -> TraceState:
    return TraceState.from_header([named.tracestate]) if named.tracestate else _NO_STATE


def _exporter(config: TracingConfig, headers: Mapping[str, str]) -> SpanExporter:
    timeout_s = config.timeout_ns / SECOND_NS
    tls = config.tls or CollectorTlsConfig()
    assert config.endpoint is not None, "whoever traces has a collector"
    if config.protocol is Protocol.GRPC:
        is_encrypted = config.endpoint.startswith("https:")
        return GrpcExporter(
            str(config.collector),
            insecure=not is_encrypted,
            credentials=_credentials(tls) if is_encrypted else None,
            headers=tuple(headers.items()),
            timeout=timeout_s,
            compression=grpc.Compression.Gzip,
        )
    return HttpExporter(
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
            None if path is None else path.read_bytes() for path in (tls.ca_file, tls.key, tls.certificate)
        )
    except OSError as error:
        raise ConfigError(f"tracing.tls: {error.filename} cannot be read: {error.strerror}") from error
    return grpc.ssl_channel_credentials(roots, key, chain)


class _LastWords(logging.Filter):
    """What the libraries would log about an export that fails: at every try, for as long as a collector is gone. It is
    kept for whoever tells of it once. One for the process, whose gateways each export in a thread of their own."""

    _instance: _LastWords | None = None

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[int, str] = {}

    @classmethod
    def of_libraries(cls) -> _LastWords:
        if cls._instance is None:
            cls._instance = cls()
            for name in _LOGGERS:
                logging.getLogger(name).filters.insert(0, cls._instance)  # before one that swallows what repeats
        return cls._instance

    def filter(self, record: logging.LogRecord) -> bool:
        self._said[threading.get_ident()] = record.getMessage()
        return False

    def forget(self) -> None:
        self._said.pop(threading.get_ident(), None)

    @property
    def last(self) -> str:
        return self._said.get(threading.get_ident(), "")
