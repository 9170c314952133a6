"""`nightside gateway check` reports all faults in one pass."""

from __future__ import annotations

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
