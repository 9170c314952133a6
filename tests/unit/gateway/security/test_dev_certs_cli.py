from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509

from gateway.security.dev_certs_cli import dev_certs
from gateway.security.development_ca import ORGANIZATION
from gateway.security.tls import Certificates
from mesh.certificates import date_fault, read_key_pair, read_roots
from mesh.clock import Clock
from mesh.config import MeshTlsConfig
from mesh.identity import certificate_identity
from mesh.tls import ControllerTls
from tests.support.region_files import load_config

DAY_NS = 86_400 * 10**9


def make(out: Path, *arguments: str, gateways: tuple[str, ...] = ("us-1:us-east-1", "eu-1:eu-west-1")) -> Result:
    named = [word for gateway in gateways for word in ("--gateway", gateway)]
    return CliRunner().invoke(dev_certs, [str(out), "--trust-domain", "mesh.local", *named, *arguments])


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_what_is_printed_makes_a_region_file_that_works(tmp_path: Path) -> None:
    result = make(tmp_path / "certs", "--days", "7")
    assert result.exit_code == 0
    us, eu = list(yaml.safe_load_all(result.stdout.replace("\n\n", "\n---\n")))
    assert us != eu
    region = {"gateway": "us-1", "region": "us-east-1", "jurisdiction": "US"}
    (tmp_path / "us.yaml").write_text(yaml.safe_dump({**region, **us}))
    certificates = Certificates(load_config(tmp_path / "us.yaml", {}), Clock())
    assert certificates.date_faults() == []
    assert certificates.mesh is not None
    assert certificates.mesh.identity.uri == "spiffe://mesh.local/gateway/us-east-1/us-1"
    assert certificates.http is not None
    assert date_fault(certificates.http.pair, Clock().wall_ns() + 6 * DAY_NS) is None
    assert date_fault(certificates.http.pair, Clock().wall_ns() + 8 * DAY_NS) is not None


def test_keys_are_for_their_owner_alone_and_certificates_say_what_they_are(tmp_path: Path) -> None:
    make(tmp_path)
    for path in tmp_path.iterdir():
        is_secret = path.suffix == ".key"
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) is is_secret, path
        if not is_secret:
            (certificate,) = x509.load_pem_x509_certificates(path.read_bytes())
            assert certificate.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)[0].value == ORGANIZATION
            assert "not for production" in ORGANIZATION


def test_nothing_is_overwritten_unless_asked_and_further_gateways_join(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    refused = make(tmp_path, gateways=("ap-1:ap-northeast-1", "eu-1:eu-west-1"))
    assert refused.exit_code == 1
    assert "eu-1.peers.key is there already" in refused.output
    assert contents(tmp_path) == before
    assert make(tmp_path, gateways=("ap-1:ap-northeast-1",)).exit_code == 0
    assert before.items() <= contents(tmp_path).items()
    assert (tmp_path / "ap-1.peers.pem").exists()


def test_renewing_keeps_the_authority(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    assert make(tmp_path, "--renew", gateways=("us-1:us-east-1",)).exit_code == 0
    after = contents(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"us-1.{use}.{end}" for use in ("clients", "peers") for end in ("pem", "key")}
    leaf = read_key_pair(tmp_path / "us-1.peers.pem", tmp_path / "us-1.peers.key").leaf
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(read_roots(tmp_path / "roots.pem")))
    assert certificate_identity(leaf).gateway_id == "us-1"


def test_clients_may_call_by_further_names(tmp_path: Path) -> None:
    make(tmp_path, "--host", "gw.example.test", "--host", "10.0.0.7")
    leaf = x509.load_pem_x509_certificate((tmp_path / "us-1.clients.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "gw.example.test"]
    assert "10.0.0.7" in map(str, names.get_values_for_type(x509.IPAddress))
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [], "it opens no door in the mesh"


def test_a_controller_joins_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    result = make(tmp_path, "--controller", "control-1", gateways=())
    assert result.exit_code == 0
    (snippet,) = yaml.safe_load_all(result.stdout)
    certificate, key, roots = (Path(snippet["tls"][name]) for name in ("certificate", "key", "roots"))
    tls = ControllerTls(MeshTlsConfig(certificate, key, roots), Clock())
    assert tls.identity.uri == "spiffe://mesh.local/controller/control-1"
    assert contents(tmp_path).keys() - before.keys() == {"control-1.controller.pem", "control-1.controller.key"}
    again = make(tmp_path, "--controller", "control-1", gateways=())
    assert "control-1.controller.pem is there already" in again.output
    assert make(tmp_path, "--controller", "Control 2", gateways=()).exit_code == 2


def test_json_for_programs(tmp_path: Path) -> None:
    document = json.loads(make(tmp_path, "--json").stdout)
    assert document["trust_domain"] == "mesh.local"
    assert document["gateways"]["eu-1"]["peering"]["tls"]["roots"] == document["roots"] == str(tmp_path / "roots.pem")


def test_an_authority_of_another_trust_domain_or_maker_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path)
    other = CliRunner().invoke(dev_certs, [str(tmp_path), "--trust-domain", "other.local", "--gateway", "x-1:x"])
    assert (other.exit_code, "is of mesh.local, not of other.local" in other.output) == (1, True)
    (tmp_path / "roots.pem").write_bytes((tmp_path / "us-1.peers.pem").read_bytes())
    assert "no authority of this command" in make(tmp_path, gateways=("x-1:x",)).output
    assert not (tmp_path / "x-1.peers.pem").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trust-domain", "mesh.local"],
        ["--trust-domain", "Mesh!", "--gateway", "us-1:us-east-1"],
        ["--trust-domain", "mesh.local", "--gateway", "us-1"],
        ["--trust-domain", "mesh.local", "--gateway", "us.1:us-east-1"],
        ["--trust-domain", "mesh.local", "--gateway", "us-1:a", "--gateway", "us-1:b"],
        ["--trust-domain", "mesh.local", "--gateway", "us-1:a", "--days", "0"],
    ],
)
def test_wrong_use_ends_with_2_and_makes_nothing(tmp_path: Path, arguments: list[str]) -> None:
    assert CliRunner().invoke(dev_certs, [str(tmp_path / "out"), *arguments]).exit_code == 2
    assert not (tmp_path / "out").exists()
