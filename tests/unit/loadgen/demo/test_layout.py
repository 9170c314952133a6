"""Addresses of the demo: every process listens on one of its own, and clients of each region are told apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from loadgen.demo.layout import Layout, RegionHost, lay_out, make_certificates
from loadgen.demo.processes import DemoFailure
from loadgen.demo.region_files import LOOPBACK, is_free
from loadgen.demo.scenario import DemoScenario

SCENARIO = DemoScenario()


def laid_out(*, own: bool, may_listen: Callable[[str, int], bool] = is_free) -> Layout:
    regions = tuple(replace(each, gateways=2) for each in SCENARIO.regions)
    return lay_out(replace(SCENARIO, regions=regions), random.Random(1), own_addresses=own, may_listen=may_listen)


def ports_of(layout: Layout) -> list[int]:
    assert layout.controller is not None
    found = [layout.controller.grpc, layout.controller.admin, layout.controller.dns]
    found += chain.from_iterable(layout.engines.values())
    for seat in layout.seats:
        found += [seat.ports.peers, seat.ports.admin]
    return found


def test_gateways_have_one_port_and_an_address_each() -> None:
    layout = laid_out(own=True, may_listen=lambda _host, _port: True)
    assert len({seat.ports.host for seat in layout.seats}) == 6
    (http,) = {seat.ports.http for seat in layout.seats}
    (dns,) = {seat.ports.dns for seat in layout.seats}
    assert len({http, dns, *ports_of(layout)}) == 2 + len(ports_of(layout))
    assert len(set(layout.networks.values())) == len(SCENARIO.regions)


def test_that_port_is_free_at_each_of_them() -> None:
    last = laid_out(own=True, may_listen=lambda _host, _port: True).seats[-1].ports
    taken = {(last.host, last.http), (last.host, last.dns)}
    layout = laid_out(own=True, may_listen=lambda host, port: (host, port) not in taken)
    ((http, dns),) = {(seat.ports.http, seat.ports.dns) for seat in layout.seats}
    assert {http, dns}.isdisjoint({last.http, last.dns})


def test_without_such_addresses_each_has_a_port_and_there_is_no_name() -> None:
    layout = laid_out(own=False)
    assert {seat.ports.host for seat in layout.seats} == {LOOPBACK}
    assert len({*ports_of(layout), *(seat.ports.http for seat in layout.seats)}) == len(ports_of(layout)) + 6
    assert (layout.networks, {seat.ports.dns for seat in layout.seats}) == ({}, {0})


def test_gateways_of_a_region_share_its_engines() -> None:
    layout = laid_out(own=False)
    for region in SCENARIO.regions:
        shared = [seat.engines for seat in layout.seats if seat.region.name == region.name]
        assert [len(each) for each in shared] == [2, 2]
        assert sorted(chain(*shared)) == sorted(layout.engines[region.name])
    assert [seat.gateway_id for seat in layout.seats][:2] == ["gw-us-east-1", "gw-us-east-1-2"]


def test_on_hosts_of_their_own_regions_listen_there_and_operators_reach_each_by_another_loopback_address() -> None:
    hosts = {
        each.name: RegionHost(f"10.77.{number}.1", f"127.77.{number}.1", f"10.77.10{number}.0/24", ("on", str(number)))
        for number, each in enumerate(SCENARIO.regions, 1)
    }
    layout = lay_out(SCENARIO, random.Random(1), region_hosts=hosts)
    for number, seat in enumerate(layout.seats, 1):
        assert {seat.ports.host, seat.ports.peers_host} == {f"10.77.{number}.1"}
        assert seat.ports.admin_host == f"127.77.{number}.1"
        name = seat.region.name
        assert layout.url_of_engine(name, 1).startswith(f"http://10.77.{number}.1:")
        assert layout.runner_in(name)[:2] == ("on", str(number))
    assert layout.controller is not None
    assert (layout.controller.host, layout.controller.admin_host) == ("10.77.1.1", "127.77.1.1")
    first, second = layout.controllers(SCENARIO.regions[1].name)
    assert (first.region, second.region, second.name) == (
        *[each.name for each in SCENARIO.regions[:2]],
        "demo-controller-2",
    )
    assert (second.admin, second.ports.host) == (f"http://127.77.2.1:{first.ports.admin}", "10.77.2.1")
    assert layout.controllers() == (first,)
    assert layout.found_at(first.region, "10.77.1.1") == "10.77.1.1"
    named = replace(layout, hosts={first.region: replace(hosts[first.region], name="us.hosts.test")})
    assert named.found_at(first.region, "10.77.1.1") == "us.hosts.test"
    assert layout.networks == {name: host.clients for name, host in hosts.items()}
    on_loopback = laid_out(own=True, may_listen=lambda *_: True)
    assert on_loopback.url_of_engine(SCENARIO.regions[0].name, 1) == "http://127.0.0.1:1"
    assert on_loopback.runner_in(SCENARIO.regions[0].name)[-1] == "-m"


async def test_certificates_are_made_for_all_and_nobody_elses_are_taken(tmp_path: Path) -> None:
    layout = laid_out(own=False)
    made = await make_certificates(tmp_path / "certificates", layout)
    assert set(made) == {*(seat.gateway_id for seat in layout.seats), "demo-controller"}
    assert {Path(path).parent for tls in made.values() for path in tls.values()} == {tmp_path / "certificates"}
    with pytest.raises(DemoFailure, match="is there already"):
        await make_certificates(tmp_path / "certificates", layout)
