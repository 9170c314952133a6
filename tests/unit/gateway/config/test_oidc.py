from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mesh.faults import FileError
from tests.support.region_files import SMALLEST, load_config, region_at

ISSUER = {
    "name": "corp",
    "issuer": "https://login.example.net",
    "audiences": ["nightside"],
    "tenant": {"value": "acme"},
}


def with_section(folder: Path, more: str = "", **section: object) -> Path:
    return region_at(folder, SMALLEST + more + yaml.safe_dump({"oidc": section}))


def faults(folder: Path, more: str = "", **section: object) -> list[str]:
    with pytest.raises(FileError) as refused:
        load_config(with_section(folder, more, **section), environ={})
    return [f"{fault.key}: {fault.message}" for fault in refused.value.faults]


def test_a_section_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = load_config(with_section(tmp_path, issuers=[ISSUER]), environ={}).oidc
    (issuer,) = config.issuers
    assert (issuer.issuer, issuer.audiences, issuer.stale_after_ns) == (
        "https://login.example.net",
        ("nightside",),
        86_400_000_000_000,
    )
    assert "HS256" not in issuer.algorithms


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"algorithms": ["HS256"]}, "oidc.issuers[0].algorithms[0]: "),
        ({"algorithms": ["none"]}, "oidc.issuers[0].algorithms[0]: "),
        ({"algorithms": []}, "oidc.issuers[0].algorithms: "),
        ({"audiences": []}, "oidc.issuers[0].audiences: "),
        ({"issuer": "login.example.net"}, "oidc.issuers[0].issuer: "),
        ({"issuer": "http://login.example.net"}, "oidc.issuers[0].issuer: http://login.example.net is beyond"),
        ({"jwks_url": "http://login.example.net"}, "oidc.issuers[0].jwks_url: http://login.example.net is beyond"),
        ({"leeway": "1h"}, "oidc.issuers[0].leeway: is over 10m"),
        ({"stale_after": "1m"}, "oidc.issuers[0].stale_after: is below"),
        ({"tenant": {}}, "oidc.issuers[0].tenant: takes a value or a claim"),
        ({"tenant": {"value": "a", "claim": "b"}}, "oidc.issuers[0].tenant: takes a value or a claim"),
        ({"tenant": {"value": "a", "default": "b"}}, "oidc.issuers[0].tenant: has a map or a default"),
        ({"plan": {"value": "gold"}}, "oidc.issuers[0].plan: 'gold' is none of oidc.plans"),
        ({"process": {"claim": "c", "map": {"x": "eu"}}}, "oidc.issuers[0].process: 'eu' is none of oidc.rules"),
        ({"audience": "x"}, "oidc.issuers[0].audience: "),
    ],
)
def test_a_fault_names_its_key(tmp_path: Path, changes: dict[str, object], fault: str) -> None:
    assert any(each.startswith(fault) for each in faults(tmp_path, issuers=[{**ISSUER, **changes}]))


def test_names_and_issuers_are_told_apart(tmp_path: Path) -> None:
    assert faults(tmp_path, issuers=[ISSUER, ISSUER]) == [
        "oidc.issuers[1].name: 'corp' is used twice",
        "oidc.issuers[1].issuer: https://login.example.net is listed twice",
    ]


def test_a_budget_has_to_outlive_the_process(tmp_path: Path) -> None:
    plans = {"gold": {"tokens_per_day": 5}}
    assert faults(tmp_path, plans=plans) == ["oidc.plans.gold: a budget has to survive restarts: it needs state.folder"]
    load_config(with_section(tmp_path, "state: {folder: state}\n", plans=plans), environ={})


def test_without_keys_issuers_are_enough_beyond_this_machine(tmp_path: Path) -> None:
    exposed = "listen: {http: '0.0.0.0:8080', tls: {certificate: c.pem, key: c.key}}\n"
    assert any("no `keys` file" in each for each in faults(tmp_path, exposed))
    load_config(with_section(tmp_path, exposed, issuers=[ISSUER]), environ={})
