from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.security.development_ca import Issued
from mesh.certificates import CertificateFault, date_fault, read_key_pair, read_roots
from tests.support.certificates import Files, mesh_leaf, new_ca, roots_of
from tests.support.core import US

DAY_NS = 86_400 * 10**9


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path)
    ca = new_ca()
    made.put(mesh_leaf(ca, "us-1", US), roots=roots_of(ca))
    return made


def fault(files: Files) -> str:
    with pytest.raises(CertificateFault) as caught:
        read_key_pair(files.certificate, files.key)
    return str(caught.value)


def test_a_pair_is_read_and_shows_no_key(files: Files) -> None:
    pair = read_key_pair(files.certificate, files.key)
    assert pair.chain_pem == files.certificate.read_bytes()
    assert pair.key_pem == files.key.read_bytes()
    assert "PRIVATE" not in repr(pair)
    assert pair.ends_ns - pair.begins_ns > DAY_NS


def test_a_key_of_another_certificate_is_refused(files: Files) -> None:
    files.certificate.write_bytes(mesh_leaf(new_ca(), "us-1", US).certificate_pem)
    assert fault(files) == f"{files.key} does not belong to the first certificate in {files.certificate}"


def encrypted(key_pem: bytes) -> bytes:
    key = load_pem_private_key(key_pem, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def test_what_cannot_be_read_is_told_without_its_content(files: Files) -> None:
    files.key.write_bytes(encrypted(files.key.read_bytes()))
    assert fault(files) == f"{files.key} is encrypted; a gateway cannot ask for a password"
    files.key.write_text("SECRET")
    assert fault(files) == f"{files.key} holds no private key that can be read"
    files.key.unlink()
    assert fault(files) == f"{files.key} cannot be read: No such file or directory"
    files.key.touch()
    files.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert fault(files) == f"{files.certificate} holds no certificates that can be read"


def test_roots_are_authorities(files: Files) -> None:
    both = roots_of(new_ca(), new_ca())
    files.put(roots=both)
    assert read_roots(files.roots) == both
    files.put(roots=both + files.certificate.read_bytes())
    with pytest.raises(CertificateFault, match="is not an authority's certificate"):
        read_roots(files.roots)
    files.put(roots=b"")
    with pytest.raises(CertificateFault, match="holds no certificates"):
        read_roots(files.roots)


def test_a_chain_is_in_date_while_all_of_it_is(files: Files) -> None:
    short, long = (mesh_leaf(new_ca(), "us-1", US, days=days) for days in (1, 9))
    files.put(Issued(long.certificate_pem + short.certificate_pem, long.key_pem))
    pair = read_key_pair(files.certificate, files.key)
    assert pair.ends_ns - pair.begins_ns < 2 * DAY_NS
    pair = replace(pair, begins_ns=100, ends_ns=200)
    assert [date_fault(pair, now_ns) for now_ns in (99, 100, 199, 200)] == [
        "the certificate is not valid yet",
        None,
        None,
        "the certificate has expired",
    ]
