from __future__ import annotations

import json

import pytest

from gateway.request.side_channels import NOWHERE, SideChannel, stray_in

TWO_RANKS = SideChannel(frozenset({"p.example.net"}), ("10.1.0.0/24", "fd00::/64"), 5600, 2)


def stray(own: SideChannel, **told: object) -> bool:
    return bool(stray_in(json.dumps(told).encode(), own))


@pytest.mark.parametrize("port", [5600, 5601])
def test_each_rank_has_a_port(port: int) -> None:
    assert not stray(TWO_RANKS, remote_host="p.example.net", remote_port=port)


@pytest.mark.parametrize("port", [5599, 5602])
def test_no_other_port_is_its_own(port: int) -> None:
    assert stray(TWO_RANKS, remote_host="p.example.net", remote_port=port)


@pytest.mark.parametrize("host", ["10.1.0.9", "fd00::9", "P.EXAMPLE.NET.", "http://[fd00::9]:5600/x"])
def test_hosts_of_a_network_and_names_in_any_case_are_its_own(host: str) -> None:
    assert not stray(TWO_RANKS, remote_host=host)


@pytest.mark.parametrize("host", ["10.1.1.9", "fd00:1::9", "q.example.net", "fd00::9%eth0", "http://[fd00::9"])
def test_no_other_host_is(host: str) -> None:
    assert stray(TWO_RANKS, remote_host=host)


@pytest.mark.parametrize("key", ["host", "remote_hosts", "remoteHost", "kv_ip", "serverUrl", "REMOTE_ADDR", "endpoint"])
def test_a_host_is_known_by_its_name(key: str) -> None:
    assert stray(TWO_RANKS, **{key: "evil"})


def test_a_worker_of_which_nothing_is_known_leads_nowhere() -> None:
    assert stray(NOWHERE, remote_host="localhost")
    assert not stray(NOWHERE, remote_block_ids=[[1, 2]], remote_host=None, transfer_mode="pull")
