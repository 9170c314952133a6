"""`nightside gateway check` tells all that is wrong in one pass."""

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
