"""Real Terraform on all of terraform/, with stand-ins that serve the current providers' schemas.

These tests show that modules match the providers' arguments, and that one module's outputs are another's inputs; they
cannot show what a cloud makes of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import Stacks
from tests.deploy.terraforming import ROOT, TERRAFORM, Terraform

NIGHTSIDE = [sys.executable, "-m", "nightside"]
FOLDERS = sorted(str(path.parent.relative_to(TERRAFORM)) for path in TERRAFORM.rglob("versions.tf"))
TESTED = [each for each in FOLDERS if list((TERRAFORM / each / "tests").glob("*.tftest.hcl"))]


def test_it_is_formatted(stack: Stacks) -> None:
    assert Terraform(TERRAFORM, stack.config)("fmt", "-check", "-recursive").ok() == ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_module_has_the_files_that_people_look_for(folder: str) -> None:
    wanted = {"main.tf", "variables.tf", "outputs.tf", "versions.tf", "README.md"}
    assert wanted - {path.name for path in (TERRAFORM / folder).iterdir()} == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_is_valid(stack: Stacks, folder: str) -> None:
    assert "Success!" in stack(folder)("validate").ok()


@pytest.mark.parametrize("folder", TESTED)
def test_its_own_tests_pass(stack: Stacks, folder: str) -> None:
    assert re.search(r"Success! [1-9]\d* passed, 0 failed", stack(folder)("test").ok())


# Whole stacks: created, found unchanged, used, and destroyed


@dataclass(frozen=True)
class Applied:
    terraform: Terraform
    arguments: tuple[str, ...]
    outputs: dict[str, Any]
    resources: list[dict[str, Any]]


def applied(stack: Stacks, name: str, variables: str) -> Applied:
    terraform = stack(name)
    arguments = (f"-var-file=tests/{variables}.tfvars",)
    terraform("apply", "-auto-approve", *arguments).ok()
    return Applied(
        terraform, arguments, terraform.outputs(), list(resources_in(terraform.shown()["values"]["root_module"]))
    )


def resources_in(module: dict[str, Any]) -> Any:
    yield from module.get("resources", ())
    for each in module.get("child_modules", ()):
        yield from resources_in(each)


STACKS = {
    "stacks/global": "global",
    "stacks/region/aws": "region",
    "stacks/region/gcp": "region",
    "stacks/region/azure": "region",
}


@pytest.mark.parametrize("name", list(STACKS))
def test_a_stack_is_made_found_unchanged_and_taken_away(stack: Stacks, name: str, tmp_path: Path) -> None:
    made = applied(stack, name, STACKS[name])
    again = made.terraform("plan", "-detailed-exitcode", *made.arguments)
    assert again.status == 0, again.said
    for what in files_written(made.resources):
        check_file(what, tmp_path, made.terraform.folder)
    gone = made.terraform("destroy", "-auto-approve", *made.arguments).ok()
    assert f"{len([each for each in made.resources if each['mode'] == 'managed'])} destroyed" in gone


def files_written(resources: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Files in object storage that machines read: name and text."""
    found = [
        (
            Path(str(each["values"].get("key") or each["values"]["name"])).name,
            each["values"].get("content") or each["values"].get("source_content"),
        )
        for each in resources
        if each["type"] in {"aws_s3_object", "google_storage_bucket_object", "azurerm_storage_blob"}
    ]
    files = [(name, text) for name, text in found if name in {"region.yaml", "controller.yaml"} and text]
    assert files, "no machine is told anything"
    return files


def check_file(what: tuple[str, str], folder: Path, stack: Path) -> None:
    """Check a file with the command that machines run, and secrets as they would lie beside it."""
    name, text = what
    document = yaml.safe_load(text)
    place = folder / str(document.get("gateway") or document["controller"])
    (place / "tls").mkdir(parents=True)
    kind = "gateway" if name == "region.yaml" else "controller"
    make_secrets(place, kind, document, stack)
    path = place / name
    path.write_text(text.replace("/var/lib/nightside", str(place)))
    ours(kind, "check", path)


