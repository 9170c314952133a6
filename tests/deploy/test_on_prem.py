"""The example for an operator's own machines, and the policies of all examples: each file is read by the program that
it is written for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud.programs import found
from tests.deploy.terraforming import ROOT, TERRAFORM

EXAMPLE = TERRAFORM / "examples/on-prem"
POLICIES = [
    [EXAMPLE / "berlin.policy.yaml", EXAMPLE / "chicago.policy.yaml"],
    [TERRAFORM / "examples/three-clouds/policies"],
]


def ours(*arguments: str | Path) -> str:
    done = subprocess.run([sys.executable, "-m", "nightside", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("site", ["berlin", "chicago"])
def test_a_gateway_reads_its_file(tmp_path: Path, site: str) -> None:
    certificates(tmp_path, f"--gateway={site}-1:{site}")
    ours("keys", "add", tmp_path / "keys.yaml", "--id=team-a", "--tenant=acme")
    shutil.copy(EXAMPLE / f"{site}.policy.yaml", tmp_path / "policy.yaml")
    shutil.copy(EXAMPLE / "regions.yaml", tmp_path)
    path = tmp_path / "region.yaml"
    path.write_text((EXAMPLE / f"{site}.region.yaml").read_text().replace("/var/lib/nightside", str(tmp_path)))
    assert f"gateway: {site}-1" in ours("gateway", "check", path)


def test_a_controller_reads_its_file(tmp_path: Path) -> None:
    certificates(tmp_path, "--controller=controller-1", "--gateway=x:x")
    shutil.copy(tmp_path / "tls/roots.pem", tmp_path / "tls/gateways-ca.pem")
    (tmp_path / "nightside.key").write_text("c2VjcmV0\n")
    shutil.copy(EXAMPLE / "regions.yaml", tmp_path)
    path = tmp_path / "controller.yaml"
    path.write_text((EXAMPLE / "controller.yaml").read_text().replace("/var/lib/nightside", str(tmp_path)))
    assert "provider: rfc2136" in ours("controller", "check", path)


def certificates(folder: Path, *who: str) -> None:
    ours("dev-certs", folder / "made", "--trust-domain=mesh.test", *who)
    (folder / "tls").mkdir()
    for made in (folder / "made").iterdir():
        made.rename(folder / "tls" / re.sub(r"^.*\.(clients|peers|controller)\.", r"\1.", made.name))


@pytest.mark.parametrize("paths", POLICIES, ids=["on-prem", "three-clouds"])
def test_its_policies_fit_together(paths: list[Path]) -> None:
    assert "0 faults, 0 contradictions" in ours("policy", "check", *paths)


def test_bind_reads_its_files(tmp_path: Path) -> None:
    key = tmp_path / "nightside.key"
    key.write_text('key "nightside" { algorithm hmac-sha256; secret "c2VjcmV0"; };\n')
    zone = shutil.copy(EXAMPLE / "llm.example.net.zone", tmp_path)
    text = (EXAMPLE / "named.conf").read_text()
    text = text.replace("/etc/bind/nightside.key", str(key)).replace("/var/lib/bind/llm.example.net.zone", str(zone))
    (tmp_path / "named.conf").write_text(text)
    for command in (["named-checkconf", "-z", tmp_path / "named.conf"], ["named-checkzone", "llm.example.net", zone]):
        program = found(str(command[0]))
        assert program is not None, f"there is no {command[0]} here: make setup-tests installs it"
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
