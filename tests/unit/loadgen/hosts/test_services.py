"""Files of a region's name server, and the programs that hosts need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loadgen.hosts import services
from loadgen.hosts.namespaces import HostsUnavailable
from loadgen.hosts.services import RegionNames, check_programs, clock_environment

US, EU = "us.hosts.test", "eu.hosts.test"


@pytest.fixture
def names(tmp_path: Path) -> RegionNames:
    return RegionNames(tmp_path, "10.77.101.1", {US: "10.77.1.1", EU: "10.77.2.1"}, "hosts.test", "llm.test")


def zone(names: RegionNames, name: str) -> list[str]:
    return (names.folder / f"{name}.zone").read_text().splitlines()


def told(names: RegionNames) -> str:
    return (names.folder / "named.conf").read_text()


def test_it_knows_the_hosts_and_asks_the_mesh_for_its_name(names: RegionNames) -> None:
    names.servers = [("10.77.1.1", 5353), ("10.77.2.1", 5354)]
    names._write()
    assert zone(names, "hosts")[3:] == ["us A 10.77.1.1", "eu A 10.77.2.1"]
    assert "forwarders { 10.77.1.1 port 5353; 10.77.2.1 port 5354; };" in told(names)


def test_without_the_meshs_servers_its_name_does_not_exist(names: RegionNames) -> None:
    names._write()
    assert "forwarders" not in told(names)
    assert len(zone(names, "mesh")) == 3


def test_lies_replace_addresses_and_end_with_the_truth_and_each_zone_is_newer(names: RegionNames) -> None:
    names.servers = [("10.77.1.1", 5353)]
    names._write()
    serial = int(zone(names, "hosts")[1].split()[4])
    names.lies = {US: "10.77.2.1", "llm.test": "10.77.250.1"}
    names._write()
    assert zone(names, "hosts")[3:] == ["us A 10.77.2.1", "eu A 10.77.2.1"]
    assert zone(names, "mesh")[3:] == ["@ A 10.77.250.1"]
    assert "forwarders" not in told(names)
    names.lies = {}
    names._write()
    assert zone(names, "hosts")[3:] == ["us A 10.77.1.1", "eu A 10.77.2.1"]
    assert int(zone(names, "hosts")[1].split()[4]) == serial + 2
    assert "forwarders" in told(names)


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(services, "_VERSIONS", tmp_path / "none")
    monkeypatch.setattr(services, "_CLOCKS", tmp_path)
    with pytest.raises(HostsUnavailable, match=r"`named` \(Debian package bind9\), .*`libfaketime`"):
        check_programs()


def test_a_clock_reads_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "any" / "faketime" / "libfaketime.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(services, "_CLOCKS", tmp_path)
    assert {f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={tmp_path}/clock"} <= {
        *clock_environment(tmp_path / "clock")
    }
