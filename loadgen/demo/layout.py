"""Assigns the demo's ports and addresses, and makes the certificates of its gateways and controller. It starts no
process that lasts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.core.vocabulary import GatewayId, RegionName, ReplicaRole
from loadgen.demo.processes import OUR_MODULES, DemoFailure
from loadgen.demo.region_files import (
    CONTROLLER,
    LOOPBACK,
    TRUST_DOMAIN,
    ControllerPorts,
    GatewayPorts,
    free_ports,
    gateway_id,
    has_addresses_of_its_own,
    host_of,
    is_free,
    network_of,
)
from loadgen.demo.scenario import DemoScenario, RegionScenario


@dataclass(frozen=True, slots=True)
class RegionHost:
    """Host of one region's processes, where regions do not share this machine's loopback."""

    address: str
    """Address for clients, peers and engines."""
    admin_address: str
    """Loopback address of the host for its operators; no other host has it."""
    clients: str
    """Network of the region's clients."""
    command: tuple[str, ...]
    """Begin of a command line that runs a program on the host."""
    name: str = ""
    """DNS name by which gateways find the host; empty: they know its address."""
    state: Path | None = None
    """Folder for what its processes keep, as they see it; None: one that all hosts share."""


@dataclass(frozen=True, slots=True)
class ControllerSeat:
    """Name, region and ports of one controller."""

    name: str
    region: RegionName
    ports: ControllerPorts

    @property
    def admin(self) -> str:
        return url_at(self.ports.admin, self.ports.admin_host)


@dataclass(frozen=True, slots=True)
class Seat:
    """Ports and engines of one gateway."""

    region: RegionScenario
    number: int
    """Number of the gateway within its region."""
    ports: GatewayPorts
    engines: tuple[int, ...]
    """Ports of the engines, prefill workers first."""

    @property
    def gateway_id(self) -> GatewayId:
        return gateway_id(self.region.name, self.number)


@dataclass(frozen=True, slots=True)
class Layout:
    seats: tuple[Seat, ...]
    engines: dict[RegionName, tuple[int, ...]]
    controller: ControllerPorts | None
    roles: dict[int, ReplicaRole]
    """Role of the engine on each port."""
    networks: dict[RegionName, str]
    """Network of each region's clients; empty where gateways have no addresses of their own."""
    hosts: Mapping[RegionName, RegionHost] = field(default_factory=dict)
    """Host of each region; empty where all regions are on this machine's loopback."""

    def runner_in(self, region: RegionName) -> tuple[str, ...]:
        """Begin of a command line that runs a Python module in the region."""
        host = self.hosts.get(region)
        return OUR_MODULES if host is None else (*host.command, *OUR_MODULES)

    def controllers(self, standby: RegionName | None = None) -> tuple[ControllerSeat, ...]:
        """All controllers, the one that is to lead first; `standby`: region on whose host another one stands by."""
        if self.controller is None:
            return ()
        first = ControllerSeat(CONTROLLER, self.seats[0].region.name, self.controller)
        if standby is None:
            return (first,)
        host = self.hosts[standby]
        ports = replace(self.controller, host=host.address, admin_host=host.admin_address)
        return (first, ControllerSeat(f"{CONTROLLER}-2", standby, ports))

    def found_at(self, region: RegionName, address: str) -> str:
        """DNS name of the region's host, by which others find it; without one, the address."""
        host = self.hosts.get(region)
        return address if host is None or not host.name else host.name

    def url_of_engine(self, region: RegionName, port: int) -> str:
        host = self.hosts.get(region)
        return url_at(port, LOOPBACK if host is None else host.address)


