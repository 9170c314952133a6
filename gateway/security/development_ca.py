"""Certificate authority for development: its key lies in a file, and every certificate says what it is for.

It must never pass for a real one: the subject of each certificate says that it is meant for development.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mesh.identity import ControllerIdentity, MeshIdentity

ORGANIZATION = "Nightside development, not for production"
CLOCK_SKEW = timedelta(minutes=5)
"""Time by which certificates begin early, for machines whose clock is behind."""

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, both as PEM text."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


class DevelopmentCa:
    """Certificate authority of one trust domain."""

    def __init__(self, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def create(cls, trust_domain: str, *, now_ns: int, days: float) -> DevelopmentCa:
        key = generate_private_key(SECP256R1())
        name = _name(f"development authority of {trust_domain}"[:64])
        builder = (
            _builder(name, name, key, _moment(now_ns) - CLOCK_SKEW, _moment(now_ns) + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_alternative_names([_uri(f"spiffe://{trust_domain}")]), critical=False)
        )
        return cls(builder.sign(key, SHA256()), key)

    @classmethod
    def from_pem(cls, pem: Issued) -> DevelopmentCa:
        """Load an authority. Raises ValueError for one that this class did not write."""
        key = load_pem_private_key(pem.key_pem, password=None)
        certificate = x509.load_pem_x509_certificate(pem.certificate_pem)
        if not isinstance(key, EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
            raise ValueError("the key does not belong to the certificate")
        if certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value != ORGANIZATION:
            raise ValueError("this authority is not one for development")
        return cls(certificate, key)

    def pem(self) -> Issued:
        return _issued(self.certificate, self._key)

    @property
    def trust_domain(self) -> str:
        names = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return names.get_values_for_type(x509.UniformResourceIdentifier)[0].removeprefix("spiffe://")

    def issue_for_gateway(self, identity: MeshIdentity, *, begins: datetime, ends: datetime) -> Issued:
        """Certificate of a gateway in the mesh, as client and as server."""
        names: list[x509.GeneralName] = [_uri(identity.uri), *map(x509.DNSName, identity.dns_names)]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(identity.gateway_id, names, usages, begins, ends)

    def issue_for_controller(self, identity: ControllerIdentity, *, begins: datetime, ends: datetime) -> Issued:
        """Certificate that a controller shows to gateways."""
        names: list[x509.GeneralName] = [_uri(identity.uri), *map(x509.DNSName, identity.dns_names)]
        return self._issue(identity.name, names, [ExtendedKeyUsageOID.SERVER_AUTH], begins, ends)

    def issue_for_clients(self, gateway: str, hosts: Iterable[str], *, begins: datetime, ends: datetime) -> Issued:
        """Certificate that a gateway shows to its clients. It names no member of the mesh, and so grants no access
        there."""
        return self._issue(gateway, [_host(host) for host in hosts], [ExtendedKeyUsageOID.SERVER_AUTH], begins, ends)

    def _issue(
        self,
        common_name: str,
        names: list[x509.GeneralName],
        usages: list[x509.ObjectIdentifier],
        begins: datetime,
        ends: datetime,
    ) -> Issued:
        key = generate_private_key(SECP256R1())
        builder = (
            _builder(_name(common_name), self.certificate.subject, key, begins, ends)
            .add_extension(_alternative_names(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return _issued(builder.sign(self._key, SHA256()), key)


def validity(now_ns: int, days: float) -> tuple[datetime, datetime]:
    return _moment(now_ns) - CLOCK_SKEW, _moment(now_ns) + timedelta(days=days)


def _moment(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns // _SECOND_NS, UTC)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _issued(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _alternative_names(names: list[x509.GeneralName]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(names)


def _uri(text: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(text)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
