"""Whole gateways that prove their identity to each other, and refusals of those that cannot."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
import yaml
from cryptography import x509
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, PeeringConfig, ReloadConfig
from gateway.core.vocabulary import (
    GatewayId,
    Place,
)
from gateway.peers import codec
from gateway.peers.exchange.grpc_internals import CallOver, writer_of
from gateway.request.legs import OutboundRequest
from gateway.security.development_ca import DevelopmentCa, Issued
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.tls import MeshTls
from protos.mesh.v1 import peer_pb2 as pb
from protos.mesh.v1 import peer_pb2_grpc
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, Exchange, FakeEngine, stream_until, token
from tests.support.certificates import Files, clients_leaf, mesh_leaf, new_ca, roots_of
from tests.support.core import AP, EU, MODEL, MS, US, profile
from tests.support.gateways import (
    QUICK_PEERING,
    ask,
    counted,
    free_replicas,
    knowing,
    region_config,
    until,
    usable_peers,
    write_policy,
)
from tests.support.orders import forward_order
from tests.support.programs import nightside, started


@dataclass
class Region:
    """A gateway with one engine, its certificates, and its log."""

    engine: FakeEngine
    files: Files
    config: GatewayConfig
    said: io.StringIO
    gateway: GatewayHandle

    def refused(self, seen_by: str) -> float:
        return counted(self.gateway, "peers_refused_total", seen_by=seen_by, reason="identity")

    def logged(self, level: str, words: str) -> bool:
        lines = map(json.loads, self.said.getvalue().splitlines())
        return any(line["level"] == level and words in json.dumps(line) for line in lines)

    async def reload(self) -> None:
        assert await self.gateway.reloader.reload() == []

    async def become_busy(self) -> None:
        self.engine.waiting = 1
        await until(lambda: free_replicas(self.gateway) == 0)


class Mesh:
    """Gateways of one trust domain, started one by one."""

    def __init__(self, folder: Path, ports: Callable[[], int]) -> None:
        self.ca = new_ca()
        self.stack = AsyncExitStack()
        self._folder = folder
        self._ports = ports

    def files(self, name: str, leaf: Issued) -> Files:
        made = Files(self._folder / name)
        made.put(leaf, roots=roots_of(self.ca))
        return made

    async def plan(self, gateway_id: str, place: Place, leaf: Issued | None = None) -> tuple[FakeEngine, GatewayConfig]:
        engine = await self.stack.enter_async_context(FakeEngine().serving())
        policy = write_policy(self._folder, place)
        config = region_config(gateway_id, place, [engine.url], policy_file=policy, peers_port=self._ports())
        files = self.files(gateway_id, leaf or mesh_leaf(self.ca, gateway_id, place))
        peering = replace(QUICK_PEERING, tls=files.mesh())
        return engine, replace(config, peering=peering, reload=ReloadConfig(watch_ns=None))

    async def start(self, engine: FakeEngine, config: GatewayConfig) -> Region:
        said = io.StringIO()
        log = make_logger(LoggingConfig(format=LogFormat.JSON), config.gateway_id, said)
        gateway = await self.stack.enter_async_context(serve_gateway(config, log=log))
        assert config.peering.tls is not None
        return Region(engine, Files(config.peering.tls.certificate.parent), config, said, gateway)

    async def us_and_eu(self, peering: PeeringConfig = QUICK_PEERING) -> tuple[Region, Region]:
        """Start both, each known to the other, with the US busy."""
        (us_engine, us), (eu_engine, eu) = await self.plan("us-1", US), await self.plan("eu-1", EU)
        us, eu = (replace(each, peering=replace(peering, tls=each.peering.tls)) for each in (us, eu))
        us_region = await self.start(us_engine, knowing(us, eu))
        eu_region = await self.start(eu_engine, knowing(eu, us))
        await until(lambda: usable_peers(us_region.gateway) == usable_peers(eu_region.gateway) == 1)
        await us_region.become_busy()
        return us_region, eu_region


@pytest.fixture
async def mesh(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Mesh]:
    made = Mesh(tmp_path, unused_tcp_port_factory)
    async with made.stack:
        yield made


async def test_gateways_that_know_each_other_forward(mesh: Mesh, session: aiohttp.ClientSession) -> None:
    us, eu = await mesh.us_and_eu()
    async with ask(session, us.gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
    assert response.headers["x-nightside-region"] == EU.region
    assert us.refused("caller") == us.refused("called") == eu.refused("caller") == eu.refused("called") == 0
    assert 0 < counted(us.gateway, "certificate_expiry_seconds", role="peers") < 86_400


# Servers at a peer's address


def wrong_gateway(mesh: Mesh) -> tuple[str, Place, Issued]:
    return "eu-2", EU, mesh_leaf(mesh.ca, "eu-2", EU)


def another_region(mesh: Mesh) -> tuple[str, Place, Issued]:
    return "eu-1", AP, mesh_leaf(mesh.ca, "eu-1", AP)


def foreign(_: Mesh) -> tuple[str, Place, Issued]:
    return "eu-1", EU, mesh_leaf(new_ca(), "eu-1", EU)


def expired(mesh: Mesh) -> tuple[str, Place, Issued]:
    return "eu-1", EU, mesh_leaf(mesh.ca, "eu-1", EU, days=-1)


@pytest.mark.parametrize("imposter", [wrong_gateway, another_region, foreign, expired])
async def test_whoever_answers_with_another_certificate_is_refused_loudly(
    mesh: Mesh, session: aiohttp.ClientSession, imposter: Callable[[Mesh], tuple[str, Place, Issued]]
) -> None:
    """The US expects eu-1 of eu-west-1 there."""
    us_engine, us_config = await mesh.plan("us-1", US)
    gateway_id, place, leaf = imposter(mesh)
    their_engine, their_config = await mesh.plan(gateway_id, place, leaf)
    await mesh.start(their_engine, knowing(their_config, us_config))
    expected = replace(their_config, gateway_id=GatewayId("eu-1"), place=EU)
    us = await mesh.start(us_engine, knowing(us_config, expected))
    await until(lambda: us.refused("caller") >= 2)
    assert us.logged("error", "the certificate shown there is not that of this peer")
    assert usable_peers(us.gateway) == 0
    await us.become_busy()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(whole_answer(session, us))
        refused = us.refused("caller")
        await until(lambda: us.refused("caller") > refused)
        us.engine.waiting = 0
    assert asking.result() == (b"".join(GOOD_STREAM), US.region)
    assert their_engine.received == []


async def whole_answer(session: aiohttp.ClientSession, region: Region) -> tuple[bytes, str]:
    async with ask(session, region.gateway.http_url) as response:
        return await response.read(), response.headers["x-nightside-region"]


async def test_an_expired_certificate_is_told_of_at_the_start_and_local_requests_are_served(
    mesh: Mesh, session: aiohttp.ClientSession
) -> None:
    engine, config = await mesh.plan("us-1", US, mesh_leaf(mesh.ca, "us-1", US, days=-1))
    us = await mesh.start(engine, config)
    await until(lambda: us.logged("error", "tls_certificate_expired"))
    assert await whole_answer(session, us) == (b"".join(GOOD_STREAM), US.region)
    assert counted(us.gateway, "certificate_expiry_seconds", role="peers") < 0


# Callers

Ask = Callable[["peer_pb2_grpc.PeerServiceAsyncStub"], Coroutine[Any, Any, object]]


async def ping(stub: peer_pb2_grpc.PeerServiceAsyncStub) -> object:
    return await stub.Ping(pb.PingRequest(), timeout=10)


async def subscribe_as_us(stub: peer_pb2_grpc.PeerServiceAsyncStub) -> object:
    return await stub.Subscribe(codec.subscribe_request(GatewayId("us-1"), US), timeout=10).read()


async def exchange_as_us(stub: peer_pb2_grpc.PeerServiceAsyncStub) -> object:
    """Send a forward, with enough credit for a part of the answer."""
    request = OutboundRequest(
        profile("r-1"), "/v1/completions", (), b'{"model": "llama", "stream": true, "prompt": "hello"}'
    )
    raw = codec.forward_to_pb(forward_order(), request, GatewayId("us-1"), Clock().now_ns()).SerializeToString()
    call = stub.Exchange(timeout=10)
    frame = pb.OriginFrame(forward=1, request_bytes=len(raw), request=raw, credit=10_000)
    with suppress(CallOver):  # refused before it was sent: the status says so
        await writer_of(call)(pb.ExchangeRequest(frames=[frame]).SerializeToString())
    return await call.read()


async def explain_as_us(stub: peer_pb2_grpc.PeerServiceAsyncStub) -> object:
    return await stub.Explain(codec.explain_request(GatewayId("us-1"), profile("r-1").request_id), timeout=10)


CALLS: list[Ask] = [ping, subscribe_as_us, exchange_as_us, explain_as_us]


@pytest.fixture
async def eu(mesh: Mesh) -> Region:
    """A gateway in the EU that knows us-1 of us-east-1, and ap-1."""
    _, us_config = await mesh.plan("us-1", US)
    _, ap_config = await mesh.plan("ap-1", AP)
    engine, config = await mesh.plan("eu-1", EU)
    return await mesh.start(engine, knowing(config, us_config, ap_config))


async def code_of(channel: grpc.aio.Channel, call: Ask) -> grpc.StatusCode:
    """Status with which the call ended; OK if it brought a message."""
    async with channel:
        try:
            assert await call(peer_pb2_grpc.PeerServiceStub(channel)) is not grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def dial(files: Files, gateway_id: str, place: Place, callee: Region) -> grpc.aio.Channel:
    tls = MeshTls(files.mesh(), GatewayId(gateway_id), place, Clock())
    address = str(callee.gateway.peers_address)
    return tls.open_channel(address, GatewayId("eu-1"), EU, [("grpc.use_local_subchannel_pool", 1)])


async def test_a_caller_with_its_own_certificate_is_heard(mesh: Mesh, eu: Region) -> None:
    files = mesh.files("caller", mesh_leaf(mesh.ca, "us-1", US))
    for call in CALLS:
        assert await code_of(dial(files, "us-1", US, eu), call) is grpc.StatusCode.OK
    assert eu.refused("called") == 0


@pytest.mark.parametrize("gateway_id,place", [("ap-1", AP), ("us-2", US), ("us-1", EU)])
async def test_a_caller_that_claims_to_be_another_is_refused_loudly(
    mesh: Mesh, eu: Region, gateway_id: str, place: Place
) -> None:
    """The caller is a gateway of the mesh, and claims in its calls to be us-1 of us-east-1."""
    files = mesh.files("caller", mesh_leaf(mesh.ca, gateway_id, place))
    for count, call in enumerate([subscribe_as_us, exchange_as_us, explain_as_us], start=1):
        assert await code_of(dial(files, gateway_id, place, eu), call) is grpc.StatusCode.PERMISSION_DENIED
        assert eu.refused("called") == count
    assert eu.logged("error", f"gateway/{place.region}/{gateway_id} claims to be gateway us-1 in us-east-1")
    assert eu.engine.received == []


@pytest.mark.parametrize("call", CALLS)
async def test_a_caller_without_a_place_in_the_mesh_gets_no_answer(mesh: Mesh, eu: Region, call: Ask) -> None:
    """The certificate is signed by the right authority, and yet no gateway's."""
    leaf = clients_leaf(mesh.ca, for_callers=True)
    name = ("grpc.ssl_target_name_override", "eu-1.eu-west-1.gateway.mesh.test")
    credentials = grpc.ssl_channel_credentials(roots_of(mesh.ca), leaf.key_pem, leaf.certificate_pem)
    channel = grpc.aio.secure_channel(str(eu.gateway.peers_address), credentials, options=[name])
    assert await code_of(channel, call) is grpc.StatusCode.PERMISSION_DENIED
    assert eu.refused("called") == 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("days", [1, -1])