def make_secrets(place: Path, kind: str, document: dict[str, Any], stack: Path) -> None:
    names = [f"--gateway={document.get('gateway', 'x')}:{document.get('region', 'x')}"]
    if kind == "controller":
        names.append(f"--controller={document['controller']}")
    ours("dev-certs", place / "made", "--trust-domain=mesh.test", *names)
    for made in (place / "made").iterdir():
        made.rename(place / "tls" / re.sub(r"^.*\.(clients|peers|controller)\.", r"\1.", made.name))
    shutil.copy(stack / "tests/regions.yaml", place)
    if kind == "gateway":
        ours("keys", "add", place / "keys.yaml", "--id=team", "--tenant=acme")
        (place / "policy.yaml").write_text((stack / "tests/policy.yaml").read_text())


def ours(*arguments: str | Path) -> None:
    done = subprocess.run([*NIGHTSIDE, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Faults are found


@dataclass(frozen=True)
class Mutant:
    stack: str
    file: str
    before: str
    after: str
    said: str
    """Error message of Terraform itself."""


AWS, GCP, AZURE = (f"stacks/region/{each}" for each in ("aws", "gcp", "azure"))
SLOT, BALANCER = "modules/slot/aws/main.tf", "modules/gateway/aws/balancer.tf"
GCP_MAIN, AZURE_MAIN = "modules/gateway/gcp/main.tf", "modules/gateway/azure/main.tf"
MUTANTS = [
    Mutant(AWS, SLOT, "instance_type = ", "instance_typ = ", r'"instance_typ" is not expected.*mean "instance_type"'),
    Mutant(AWS, SLOT, "http_tokens    ", "http_token     ", r'"http_token" is not expected here'),
    Mutant(AWS, SLOT, "  availability_zone = var.zone\n", "", r'argument "availability_zone" is required'),
    Mutant(AWS, SLOT, "= var.disk_gib", '= ["20"]', r'value for attribute "size".*number required'),
    Mutant(
        AWS, BALANCER, "aws_lb.clients.arn", "aws_lb.clients.arm", r'nested block, or exported attribute named "arm"'
    ),
    Mutant(GCP, GCP_MAIN, "source_image = ", "sourceimage = ", r'"sourceimage" is not expected.*mean "source_image"'),
    Mutant(GCP, GCP_MAIN, "  base_instance_name = each.key\n", "", r'argument "base_instance_name" is required'),
    Mutant(GCP, GCP_MAIN, "max_surge_fixed       = 0", "max_surge_fixed = [0]", r'"max_surge_fixed".*number required'),
    Mutant(
        AZURE,
        AZURE_MAIN,
        "termination_notification {",
        "terminate_notification {",
        r'"terminate_notification" are not expected',
    ),
    Mutant(
        AZURE, AZURE_MAIN, '  create_option                 = "Empty"\n', "", r'argument "create_option" is required'
    ),
    Mutant(AZURE, AZURE_MAIN, "lun                = 10", 'lun = "ten"', r'"lun".*number'),
    Mutant(
        "stacks/global",
        "modules/store/dynamodb/main.tf",
        '"aws_dynamodb_table"',
        '"aws_dynamo_table"',
        r'does not support resource type "aws_dynamo_table"',
    ),
]


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=f"{each.file}: {each.before.strip()}") for each in MUTANTS],
)
def test_a_misspelt_missing_or_wrongly_typed_argument_is_found(stack: Stacks, mutant: Mutant) -> None:
    terraform = stack(mutant.stack)
    path = stack.tree / mutant.file
    text = path.read_text()
    assert mutant.before in text
    path.write_text(text.replace(mutant.before, mutant.after))
    try:
        found = terraform("validate")
    finally:
        path.write_text(text)
    assert found.status == 1
    assert re.search(mutant.said, " ".join(found.said.replace("│", " ").split())), found.said
