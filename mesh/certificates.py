"""Reads certificates, keys and roots from PEM files, and reports what is wrong with them.

It decides no question of trust, and no message holds any part of a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from mesh.whole_files import read_whole

_SECOND_NS = 1_000_000_000


class CertificateFault(Exception):
    """File that cannot be used; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate with the chain to its root, and its key."""

    leaf: x509.Certificate
    chain_pem: bytes
    key_pem: bytes = field(repr=False)
    begins_ns: int
    ends_ns: int
    """Wall time in nanoseconds. Every certificate of the chain is valid from `begins_ns` to `ends_ns`."""


def read_key_pair(certificate: Path, key: Path) -> KeyPair:
    """Read a certificate and its key. Raises CertificateFault; dates are checked by `date_fault`."""
    chain_pem, key_pem = _read(certificate), _read(key)
    chain = _certificates(chain_pem, certificate)
    try:
        private_key = load_pem_private_key(key_pem, password=None)
    except TypeError:
        raise CertificateFault(f"{key} is encrypted; a gateway cannot ask for a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateFault(f"{key} holds no private key that can be read") from None
    if private_key.public_key() != chain[0].public_key():
        raise CertificateFault(f"{key} does not belong to the first certificate in {certificate}")
    return KeyPair(
        chain[0],
        chain_pem,
        key_pem,
        begins_ns=max(_unix_ns(each.not_valid_before_utc) for each in chain),
        ends_ns=min(_unix_ns(each.not_valid_after_utc) for each in chain),
    )


def read_roots(path: Path) -> bytes:
    """PEM text of a file of authorities. Raises CertificateFault."""
    pem = _read(path)
    for certificate in _certificates(pem, path):
        if not _is_authority(certificate):
            raise CertificateFault(
                f"{path}: {certificate.subject.rfc4514_string()!r} is not an authority's certificate"
            )
    return pem


def date_fault(pair: KeyPair, wall_ns: int) -> str | None:
    if wall_ns < pair.begins_ns:
        return "the certificate is not valid yet"
    return "the certificate has expired" if wall_ns >= pair.ends_ns else None


def _read(path: Path) -> bytes:
    try:
        return read_whole(path)
    except OSError as error:
        raise CertificateFault(f"{path} cannot be read: {error.strerror}") from error


def _certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion):
        raise CertificateFault(f"{path} holds no certificates that can be read") from None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return False


def _unix_ns(moment: datetime) -> int:
    return int(moment.timestamp()) * _SECOND_NS
