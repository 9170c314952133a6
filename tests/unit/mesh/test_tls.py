from __future__ import annotations

import asyncio
import io
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from msgspec.structs import replace

from gateway.core.vocabulary import GatewayId, Jurisdiction, Place
from gateway.security.development_ca import DevelopmentCa, Issued
from mesh.certificates import CertificateFault
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.reloader import ReloadRefused
from mesh.tls import ControllerTls, ExpiryWatch, HttpTls, MeshTls
from tests.hostile.files import PAIR_CASES, PairCase, Part
from tests.support.certificates import Files, clients_leaf, controller_leaf, mesh_leaf, new_ca, roots_of
from tests.support.core import EU, US
from tests.support.listening import listening

DAY_NS = 86_400 * 10**9


def serial_of(leaf: Issued) -> int:
    return x509.load_pem_x509_certificate(leaf.certificate_pem).serial_number


# Clients


class Client:
    """One TLS connection that echoes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        der = tls.getpeercert(binary_form=True)
        assert der is not None
        self.serial = x509.load_der_x509_certificate(der).serial_number
        self.version = tls.version()

    async def echo(self) -> bytes:
        self._writer.write(b"x")
        return await self._reader.readexactly(1)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1):
        writer.write(data)


def client_context(ca: DevelopmentCa, own: Files | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=roots_of(ca).decode())
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


@asynccontextmanager
async def connected(port: int, context: ssl.SSLContext) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("localhost", port, ssl=context))
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "own")


async def test_new_connections_get_the_new_certificate_and_running_ones_go_on(files: Files) -> None:
    ca = new_ca()
    first, second = clients_leaf(ca), clients_leaf(ca)
    files.put(first)
    tls = HttpTls(files.listen(), Clock())
    async with listening(echo, tls=tls.context) as port, connected(port, client_context(ca)) as running:
        assert (running.serial, running.version) == (serial_of(first), "TLSv1.3")
        files.put(second)
        await tls.reload()
        async with connected(port, client_context(ca)) as new:
            assert new.serial == serial_of(second)
        assert await running.echo() == b"x"
    assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("is_broken", ["certificate", "key", "expired"])
async def test_what_cannot_be_used_is_refused_and_the_old_one_stays(files: Files, is_broken: str) -> None:
    ca = new_ca()
    first = clients_leaf(ca)
    files.put(first)
    tls = HttpTls(files.listen(), Clock())
    if is_broken == "expired":
        files.put(clients_leaf(ca, days=-1))
    else:
        (files.certificate if is_broken == "certificate" else files.key).write_text("broken")
    with pytest.raises(ReloadRefused):
        await tls.reload()
    assert x509.load_pem_x509_certificate(first.certificate_pem) == tls.pair.leaf
    async with listening(echo, tls=tls.context) as port, connected(port, client_context(ca)) as client:
        assert client.serial == serial_of(first)


async def test_clients_are_asked_who_they_are_and_a_dropped_authority_is_believed_no_more(
    files: Files, tmp_path: Path
) -> None:
    ca, old, new = new_ca(), new_ca(), new_ca()
    files.put(clients_leaf(ca), roots=roots_of(old))
    own = Files(tmp_path / "client")
    own.put(mesh_leaf(old, "client-1", US))
    tls = HttpTls(files.listen(asks_clients=True), Clock())
    known = client_context(ca, own)
    async with listening(echo, tls=tls.context) as port:
        async with connected(port, known) as client:
            assert await client.echo() == b"x"
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with connected(port, client_context(ca)) as stranger:
                await stranger.echo()
        files.put(roots=roots_of(new))
        await tls.reload()
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with connected(port, known) as client:
                await client.echo()


async def test_a_session_cannot_be_resumed_past_the_check_of_who_it_is(files: Files, tmp_path: Path) -> None:
    """A resumed session would outlive the authority that it was checked against."""
    ca = new_ca()
    files.put(clients_leaf(ca), roots=roots_of(ca))
    context = HttpTls(files.listen(asks_clients=True), Clock()).context
    assert (context.minimum_version, context.num_tickets) == (ssl.TLSVersion.TLSv1_3, 0)
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_ciphers_of_tls_1_2_have_forward_secrecy_and_authenticate_what_they_encrypt(files: Files) -> None:
    files.put(clients_leaf(new_ca()))
    ciphers = HttpTls(files.listen(), Clock()).context.get_ciphers()
    older = [each for each in ciphers if each["protocol"] != "TLSv1.3"]
    assert older
    assert all(each["aead"] and each["kea"] == "kx-ecdhe" for each in older)


def test_a_missing_file_is_a_fault_at_the_start(files: Files) -> None:
    with pytest.raises(CertificateFault, match="cannot be read"):
        HttpTls(files.listen(), Clock())


@pytest.mark.parametrize("case", PAIR_CASES, ids=lambda case: f"{case.certificate.name}-{case.key.name}")
async def test_a_certificate_and_a_key_are_taken_together_or_not_at_all(files: Files, case: PairCase) -> None:
    ca = new_ca()
    old, new, other = (clients_leaf(ca) for _ in range(3))
    files.put(old)
    tls = HttpTls(files.listen(), Clock())
    before = tls.pair
    whole = {Part.OLD: old, Part.NEW: new, Part.HALF: new, Part.OTHERS: other}
    for path, part in ((files.certificate, case.certificate), (files.key, case.key)):
        issued = whole.get(part)
        content = b"" if issued is None else issued.key_pem if path is files.key else issued.certificate_pem
        _become(path, part, content)
    if case.fault:
        with pytest.raises(ReloadRefused, match=case.fault) as caught:
            async with asyncio.timeout(60):
                await tls.reload()
        assert str(files.certificate.parent) in str(caught.value)
        assert tls.pair is before
    else:
        await tls.reload()
        assert tls.pair.chain_pem == new.certificate_pem


def _become(path: Path, part: Part, content: bytes) -> None:
    path.unlink()
    match part:
        case Part.GONE:
            pass
        case Part.PIPE:
            os.mkfifo(path)
        case Part.HALF:
            path.write_bytes(content[: len(content) // 2])
        case _:
            path.write_bytes(content)


# Gateways


def mesh_tls(files: Files, gateway_id: str, place: Place) -> MeshTls:
    return MeshTls(files.mesh(), GatewayId(gateway_id), place, Clock())


def gateway_files(folder: Path, ca: DevelopmentCa, gateway_id: str, place: Place, *, days: float = 1) -> Files:
    made = Files(folder / gateway_id)
    made.put(mesh_leaf(ca, gateway_id, place, days=days), roots=roots_of(ca))
    return made


WHO = "/test/Who"


@asynccontextmanager
async def serving(tls: MeshTls | ControllerTls) -> AsyncIterator[str]:
    """Server that answers with the fault of a caller that should be `us-1` of the US; empty if there is none."""

    async def who(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return (tls.caller_fault(context.auth_context(), (GatewayId("us-1"), US)) or "").encode()

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = tls.add_port(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def asked(channel: grpc.aio.Channel) -> str:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(WHO)
    async with channel:
        return (await call(b"", timeout=10)).decode()


async def refusal(channel: grpc.aio.Channel) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details() or ""


LOCAL = [("grpc.use_local_subchannel_pool", 1)]


def dial(tls: MeshTls, address: str, gateway_id: str = "eu-1", place: Place = EU) -> grpc.aio.Channel:
    return tls.open_channel(address, GatewayId(gateway_id), place, LOCAL)


async def test_two_gateways_recognise_each_other(tmp_path: Path) -> None:
    ca = new_ca()
    us = mesh_tls(gateway_files(tmp_path, ca, "us-1", US), "us-1", US)
    async with serving(mesh_tls(gateway_files(tmp_path, ca, "eu-1", EU), "eu-1", EU)) as address:
        assert await asked(dial(us, address)) == ""
        assert "Hostname Verification" in await refusal(dial(us, address, "eu-2"))
        assert "Hostname Verification" in await refusal(dial(us, address, "eu-1", US))


def certified(folder: Path, ca: DevelopmentCa, gateway_id: str, place: Place, says: str | None) -> Files:
    """Files with a certificate that names this jurisdiction."""
    made = Files(folder / gateway_id)
    jurisdiction = None if says is None else Jurisdiction(says)
    made.put(mesh_leaf(ca, gateway_id, place, jurisdiction=jurisdiction), roots=roots_of(ca))
    return made


@pytest.mark.parametrize(
    ("says", "all_have_to", "fault"),
    [
        (None, False, ""),
        ("US", False, ""),
        ("US", True, ""),
        ("EU", False, "/jurisdiction/EU claims to be in US"),
        (None, True, "names no jurisdiction, and every certificate has to"),
    ],
)
async def test_a_caller_is_held_to_the_jurisdiction_that_its_certificate_names(
    tmp_path: Path, says: str | None, all_have_to: bool, fault: str
) -> None:
    ca = new_ca()
    lies_in = US if says is None else Place(US.region, Jurisdiction(says))
    caller = mesh_tls(certified(tmp_path, ca, "us-1", US, says), "us-1", lies_in)
    files = certified(tmp_path, ca, "eu-1", EU, "EU")
    called = MeshTls(replace(files.mesh(), jurisdictions=all_have_to), GatewayId("eu-1"), EU, Clock())
    async with serving(called) as address:
        told = await asked(dial(caller, address))
        assert fault in told
        assert bool(told) == bool(fault)


async def test_whoever_is_called_shows_the_jurisdiction_where_all_certificates_have_to(tmp_path: Path) -> None:
    ca = new_ca()
    own = certified(tmp_path, ca, "us-1", US, "US")
    caller = MeshTls(replace(own.mesh(), jurisdictions=True), GatewayId("us-1"), US, Clock())
    for says, is_believed in (("EU", True), (None, False), ("UK", False)):
        lies_in = EU if says is None else Place(EU.region, Jurisdiction(says))
        async with serving(mesh_tls(certified(tmp_path, ca, "eu-1", EU, says), "eu-1", lies_in)) as address:
            if is_believed:
                assert await asked(dial(caller, address)) == ""
            else:
                assert "Hostname Verification" in await refusal(dial(caller, address))


def test_a_certificate_that_says_another_jurisdiction_than_the_region_file_is_refused(tmp_path: Path) -> None:
    files = certified(tmp_path, new_ca(), "us-1", US, "EU")
    with pytest.raises(CertificateFault, match="us-east-1 is said to be in US"):
        mesh_tls(files, "us-1", US)
    bare = certified(tmp_path, new_ca(), "us-1", US, None)
    with pytest.raises(CertificateFault, match="names no jurisdiction"):
        MeshTls(replace(bare.mesh(), jurisdictions=True), GatewayId("us-1"), US, Clock())


@pytest.mark.parametrize("days", [1, -1])
async def test_a_called_gateway_with_a_foreign_or_expired_certificate_is_refused(tmp_path: Path, days: int) -> None:
    ca = new_ca()
    us = mesh_tls(gateway_files(tmp_path, ca, "us-1", US), "us-1", US)
    theirs = gateway_files(tmp_path, new_ca() if days > 0 else ca, "eu-1", EU, days=days)
    theirs.put(roots=roots_of(ca))
    async with serving(mesh_tls(theirs, "eu-1", EU)) as address:
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal(dial(us, address))


@pytest.mark.parametrize("days", [1, -1])
async def test_a_caller_with_a_foreign_or_expired_certificate_is_refused(tmp_path: Path, days: int) -> None:
    ca = new_ca()
    theirs = gateway_files(tmp_path, new_ca() if days > 0 else ca, "us-1", US, days=days)
    theirs.put(roots=roots_of(ca))
    async with serving(mesh_tls(gateway_files(tmp_path, ca, "eu-1", EU), "eu-1", EU)) as address:
        await refusal(dial(mesh_tls(theirs, "us-1", US), address))


async def test_a_caller_without_a_certificate_is_refused(tmp_path: Path) -> None:
    ca = new_ca()
    async with serving(mesh_tls(gateway_files(tmp_path, ca, "eu-1", EU), "eu-1", EU)) as address:
        await refusal(grpc.aio.insecure_channel(address))
        name = ("grpc.ssl_target_name_override", "eu-1.eu-west-1.gateway.mesh.test")
        credentials = grpc.ssl_channel_credentials(roots_of(ca))
        await refusal(grpc.aio.secure_channel(address, credentials, options=[*LOCAL, name]))


@pytest.mark.parametrize("gateway_id,place", [("us-2", US), ("us-1", EU)])
async def test_a_caller_is_held_to_its_own_certificate(tmp_path: Path, gateway_id: str, place: Place) -> None:
    ca = new_ca()
    caller = mesh_tls(gateway_files(tmp_path, ca, gateway_id, place), gateway_id, place)
    async with serving(mesh_tls(gateway_files(tmp_path, ca, "eu-1", EU), "eu-1", EU)) as address:
        assert await asked(dial(caller, address)) == (
            f"spiffe://mesh.test/gateway/{place.region}/{gateway_id} claims to be gateway us-1 in us-east-1"
        )


def test_only_gateways_of_this_trust_domain_may_call(tmp_path: Path) -> None:
    tls = mesh_tls(gateway_files(tmp_path, new_ca(), "eu-1", EU), "eu-1", EU)
    ours, theirs = (mesh_leaf(new_ca(domain), "us-1", US).certificate_pem for domain in ("mesh.test", "other.test"))
    assert tls.caller_fault({"x509_pem_cert": [ours]}, None) is None
    assert "another trust domain" in (tls.caller_fault({"x509_pem_cert": [theirs]}, None) or "")
    assert "no SPIFFE id" in (tls.caller_fault({"x509_common_name": [b"eu-2"]}, None) or "")


def test_a_gateway_starts_only_with_its_own_certificate(tmp_path: Path) -> None:
    files = gateway_files(tmp_path, new_ca(), "us-1", US)
    for gateway_id, place in (("us-2", US), ("us-1", EU)):
        with pytest.raises(CertificateFault, match=f"not of {gateway_id} in {place.region}"):
            mesh_tls(files, gateway_id, place)
    files.put(clients_leaf(new_ca()))
    with pytest.raises(CertificateFault, match="holds 0 URIs"):
        mesh_tls(files, "us-1", US)


async def test_credentials_change_once_for_each_change_of_files(tmp_path: Path) -> None:
    ca = new_ca()
    files = gateway_files(tmp_path, ca, "us-1", US)
    tls = mesh_tls(files, "us-1", US)
    first = tls.version
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(tls.newer_than(first))
        await tls.reload()
        await asyncio.sleep(0)
        assert not waiting.done(), "nothing has changed"
        files.put(mesh_leaf(ca, "us-1", US))
        await tls.reload()
    assert tls.version == first + 1
    files.put(roots=roots_of(ca, new_ca()))
    await tls.reload()
    assert tls.version == first + 2


async def test_a_reload_changes_no_identity(tmp_path: Path) -> None:
    ca, other = new_ca(), new_ca("other.test")
    files = gateway_files(tmp_path, ca, "us-1", US)
    tls = mesh_tls(files, "us-1", US)
    for leaf in (mesh_leaf(ca, "us-2", US), mesh_leaf(other, "us-1", US), mesh_leaf(ca, "us-1", US, days=-1)):
        files.put(leaf)
        with pytest.raises(ReloadRefused):
            await tls.reload()
    assert tls.version == 1


async def test_a_server_shows_its_new_certificate_to_new_connections(tmp_path: Path) -> None:
    old, new = new_ca(), new_ca()
    us = mesh_tls(gateway_files(tmp_path, old, "us-1", US), "us-1", US)
    theirs = gateway_files(tmp_path, old, "eu-1", EU)
    eu = mesh_tls(theirs, "eu-1", EU)
    async with serving(eu) as address:
        running = dial(us, address)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = running.unary_unary(WHO)
        assert await call(b"") == b""
        theirs.put(mesh_leaf(new, "eu-1", EU), roots=roots_of(old, new))
        await eu.reload()
        assert await call(b"") == b"", "what is connected stays so"
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal(dial(us, address))
        await running.close()


# Expiry


class StillClock(Clock):
    def __init__(self) -> None:
        self.wall = Clock().wall_ns()

    def wall_ns(self) -> int:
        return self.wall


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


Watch = Callable[[float], tuple[ExpiryWatch, StillClock, HttpTls]]


@pytest.fixture
def watch(files: Files, said: io.StringIO) -> Watch:
    def make(days: float) -> tuple[ExpiryWatch, StillClock, HttpTls]:
        files.put(clients_leaf(new_ca(), days=days))
        clock = StillClock()
        log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), said)
        tls = HttpTls(files.listen(), clock)
        return ExpiryWatch([tls], clock, log), clock, tls

    return make


def lines(said: io.StringIO) -> list[tuple[str, object]]:
    return [(line["level"], line.get("days_left")) for line in map(json.loads, said.getvalue().splitlines())]


def test_the_last_week_is_told_of_once_a_day(watch: Watch, said: io.StringIO) -> None:
    expiry, clock, _ = watch(30)
    for days in (0.0, 22.9, 23.5, 23.6, 24.5, 30.1, 30.2, 31.5):
        start = clock.wall
        clock.wall += int(days * DAY_NS)
        expiry.look()
        clock.wall = start
    assert lines(said) == [("warning", 6.5), ("warning", 5.5), ("error", None), ("error", None)]


def test_a_short_lived_certificate_is_told_of_in_its_last_third(watch: Watch, said: io.StringIO) -> None:
    expiry, clock, _ = watch(1)
    for _ in range(3):
        expiry.look()
        clock.wall += DAY_NS // 4
    assert lines(said) == []
    expiry.look()
    assert lines(said) == [("warning", 0.2)]


async def test_a_renewed_certificate_ends_the_warnings(watch: Watch, files: Files, said: io.StringIO) -> None:
    expiry, clock, tls = watch(30)
    clock.wall += 25 * DAY_NS
    expiry.look()
    files.put(clients_leaf(new_ca(), days=60))
    await tls.reload()
    expiry.look()
    assert len(lines(said)) == 1


# Gateways and controllers


def controller_tls(folder: Path, ca: DevelopmentCa) -> ControllerTls:
    files = Files(folder / "control-1")
    files.put(controller_leaf(ca), roots=roots_of(ca))
    return ControllerTls(files.mesh(), Clock())


async def test_a_gateway_and_a_controller_recognise_each_other(tmp_path: Path) -> None:
    ca = new_ca()
    us = mesh_tls(gateway_files(tmp_path, ca, "us-1", US), "us-1", US)
    controller = controller_tls(tmp_path, ca)
    assert controller.identity.name == "control-1"
    async with serving(controller) as address:
        assert await asked(us.open_controller_channel(address, LOCAL)) == ""
        eu = mesh_tls(gateway_files(tmp_path, ca, "eu-1", EU), "eu-1", EU)
        assert "claims to be gateway us-1" in await asked(eu.open_controller_channel(address, LOCAL))


async def test_no_gateway_passes_for_a_controller_nor_a_controller_for_a_gateway(tmp_path: Path) -> None:
    ca = new_ca()
    us = mesh_tls(gateway_files(tmp_path, ca, "us-1", US), "us-1", US)
    async with serving(mesh_tls(gateway_files(tmp_path, ca, "eu-1", EU), "eu-1", EU)) as address:
        assert "Hostname Verification" in await refusal(us.open_controller_channel(address, LOCAL))
    async with serving(controller_tls(tmp_path, ca)) as address:
        assert "Hostname Verification" in await refusal(dial(us, address))


async def test_gateways_take_nothing_from_a_controller(tmp_path: Path) -> None:
    """Holds also for a controller whose certificate may be used for calls."""
    ca = new_ca()
    leaf = controller_leaf(ca, may_call=True)
    credentials = grpc.ssl_channel_credentials(roots_of(ca), leaf.key_pem, leaf.certificate_pem)
    name = ("grpc.ssl_target_name_override", "eu-1.eu-west-1.gateway.mesh.test")
    async with serving(mesh_tls(gateway_files(tmp_path, ca, "eu-1", EU), "eu-1", EU)) as address:
        channel = grpc.aio.secure_channel(address, credentials, options=[*LOCAL, name])
        assert "is not spiffe://TRUST-DOMAIN/gateway" in await asked(channel)


def test_a_gateways_certificate_is_no_controllers(tmp_path: Path) -> None:
    ca = new_ca()
    with pytest.raises(CertificateFault, match="is not spiffe://TRUST-DOMAIN/controller/NAME"):
        ControllerTls(gateway_files(tmp_path, ca, "us-1", US).mesh(), Clock())
