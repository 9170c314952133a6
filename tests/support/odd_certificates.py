"""Certificates that no authority should sign, by the cases of `tests/hostile/peer_certificates.py`."""

from __future__ import annotations

from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from gateway.security.development_ca import DevelopmentCa, Issued, validity
from mesh.clock import Clock
from tests.hostile.peer_certificates import CertificateCase, Signer, Usage
from tests.support.certificates import mesh_leaf, new_ca
from tests.support.core import EU

_NAMES = ExtensionOID.SUBJECT_ALTERNATIVE_NAME
_USAGES = {
    Usage.BOTH: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    Usage.SERVER: [ExtendedKeyUsageOID.SERVER_AUTH],
    Usage.CLIENT: [ExtendedKeyUsageOID.CLIENT_AUTH],
    Usage.MAIL: [ExtendedKeyUsageOID.EMAIL_PROTECTION],
}


def odd_certificate(case: CertificateCase, ca: DevelopmentCa) -> Issued:
    """Certificate of the case, followed by the chain to its signer."""
    key = generate_private_key(SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, case.common_name)])
    issuer, signing, chain = _signer(case.signer, ca, subject, key)
    now, _ = validity(Clock().wall_ns(), 0)
    now += timedelta(minutes=5)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=case.begins_days))
        .not_valid_after(now + timedelta(days=case.ends_days))
        .add_extension(x509.BasicConstraints(ca=case.is_authority, path_length=None), critical=True)
    )
    if names := [*map(x509.UniformResourceIdentifier, case.uris), *map(x509.DNSName, case.names)]:
        builder = builder.add_extension(_names(case.extra, names), critical=False)
    if case.usage is not Usage.UNSAID:
        builder = builder.add_extension(x509.ExtendedKeyUsage(_USAGES[case.usage]), critical=False)
    if case.is_doubled:
        builder._extensions.append(x509.Extension(_NAMES, False, x509.SubjectAlternativeName(names)))
    signed = builder.sign(signing, SHA256()).public_bytes(Encoding.PEM)
    return Issued(signed + chain, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _names(extra: bytes, names: list[x509.GeneralName]) -> x509.ExtensionType:
    der = x509.SubjectAlternativeName(names).public_bytes()
    return x509.UnrecognizedExtension(_NAMES, _with_first(der, extra)) if extra else x509.SubjectAlternativeName(names)


def _with_first(sequence: bytes, item: bytes) -> bytes:
    """Insert an item at the beginning of a DER sequence; both must be short."""
    content = item + sequence[2:]
    assert len(content) < 128
    return bytes([sequence[0], len(content)]) + content


def _signer(
    signer: Signer, ca: DevelopmentCa, subject: x509.Name, key: EllipticCurvePrivateKey
) -> tuple[x509.Name, EllipticCurvePrivateKey, bytes]:
    if signer is Signer.ITSELF:
        return subject, key, b""
    if signer is Signer.LEAF:
        leaf = mesh_leaf(ca, "eu-9", EU)
        return x509.load_pem_x509_certificate(leaf.certificate_pem).subject, _key(leaf), leaf.certificate_pem
    own = new_ca() if signer is Signer.FOREIGN else ca
    return own.certificate.subject, _key(own.pem()), b""


def _key(issued: Issued) -> EllipticCurvePrivateKey:
    key = load_pem_private_key(issued.key_pem, password=None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return key
