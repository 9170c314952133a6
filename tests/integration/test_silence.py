"""Silence on real sockets: TCP's user time-outs, signs of life between heartbeats, and probes of a hanging gateway."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc.aio
import pytest

from controller.config import GatewayProbeConfig, LinkConfig
from controller.core.events import Event
from controller.prober import GatewayProber
from controller.registry import registry_of
from gateway.config.sections import ControlConfig, PeeringConfig
from gateway.core.vocabulary import GatewayId
from gateway.peers.codec import subscribe_request
from mesh.channels import DialledSettings, ServedSettings, client_options, server_options
from protos.mesh.v1 import peer_pb2 as pb
from protos.mesh.v1 import peer_pb2_grpc
from tests.fakes.attached import hello
from tests.support.core import EU, REGIONS, US
from tests.support.gateways import until
from tests.support.listening import listening
from tests.support.regions import Mesh


def sockets_at(port: int) -> Iterator[socket.socket]:
    """Copies of this process's sockets of connections to and from a port, at both ends."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as each:
            is_tcp = each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM
            if is_tcp and port in (each.getsockname()[1], each.getpeername()[1]):
                yield each


@pytest.mark.parametrize(
    "dialled,served", [(PeeringConfig(), PeeringConfig()), (ControlConfig(), LinkConfig())], ids=["peers", "control"]
)
async def test_both_ends_of_a_link_give_up_what_tcp_does_not_acknowledge(
    dialled: DialledSettings, served: ServedSettings
) -> None:
    """The library of gRPC sets TCP's user time-out by itself where keep-alive is on."""
    server = grpc.aio.server(options=server_options(served))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=client_options(dialled)) as channel:
            await channel.channel_ready()
            seen_ms = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in sockets_at(port)]
    finally:
        await server.stop(0)
    assert sorted(seen_ms) == sorted(each.keepalive_timeout_ns // 1_000_000 for each in (dialled, served))


@asynccontextmanager
async def subscribed(mesh: Mesh, request: pb.SubscribeRequest) -> AsyncIterator[AsyncIterator[pb.SubscribeResponse]]:
    """Messages of an idle gateway on a subscription to its heartbeats."""
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    await mesh.start(us, eu)
    async with grpc.aio.insecure_channel(str(eu.gateway.peers_address)) as channel:
        stub: peer_pb2_grpc.PeerServiceAsyncStub = peer_pb2_grpc.PeerServiceStub(channel)
        call = stub.Subscribe(request)
        yield aiter(call)
        call.cancel()


async def test_an_idle_gateway_gives_signs_of_life_between_its_heartbeats(mesh: Mesh) -> None:
    async with subscribed(mesh, subscribe_request(GatewayId("us-1"), US)) as said:
        first = await anext(said)
        assert (first.gateway_id, first.is_sign_of_life) == ("eu-1", False)
        while not (later := await anext(said)).is_sign_of_life:
            pass
        assert later == pb.SubscribeResponse(is_sign_of_life=True)
        while (later := await anext(said)).is_sign_of_life:
            pass
        assert later.gateway_id == "eu-1", "heartbeats go on beside them"


async def test_a_subscriber_that_takes_none_is_given_heartbeats_alone(mesh: Mesh) -> None:
    request = subscribe_request(GatewayId("us-1"), US)
    request.takes_signs_of_life = False
    async with subscribed(mesh, request) as said:
        assert {(await anext(said)).gateway_id for _ in range(3)} == {"eu-1"}


async def test_one_that_hangs_is_asked_again_before_the_last_answer_is_given_up() -> None:
    said: list[Event] = []
    asked = 0

    async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read()

    async with listening(hang) as port:
        registry = registry_of({}, REGIONS)
        registry = registry.changed(registry.announce(hello("us-1", US, health_url=f"http://127.0.0.1:{port}/health")))
        config = GatewayProbeConfig(interval_ns=1_000_000, timeout_ns=3600 * 10**9)
        prober = GatewayProber(lambda: registry, lambda _: True, said.append, config)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(prober.run())
            await until(lambda: asked >= 3)
            task.cancel()
    assert said == []
