"""Encodes finished requests as one OTLP message, by filling OpenTelemetry's protobuf messages in place. The library's
own way, over spans that it recorded itself, takes five times as long, on the core that serves requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status

from gateway.tracing.spans import FinishedRequest, Kind, Span

SCOPE = "nightside"
_KINDS = {
    Kind.SERVER: Message.SPAN_KIND_SERVER,
    Kind.CLIENT: Message.SPAN_KIND_CLIENT,
    Kind.INTERNAL: Message.SPAN_KIND_INTERNAL,
}
_LOCAL_PARENT = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE_PARENT = _LOCAL_PARENT | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_INT_MAX = 2**63 - 1
_Attributes = Mapping[str, str | int | float | bool]


def encoded(
    requests: Iterable[tuple[FinishedRequest, Sequence[Span]]], resource: _Attributes
) -> ExportTraceServiceRequest:
    """Encode requests, each with its spans. `resource` holds the attributes of this gateway."""
    message = ExportTraceServiceRequest()
    whose = message.resource_spans.add()
    _add(whose.resource.attributes, resource)
    scope = whose.scope_spans.add()
    scope.scope.name = SCOPE
    for request, spans in requests:
        own = request.trace.own
        trace_id = bytes.fromhex(own.trace_id)
        for span in spans:
            told = scope.spans.add()
            told.trace_id = trace_id
            told.trace_state = own.tracestate
            told.flags = own.flags | (_REMOTE_PARENT if span.has_remote_parent else _LOCAL_PARENT)
            _fill(told, span, request.wall_offset_ns)
            if span.links_to_cause and request.trace.cause is not None:
                link = told.links.add()
                link.trace_id = bytes.fromhex(request.trace.cause.trace_id)
                link.span_id = bytes.fromhex(request.trace.cause.span_id)
                link.flags = request.trace.cause.flags | _REMOTE_PARENT
    return message


def _fill(told: Message, span: Span, offset_ns: int) -> None:
    told.span_id = bytes.fromhex(span.span_id)
    told.parent_span_id = bytes.fromhex(span.parent_id)
    told.name = span.name
    told.kind = _KINDS[span.kind]
    told.start_time_unix_nano = span.start_ns + offset_ns
    told.end_time_unix_nano = span.end_ns + offset_ns
    _add(told.attributes, span.attributes)
    for each in span.happenings:
        event = told.events.add()
        event.name = each.name
        event.time_unix_nano = each.at_ns + offset_ns
        _add(event.attributes, each.attributes)
    if span.is_error:
        told.status.code = Status.STATUS_CODE_ERROR


def _add(told: Any, attributes: _Attributes) -> None:
    """Add attributes to `told`, a list of pairs within a message."""
    for name, value in attributes.items():
        pair = told.add()
        pair.key = name
        kind = value.__class__
        if kind is str:
            pair.value.string_value = value
        elif kind is bool:
            pair.value.bool_value = value
        elif kind is int:
            pair.value.int_value = max(-_INT_MAX, min(value, _INT_MAX))  # a peer may name a number that is larger
        elif kind is float:
            pair.value.double_value = value
        else:
            pair.value.string_value = str(value)  # an enum member, or another subclass
