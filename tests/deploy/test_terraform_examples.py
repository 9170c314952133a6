"""The examples as a reader follows them: placeholders are filled in, and the commands of each page are run as they
stand there, with real Terraform on stand-ins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from tests.deploy.conftest import Stacks
from tests.deploy.terraforming import HERE, PYTHON, ROOT, TERRAFORM

EXAMPLES = {
    "one-cloud-two-regions": {"us-east-1": "aws", "eu-west-1": "aws"},
    "three-clouds": {"us-east-1": "aws", "europe-west1": "gcp", "japaneast": "azure"},
}
PAGES = {
    "one-cloud-two-regions": ROOT / "terraform/examples/one-cloud-two-regions/README.md",
    "three-clouds": ROOT / "docs/get_started/three_clouds.md",
}
"""Page with the commands of each example."""
TOKEN = re.compile(r"<[^<>\n]+>")
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOBODY = "00000000-0000-0000-0000-000000000000"
AZURE = f"/subscriptions/{NOBODY}/resourceGroups/mesh/providers"
SAMPLES = {
    "<domain>": "llm.example.net",
    "<model>": "Qwen/Qwen3-8B",
    "<project>": "example-project",
    "<subscription>": NOBODY,
    "<key vault>": f"{AZURE}/Microsoft.KeyVault/vaults/mesh",
    "<public key>": "ssh-ed25519 AAAA nobody",
    "<machine image in Google Cloud>": "projects/example-project/global/images/nightside-1",
    "<machine image in Azure>": f"{AZURE}/Microsoft.Compute/images/nightside-1",
    "<package sha256>": "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde",
}
BY_BEGINNING = {
    "<machine image in ": "ami-00000000000000000",
    "<machine type of ": "small",
    "<network of engines in ": "10.40.0.0/16",
    "<engine ": "http://10.40.0.10:8000",
}
SECRETS = {
    "aws": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:{}",
    "gcp": "projects/example-project/secrets/{}",
    "azure": "https://mesh.vault.azure.net/secrets/{}",
}


def filled_in(token: str, cloud: str, package: Path) -> str:
    if token == "<package file>":
        return str(package)
    if token in SAMPLES:
        return SAMPLES[token]
    if token.startswith("<secret of "):
        return SECRETS[cloud].format(token.removeprefix("<secret of ").rstrip(">").replace(" ", "-"))
    return next(text for start, text in BY_BEGINNING.items() if token.startswith(start))


def in_the_table(readme: str) -> list[re.Pattern[str]]:
    """Patterns of the placeholders that the page lists; `…` stands for any text."""
    cells = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `<")]
    return [re.compile(re.escape(each).replace("…", ".+")) for cell in cells for each in re.findall(r"`(<.*?>)`", cell)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_that_is_to_be_filled_in_is_told_of(name: str) -> None:
    folder = TERRAFORM / "examples" / name
    told = in_the_table((folder / "README.md").read_text())
    tokens = {each for path in folder.glob("*.tf*") for each in TOKEN.findall(path.read_text())}
    assert len(tokens) > 10
    assert {each for each in tokens if not any(pattern.fullmatch(each) for pattern in told)} == set()
    assert {each.pattern for each in told if not any(each.fullmatch(token) for token in tokens)} == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_output_is_told_what_it_is_for(name: str) -> None:
    readme = (TERRAFORM / "examples" / name / "README.md").read_text()
    readme += (TERRAFORM / "examples/one-cloud-two-regions/README.md").read_text()
    for stack in {"global", *(f"region/{cloud}" for cloud in EXAMPLES[name].values())}:
        outputs = re.findall(
            r'^output "(\w+)"', (TERRAFORM / "stacks" / stack / "outputs.tf").read_text(), re.MULTILINE
        )
        assert [each for each in outputs if f"`{each}`" not in readme] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_commands_make_a_mesh_that_knows_itself(stack: Stacks, tmp_path: Path, name: str) -> None:
    root = tmp_path / "nightside"
    shutil.copytree(stack.tree, root / "terraform", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    shutil.copytree(ROOT / "policies", root / "policies")
    folder = root / "terraform/examples" / name
    clouds = EXAMPLES[name]
    package = root / "terraform/stacks/global/tests/package.tar.gz"
    for path in folder.glob("*.tfvars"):
        cloud = clouds.get(path.stem, "aws")
        path.write_text(TOKEN.sub(lambda each, cloud=cloud: filled_in(each[0], cloud, package), path.read_text()))  # type: ignore[misc]
    for path in folder.glob("*.tfbackend"):
        path.write_text(f'path = "{folder / path.stem}.tfstate"\n')
    run_as_it_stands(PAGES[name], folder, root, stack.config)

    peers = {region: json.loads((folder / f"mesh/{region}.peers.json").read_text()) for region in clouds}
    everybody = {gateway for each in peers.values() for gateway in each}
    assert len(everybody) == 2 * len(clouds)
    for region in clouds:
        for file in region_files(folder / f"{region}.tfstate"):
            named = set(re.findall(r'"gateway": "([^"]+)"', file))
            assert named == everybody, "each names itself and all others"
            assert all(each in file for each in json.loads((folder / "mesh/controllers.json").read_text()))
    if name == "three-clouds":
        check_secrets(root.parent, peers)
    assert set(gateways_let_in(folder / "global.tfstate")) == {
        each["address"].split(":")[0] for region in peers.values() for each in region.values()
    }


PROGRAMS = {
    "terraform": f'dir="${{1#-chdir=}}"\nshift\nexec "{PYTHON}" "{HERE}/terraform_command.py" "$dir" "$@"',
    "nightside": f'exec "{sys.executable}" -m nightside "$@"',
    "python3": f'exec "{sys.executable}" "$@"',
    **dict.fromkeys(["aws", "az", "gcloud"], 'echo "$(basename "$0") $*" >> "$HOME/calls"'),
}
"""Programs as the page's commands find them; those of the clouds only note that they were called."""