async def test_a_caller_with_a_foreign_or_expired_certificate_gets_no_answer(
    mesh: Mesh, eu: Region, call: Ask, days: int
) -> None:
    files = mesh.files("caller", mesh_leaf(new_ca() if days > 0 else mesh.ca, "us-1", US, days=days))
    assert await code_of(dial(files, "us-1", US, eu), call) is grpc.StatusCode.UNAVAILABLE


# Exchanging certificates and authorities while requests run


class Load:
    """Clients that send one request after another, each with a slow answer, until they are stopped."""

    def __init__(self, session: aiohttp.ClientSession, region: Region) -> None:
        self._session = session
        self._region = region
        self._stopped = False
        self.whole = 0
        self.wrong: list[bytes] = []

    async def client(self) -> None:
        while not self._stopped:
            answer, ran_in = await whole_answer(self._session, self._region)
            if (answer, ran_in) == (SLOW_ANSWER, EU.region):
                self.whole += 1
            else:
                self.wrong.append(answer)

    async def bring(self, more: int) -> None:
        wanted = self.whole + more
        await until(lambda: self.whole >= wanted or bool(self.wrong))

    def stop(self) -> None:
        self._stopped = True


SLOW_PIECES = (ROLE, *(token(str(number)) for number in range(20)), STOP, DONE)
SLOW_ANSWER = b"".join(SLOW_PIECES)
QUICK_AGE = replace(QUICK_PEERING, connection_age_ns=300 * MS)


