"""A collector of traces for tests: an OTLP server, over gRPC and over HTTP, that keeps the spans it receives."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.fakes.engine import Tally
from tests.support.listening import cleaned_up

_SERVICE, _EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService", "Export"
_GZIP = b"\x1f\x8b"
Attribute = str | int | float | bool | list[str]


class Told:
    """One span as it was received."""

    def __init__(self, span: Span, resource: dict[str, Attribute]) -> None:
        self.span = span
        self.resource = resource
        self.name = span.name
        self.trace_id, self.span_id = span.trace_id.hex(), span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.attributes = attributes_of(span.attributes)
        self.gateway = str(resource.get("service.instance.id"))

    def __repr__(self) -> str:
        return f"{self.gateway}: {self.name} {self.span_id} below {self.parent_id or 'nothing'}"


class FakeCollector:
    def __init__(self) -> None:
        self.raw: list[bytes] = []
        """Bodies as received, after decompression."""
        self.headers: list[dict[str, str]] = []
        self.exported = Tally()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_asked = asyncio.Event()
        self.grpc_url = self.http_url = ""

    @property
    def spans(self) -> list[Told]:
        found = []
        for raw in self.raw:
            for group in ExportTraceServiceRequest.FromString(raw).resource_spans:
                resource = attributes_of(group.resource.attributes)
                found += [Told(span, resource) for scope in group.scope_spans for span in scope.spans]
        return found

    def named(self, name: str, gateway: str = "") -> list[Told]:
        return [each for each in self.spans if each.name == name and gateway in ("", each.gateway)]

    async def has(self, *names: str) -> None:
        """Wait until each of these spans has arrived, as many times as it is named here."""
        while any(len(self.named(name)) < names.count(name) for name in names):
            await self.exported.reaches(self.exported.count + 1)

    @asynccontextmanager
    async def serving(
        self, credentials: grpc.ServerCredentials | None = None, *, grpc_port: int = 0
    ) -> AsyncIterator[FakeCollector]:
        server, runner = grpc.aio.server(), web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.1)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._export_grpc)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_EXPORT: handler}),))
        if credentials is None:
            self.grpc_url = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{grpc_port}')}"
        else:
            self.grpc_url = f"https://localhost:{server.add_secure_port('127.0.0.1:0', credentials)}"
        await server.start()
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        try:
            await site.start()
            self.http_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
            yield self
        finally:
            self.may_answer.set()
            await server.stop(0)
            await cleaned_up(runner)

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/traces", self._export_http)
        return app

    async def _export_grpc(self, raw: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        await self._take(raw, metadata)
        return ExportTraceServiceResponse().SerializeToString()

    async def _export_http(self, request: web.Request) -> web.Response:
        raw = await request.read()
        if raw[:2] == _GZIP:  # aiohttp decompresses the body itself if its headers say gzip
            raw = gzip.decompress(raw)
        await self._take(raw, {key.lower(): value for key, value in request.headers.items()})
        done = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=done, content_type="application/x-protobuf")

    async def _take(self, raw: bytes, headers: dict[str, str]) -> None:
        self.is_asked.set()
        await self.may_answer.wait()
        self.raw.append(raw)
        self.headers.append(headers)
        self.exported.add()


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Attribute]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Attribute:
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [str(_value(each)) for each in value.array_value.values]
    told: Attribute = getattr(value, kind)
    return told