def lay_out(
    scenario: DemoScenario,
    rng: random.Random | None = None,
    *,
    own_addresses: bool | None = None,
    may_listen: Callable[[str, int], bool] = is_free,
    region_hosts: Mapping[RegionName, RegionHost] | None = None,
) -> Layout:
    """Assign ports and addresses. `own_addresses` is whether each gateway has its own; None detects it. `may_listen`
    tests whether the system permits listening at a host and port. `region_hosts`: each region has a host of its own,
    on which no other program listens."""
    rng = rng or random.Random()
    if region_hosts:
        return _on_hosts(lay_out(scenario, rng, own_addresses=True, may_listen=lambda *_: True), region_hosts)
    own = scenario.has_controller and (has_addresses_of_its_own() if own_addresses is None else own_addresses)
    places = [(region, number) for region in scenario.regions for number in range(region.gateways)]
    hosts = [host_of(index) if own else LOOPBACK for index in range(len(places))]
    shared = free_ports(2, rng, hosts, may_listen)
    """Ports for clients and for DNS, shared by all gateways, each of which listens at its own address."""
    engine_count = sum(region.engines for region in scenario.regions)
    wanted = 3 * len(places) + engine_count + 3 + len(shared)
    free = iter([port for port in free_ports(wanted, rng, may_listen=may_listen) if port not in shared])
    engines = {region.name: tuple(next(free) for _ in range(region.engines)) for region in scenario.regions}
    seats = []
    for (region, number), host in zip(places, hosts, strict=True):
        http, dns = shared if own else (next(free), 0)
        ports = GatewayPorts(http, next(free), next(free), host, dns)
        seats.append(Seat(region, number, ports, engines[region.name][number :: region.gateways]))
    networks = {seat.region.name: network_of(index) for index, seat in enumerate(seats) if not seat.number}
    controller = ControllerPorts(next(free), next(free), next(free)) if scenario.has_controller else None
    roles = {
        port: role
        for region in scenario.regions
        for port, role in zip(engines[region.name], roles_of(region), strict=True)
    }
    return Layout(tuple(seats), engines, controller, roles, networks if own else {})


def _on_hosts(layout: Layout, hosts: Mapping[RegionName, RegionHost]) -> Layout:
    """Layout with each region's processes at the addresses of its host. All gateways listen for peers on one port, so
    that a name that leads astray leads to another gateway."""
    seats = []
    for seat in layout.seats:
        assert not seat.number, "a host has one address for clients, and so one gateway"
        host = hosts[seat.region.name]
        ports = replace(
            seat.ports, host=host.address, peers_host=host.address, admin_host=host.admin_address,
            peers=layout.seats[0].ports.peers,
        )  # fmt: skip
        seats.append(replace(seat, ports=ports))
    controller, where = layout.controller, hosts[seats[0].region.name]
    if controller is not None:
        controller = replace(controller, host=where.address, admin_host=where.admin_address)
    networks = {name: host.clients for name, host in hosts.items()}
    return replace(layout, seats=tuple(seats), controller=controller, networks=networks, hosts=hosts)


def roles_of(region: RegionScenario) -> list[ReplicaRole]:
    """Roles of the region's engines, in order."""
    assert not region.prefill_engines or region.gateways == 1, "a pool has one gateway"
    if not region.prefill_engines:
        return [ReplicaRole.UNIFIED] * region.engines
    readers, writers = region.prefill_engines, region.engines - region.prefill_engines
    return [ReplicaRole.PREFILL] * readers + [ReplicaRole.DECODE] * writers


def url_at(port: int, host: str = LOOPBACK) -> str:
    return f"http://{host}:{port}"


async def make_certificates(
    folder: Path, layout: Layout, controllers: Sequence[str] = (CONTROLLER,)
) -> Mapping[str, Mapping[str, str]]:
    """Create certificates with `nightside dev-certs`; returns, by name of each gateway and controller, the TLS entries
    of their configuration files."""
    command = [*OUR_MODULES, "nightside", "dev-certs", str(folder), "--trust-domain", TRUST_DOMAIN, "--json"]
    for seat in layout.seats:
        command += ["--gateway", f"{seat.gateway_id}:{seat.region.name}"]
    for controller in controllers:
        command += ["--controller", controller]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise DemoFailure(f"no certificates were made: {err.decode(errors='replace').strip()}")
    made = json.loads(out)
    found = {name: part["peering"]["tls"] for name, part in made["gateways"].items()}
    return found | {name: part["tls"] for name, part in made["controllers"].items()}
