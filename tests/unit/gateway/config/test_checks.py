from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.core.vocabulary import Jurisdiction, Place, RegionName
from mesh.config import ListenTlsConfig, MeshTlsConfig
from mesh.values import (
    Address,
)
from tests.support.region_files import CERTIFIED, PEER, PROTECTED, SMALLEST, load_config, region_at, region_faults


@pytest.mark.parametrize(
    "exposed",
    [
        "keys: keys.yaml\nlisten: {http: '0.0.0.0:8080'}\n",
        "admin_token_file: token\nlisten: {admin: '10.0.0.1:9900'}\n",
        "listen: {peers: '127.evil.example:7070'}\n",
        PEER.replace("ADDRESS", "gw.eu.example:7070"),
    ],
)
def test_beyond_this_machine_without_tls_must_be_asked_for(tmp_path: Path, exposed: str) -> None:
    (tmp_path / "token").write_text("t0ken")
    (fault,) = region_faults(tmp_path, SMALLEST + exposed)
    assert "beyond this machine, without TLS" in fault
    load_config(region_at(tmp_path, SMALLEST + exposed + "insecure: true\n"), environ={})


def test_beyond_this_machine_clients_need_keys_and_operators_a_token(tmp_path: Path) -> None:
    http = SMALLEST + "listen: {http: '0.0.0.0:8080'}\n"
    beyond = "us.yaml: line 8: listen.http: 0.0.0.0:8080 is beyond this machine"
    no_keys = f"{beyond}, and no `keys` file says who may call, nor `oidc`"
    assert no_keys in region_faults(tmp_path, http)
    load_config(region_at(tmp_path, http + "insecure: true\n"), environ={})
    admin = SMALLEST + "insecure: true\nlisten: {admin: '0.0.0.0:9900'}\n"
    assert region_faults(tmp_path, admin) == [
        "us.yaml: line 9: listen.admin: 0.0.0.0:9900 is beyond this machine, and there is no `admin_token_file`, "
        "nor `operators`"
    ]


def test_with_tls_it_may_go_beyond_this_machine(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t" * 40)
    shown = "keys: keys.yaml\nadmin_token_file: token\n"
    peer = PEER.replace("ADDRESS", "gw.eu.example:7070")
    config = load_config(region_at(tmp_path, SMALLEST + PROTECTED + shown + peer), environ={})
    assert config.listen.tls == config.listen.admin_tls == ListenTlsConfig(tmp_path / "c.pem", tmp_path / "c.key")
    assert config.peering.tls == MeshTlsConfig(tmp_path / "c.pem", tmp_path / "c.key", tmp_path / "r.pem")


@pytest.mark.parametrize(
    "missing,exposed", [("listen", ["listen.http", "listen.admin"]), ("peering", ["listen.peers", "peers[0].address"])]
)
def test_each_kind_of_traffic_needs_tls_of_its_own(tmp_path: Path, missing: str, exposed: list[str]) -> None:
    (tmp_path / "token").write_text("t" * 40)
    document = yaml.safe_load(SMALLEST + PROTECTED + PEER.replace("ADDRESS", "gw.eu.example:7070"))
    del document[missing]["tls"]
    document |= {"keys": "keys.yaml", "admin_token_file": "token"}
    found = region_faults(tmp_path, yaml.safe_dump(document))
    assert [line.split(": ")[2] for line in found] == exposed
    assert all(f"without TLS ({missing}.tls)" in line for line in found)


def test_operators_on_this_machine_need_no_tls(tmp_path: Path) -> None:
    text = SMALLEST + f"listen: {{tls: {{{CERTIFIED}}}}}\n"
    assert load_config(region_at(tmp_path, text), environ={}).listen.admin_tls is None


def test_names_that_certificates_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    peer = PEER.replace("ADDRESS", "127.0.0.1:7071")
    text = SMALLEST + f"peering: {{tls: {{{CERTIFIED}, roots: r.pem}}}}\n" + peer
    load_config(region_at(tmp_path, text), environ={})
    for good, bad, path in (
        ("gateway: us-1", "gateway: us.1", "gateway"),
        ("region: us-east-1", "region: US_East", "region"),
        ("gateway: eu-1", "gateway: EU-1", "peers[0].gateway"),
        ("region: eu-west-1", "region: eu.west", "peers[0].region"),
    ):
        (fault,) = region_faults(tmp_path, text.replace(good, bad))
        assert f": {path}: with peering.tls, " in fault


def test_calls_outlive_the_requests_they_carry(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "peering: {connection_grace: 9m}\n")
    assert fault.startswith("us.yaml: line 8: peering.connection_grace: is below limits.request_deadline")


def test_a_forward_s_window_has_room_for_a_turn(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "peering: {forward_window: 15KiB}\n")
    assert fault.startswith("us.yaml: line 8: peering.forward_window: is below 16KiB")


def test_a_peer_that_behaves_has_time_to_be_heard(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "peering: {heartbeats_time_max: 4ms}\n")
    assert fault.startswith("us.yaml: line 8: peering.heartbeats_time_max: is below 5ms")


def test_gateways_that_divide_limits_wait_for_whoever_may_still_speak(tmp_path: Path) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + "shares: {reserved: 2s}\n")
    assert fault.startswith("us.yaml: line 8: shares.reserved: is below three times observation.keep_alive")
    (fault,) = region_faults(tmp_path, SMALLEST + "shares: {demand_window: 2m}\n")
    assert fault.startswith("us.yaml: line 8: shares.demand_window: ")


