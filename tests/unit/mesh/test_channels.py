from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import grpc.aio
import pytest

from controller.config import LinkConfig
from gateway.config.sections import ControlConfig, PeeringConfig
from mesh.channels import LinkSettings, status_in_words

REASON = "a newer one has come"
REASON_LOST = "it closed the stream while something was written to it, and its reason is lost"


@pytest.mark.parametrize(
    "code,details,words",
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "UNAVAILABLE: Socket closed"),
        (
            grpc.StatusCode.UNAVAILABLE,
            "Stream removed (Socket closed (GOAWAY received; Error code: 0; Debug Text: max_age))",
            "UNAVAILABLE: Stream removed (Socket closed)",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "GOAWAY received; Error code: 11; Debug Text: too_many_pings",
            "UNAVAILABLE: GOAWAY received; Error code: 11; Debug Text: too_many_pings",
        ),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", REASON_LOST),
        (grpc.StatusCode.INTERNAL, "out of order", "INTERNAL: out of order"),
        (grpc.StatusCode.ABORTED, None, "ABORTED: "),
    ],
)
def test_a_status_is_told_without_what_is_no_reason(code: grpc.StatusCode, details: str | None, words: str) -> None:
    assert status_in_words(code, details) == words


async def test_a_stream_that_ends_while_it_is_written_to_may_have_lost_its_reason_and_says_so() -> None:
    """The library of gRPC gives either of two results; neither counts as an internal error."""

    async def end_it(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.read()
        await context.abort(grpc.StatusCode.ABORTED, REASON)

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(end_it)
    server = grpc.aio.server()
    server.add_registered_method_handlers("s", {"m": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    seen = set()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(20):
                call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/s/m")()
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # runs until the stream is over
                    while True:
                        await call.write(b"x")
                seen.add(status_in_words(await call.code(), await call.details()))
    finally:
        await server.stop(0)
    assert seen <= {REASON_LOST, f"ABORTED: {REASON}"}


@pytest.mark.parametrize("link", [PeeringConfig(), ControlConfig(), LinkConfig()])
def test_a_dead_connection_breaks_within_seven_seconds(link: LinkSettings) -> None:
    assert 0 < link.keepalive_interval_ns + link.keepalive_timeout_ns <= 7_000_000_000
