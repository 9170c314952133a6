"""Lies lead astray, and a gateway that moves listens at its new address, while its engines stay where they are."""

from __future__ import annotations

from pathlib import Path

import yaml

from loadgen.demo.region_files import ZONE
from loadgen.studies.wan.faults import AP, EU, REGIONS, US
from loadgen.studies.wan.hosts import _write_moved, lies_in, name_of


def test_a_lie_leads_to_the_other_regions_gateway_and_clients_nowhere() -> None:
    addresses = {each: f"10.77.{number}.1" for number, each in enumerate(REGIONS, 1)}
    lies = lies_in(AP, addresses)
    assert (lies[name_of(US)], lies[name_of(EU)]) == ("10.77.2.1", "10.77.1.1")
    assert lies.keys() == {ZONE, name_of(US), name_of(EU)}
    assert lies[ZONE] not in addresses.values()


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
