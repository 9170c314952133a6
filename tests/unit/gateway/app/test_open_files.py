from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gateway.app.commands import cli
from gateway.app.open_files import TOLD_MAX, warn_of_open_files
from gateway.config.sections import AuditConfig, GatewayConfig, JournalConfig, StateConfig
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.core import US
from tests.support.gateways import region_config, write_policy
from tests.support.region_files import SMALLEST, load_config, region_at

SECRETS = """
keys: keys.yaml
admin_token_file: token
cache_secret_file: token
audit: {signing_key: audit.key}
listen: {tls: {certificate: c, key: listen.key}}
peering: {tls: {certificate: c, key: peering.key, roots: r}}
"""
ENGINE = SMALLEST.replace(
    "models: [llama]",
    "models: [llama]\n    api_key_file: engine-key\n    tls: {client_certificate: c, client_key: engine.key}",
).replace("http://", "https://")


def file_at(path: Path, mode: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("s3cret")
    path.chmod(mode)
    return path


def config_in(folder: Path, *secrets: Path) -> GatewayConfig:
    config = region_config("us-1", US, [], policy_file=write_policy(folder, US))
    return replace(
        config,
        journal=JournalConfig(folder / "journal"),
        audit=AuditConfig(folder / "audit"),
        state=StateConfig(folder / "state"),
        secret_files=secrets,
    )


def warnings(config: GatewayConfig) -> list[dict[str, Any]]:
    stream = io.StringIO()
    warn_of_open_files(config, make_logger(LoggingConfig(format=LogFormat.JSON), "us-1", stream))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_file_with_a_secret_is_known(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "engine-key").write_text("t")
    config = load_config(region_at(tmp_path, ENGINE + SECRETS), environ={})
    assert sorted({path.name for path in config.secret_files}) == [
        "audit.key",
        "engine-key",
        "engine.key",
        "keys.yaml",
        "listen.key",
        "peering.key",
        "token",
    ]


def test_one_that_others_may_read_is_named_with_its_mode(tmp_path: Path) -> None:
    token, fine = file_at(tmp_path / "token", 0o644), file_at(tmp_path / "fine", 0o640)
    (told,) = warnings(config_in(tmp_path, token, fine, tmp_path / "missing"))
    assert (told["level"], told["kind"], told["path"], told["mode"]) == ("warning", "secret", str(token), "0644")
    assert "s3cret" not in json.dumps(told)


@pytest.mark.parametrize("name", ["journal/a.journal", "journal/a.crash", "audit/a.audit", "state/us-1.lockdown.json"])
def test_so_is_a_record_that_was_made_before(tmp_path: Path, name: str) -> None:
    file_at(tmp_path / name, 0o640)
    assert warnings(config_in(tmp_path)) == []
    (tmp_path / name).chmod(0o664)
    (told,) = warnings(config_in(tmp_path))
    assert (told["kind"], told["path"], told["mode"]) == ("record", str(tmp_path / name), "0664")


def test_many_are_counted(tmp_path: Path) -> None:
    for number in range(TOLD_MAX + 5):
        file_at(tmp_path / "journal" / f"{number}.journal", 0o644)
    *told, rest = warnings(config_in(tmp_path))
    assert (len(told), rest["files"]) == (TOLD_MAX, 5)


def test_a_check_says_so_too(tmp_path: Path) -> None:
    token = file_at(tmp_path / "token", 0o644)
    file = region_at(tmp_path, SMALLEST + "admin_token_file: token\n")
    done = CliRunner().invoke(cli, ["check", str(file)])
    assert done.exit_code == 0
    assert f"warning: {token} has mode 0644" in done.stderr
    token.chmod(0o600)
    assert "warning" not in CliRunner().invoke(cli, ["check", str(file)]).stderr
