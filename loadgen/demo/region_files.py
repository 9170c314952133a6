"""Writes the configuration files of the demo's gateways and controller, and finds their ports and addresses."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from gateway.core.kernel.config import OverflowMode
from gateway.core.vocabulary import GatewayId, ModelName, RegionName, ReplicaRole
from loadgen.demo.scenario import CONNECTOR, RegionScenario

LOOPBACK = "127.0.0.1"
ZONE = "llm.demo.test"
"""The demo's one DNS name."""
CONTROLLER = "demo-controller"
TRUST_DOMAIN = "demo.test"
POOL = "shared"
"""Pool of prefill and decode workers."""
_PORTS = range(20_000, 30_000)
"""Ports below those that systems assign to outgoing connections, which would otherwise take them in between."""
_ANSWERS_PER_S = 100_000
"""DNS rate limit, raised because all of the demo's clients ask from one network."""


@dataclass(frozen=True, slots=True)
class GatewayPorts:
    http: int
    peers: int
    admin: int
    host: str = LOOPBACK
    """Address on which clients connect."""
    dns: int = 0
    """Zero for a gateway that does not answer DNS queries."""
    peers_host: str = LOOPBACK
    admin_host: str = LOOPBACK


@dataclass(frozen=True, slots=True)
class Controlled:
    """Settings that attach a gateway to the demo's controller."""

    controllers: Sequence[str]
    """Addresses on which controllers listen for gateways."""
    tls: Mapping[str, str]
    """The gateway's certificate, for peers and controllers."""
    state: Path
    artifacts: Path | None = None
    """Folder of files that the gateway may read for pools that it adopts."""


def has_addresses_of_its_own() -> bool:
    """True if this system has several loopback addresses, as Linux has."""
    return is_free(host_of(0), 0)


def is_free(host: str, port: int) -> bool:
    """True if the system permits listening at the host and port; port 0 tests the address alone."""
    with suppress(OSError), socket.socket() as probe:
        probe.bind((host, port))
        return True
    return False


def host_of(number: int) -> str:
    """Address of one gateway; its network is that of its region's clients."""
    return f"127.77.{1 + number}.1"


def network_of(number: int) -> str:
    """Network that stands for a region's clients."""
    return f"127.77.{1 + number}.0/24"


def free_ports(
    count: int,
    rng: random.Random,
    hosts: Sequence[str] = (LOOPBACK,),
    may_listen: Callable[[str, int], bool] = is_free,
) -> list[int]:
    """Ports on which no process listens at this moment, at any of these addresses."""
    ports: list[int] = []
    for port in rng.sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        if all(may_listen(host, port) for host in hosts):
            ports.append(port)
    assert len(ports) == count, "the machine has no free ports left"
    return ports


def gateway_id(region: RegionName, number: int = 0) -> GatewayId:
    """Id of a gateway; the first of a region has the region's name alone."""
    return GatewayId(f"gw-{region}" if number == 0 else f"gw-{region}-{1 + number}")


def write_table(regions: Sequence[RegionScenario], networks: Mapping[RegionName, str] | None = None) -> None:
    """Write the table of regions beside the policies, which name it. `networks` has the network of each region's
    replicas, which are on this machine's loopback otherwise."""
    table = {
        str(each.name): {
            "jurisdiction": str(each.place.jurisdiction),
            "replicas": ["127.0.0.0/8" if networks is None else networks[each.name]],
        }
        for each in regions
    }
    for file in {each.table_file for each in regions}:
        file.write_text(yaml.safe_dump({"version": 1, "regions": table}))


def write_open_policies(regions: Sequence[RegionScenario], folder: Path) -> None:
    """Write policies by which each region's jurisdiction is open to itself, and the table of regions."""
    folder.mkdir()
    write_table(regions)
    for region in regions:
        jurisdiction = str(region.place.jurisdiction)
        document = {
            "version": 1,
            "region": str(region.name),
            "jurisdiction": jurisdiction,
            "process": {"jurisdictions": [jurisdiction]},
            "accept": {"jurisdictions": [jurisdiction]},
            "regions": "regions.yaml",
        }
        region.policy_file.write_text(yaml.safe_dump(document))


