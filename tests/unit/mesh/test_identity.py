from __future__ import annotations

from datetime import timedelta
from ssl import DER_cert_to_PEM_cert

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec.structs import replace

from gateway.security.development_ca import DevelopmentCa, validity
from mesh.clock import Clock
from mesh.identity import (
    ControllerIdentity,
    caller_identity,
    certificate_identity,
    controller_identity,
    is_trust_domain,
    parse_controller,
    parse_identity,
)
from tests.hostile.peer_certificates import CERTIFICATE_CASES
from tests.support.certificates import clients_leaf, controller_leaf, mesh_identity, mesh_leaf, new_ca
from tests.support.core import US
from tests.support.odd_certificates import odd_certificate

URI = "spiffe://mesh.test/gateway/us-east-1/us-1"


def test_an_identity_reads_back_as_itself() -> None:
    identity = mesh_identity("us-1", US)
    assert (identity.uri, identity.dns_names) == (URI, ("us-1.us-east-1.gateway.mesh.test",))
    assert parse_identity(URI) == identity
    in_us = replace(identity, jurisdiction=US.jurisdiction)
    assert parse_identity(in_us.uri) == in_us
    assert in_us.uri == f"{URI}/jurisdiction/US"
    assert in_us.dns_names == (*identity.dns_names, "us-1.us-east-1.us.jurisdiction.mesh.test")


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "https://mesh.test/gateway/us-east-1/us-1",
        "spiffe://mesh.test/gateway/us-east-1",
        "spiffe://mesh.test/gateway/us-east-1/us-1/more",
        "spiffe://mesh.test/gateway/us-east-1/us-1/jurisdiction",
        "spiffe://mesh.test/gateway/us-east-1/us-1/jurisdiction/",
        "spiffe://mesh.test/gateway/us-east-1/us-1/jurisdiction/U.S",
        "spiffe://mesh.test/gateway/us-east-1/us-1/somewhere/US",
        "spiffe://mesh.test/gateway/us-east-1/us-1/jurisdiction/US/more",
        "spiffe://mesh.test/controller/us-east-1/us-1",
        "spiffe://mesh.test/gateway//us-1",
        "spiffe:///gateway/us-east-1/us-1",
        "spiffe://MESH/gateway/us-east-1/us-1",
        "spiffe://mesh.test/gateway/us.east/us-1",
        "spiffe://mesh.test/gateway/us-east-1/US-1",
        "spiffe://mesh.test/gateway/us-east-1/us-1\n",
    ],
)
def test_what_is_no_gateways_identity(uri: str) -> None:
    with pytest.raises(ValueError, match="is not spiffe://"):
        parse_identity(uri)


def test_a_caller_is_who_its_one_spiffe_id_says() -> None:
    ca = new_ca()
    shown = mesh_leaf(ca, "us-1", US).certificate_pem
    assert caller_identity({"x509_pem_cert": [shown]}) == mesh_identity("us-1", US)
    wrong: list[dict[str, list[bytes]]] = [
        {},
        {"x509_pem_cert": []},
        {"x509_pem_cert": [shown] * 2},
        {"x509_pem_cert": [clients_leaf(ca).certificate_pem]},
        {"x509_common_name": [b"us-1"], "peer_spiffe_id": [URI.encode()]},
    ]
    for auth in wrong:
        with pytest.raises(ValueError, match="no SPIFFE id, or several"):
            caller_identity(auth)


def of_version_4(pem: bytes) -> bytes:
    der = leaf_of(pem).public_bytes(Encoding.DER)
    version = b"\xa0\x03\x02\x01"
    assert der.count(version + b"\x02") == 1
    return DER_cert_to_PEM_cert(der.replace(version + b"\x02", version + b"\x03")).encode()


@pytest.mark.parametrize("name", ["a name of a kind that nobody reads", "names twice"])
def test_names_that_cannot_be_read_identify_nobody(name: str) -> None:
    (case,) = [each for each in CERTIFICATE_CASES if each.name == name]
    shown = odd_certificate(case, new_ca()).certificate_pem
    with pytest.raises(ValueError, match="names cannot be read"):
        caller_identity({"x509_pem_cert": [shown]})
    for identify in (certificate_identity, controller_identity):
        with pytest.raises(ValueError, match="names cannot be read"):
            identify(leaf_of(shown))


def test_a_certificate_of_a_version_that_there_is_not_identifies_nobody() -> None:
    shown = of_version_4(mesh_leaf(new_ca(), "us-1", US).certificate_pem)
    with pytest.raises(ValueError, match="cannot be read"):
        caller_identity({"x509_pem_cert": [shown]})


def leaf_of(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_a_mesh_certificate_says_the_same_in_both_its_names() -> None:
    assert certificate_identity(leaf_of(mesh_leaf(new_ca(), "us-1", US).certificate_pem)) == mesh_identity("us-1", US)


def test_a_certificate_that_would_not_be_recognised_is_none() -> None:
    ca = new_ca()
    with pytest.raises(ValueError, match="holds 0 URIs"):
        certificate_identity(leaf_of(clients_leaf(ca).certificate_pem))
    with pytest.raises(ValueError, match="lacks the DNS name us-1"):
        certificate_identity(leaf_of(without_host_name(ca)))


def without_host_name(ca: DevelopmentCa) -> bytes:
    begins, ends = validity(Clock().wall_ns(), 1)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(URI), x509.DNSName("other.test")]
    return ca._issue(
        "us-1", names, [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH], begins, ends + timedelta()
    ).certificate_pem


CONTROLLER = ControllerIdentity("mesh.test", "control-1")


def test_a_controllers_identity_reads_back_as_itself_and_is_no_gateways() -> None:
    assert CONTROLLER.uri == "spiffe://mesh.test/controller/control-1"
    assert CONTROLLER.dns_names == ("controller.mesh.test",)
    assert parse_controller(CONTROLLER.uri) == CONTROLLER
    assert controller_identity(leaf_of(controller_leaf(new_ca()).certificate_pem)) == CONTROLLER
    with pytest.raises(ValueError, match="is not spiffe://TRUST-DOMAIN/gateway"):
        caller_identity({"x509_pem_cert": [controller_leaf(new_ca(), may_call=True).certificate_pem]})
    with pytest.raises(ValueError, match="is not spiffe://TRUST-DOMAIN/gateway"):
        certificate_identity(leaf_of(controller_leaf(new_ca()).certificate_pem))


@pytest.mark.parametrize(
    "uri",
    [
        URI,
        "spiffe://mesh.test/controller",
        "spiffe://mesh.test/controller/a/b",
        "spiffe://mesh.test/controller/A",
        "spiffe:///controller/a",
        "https://mesh.test/controller/a",
    ],
)
def test_what_is_no_controllers_identity(uri: str) -> None:
    with pytest.raises(ValueError, match="is not spiffe://TRUST-DOMAIN/controller"):
        parse_controller(uri)


@pytest.mark.parametrize(
    "text,is_one",
    [("mesh.local", True), ("mesh", True), ("a" * 100, True), ("a" * 101, False), ("", False), ("a..b", False),
     ("-a", False), ("mesh.local/", False), ("Mesh", False)],
)  # fmt: skip
def test_trust_domains_look_like_host_names(text: str, is_one: bool) -> None:
    assert is_trust_domain(text) is is_one
