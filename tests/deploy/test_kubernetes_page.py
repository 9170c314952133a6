"""Commands of docs/get_started/kubernetes.md, run as they are printed: kubectl and helm only print what they would
create, docker is replaced by a stub, and the gateway reads the files that its pods would get.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gateway.app.commands import cli
from tests.deploy.charts import HELM, KUBECTL, PYTHON, ROOT
from tests.support.walk import blocks_of

PAGE = ROOT / "docs/get_started/kubernetes.md"
DIGEST = f"sha256:{'0' * 64}"
PROGRAMS = {
    "docker": f'[ "$1" != inspect ] || echo "registry.example.net/nightside@{DIGEST}"',
    "helm": f'shift 2\n"{HELM}" template "$@" > rendered.yaml',
    "kubectl": f"""echo --- >> created.yaml
set -- "$@" --end
while [ "$1" != --end ]; do
    [ "$1" != -- ] || {{ set -- "$@" --dry-run=client --output=yaml; dry=1; }}
    set -- "$@" "$1"
    shift
done
shift
[ -n "${{dry:-}}" ] || set -- "$@" --dry-run=client --output=yaml
exec "{KUBECTL}" "$@" >> created.yaml""",
    "nightside": f'exec "{sys.executable}" -m nightside "$@"',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkout in which all blocks of the page were run, in order, in one shell."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("deploy", "policies"):
        (folder / name).symlink_to(ROOT / name)
    programs = folder / "programs"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\nset -eu\n{script}\n")
        (programs / name).chmod(0o755)
    script = "set -eu\n" + "\n".join(block.commands for block in blocks_of(PAGE.read_text()))
    environment = {"PATH": f"{programs}:{os.defpath}", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def manifests(file: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


@pytest.mark.parametrize("version", ["1.30", "1.34"])
@pytest.mark.parametrize("name", ["created.yaml", "rendered.yaml"])
def test_kubernetes_schemas_are_kept(folder: Path, name: str, version: str) -> None:
    assert len(manifests(folder / name)) > 5
    program = [str(PYTHON.with_name("kubernetes-validate")), "-k", version, "--strict", str(folder / name)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_engine_is_where_the_gateways_look_for_it(folder: Path) -> None:
    created = {(each["kind"], each["metadata"]["name"]): each for each in manifests(folder / "created.yaml")}
    deployed, service = created["Deployment", "engine"]["spec"], created["Service", "engine"]["spec"]
    (container,) = deployed["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.net/nightside@{DIGEST}"
    assert container["command"][:2] == ["nightside", "engine"]
    assert service["selector"].items() <= deployed["template"]["metadata"]["labels"].items()
    assert [each["targetPort"] for each in service["ports"]] == [8000]


@pytest.mark.parametrize("ordinal", [0, 1])
def test_each_pod_starts_with_the_files_that_the_page_creates(folder: Path, ordinal: int, tmp_path: Path) -> None:
    all_of = [*manifests(folder / "created.yaml"), *manifests(folder / "rendered.yaml")]
    named = {(each["kind"], each["metadata"]["name"]): each for each in all_of}
    pod = named["StatefulSet", "us-east-1"]["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    (container,) = pod["containers"]
    for mount in container["volumeMounts"]:
        place = tmp_path / mount["mountPath"].lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        volume = volumes.get(mount["name"], {})
        if "configMap" in volume:
            for name, text in named["ConfigMap", volume["configMap"]["name"]]["data"].items():
                (place / name).write_text(text.replace("/etc/nightside", str(tmp_path / "etc/nightside")))
        if "secret" in volume:
            for name, encoded in named["Secret", volume["secret"]["secretName"]]["data"].items():
                (place / name).write_bytes(base64.b64decode(encoded))
                (place / name).chmod(0o640)
    region_file = tmp_path / f"etc/nightside/regions/us-east-1-{ordinal}.yaml"
    result = CliRunner().invoke(cli, ["check", str(region_file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "warning" not in result.stderr
    assert yaml.safe_load(result.stdout)["replicas"][0]["url"] == "http://engine.mesh.svc:8000"