async def slowly(exchange: Exchange) -> None:
    await exchange.head()
    for piece in SLOW_PIECES:
        await exchange.send(piece)
        await asyncio.sleep(0.005)


async def test_an_exchange_of_the_authority_under_load_loses_nothing(
    mesh: Mesh, session: aiohttp.ClientSession
) -> None:
    us, eu = await mesh.us_and_eu(QUICK_AGE)
    old, new = mesh.ca, new_ca()
    regions = ((us, "us-1", US), (eu, "eu-1", EU))
    first_serial = await shown_by(eu, old, old)
    go_on = asyncio.Event()
    eu.engine.plays(stream_until(go_on, (ROLE, token("Hel")), (STOP, DONE)))
    async with ask(session, us.gateway.http_url) as longest, asyncio.TaskGroup() as tasks:
        assert await longest.content.readany() == ROLE + token("Hel")
        eu.engine.plays(slowly)
        load = Load(session, us)
        for _ in range(4):
            tasks.create_task(load.client())
        await load.bring(4)
        for region, _, _ in regions:
            region.files.put(roots=roots_of(old, new))
            await region.reload()
            await load.bring(8)
        for region, gateway_id, place in regions:
            region.files.put(mesh_leaf(new, gateway_id, place))
            await region.reload()
            await load.bring(8)
        for region, _, _ in regions:
            region.files.put(roots=roots_of(new))
            await region.reload()
            await load.bring(8)
        go_on.set()
        assert await longest.content.read() == STOP + DONE
        load.stop()
    assert load.wrong == []
    for region, other in ((us, "eu-1"), (eu, "us-1")):
        assert counted(region.gateway, "targets_lost_total", target="peer") == 0, f"{other} was lost"
        assert usable_peers(region.gateway) == 1
    assert counted(us.gateway, "attempts_total", target="peer", result="completed") == load.whole + 1
    assert counted(us.gateway, "retries_total", after="failed") == 0
    assert await shown_by(eu, new, new) != first_serial
    late = mesh.files("late", mesh_leaf(old, "us-1", US))
    late.put(roots=roots_of(new))
    assert await code_of(dial(late, "us-1", US, eu), ping) is grpc.StatusCode.UNAVAILABLE, "the old authority is gone"


