from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.config import read_controller_file
from mesh.faults import ConfigError
from tests.support.controllers import controller_file

ROUTE53: dict[str, Any] = {"provider": "route53", "route53": {"hosted_zone": "Z0123456789ABC"}}
CLOSED = {"decisions": {"closed_jurisdictions": ["EU"]}}


def rfc2136(folder: Path, **more: object) -> dict[str, Any]:
    (folder / "key").write_text("a2V5IGtleSBrZXk=\n")
    return {"provider": "rfc2136", "rfc2136": {"server": "192.0.2.53:53", "key_file": "key", **more}}


def read(folder: Path, records: dict[str, Any], **more: Any) -> None:
    document = {"naming": {"zone": "mesh.example"}, **more}
    read_controller_file(controller_file(folder, records=records, **document), {})


def route53(**more: object) -> dict[str, Any]:
    return {**ROUTE53, "route53": {**ROUTE53["route53"], **more}}


@pytest.mark.parametrize("records", [{"provider": "none"}, ROUTE53])
def test_what_can_be_said_is_taken(tmp_path: Path, records: dict[str, Any]) -> None:
    read(tmp_path, records)
    read(tmp_path, rfc2136(tmp_path, zone="example"))
    read(tmp_path, route53(locations={"EU": ["DE", "IE"], "US": ["US-CA", "continent:SA"]}), **CLOSED)
    apart = {"regions": {"eu-central-1": "EU", "frankfurt": "US"}, **CLOSED}
    read(tmp_path, route53(regions={"frankfurt": "eu-central-1"}, locations={"EU": ["DE"]}), **apart)


@pytest.mark.parametrize(
    ("records", "more", "fault"),
    [
        (ROUTE53, {"naming": {}}, "naming.zone: is missing, and records.provider is route53"),
        (
            ROUTE53,
            {"naming": {"zone": "a.b", "networks": {"us": ["192.0.2.0/24"]}}},
            "naming.networks: cannot be followed .* Route53 finds out by itself",
        ),
        (
            ROUTE53,
            {"naming": {"zone": "a.b", "name_servers": [{"name": "n1.a.b"}, {"name": "n2.a.b"}]}},
            "naming.name_servers: cannot be followed",
        ),
        ({"provider": "route53"}, {}, "records.route53.hosted_zone: should be the id"),
        (ROUTE53, CLOSED, "records.route53.locations: does not say where EU is, which is closed"),
        (route53(locations={"EU": []}), CLOSED, "records.route53.locations: does not say where EU is"),
        (route53(locations={"EU": ["Europe"]}), {}, r"locations.EU\[0\]: 'Europe' is not a place"),
        (route53(locations={"EU": ["continent:XX"]}), {}, r"locations.EU\[0\]: 'continent:XX' is not a place"),
        (route53(locations={"X": ["continent:AN"]}), {}, r"locations.X\[0\]: continent:AN is taken by"),
        (route53(locations={"EU": ["DE"], "DE": ["DE"]}), {}, r"locations.EU\[0\]: DE is DE's already"),
        (route53(regions={"us": "moon"}), {}, "regions.us: 'moon' is not an AWS region"),
        (route53(regions={"a": "us-east-1", "b": "us-east-1"}), {}, "regions: two regions are at one AWS region"),
        (
            route53(regions={"frankfurt": "eu-central-1"}),
            {"regions": {"frankfurt": "EU", "eu-central-1": "EU"}},
            "regions: two regions are at one AWS region.*: eu-central-1 and frankfurt at eu-central-1",
        ),
        (
            route53(regions={"frankfurt": "eu-central-1"}, locations={"EU": ["DE"]}),
            {"regions": {"eu-central-1": "EU", "frankfurt": "EU"}, **CLOSED},
            "regions: two regions are at one AWS region",
        ),
        (route53(health_checks={"path": "x"}), {}, "health_checks.path: should begin with a slash"),
        (route53(health_checks={"kind": "tcp", "failures": 11}), {}, "health_checks.failures: Route53 takes 1 to 10"),
        (route53(endpoint="x"), {}, "endpoint: 'x' is not a URL"),
        ({"provider": "elsewhere"}, {}, "records.provider"),
        ({"owner": "two words"}, {}, "records.owner"),
    ],
)
def test_what_route53_cannot_say_is_refused_by_its_key(
    tmp_path: Path, records: dict[str, Any], more: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        read(tmp_path, records, **more)


@pytest.mark.parametrize(
    ("keys", "more", "fault"),
    [
        ({}, CLOSED, "closed_jurisdictions: EU: a name server that tells all clients the same"),
        ({"server": None}, {}, "rfc2136.server: is missing"),
        ({"key_file": None}, {}, "rfc2136.key_file: is missing"),
        ({"key_file": "nothing"}, {}, "rfc2136.key_file: .* cannot be read"),
        ({"key_file": "controller.yaml"}, {}, "rfc2136.key_file: "),
        ({"zone": "other.example"}, {}, "rfc2136.zone: other.example does not hold mesh.example."),
        ({"zone": "sh.example"}, {}, "rfc2136.zone: sh.example does not hold mesh.example."),
        ({"key_algorithm": "hmac-md5"}, {}, "key_algorithm"),
        (
            {},
            {"naming": {"zone": "mesh.example", "networks": {"us": ["192.0.2.0/24"]}}},
            "naming.networks: cannot be followed .* tells all clients the same",
        ),
    ],
)
def test_what_dynamic_updates_cannot_say_is_refused_by_its_key(
    tmp_path: Path, keys: dict[str, Any], more: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        read(tmp_path, rfc2136(tmp_path, **keys), **more)


def test_a_write_has_to_fit_into_what_is_left_of_a_lease(tmp_path: Path) -> None:
    """Default remainder of a lease: 6 s, less a margin of 1 s and less 1.5 s until it is renewed."""
    store = {"store": {"kind": "dynamodb", "dynamodb": {"table": "t"}}, "history": {"path": "h"}}
    read(tmp_path, route53(timeout="2s"), **store)
    with pytest.raises(ConfigError, match=r"records.route53.timeout: a write may take longer than is left of a lease"):
        read(tmp_path, route53(timeout="3s"), **store)
    read(tmp_path, route53(timeout="3s"))
