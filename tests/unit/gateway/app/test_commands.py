"""`nightside gateway check` reports all faults in one pass."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from gateway.app.commands import cli
from tests.support.region_files import SMALLEST, region_at


def test_everything_that_a_file_names_and_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "us.policy.yaml").write_text("version: 1\n")
    (tmp_path / "keys.yaml").write_text("keys: nonsense\n")
    tls = "listen: {tls: {certificate: c.pem, key: c.key}}\n"
    file = region_at(tmp_path, SMALLEST + "policy: us.policy.yaml\nkeys: keys.yaml\nprices: prices.yaml\n" + tls)
    done = CliRunner().invoke(cli, ["check", str(file)])
    assert (done.exit_code, done.stdout) == (1, "")
    for named in ("us.yaml: policy: ", "keys.yaml: line 1: ", "prices.yaml: cannot be read", "c.pem cannot be read"):
        assert named in done.stderr, done.stderr
    assert len(set(done.stderr.splitlines())) == len(done.stderr.splitlines()), "told twice"


def test_a_check_tells_that_pods_are_bounded_by_the_table_alone(tmp_path: Path) -> None:
    (tmp_path / "us.policy.yaml").write_text(
        "version: 1\nregion: us-east-1\njurisdiction: US\nprocess: {regions: [us-east-1]}\naccept: {}\n"
        "regions: {us-east-1: {jurisdiction: US, replicas: [10.1.0.0/16, us.example.net]}}\n"
    )
    found = (
        "kubernetes_replicas: [{id: stack, selector: app=vllm, port: http, namespace: e, api: 'http://127.0.0.1:1', "
        "models: [llama]%s}]\npolicy: us.policy.yaml\n"
    )
    told = "kubernetes_replicas stack: pods are used only at addresses in 10.1.0.0/16, as the operators' table"
    for networks, is_told in (("", True), (", networks: [10.244.0.0/16]", False)):
        done = CliRunner().invoke(cli, ["check", str(region_at(tmp_path, SMALLEST + found % networks))])
        assert (done.exit_code, told in done.stderr) == (0, is_told), done.stderr


def test_a_check_tells_of_limits_that_hold_in_regions_separately(tmp_path: Path) -> None:
    (tmp_path / "us.policy.yaml").write_text(
        "version: 1\nregion: us-east-1\njurisdiction: US\nprocess: {jurisdictions: [US, EU]}\naccept: {}\n"
        "regions: {us-east-1: {jurisdiction: US}, eu-west-1: {jurisdiction: EU}, eu-west-3: {jurisdiction: EU}}\n"
        "tenants: {acme: {process: {regions: [us-east-1]}}, bank: {process: {regions: [us-east-1, eu-west-1]}},\n"
        "  gone: {process: {regions: [eu-west-1]}}}\n"
    )
    peers = "".join(
        f"  - {{gateway: {region}{end}, region: {region}, jurisdiction: {law}, address: '127.0.0.1:{port}'}}\n"
        for region, end, law, port in (
            ("us-east-1", "b", "US", 7071),
            ("eu-west-1", "a", "EU", 7072),
            ("eu-west-1", "b", "EU", 7073),
            ("eu-west-3", "a", "EU", 7074),
        )
    )
    whole = f"{SMALLEST}peers:\n{peers}"

    def told(tenants: str, policy: str = "policy: us.policy.yaml\n") -> list[tuple[str, str]]:
        done = CliRunner().invoke(cli, ["check", str(region_at(tmp_path, f"{whole}{policy}tenants: {tenants}\n"))])
        assert done.exit_code == 0, done.stderr
        return re.findall(
            r": (tenants\.[^:]+): the limit_scope is mesh, but gateways in (.+) are not told", done.stderr
        )

    every = "eu-west-1, eu-west-3"
    assert told("{acme: {concurrency_max: 6}}") == [("tenants.acme", every)]
    assert told("{acme: {tokens_per_minute: 6, limit_scope: region}, bank: {weight: 2}}") == []
    assert told("{bank: {requests_per_minute: 6}, gone: {concurrency_max: 1}}") == [("tenants.bank", "eu-west-3")]
    narrow = [("tenants.default for acme", every), ("tenants.default for bank", "eu-west-3")]
    assert told("{default: {concurrency_max: 6}}") == narrow
    assert told("{default: {concurrency_max: 6}, acme: {weight: 2}}") == narrow[1:]
    assert told("{acme: {concurrency_max: 6}}", policy="") == [("tenants.acme", every)]