async def shown_by(region: Region, believed: DevelopmentCa, caller_ca: DevelopmentCa) -> int:
    """Serial number of the certificate that a gateway presents to a new connection."""
    caller = Files(region.files.folder / "caller")
    caller.put(mesh_leaf(caller_ca, "us-1", US))
    context = ssl.create_default_context(cadata=roots_of(believed).decode())
    context.load_cert_chain(caller.certificate, caller.key)
    context.set_alpn_protocols(["h2"])
    address, name = region.gateway.peers_address, "eu-1.eu-west-1.gateway.mesh.test"
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(shown).serial_number


async def test_connections_that_grow_old_are_left_without_losing_anything(
    mesh: Mesh, session: aiohttp.ClientSession
) -> None:
    """No file changes: connections end by age alone, so that no certificate outlives its exchange for long."""
    us, eu = await mesh.us_and_eu(replace(QUICK_PEERING, connection_age_ns=50 * MS))
    eu.engine.plays(slowly)
    load = Load(session, us)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(load.client())
        await load.bring(40)
        load.stop()
    assert load.wrong == []
    assert counted(us.gateway, "attempts_total", target="peer", result="completed") == load.whole
    assert counted(us.gateway, "targets_lost_total", target="peer") == 0


# Clients


async def test_clients_speak_tls_and_their_certificate_can_be_exchanged_under_a_stream(
    mesh: Mesh, tmp_path: Path
) -> None:
    engine, config = await mesh.plan("us-1", US)
    files = mesh.files("clients", clients_leaf(mesh.ca))
    config = replace(config, listen=replace(config.listen, tls=files.listen()))
    us = await mesh.start(engine, config)
    assert us.gateway.http_url.startswith("https://")
    assert us.gateway.admin_url.startswith("http://"), "on this machine, operators need none"
    trusting_new = new_ca()
    go_on = asyncio.Event()
    engine.plays(stream_until(go_on, (ROLE, token("Hel")), (STOP, DONE)))
    async with client_session(mesh.ca) as old, client_session(trusting_new) as new:
        async with ask(old, us.gateway.http_url) as running:
            assert await running.content.readany() == ROLE + token("Hel")
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await ask(new, us.gateway.http_url)
            files.put(clients_leaf(trusting_new))
            await us.reload()
            go_on.set()
            async with ask(new, us.gateway.http_url) as response:
                assert (await response.read()).endswith(DONE)
            assert await running.content.read() == STOP + DONE
        files.certificate.write_text("broken")
        assert await us.gateway.reloader.reload() == ["certificate_of_clients"]
        async with ask(new, us.gateway.http_url) as response:
            assert response.status == 200
    assert us.logged("error", "reload_rejected")


