"""Whole gateways on loopback for integration tests: their configs and policies, and waiting for conditions."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.reading import read_region_file
from gateway.config.sections import GatewayConfig, ListenConfig, PeeringConfig
from gateway.config.targets import Dialect, PeerConfig, ReplicaConfig
from gateway.core.features.resume.config import ResumeConfig
from gateway.core.kernel.description import gauges_of
from gateway.core.vocabulary import GatewayId, PeerSpec, Place, ReplicaId, ReplicaSpec
from mesh.values import Address
from tests.support.core import AP, EU, LAYERED, LOOPBACK_RANGES, MODEL, MS, SECOND, US, regions_document, under

_Asked = aiohttp.client._RequestContextManager
ANY_PORT = Address("127.0.0.1", 0)
QUICK_PEERING = PeeringConfig(ping_interval_ns=50 * MS, reconnect_min_ns=5 * MS, reconnect_max_ns=50 * MS)
ENOUGH_S = 120.0
"""Seconds after which a condition counts as never true."""
TURNS = 200
"""Turns of an event loop that a condition is given before time has to pass."""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}


def write_policy(
    folder: Path,
    place: Place,
    *,
    process: Iterable[Place] = (US, EU, AP),
    accept: Iterable[Place] = (US, EU, AP),
    ranges: tuple[str, ...] = LOOPBACK_RANGES,
) -> Path:
    path = folder / f"{place.region}.policy.yaml"
    document = {
        "version": 1,
        "region": place.region,
        "jurisdiction": place.jurisdiction,
        "process": {"regions": [each.region for each in process]},
        "accept": {"regions": [each.region for each in accept if each != place]},
        "regions": regions_document(US, EU, AP, *([] if place in (US, EU, AP) else [place]), ranges=ranges),
    }
    path.write_text(yaml.safe_dump(document))
    return path


def region_document(folder: Path, gateway_id: str, place: Place, **more: object) -> dict[str, object]:
    """Document of a region file, with any free ports."""
    return {
        "gateway": gateway_id,
        "region": place.region,
        "jurisdiction": place.jurisdiction,
        "policy": str(write_policy(folder, place)),
        "listen": dict.fromkeys(("http", "peers", "admin"), "127.0.0.1:0"),
        **more,
    }


@asynccontextmanager
async def serving_file(path: Path) -> AsyncIterator[GatewayHandle]:
    region = read_region_file(path)
    async with serve_gateway(region.as_config(), region=region) as gateway:
        yield gateway


def region_config(
    gateway_id: str, place: Place, engines: Iterable[str], *, policy_file: Path, peers_port: int = 0
) -> GatewayConfig:
    """Config under the layered policy, where one pending request makes an engine busy. A broken answer that cannot be
    resumed is reported as broken after 3 s."""
    replicas = tuple(
        ReplicaConfig(ReplicaSpec(ReplicaId(f"{gateway_id}-r{number}"), place, (MODEL,)), url, Dialect.VLLM)
        for number, url in enumerate(engines)
    )
    return GatewayConfig(
        gateway_id=GatewayId(gateway_id),
        place=place,
        core=replace(under(LAYERED), resume=ResumeConfig(wait_max_ns=3 * SECOND)),
        listen=ListenConfig(http=ANY_PORT, peers=replace(ANY_PORT, port=peers_port), admin=ANY_PORT),
        policy_file=policy_file,
        replicas=replicas,
        peers=(),
        peering=QUICK_PEERING,
        seed=1,
    )


def knowing(config: GatewayConfig, *others: GatewayConfig) -> GatewayConfig:
    """The same gateway with the others as its peers."""
    peers = tuple(PeerConfig(PeerSpec(other.gateway_id, other.place), other.listen.peers) for other in others)
    return replace(config, peers=peers)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, with a time-out of its own: an exception that a test runner throws into an event loop may
    be swallowed by some task. Time passes only if turns of the loop alone do not bring it about."""
    turns = 0
    try:
        async with asyncio.timeout(ENOUGH_S):
            while not holds():
                await asyncio.sleep(0 if turns < TURNS else 0.005)
                turns += 1
    except TimeoutError as error:
        raise AssertionError("it never came true") from error


def usable_peers(gateway: GatewayHandle) -> int:
    return gauges_of(gateway.core, gateway.core._now_ns or 0).peers_usable


def free_replicas(gateway: GatewayHandle) -> int:
    return gateway.core.replicas.available.bit_count()


def counted(gateway: GatewayHandle, name: str, **labels: str) -> float:
    return gateway.metrics.registry.get_sample_value(f"nightside_{name}", labels) or 0.0


def ask(session: aiohttp.ClientSession, gateway_url: str, **changes: object) -> _Asked:
    """One chat request; use it as a context."""
    body = io.BytesIO(json.dumps({**CHAT, **changes}).encode())
    return session.post(f"{gateway_url}/v1/chat/completions", data=body, headers={"content-type": "application/json"})
