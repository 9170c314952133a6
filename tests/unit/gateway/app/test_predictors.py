from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.app.predictors import PromptKeys
from gateway.config.sections import GatewayConfig, StateConfig
from gateway.core.vocabulary import GatewayId
from gateway.ground.config import LogFormat, LoggingConfig
from gateway.ground.logs import make_logger
from tests.support.core import US, profile
from tests.support.gateways import region_config

LONG = profile("a", prompt="hello " * 100)


def keys(folder: Path | None, stream: io.StringIO | None = None) -> PromptKeys:
    config: GatewayConfig = region_config("us-1", US, (), policy_file=Path("policy.yaml"))
    log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), stream or io.StringIO())
    return PromptKeys(replace(config, state=StateConfig(folder)), log)


def test_a_prompt_has_the_same_key_after_a_restart_and_another_one_elsewhere(tmp_path: Path) -> None:
    key = keys(tmp_path).of(LONG)
    assert len(key) == 8
    assert keys(tmp_path).of(LONG) == key
    assert keys(None).of(LONG) != key
    assert keys(tmp_path).of(profile("b", prompt="other " * 100)) != key
    assert keys(tmp_path).of(profile("b", prompt="hi")) == b"", "nothing tells it apart"


def test_the_secret_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    keys(tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == "us-1.prompts.secret.json"
    assert path.stat().st_mode & 0o007 == 0, "nobody else may read it"


@pytest.mark.parametrize("damage", [b"{", b'{"kind":"decode secret","version":2,"checksum":"","content":{}}'])
def test_a_damaged_secret_is_told_and_another_one_used(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "us-1.prompts.secret.json").write_bytes(damage)
    stream = io.StringIO()
    assert len(keys(tmp_path, stream).of(LONG)) == 8
    assert '"level":"error"' in stream.getvalue().replace(": ", ":")
