"""Assigns the demo's ports and addresses, and makes the certificates of its gateways and controller. It starts no
process that lasts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


def lay_out(
    scenario: DemoScenario,
    rng: random.Random | None = None,
    *,
    own_addresses: bool | None = None,
    may_listen: Callable[[str, int], bool] = is_free,
) -> Layout:
    """Assign ports and addresses. `own_addresses` is whether each gateway has its own; None detects it. `may_listen`
    tests whether the system permits listening at a host and port."""
    rng = rng or random.Random()
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


def roles_of(region: RegionScenario) -> list[ReplicaRole]:
    """Roles of the region's engines, in order."""
    assert not region.prefill_engines or region.gateways == 1, "a pool has one gateway"
    if not region.prefill_engines:
        return [ReplicaRole.UNIFIED] * region.engines
    readers, writers = region.prefill_engines, region.engines - region.prefill_engines
    return [ReplicaRole.PREFILL] * readers + [ReplicaRole.DECODE] * writers


def url_at(port: int, host: str = LOOPBACK) -> str:
    return f"http://{host}:{port}"


async def make_certificates(folder: Path, layout: Layout) -> Mapping[str, Mapping[str, str]]:
    """Create certificates with `nightside dev-certs`; returns, by name of each gateway and of the controller, the TLS
    entries of their configuration files."""
    command = [*OUR_MODULES, "nightside", "dev-certs", str(folder), "--trust-domain", TRUST_DOMAIN, "--json"]
    for seat in layout.seats:
        command += ["--gateway", f"{seat.gateway_id}:{seat.region.name}"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--controller",
        CONTROLLER,
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