def test_tenants_are_named_as_everywhere_and_have_the_limits_that_there_are(tmp_path: Path) -> None:
    load_config(
        region_at(tmp_path, SMALLEST + "tenants: {acme: {concurrency_max: 1, limit_scope: region}}\n"), environ={}
    )
    for tenants, what in (
        ("{acme: {concurrency_max: 0}}", "tenants.acme.concurrency_max"),
        ("{acme: {concurrency: 1}}", "tenants.acme.concurrency"),
        ("{acme: {limit_scope: street}}", "tenants.acme.limit_scope"),
        ("{'a b': {}}", "tenants"),
    ):
        faults = region_faults(tmp_path, SMALLEST + f"tenants: {tenants}\n")
        assert what in faults[0]


def test_peers_are_other_gateways_each_named_once(tmp_path: Path) -> None:
    peer = PEER.replace("ADDRESS", "127.0.0.1:7071")
    (config,) = load_config(region_at(tmp_path, SMALLEST + peer), environ={}).peers
    assert (config.spec.gateway_id, config.spec.place) == ("eu-1", Place(RegionName("eu-west-1"), Jurisdiction("EU")))
    assert config.address == Address("127.0.0.1", 7071)
    itself = peer.replace("eu-1", "us-1").replace("eu-west-1, jurisdiction: EU", "us-east-1, jurisdiction: US")
    assert region_faults(tmp_path, SMALLEST + itself) == [
        "us.yaml: line 9: peers[0].gateway: 'us-1' is used twice, or is this gateway"
    ]


@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("[ns.example.net:53]", "dns.listen[0]: ns.example.net:53 is not an address and a port such as 192.0.2.53:53"),
        ("['192.0.2.53:53', '192.0.2.53:53']", "dns.listen[1]: 192.0.2.53:53 is listed twice"),
        ("[192.0.2.53]", "dns.listen[0]: '192.0.2.53' is not an address such as 127.0.0.1:8080 or [::1]:8080"),
    ],
)
def test_names_are_answered_at_addresses_each_once(tmp_path: Path, listen: str, told: str) -> None:
    (fault,) = region_faults(tmp_path, SMALLEST + f"dns: {{listen: {listen}}}\n")
    assert fault.endswith(told)


def test_names_may_be_answered_beyond_this_machine_and_at_any_free_port(tmp_path: Path) -> None:
    text = SMALLEST + "dns: {listen: ['192.0.2.53:53', '127.0.0.1:0', '127.0.0.1:0']}\n"
    config = load_config(region_at(tmp_path, text), environ={})
    assert [str(each) for each in config.dns.listen] == ["192.0.2.53:53", "127.0.0.1:0", "127.0.0.1:0"]
