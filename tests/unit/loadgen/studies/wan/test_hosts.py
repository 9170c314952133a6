"""A gateway that moves listens at its new address, and its engines stay where they are."""

from __future__ import annotations

from pathlib import Path

import yaml

from loadgen.studies.wan.hosts import _write_moved


def test_a_gateway_moves_without_its_engines(tmp_path: Path) -> None:
    file = tmp_path / "us.yaml"
    before = {
        "listen": {"http": "10.77.1.1:80", "peers": "10.77.1.1:81", "admin": "127.77.1.1:82"},
        "dns": {"listen": ["10.77.1.1:53"]},
        "control": {"client_addresses": ["10.77.1.1"], "controllers": ["us.hosts.test:90"]},
        "replicas": [{"url": "http://10.77.1.1:8000"}],
    }
    file.write_text(yaml.safe_dump(before))
    _write_moved(file, "10.77.1.1", "10.77.1.2")
    after = yaml.safe_load(file.read_text())
    assert after["listen"] == {"http": "10.77.1.2:80", "peers": "10.77.1.2:81", "admin": "127.77.1.1:82"}
    assert (after["dns"]["listen"], after["control"]["client_addresses"]) == (["10.77.1.2:53"], ["10.77.1.2"])
    assert after["replicas"] == before["replicas"]