@pytest.fixture
async def region_file(tmp_path: Path) -> AsyncIterator[Path]:
    """Region file with the certificates that `dev-certs` prints."""
    async with FakeEngine().serving() as engine:
        document = {
            **(await make_certificates(tmp_path))["gateways"]["us-1"],
            "gateway": "us-1",
            "region": US.region,
            "jurisdiction": US.jurisdiction,
            "replicas": [{"id": "us-1-r0", "url": engine.url, "models": [MODEL]}],
        }
        document["listen"] |= dict.fromkeys(("http", "peers", "admin"), "127.0.0.1:0")
        path = tmp_path / "us-1.yaml"
        path.write_text(yaml.safe_dump(document))
        yield path


async def make_certificates(folder: Path, *arguments: str) -> dict[str, Any]:
    named = ["--trust-domain", "mesh.test", "--gateway", f"us-1:{US.region}", "--json", *arguments]
    status, out, err = await nightside("dev-certs", folder / "certs", *named)
    assert (status, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


async def test_a_process_takes_in_new_certificates_on_a_signal(region_file: Path) -> None:
    async with started("gateway", "run", region_file) as process:
        assert process.stdout is not None
        url = json.loads(await process.stdout.readline())["clients"]
        assert url.startswith("https://")
        certs = region_file.parent / "certs"
        context = ssl.create_default_context(cafile=certs / "roots.pem")
        before = await serial_at(url, context)
        await make_certificates(region_file.parent, "--renew")
        wanted = x509.load_pem_x509_certificate((certs / "us-1.clients.pem").read_bytes()).serial_number
        process.send_signal(signal.SIGHUP)
        while await serial_at(url, context) == before:
            pass
        assert await serial_at(url, context) == wanted
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            async with ask(session, url) as response:
                assert await response.read() == b"".join(GOOD_STREAM)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def serial_at(url: str, context: ssl.SSLContext) -> int:
    port = int(url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(shown).serial_number


async def test_a_certificate_of_another_gateway_is_told_before_anything_starts(region_file: Path) -> None:
    rename_gateway(region_file, "us-2")
    for subcommand in ("check", "run"):
        status, out, err = await nightside("gateway", subcommand, region_file)
        assert (status, out) == (1, "")
        assert "is of spiffe://mesh.test/gateway/us-east-1/us-1, not of us-2 in us-east-1" in err


def rename_gateway(region_file: Path, gateway_id: str) -> None:
    region_file.write_text(region_file.read_text().replace("gateway: us-1", f"gateway: {gateway_id}"))


def client_session(ca: DevelopmentCa) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cadata=roots_of(ca).decode())
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=True))
