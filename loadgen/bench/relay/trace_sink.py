"""A collector that accepts every trace over OTLP's gRPC and keeps none, used to measure the tracing cost of a gateway
alone. `python -m loadgen.bench.relay.trace_sink HOST:PORT`."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

_SERVICE, _EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService", "Export"
_TAKEN = b""
"""An empty `ExportTraceServiceResponse`: all traces were accepted."""


def serve(address: str) -> grpc.Server:
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: _TAKEN
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_EXPORT: handler}),))
    server.add_insecure_port(address)
    server.start()
    return server


if __name__ == "__main__":
    serve(sys.argv[1]).wait_for_termination()
