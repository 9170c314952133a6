"""Permissions of machines in AWS, compared with the calls that the product's code makes, both ways: no permission is
missing and none is unused.

Calls are recorded while the tests of every such path run.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore import xform_name

from tests.deploy.conftest import Stacks
from tests.deploy.terraforming import ROOT

SERVICES = ("autoscaling", "dynamodb", "ec2", "route53")
COLLECTOR = {"logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"}
"""Calls of the CloudWatch agent, as AWS documents them; the product's own code makes none of them."""
TESTS = [
    "tests/cloud/test_dynamodb.py::TestConformance",
    "tests/cloud/test_dynamodb.py::test_nothing_is_left_lying_about_whoever_writes_or_is_deposed_meanwhile",
    "tests/cloud/test_route53.py::TestConformance",
    "tests/cloud/test_route53.py::test_a_check_goes_an_hour_after_its_gateway_and_one_that_asks_otherwise_at_once",
    "tests/cloud/test_route53.py::test_a_change_is_followed_until_all_servers_have_it",
    "tests/cloud/test_aws_recovery.py::test_the_one_instance_is_helped_by_whoever_may_do_just_that",
]
ZONE = "mesh.example"
VARIABLES = {
    "vpc_id": "vpc-1",
    "slots": {
        name: {
            "zone": zone,
            "subnet_id": zone,
            "secrets": [f"arn:aws:secretsmanager:eu-west-1:123456789012:secret:{name}"],
        }
        for name, zone in (("controller-1", "eu-west-1a"), ("controller-2", "eu-west-1b"))
    },
    "machine_image": "ami-00000000000000000",
    "machine_type": "t4g.small",
    "package": {
        "file": "tests/package.tar.gz",
        "sha256": "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde",
    },
    "regions_file": "tests/regions.yaml",
    "table": {"name": "nightside", "arn": "arn:aws:dynamodb:eu-west-1:123456789012:table/nightside"},
    "zone": {"id": "Z0123456789ABC", "name": ZONE},
}


@dataclass(frozen=True)
class Call:
    action: str
    names: tuple[str, ...]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    path = tmp_path_factory.mktemp("calls") / "calls.jsonl"
    plug_in = ["-p", "tests.deploy.recorded_calls", f"--recorded-calls={path}"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "--require-cloud",
        "-p",
        "no:cacheprovider",
        *plug_in,
        *TESTS,
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    lines = map(json.loads, path.read_text().splitlines())
    return [Call(f"{each['service']}:{each['operation']}", tuple(each["names"])) for each in lines]


@pytest.fixture(scope="module")
def rights(stack: Stacks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Policy statements of a controller, by the way in which it may recover machines."""
    terraform = stack("modules/controller/aws")
    found = {}
    for recovery in ("none", "reboot", "replace"):
        given = tmp_path_factory.mktemp("rights") / "variables.tfvars.json"
        given.write_text(json.dumps(VARIABLES | {"recovery": recovery}))
        terraform("apply", "-auto-approve", f"-var-file={given}").ok()
        found[recovery] = json.loads(terraform.outputs()["rights"]["controller-1"])["Statement"]
    return found


def actions(statements: list[dict[str, Any]], *, leaving_out: str = "") -> set[str]:
    return {action for each in statements if each["Sid"] not in leaving_out.split() for action in each["Action"]}


SLOT = "FetchObjects FetchSecrets AttachDisk AttachDiskToOurselves HasDrained"
"""Statements that every slot has: see test_terraform_machine.py."""


def of_a_controller(statements: list[dict[str, Any]]) -> set[str]:
    return actions(statements, leaving_out=SLOT) - COLLECTOR


def in_the_sources() -> Iterator[str]:
    """Operations of AWS that the controller's sources name, in modules that import boto3 or botocore."""
    session: Any = boto3.session.Session("test", "test", region_name="us-east-1")
    operations = {
        xform_name(name): f"{service}:{name}"
        for service in SERVICES
        for name in session.client(service).meta.service_model.operation_names
    }
    for path in (ROOT / "controller").rglob("*.py"):
        text = path.read_text()
        if re.search(r"\bboto3|botocore", text):
            for node in ast.walk(ast.parse(text)):
                word = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
                if isinstance(word, str) and word in operations:
                    yield operations[word]


def test_the_tests_make_every_call_that_the_sources_can_make(recorded: list[Call]) -> None:
    assert {each.action for each in recorded} == set(in_the_sources())


def test_a_controller_may_do_what_it_asks_for_and_nothing_else(
    recorded: list[Call], rights: dict[str, list[dict[str, Any]]]
) -> None:
    allowed = of_a_controller(rights["reboot"]) | of_a_controller(rights["replace"])
    assert {each.action for each in recorded} == allowed


def test_what_it_may_do_with_machines_is_what_it_was_told_to(rights: dict[str, list[dict[str, Any]]]) -> None:
    plain = of_a_controller(rights["none"])
    assert of_a_controller(rights["reboot"]) - plain == {"ec2:DescribeInstances", "ec2:RebootInstances"}
    assert of_a_controller(rights["replace"]) - plain == {"ec2:DescribeInstances", "autoscaling:SetInstanceHealth"}
    documented = json.loads((ROOT / "docs/examples/aws_recovery_policy.json").read_text())["Statement"]
    conditions = {each["Sid"]: each.get("Condition") for each in documented}
    ours = {each["Sid"]: each.get("Condition") for kind in ("reboot", "replace") for each in rights[kind]}
    assert {sid: ours[sid] for sid in conditions} == conditions


def test_every_name_that_it_writes_is_one_that_it_may_write(
    recorded: list[Call], rights: dict[str, list[dict[str, Any]]]
) -> None:
    (statement,) = (each for each in rights["none"] if each["Sid"] == "WriteRecords")
    (patterns,) = statement["Condition"]["ForAllValues:StringLike"].values()
    assert patterns == [ZONE, f"*.{ZONE}"]
    written = {name.rstrip(".") for each in recorded for name in each.names}
    assert len(written) > 5
    assert {name for name in written if name != ZONE and not name.endswith(f".{ZONE}")} == set()


def test_whatever_it_may_do_is_narrowed_to_what_is_its_own(rights: dict[str, list[dict[str, Any]]]) -> None:
    at_large = {"ec2:DescribeInstances", "route53:CreateHealthCheck", "route53:ListHealthChecks"}
    """Actions that AWS cannot restrict to resources."""
    for each in rights["replace"]:
        if "*" in each["Resource"]:
            assert set(each["Action"]) <= at_large, each["Sid"]