def region_file(
    region: RegionScenario,
    *,
    ports: GatewayPorts,
    engines: Sequence[str],
    model: ModelName,
    peers: Iterable[tuple[GatewayId, RegionScenario, str]],
    overflow: OverflowMode,
    seed: int,
    dialect: str = "vllm",
    roles: Sequence[ReplicaRole] = (),
    number: int = 0,
    controlled: Controlled | None = None,
    sections: Mapping[str, object] | None = None,
) -> str:
    """One gateway's configuration. `peers` gives the address through which each other gateway is reached, `number` the
    gateway's number in its region. `roles` are those of the engines, which form a disaggregated pool if there are
    several. `sections` are further keys."""
    name = gateway_id(region.name, number)
    replicas: list[dict[str, object]] = [
        {"id": f"{name.removeprefix('gw-')}-{number}", "url": url, "models": [str(model)], "dialect": dialect}
        for number, url in enumerate(engines)
    ]
    document: dict[str, object] = {
        "gateway": name,
        "region": region.name,
        "jurisdiction": region.place.jurisdiction,
        "policy": str(region.policy_file),
        "listen": {
            "http": f"{ports.host}:{ports.http}",
            "peers": f"{ports.peers_host}:{ports.peers}",
            "admin": f"{ports.admin_host}:{ports.admin}",
        },
        "seed": seed,
        "replicas": replicas,
        "peers": [
            {
                "gateway": peer_id,
                "region": peer.name,
                "jurisdiction": peer.place.jurisdiction,
                "address": address,
            }
            for peer_id, peer, address in peers
        ],
        "placement": {"overflow": str(overflow)},
        "limits": {"drain": "2s"},
        **region.sections,
    }
    if ReplicaRole.DECODE in roles:
        document |= _sharing(replicas, roles, region)
    if controlled is not None:
        document |= _controlled(region, ports, controlled)
    document |= sections or {}
    return yaml.safe_dump(document, sort_keys=False)


def _sharing(
    replicas: Sequence[dict[str, object]], roles: Sequence[ReplicaRole], region: RegionScenario
) -> dict[str, object]:
    """Put each replica into the one pool; returns the pool's configuration."""
    for replica, role in zip(replicas, roles, strict=True):
        replica |= {"pool": POOL, "role": str(role)}
        if role is ReplicaRole.DECODE and region.decode_group:
            replica["group"] = region.decode_group
    pool = {"name": POOL, "kind": "disaggregated", "connector": str(CONNECTOR), "decode_batch_max": region.slots}
    return {"pools": [pool | dict(region.pool)]}


def _controlled(region: RegionScenario, ports: GatewayPorts, controlled: Controlled) -> dict[str, object]:
    latitude, longitude = region.location
    control: dict[str, object] = {
        "controllers": [*controlled.controllers],
        "client_addresses": [ports.host],
        "latitude": latitude,
        "longitude": longitude,
    }
    if controlled.artifacts is not None:
        control["artifacts"] = [str(controlled.artifacts)]
    found: dict[str, object] = {
        "state": {"folder": str(controlled.state)},
        "peering": {"tls": dict(controlled.tls)},
        "control": control,
    }
    if ports.dns:
        found["dns"] = {"listen": [f"{ports.host}:{ports.dns}"], "answers_per_s": _ANSWERS_PER_S}
    return found


@dataclass(frozen=True, slots=True)
class ControllerPorts:
    grpc: int
    admin: int
    dns: int
    host: str = LOOPBACK
    """Address for gateways and DNS queries."""
    admin_host: str = LOOPBACK


def controller_file(
    *,
    ports: ControllerPorts,
    store: Mapping[str, object],
    tls: Mapping[str, str],
    name_servers: Sequence[str],
    networks: Mapping[RegionName, str],
    client_port: int,
    regions: Path,
    region: RegionName,
    further_gateways: int = 1,
    name: str = CONTROLLER,
    history: Path | None = None,
    insecure: bool = False,
) -> str:
    """The controller's configuration, with decisions at their defaults but for `further_gateways`. `store` is the
    section of that name, which needs `history`, a file, where several controllers share it, and `insecure` where it is
    beyond this machine without TLS. `name_servers` are the addresses of further servers that answer for the name;
    `region` is the controller's."""
    servers = list(dict.fromkeys([ports.host, *name_servers]))
    document: dict[str, object] = {
        "controller": name,
        "regions": str(regions),
        "region": str(region),
        "store": dict(store),
        "listen": {"grpc": f"{ports.host}:{ports.grpc}", "admin": f"{ports.admin_host}:{ports.admin}"},
        "link": {"tls": dict(tls)},
        "decisions": {"further_gateways": further_gateways},
        "naming": {
            "zone": ZONE,
            "name_servers": [
                {"name": f"ns{number}.{ZONE}", "addresses": [address]} for number, address in enumerate(servers, 1)
            ],
            "networks": {region: [network] for region, network in networks.items()},
            "port": client_port,
            "tls": False,
        },
        "dns": {"listen": [f"{ports.host}:{ports.dns}"], "answers_per_s": _ANSWERS_PER_S},
    }
    if insecure:
        document["insecure"] = True
    if history is not None:
        document["history"] = {"path": str(history)}
    return yaml.safe_dump(document, sort_keys=False)