def run_as_it_stands(page: Path, folder: Path, root: Path, config: Path) -> None:
    """Run all commands of the page in one shell, with answers that an operator would give."""
    programs = folder / ".programs"
    programs.mkdir()
    for name, commands in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{commands}\n")
        (programs / name).chmod(0o755)
    script = "set -eu\n" + "\n".join(BLOCK.findall(page.read_text()))
    environment = {
        "PATH": f"{programs}:{os.defpath}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder.parents[3]),
        "NIGHTSIDE": str(root),
        "CHECKPOINT_DISABLE": "1",
        "TF_CLI_CONFIG_FILE": str(config),
        "TF_CLI_ARGS": "-no-color",
        "TF_CLI_ARGS_apply": "-auto-approve",
    }
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def check_secrets(home: Path, peers: dict[str, dict[str, dict[str, str]]]) -> None:
    """Check that each secret has its files, that clients' certificates hold the gateways' addresses, and that the
    clouds got all of them."""
    calls = (home / "calls").read_text().splitlines()
    assert (len(calls), len([each for each in calls if "create" in each])) == (18, 9)
    for gateway, told in [each for region in peers.values() for each in region.items()]:
        files = json.loads((home / f"mesh/{gateway}.json").read_text())
        assert set(files) == {
            f"tls/{name}" for name in ("peers.pem", "peers.key", "roots.pem", "clients.pem", "clients.key")
        }
        certificate = x509.load_pem_x509_certificate(files["tls/clients.pem"].encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert told["address"].split(":")[0] in map(str, names.get_values_for_type(x509.IPAddress))
    assert set(json.loads((home / "mesh/all-gateways.json").read_text())) == {"keys.yaml"}


def instances(state: Path, kind: str) -> list[dict[str, Any]]:
    found = json.loads(state.read_text())["resources"]
    return [each["attributes"] for resource in found if resource["type"] == kind for each in resource["instances"]]


def region_files(state: Path) -> list[str]:
    kinds = ("aws_s3_object", "google_storage_bucket_object", "azurerm_storage_blob")
    texts = [
        each.get("content") or each.get("source_content") or "" for kind in kinds for each in instances(state, kind)
    ]
    found = [each for each in texts if each.startswith('"control"')]
    assert len(found) == 2, "a file for each of two gateways"
    return found


def gateways_let_in(state: Path) -> list[str]:
    rules = instances(state, "aws_vpc_security_group_ingress_rule")
    return [each["cidr_ipv4"].removesuffix("/32") for each in rules if each["from_port"] == 7090]
