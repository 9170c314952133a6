"""Certificates that do not belong to the gateway that presents them, to a calling gateway and to a called one.

The cases are data: `tests/hostile/peer_certificates.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import GatewayId, PeerSpec
from gateway.peers.exchange.grpc_internals import CallOver, writer_of
from gateway.security.development_ca import DevelopmentCa
from mesh.values import Address
from protos.mesh.v1 import peer_pb2 as pb
from protos.mesh.v1 import peer_pb2_grpc
from tests.fakes.raw_peer import RawPeer, serve_raw_peer, written
from tests.hostile.peer_certificates import CERTIFICATE_CASES, CertificateCase
from tests.hostile.peers import beat, forward
from tests.support.certificates import Files, mesh_leaf, new_ca, roots_of
from tests.support.core import EU, US
from tests.support.gateways import QUICK_PEERING, counted, region_config, until, usable_peers, write_policy
from tests.support.odd_certificates import odd_certificate

NOBODY = Address("127.0.0.1", 9)
EU_NAME = "eu-1.eu-west-1.gateway.mesh.test"
TURNED_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED)
"""Statuses of a refusal, by the handshake or by name."""


@dataclass
class Called:
    """A gateway, eu-1, that knows us-1."""

    gateway: GatewayHandle
    ca: DevelopmentCa


def eu_config(folder: Path, ca: DevelopmentCa, us: Address) -> Any:
    files = Files(folder / "eu")
    files.put(mesh_leaf(ca, "eu-1", EU), roots=roots_of(ca))
    config = region_config("eu-1", EU, [], policy_file=write_policy(folder, EU))
    told = PeerConfig(PeerSpec(GatewayId("us-1"), US), us)
    return replace(config, peers=(told,), peering=replace(QUICK_PEERING, tls=files.mesh()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def called(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Called]:
    ca = new_ca()
    async with serve_gateway(eu_config(tmp_path_factory.mktemp("called"), ca, NOBODY)) as gateway:
        yield Called(gateway, ca)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CERTIFICATE_CASES, ids=lambda case: case.name)
async def test_whoever_calls_is_who_its_certificate_says(called: Called, case: CertificateCase) -> None:
    shown = odd_certificate(case, called.ca)
    credentials = grpc.ssl_channel_credentials(roots_of(called.ca), shown.key_pem, shown.certificate_pem)
    options = [("grpc.ssl_target_name_override", EU_NAME), ("grpc.use_local_subchannel_pool", 1)]
    codes: set[grpc.StatusCode] = set()
    async with grpc.aio.secure_channel(str(called.gateway.peers_address), credentials, options=options) as channel:
        stub = peer_pb2_grpc.PeerServiceStub(channel)
        subscribed = pb.SubscribeRequest(gateway_id="us-1", place=pb.Place(region="us-east-1", jurisdiction="US"))
        origin = {"region": "us-east-1", "jurisdiction": "US"}
        asked = forward({"origin_gateway_id": "us-1", "stamp.origin.region": origin["region"]})
        asked.stamp.origin.CopyFrom(pb.Place(**origin))
        exchange: Any = stub.Exchange(timeout=20)
        raw = asked.SerializeToString()
        begin = pb.OriginFrame(forward=1, request_bytes=len(raw), request=raw, credit=10_000)
        with suppress(CallOver):  # refused before it was sent: the status says so
            await writer_of(exchange)(pb.ExchangeRequest(frames=[begin]).SerializeToString())
        for call in (stub.Subscribe(subscribed, timeout=20), exchange):
            try:
                assert await call.read() is not grpc.aio.EOF
                codes.add(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())
    if case.may_call:
        assert codes == {grpc.StatusCode.OK}
    else:
        assert len(codes) == 1, codes
        assert codes <= set(TURNED_AWAY)


def showing(case: CertificateCase, ca: DevelopmentCa) -> grpc.ServerCredentials:
    shown = odd_certificate(case, ca)
    return grpc.ssl_server_credentials(
        [(shown.key_pem, shown.certificate_pem)], root_certificates=roots_of(ca), require_client_auth=True
    )


def us_beat(number: int) -> bytes:
    place = {"place.region": "us-east-1", "place.jurisdiction": "US", "capacities": []}
    return written(beat(number, {"gateway_id": "us-1", **place}))


async def answer_nothing(_: pb.ForwardRequest, __: Any) -> None:
    pass


@pytest.mark.parametrize("case", CERTIFICATE_CASES, ids=lambda case: case.name)
async def test_whoever_answers_is_who_its_certificate_says(case: CertificateCase, tmp_path: Path) -> None:
    ca, peer = new_ca(), RawPeer(us_beat, answer_nothing)
    async with (
        serve_raw_peer(peer, showing(case, ca)),
        serve_gateway(eu_config(tmp_path, ca, Address("127.0.0.1", peer.port))) as gateway,
    ):
        if case.may_answer:
            await until(lambda: usable_peers(gateway) == 1)
        else:
            await until(lambda: refused_by(gateway) >= 2)
            assert usable_peers(gateway) == 0
            assert peer.beats.count == 0


async def test_a_peer_that_comes_back_with_another_ones_certificate_is_none_any_more(tmp_path: Path) -> None:
    right, another = CERTIFICATE_CASES[0], CERTIFICATE_CASES[1]
    ca, peer = new_ca(), RawPeer(us_beat, answer_nothing)
    async with AsyncExitStack() as first:
        await first.enter_async_context(serve_raw_peer(peer, showing(right, ca)))
        async with serve_gateway(eu_config(tmp_path, ca, Address("127.0.0.1", peer.port))) as gateway:
            await until(lambda: usable_peers(gateway) == 1)
            assert refused_by(gateway) == 0
            await first.aclose()
            async with serve_raw_peer(peer, showing(another, ca), port=peer.port):
                await until(lambda: refused_by(gateway) >= 2)
                assert usable_peers(gateway) == 0


def refused_by(gateway: GatewayHandle) -> float:
    return counted(gateway, "peers_refused_total", seen_by="caller", reason="identity")
