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


HOST_KEYS = ["host", "remote_hosts", "remoteHost", "kv_ip", "kvIp", "serverUrl", "REMOTE_ADDR", "endpoint", "addresses"]
LIST_KEYS = ["ip_list", "hostList", "remote_host_list", "hostport", "host_port", "remoteHostPort", "remote-host"]


@pytest.mark.parametrize("key", [*HOST_KEYS, *LIST_KEYS, "num_hosts"])
def test_a_host_is_known_by_its_name(key: str) -> None:
    assert stray(TWO_RANKS, **{key: "evil"})
    assert stray(TWO_RANKS, **{key: ["p.example.net", "evil"]})
    assert not stray(TWO_RANKS, **{key: "p.example.net"})


@pytest.mark.parametrize("key", ["port", "remote_ports", "remotePort", "KV_PORT", "port_list", "hostport", "host_port"])
def test_a_port_is_known_by_its_name(key: str) -> None:
    assert stray(TWO_RANKS, **{key: 22})
    assert stray(TWO_RANKS, **{key: [5600, 22]})
    assert not stray(TWO_RANKS, **{key: 5600})


@pytest.mark.parametrize("key", ["host_port", "hostport"])
def test_a_host_and_a_port_in_one_text_are_both_its_own(key: str) -> None:
    assert not stray(TWO_RANKS, **{key: "p.example.net:5601"})
    assert stray(TWO_RANKS, **{key: "p.example.net:22"})
    assert stray(TWO_RANKS, **{key: "q.example.net:5601"})


@pytest.mark.parametrize("key", ["skip", "tip", "clip", "chips", "ghost", "report", "transport", "observer", "listing"])
def test_a_name_that_ends_like_a_host_or_a_port_is_none(key: str) -> None:
    assert not stray(TWO_RANKS, **{key: "evil"})
    assert not stray(TWO_RANKS, **{key: 22})


FOREIGN = ["10.1.1.9", "10.1.1.9:5600", "fd00:1::9", "[fd00:1::9]:5600", "10.1.0.9:22"]


@pytest.mark.parametrize("text", FOREIGN)
def test_an_address_is_one_whatever_its_member_is_called(text: str) -> None:
    assert stray(TWO_RANKS, note=text)


@pytest.mark.parametrize("text", ["10.1.0.9", "[fd00::9]:5601", "10.1.1", "12:30", "1.2.3.4.5"])
def test_its_own_address_is_none_to_refuse_nor_is_what_only_looks_like_one(text: str) -> None:
    assert not stray(TWO_RANKS, note=text)


@pytest.mark.parametrize("key", ["num_hosts", "numHosts", "remote_num_servers", "num_ports", "hosts", "addresses"])
@pytest.mark.parametrize("count", [2, 2.5, True])
def test_how_many_there_are_leads_nowhere(key: str, count: float) -> None:
    assert not stray(TWO_RANKS, **{key: count})


@pytest.mark.parametrize("told", [{"host": 167772167}, {"address": 167772167}, {"hosts": [167772167]}, {"ports": True}])
def test_a_number_in_the_place_of_a_host_is_none_of_its_own(told: dict[str, object]) -> None:
    assert stray(TWO_RANKS, **told)


def test_a_worker_of_which_nothing_is_known_leads_nowhere() -> None:
    assert stray(NOWHERE, remote_host="localhost")
    assert not stray(NOWHERE, remote_block_ids=[[1, 2]], remote_host=None, transfer_mode="pull")


@pytest.mark.parametrize(
    ("told", "host"),
    [
        ({"remote_host": "localhost"}, "localhost"),
        ({"x": "http://user:word@10.9.9.9:80/of-a-prompt?q#f"}, "10.9.9.9:80"),
        ({"remote_host": "[fd00:1::9]:80"}, "[fd00:1::9]:80"),
        ({"remote_host": "a\n\x1b[2Jb \u202ec"}, "a??[2Jb??c"),
        ({"remote_host": "a" * 1000}, "a" * 100),
        ({"remote_host": 167772167}, ""),
        ({"remote_port": 22}, ""),
    ],
)
def test_the_host_that_is_refused_is_told_beside_the_fault_and_bounded(told: dict[str, object], host: str) -> None:
    found = stray_in(json.dumps(told).encode(), TWO_RANKS)
    assert found is not None
    assert found.host == host
    assert not host or host not in found.why
