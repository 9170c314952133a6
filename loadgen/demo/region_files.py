"""Writes the region files of the demo's gateways, and finds ports for all of them."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import yaml

from gateway.core.config import OverflowMode
from gateway.core.vocabulary import GatewayId, ModelName, RegionName
from loadgen.demo.scenario import RegionScenario

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 30_000)
"""Below the ports that systems hand out to outgoing connections, so that none of those gets in between."""


@dataclass(frozen=True, slots=True)
class GatewayPorts:
    http: int
    peers: int
    admin: int


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Ports that nobody listens on at this moment."""
    ports: list[int] = []
    for port in rng.sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        with suppress(OSError), socket.socket() as probe:
            probe.bind((LOOPBACK, port))
            ports.append(port)
    assert len(ports) == count, "the machine has no free ports left"
    return ports


def gateway_id(region: RegionName) -> GatewayId:
    return GatewayId(f"gw-{region}")


def region_file(
    region: RegionScenario,
    *,
    ports: GatewayPorts,
    engines: Sequence[str],
    model: ModelName,
    peers: Mapping[RegionScenario, int],
    overflow: OverflowMode,
    seed: int,
    dialect: str = "vllm",
) -> str:
    """One gateway's configuration. `peers` says through which local port each other region is reached."""
    document = {
        "gateway": gateway_id(region.name),
        "region": region.name,
        "jurisdiction": region.place.jurisdiction,
        "policy": str(region.policy_file),
        "listen": {name: f"{LOOPBACK}:{getattr(ports, name)}" for name in ("http", "peers", "admin")},
        "seed": seed,
        "replicas": [
            {"id": f"{region.name}-{number}", "url": url, "models": [str(model)], "dialect": dialect}
            for number, url in enumerate(engines)
        ],
        "peers": [
            {
                "gateway": gateway_id(peer.name),
                "region": peer.name,
                "jurisdiction": peer.place.jurisdiction,
                "address": f"{LOOPBACK}:{port}",
            }
            for peer, port in peers.items()
        ],
        "placement": {"overflow": str(overflow)},
        "limits": {"drain": "2s"},
    }
    return yaml.safe_dump(document, sort_keys=False)
