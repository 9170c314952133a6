"""The files that the demo hands to its gateways are valid region files."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pytest

from controller.config import read_controller_file
from gateway.core.kernel.config import OverflowMode
from gateway.core.kernel.residency import may_accept, may_process
from gateway.core.vocabulary import PoolKind, RegionName, ReplicaRole, TenantName
from gateway.policy.file import load_policy
from loadgen.demo.region_files import (
    CONTROLLER,
    Controlled,
    ControllerPorts,
    GatewayPorts,
    controller_file,
    free_ports,
    gateway_id,
    network_of,
    region_file,
)
from loadgen.demo.scenario import MODEL, ROUND_TRIPS_FILE, DemoScenario
from loadgen.round_trips import read_round_trips
from tests.support.region_files import load_config

REGIONS = {region.name: region for region in DemoScenario().regions}
US, EU, AP = (RegionName(name) for name in ("us-east-1", "eu-west-1", "ap-northeast-1"))


@pytest.mark.parametrize("overflow", OverflowMode)
def test_a_gateway_reads_what_was_written(tmp_path: Path, overflow: OverflowMode) -> None:
    file = tmp_path / "us.yaml"
    file.write_text(
        region_file(
            REGIONS[US],
            ports=GatewayPorts(20001, 20002, 20003),
            engines=["http://127.0.0.1:20004", "http://127.0.0.1:20005"],
            model=MODEL,
            peers=[(gateway_id(EU), REGIONS[EU], "127.0.0.1:20006"), (gateway_id(AP), REGIONS[AP], "127.0.0.1:20007")],
            overflow=overflow,
            seed=1,
        )
    )
    config = load_config(file, {})
    assert config.place == REGIONS[US].place
    assert config.core.placement.overflow is overflow
    assert (config.listen.http.port, config.listen.peers.port, config.listen.admin.port) == (20001, 20002, 20003)
    assert [each.url for each in config.replicas] == ["http://127.0.0.1:20004", "http://127.0.0.1:20005"]
    assert {each.spec.models for each in config.replicas} == {(MODEL,)}
    assert {each.spec.place.region: each.address.port for each in config.peers} == {EU: 20006, AP: 20007}
    assert config.policy_file == REGIONS[US].policy_file


def test_engines_that_share_their_work_are_one_pool(tmp_path: Path) -> None:
    file = tmp_path / "eu.yaml"
    file.write_text(
        region_file(
            REGIONS[EU],
            ports=GatewayPorts(20001, 20002, 20003),
            engines=["http://127.0.0.1:20004", "http://127.0.0.1:20005"],
            model=MODEL,
            peers=[],
            overflow=OverflowMode.ON,
            seed=1,
            roles=[ReplicaRole.PREFILL, ReplicaRole.DECODE],
        )
    )
    config = load_config(file, {})
    (pool,) = config.pools
    assert (pool.kind, pool.decode_batch_max) == (PoolKind.DISAGGREGATED, 12)
    assert [(each.spec.pool, each.spec.role) for each in config.replicas] == [
        (pool.name, ReplicaRole.PREFILL),
        (pool.name, ReplicaRole.DECODE),
    ]


def test_one_that_is_controlled_says_so_with_its_own_address(tmp_path: Path) -> None:
    file = tmp_path / "us.yaml"
    tls = {name: str(tmp_path / name) for name in ("certificate", "key", "roots")}
    file.write_text(
        region_file(
            REGIONS[US],
            ports=GatewayPorts(20001, 20002, 20003, "127.77.1.1", 20005),
            engines=["http://127.0.0.1:20004"],
            model=MODEL,
            peers=[],
            overflow=OverflowMode.ON,
            seed=1,
            number=1,
            controlled=Controlled(["127.0.0.1:20006"], tls, tmp_path / "state"),
        )
    )
    config = load_config(file, {})
    assert (config.gateway_id, str(config.listen.http)) == ("gw-us-east-1-2", "127.77.1.1:20001")
    assert [each.spec.replica_id for each in config.replicas] == ["us-east-1-2-0"]
    assert config.control.client_addresses == ("127.77.1.1",)
    assert list(map(str, config.control.controllers)) == ["127.0.0.1:20006"]
    assert list(map(str, config.dns.listen)) == ["127.77.1.1:20005"]
    assert config.peering.tls is not None


def test_a_controller_reads_what_was_written(tmp_path: Path) -> None:
    text = controller_file(
        regions=REGIONS[next(iter(REGIONS))].table_file,
        ports=ControllerPorts(20001, 20002, 20003),
        store={"path": str(tmp_path / "controller.db")},
        tls={name: str(tmp_path / name) for name in ("certificate", "key", "roots")},
        name_servers=["127.77.1.1"],
        networks={US: network_of(0)},
        client_port=20004,
        region=US,
    )
    (tmp_path / "controller.yaml").write_text(text)
    file = read_controller_file(tmp_path / "controller.yaml", {})
    assert (file.controller, file.naming.zone, file.naming.port) == (CONTROLLER, "llm.demo.test", 20004)
    assert file.place is not None
    assert file.place.region == US
    assert [each.addresses for each in file.naming.name_servers] == [("127.0.0.1",), ("127.77.1.1",)]


def test_the_busy_region_may_use_both_others_and_the_eu_is_closed_outwards() -> None:
    policies = {name: load_policy(region.policy_file) for name, region in REGIONS.items()}
    open_ways = {
        (origin, there)
        for origin in policies
        for there in policies
        if origin != there
        and may_process(policies[origin], TenantName(""), policies[there].place).allowed
        and may_accept(policies[there], policies[origin].place).allowed
    }
    assert open_ways == {(US, EU), (US, AP), (AP, US), (AP, EU)}


def test_each_policy_is_for_the_place_where_its_gateway_stands() -> None:
    for region in REGIONS.values():
        assert load_policy(region.policy_file).place == region.place


def test_the_table_knows_the_way_between_any_two_regions() -> None:
    table = read_round_trips(ROUND_TRIPS_FILE)
    assert all(table.round_trip_s(one, other) > 0 for one, other in combinations(REGIONS, 2))


def test_ports_differ_from_each_other() -> None:
    ports = free_ports(30, random.Random(1))
    assert len(set(ports)) == 30
