from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from controller.config import read_controller_file
from mesh.faults import ConfigError
from mesh.naming.tree import NameServer
from tests.support.controllers import controller_file

EXAMPLE = Path(__file__).parents[3] / "docs/examples/every_controller_key.yaml"
WITHOUT_DEFAULT = ("controller", "regions", "store", "naming", "operators")


def keys(document: object, path: str = "") -> set[str]:
    """Paths of all keys of a document; the items of a list count as one."""
    if isinstance(document, list):
        return set().union(*(keys(each, f"{path}[]") for each in document))
    if not isinstance(document, dict):
        return {path}
    return set().union(*(keys(value, f"{path}.{key}") for key, value in document.items()))


def test_the_reference_shows_every_key_and_the_true_defaults(tmp_path: Path) -> None:
    effective = read_controller_file(EXAMPLE, {}).as_document()
    written = yaml.load(EXAMPLE.read_text(), yaml.BaseLoader)
    assert {key.split("[")[0] for key in keys(written)} == {key.split("[")[0] for key in keys(effective)}
    own = {key: effective[key] for key in WITHOUT_DEFAULT} | {"link": {"tls": effective["link"]["tls"]}}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(own))
    assert read_controller_file(path, {}).as_document() == effective


def test_names_are_made_whole(tmp_path: Path) -> None:
    servers = [{"name": "NS1.example.net", "addresses": ["192.0.2.1"]}, {"name": "ns2.example.net."[:-1]}]
    naming = {"zone": "LLM.example.net", "name_servers": servers, "networks": {"us-east-1": ["192.0.2.0/24"]}}
    file = read_controller_file(controller_file(tmp_path, naming=naming), {})
    assert file.naming.zone_name == "llm.example.net."
    assert file.naming.servers == (NameServer("ns1.example.net.", ("192.0.2.1",)), NameServer("ns2.example.net."))


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (
            {"listen": {"grpc": "192.0.2.1:7080"}},
            "listen.grpc: 192.0.2.1:7080 is beyond this machine, without link.tls",
        ),
        ({"listen": {"admin": "192.0.2.1:9091"}}, "listen.admin: .* and there is no `admin_token_file`"),
        ({"dns": {"listen": ["127.0.0.1:53"]}}, "naming.zone: is missing, and dns.listen answers for it"),
        ({"link": {"silence_max": "1s"}}, "link.silence_max: should be longer than link.alive_interval"),
        ({"link": {"message_max": "63KiB"}}, "link.message_max: is below 64KiB"),
        ({"recovery": {"kind": "command"}}, "recovery.command: is missing"),
        ({"recovery": {"command": ["x"]}}, "recovery.command: is never run"),
        ({"decisions": {"return_after": "10m"}}, "decisions.return_after_max: is below"),
        (
            {"decisions": {"further_gateways": 4}},
            "decisions.further_gateways: is over 3, the most that an answer names",
        ),
        ({"naming": {"zone": "a.b", "name_servers": [{"name": "n.a.b"}]}}, "naming.name_servers: a zone has two"),
        ({"naming": {"name_servers": [{"name": "n.a.b"}]}}, "naming.zone: is missing"),
        (
            {"naming": {"networks": {"us": ["192.0.2.1/24"]}}},
            r"naming.networks.us\[0\]: '192.0.2.1/24' is not a network",
        ),
        (
            {"naming": {"networks": {"us": ["10.0.0.0/8"], "eu": ["10.0.0.0/8"]}}},
            r"naming.networks.us\[0\]: .* is eu's already",
        ),
        ({"naming": {"zone": "a.b", "name_servers": [{"name": "n", "addresses": ["x"]}]}}, "addresses"),
        ({"stores": {}}, "stores: is not a known key"),
        ({"store": {}}, "store.path: is missing, and store.kind is sqlite"),
        ({"store": {"path": "x", "kind": "postgresql"}}, "store.postgresql: is missing, and store.kind is postgresql"),
        (
            {"store": {"path": "x", "dynamodb": {"table": "t"}}},
            "store.dynamodb: is not used, since store.kind is sqlite",
        ),
        ({"store": {"kind": "dynamodb", "dynamodb": {"table": "t"}}}, "history.path: is missing: without a file"),
        ({"store": {"path": "x", "lease": "3s"}}, "store.lease: less store.margin should be .*: one renewal may fail"),
        (
            {"store": {"kind": "postgresql", "postgresql": {"hosts": []}}, "history": {"path": "h"}},
            "store.postgresql.hosts: names no host",
        ),
        (
            {"store": {"kind": "postgresql", "postgresql": {"hosts": ["db:5432"], "tls": False}}},
            "store.postgresql.tls: db:5432 is beyond this machine, without TLS",
        ),
        (
            {"store": {"kind": "postgresql", "postgresql": {"hosts": ["db:5432"], "password_file": "nothing"}}},
            "store.postgresql.password_file: .* cannot be read",
        ),
        ({"recovery": {"kind": "aws", "command": ["x"]}}, "recovery.command: is never run, since recovery.kind is aws"),
        (
            {"recovery": {"kind": "aws", "aws": {"endpoint": "localhost:4566"}}},
            "recovery.aws.endpoint: .* is not a URL",
        ),
        (
            {"store": {"kind": "dynamodb", "dynamodb": {"table": "t", "endpoint": "http://"}}},
            "store.dynamodb.endpoint: .* is not a URL",
        ),
        (
            {"recovery": {"kind": "aws", "aws": {"regions": {"office": "moon"}}}},
            "recovery.aws.regions.office: 'moon' is not an AWS region",
        ),
        ({"decisions": {"step_share": 2}}, "decisions.step_share"),
        ({"admin_token_file": "nothing"}, "admin_token_file: .* cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, more: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"controller.yaml: line \d+: .*{fault}|controller.yaml: {fault}"):
        read_controller_file(controller_file(tmp_path, **more), {})
