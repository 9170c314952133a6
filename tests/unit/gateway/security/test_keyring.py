from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.security.keyring import Keyring
from gateway.security.keys import mint
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.reloader import ReloadRefused


class At(Clock):
    def __init__(self, wall_ns: int) -> None:
        self.at_ns = wall_ns

    def wall_ns(self) -> int:
        return self.at_ns


def write(path: Path, key_id: str, **more: object) -> str:
    key, kept = mint(key_id)
    path.write_text(yaml.safe_dump({"keys": [{"id": key_id, "hash": str(kept), "tenant": "acme", **more}]}))
    return key


async def test_a_changed_file_replaces_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    old = write(path, "old")
    ring = Keyring(path, Clock())
    assert ring.check(old) is not None
    new = write(path, "new")
    await ring.reload()
    assert ring.check(old) is None
    assert ring.check(new) is not None
    assert ring.files() == (path,)


async def test_a_broken_file_is_refused_and_the_old_keys_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key = write(path, "a")
    ring = Keyring(path, Clock())
    path.write_text("keys: [\n")
    with pytest.raises(ReloadRefused, match=r"keys\.yaml: line 2"):
        await ring.reload()
    path.unlink()
    with pytest.raises(ReloadRefused, match="cannot be read"):
        await ring.reload()
    assert ring.check(key) is not None


def test_without_a_usable_file_there_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Keyring(tmp_path / "none.yaml", Clock())


def test_a_key_expires_while_it_is_in_force(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key = write(path, "a", expires="2001-09-09T01:46:40Z")
    clock = At(10**18 - 1)
    ring = Keyring(path, clock)
    assert ring.check(key) is not None
    clock.at_ns += 1
    assert ring.check(key) is None
