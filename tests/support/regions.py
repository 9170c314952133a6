"""A mesh of whole gateways in one process, each with a fake engine of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, PeeringConfig
from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.vocabulary import (
    Connector,
    ModelName,
    Place,
    PoolKind,
    PoolName,
    PoolSpec,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
)
from loadgen.round_trips import parse_round_trips
from loadgen.wan import Wan
from tests.fakes.engine import GOOD_STREAM, FakeEngine
from tests.support.core import EU, LAYERED, SECOND, US, under
from tests.support.gateways import ask, knowing, region_config, until, usable_peers, write_policy


@dataclass
class Region:
    """A gateway and its one engine."""

    engine: FakeEngine
    config: GatewayConfig
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    gateway: GatewayHandle = field(init=False)

    async def start(self) -> None:
        self.gateway = await self.stack.enter_async_context(serve_gateway(self.config))

    async def stop(self) -> None:
        await self.stack.aclose()

    @property
    def is_busy(self) -> bool:
        """True if the gateway's own engine is busy, whatever the state of a pool's workers, which follow it in the
        list."""
        replicas = self.gateway.core.replicas
        own = next(iter(replicas), None)
        return own is None or not replicas.available >> own.slot & 1

    async def become_busy(self) -> None:
        """Make the engine busy, and wait until its gateway knows it by a probe: a gateway without fresh observations
        gives its engine no work either."""
        self.engine.waiting = 1
        await until(lambda: self.is_busy and next(iter(self.gateway.core.replicas)).waiting == 1)

    async def become_free(self) -> None:
        self.engine.waiting = 0
        await until(lambda: not self.is_busy)


class Mesh:
    """Regions that know each other; clients ask the first one."""

    def __init__(self, folder: Path, ports: Callable[[], int]) -> None:
        self._folder = folder
        self._ports = ports
        self._stack = AsyncExitStack()
        self.session = aiohttp.ClientSession()

    async def region(self, gateway_id: str, place: Place, policy_file: Path | None = None) -> Region:
        engine = await self._stack.enter_async_context(FakeEngine().serving())
        policy_file = policy_file or write_policy(self._folder, place)
        config = region_config(gateway_id, place, [engine.url], policy_file=policy_file, peers_port=self._ports())
        return Region(engine, config)

    async def start(self, *regions: Region) -> None:
        """Start all gateways, and wait until each sees every other."""
        for region in regions:
            region.config = knowing(region.config, *(other.config for other in regions if other is not region))
            await region.start()
            self.on_close(region.stop)
        for region in regions:
            await until(lambda region=region: usable_peers(region.gateway) == len(regions) - 1)  # type: ignore[misc]
            await until(lambda region=region: not region.is_busy)  # type: ignore[misc]

    def on_close(self, stop: Callable[[], Awaitable[None]]) -> None:
        self._stack.push_async_callback(stop)

    async def close(self) -> None:
        await self.session.close()
        await self._stack.aclose()


def with_a_pool(config: GatewayConfig, url: str) -> GatewayConfig:
    """The same gateway with a disaggregated pool for a model of its own. One engine plays both of its workers."""
    pool = PoolSpec(
        PoolName("pooled"), PoolKind.DISAGGREGATED, Connector.NIXL, decode_batch_max=4, lease_ns=30 * SECOND
    )
    workers = (
        ReplicaConfig(
            ReplicaSpec(ReplicaId(name), config.place, (ModelName("pooled"),), pool.name, role=role, group=group),
            url,
            Dialect.VLLM,
            connector=pool.connector,
        )
        for name, role, group in (("reads", ReplicaRole.PREFILL, ""), ("writes", ReplicaRole.DECODE, "writes"))
    )
    return replace(config, replicas=(*config.replicas, *workers), pools=(*config.pools, pool))


async def busy_us_and_free_eu(mesh: Mesh, *, is_pooled: bool = False, **changes: object) -> tuple[Region, Region]:
    """Start two regions with the same changes to their configs. Requests to the first have to leave it, under the
    layered policy, where one pending request is enough. `is_pooled`: the first has a disaggregated pool as well."""
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    for region in (us, eu):
        changed = replace(region.config, **changes)
        region.config = replace(changed, core=under(LAYERED, changed.core))
    if is_pooled:
        us.config = with_a_pool(us.config, us.engine.url)
    await mesh.start(us, eu)
    await us.become_busy()
    return us, eu


async def good_answer(mesh: Mesh, region: Region) -> aiohttp.ClientResponse:
    """Ask the region's gateway, and assert that the answer is a fake engine's default."""
    async with ask(mesh.session, region.gateway.http_url) as response:
        assert await response.read() == b"".join(GOOD_STREAM)
        return response


@asynccontextmanager
async def regions_apart(
    mesh: Mesh, peering: PeeringConfig, round_trip_ms: int
) -> AsyncIterator[tuple[Wan, Region, Region]]:
    """Start US, busy, and EU, free, which reach each other over a slow line that can be cut."""
    us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
    async with Wan(parse_round_trips(f"{US.region},{EU.region},{round_trip_ms}")) as wan:
        seen_from_us = await wan.route(US.region, EU.region, eu.config.listen.peers.port)
        seen_from_eu = await wan.route(EU.region, US.region, us.config.listen.peers.port)
        far_eu, far_us = at_port(eu.config, seen_from_us), at_port(us.config, seen_from_eu)
        us.config = replace(knowing(us.config, far_eu), peering=peering, core=under(LAYERED, us.config.core))
        eu.config = replace(knowing(eu.config, far_us), peering=peering, core=under(LAYERED, eu.config.core))
        for region in (us, eu):
            await region.start()
            mesh.on_close(region.stop)
        await until(lambda: usable_peers(us.gateway) == usable_peers(eu.gateway) == 1)
        await us.become_busy()
        yield wan, us, eu


def at_port(config: GatewayConfig, port: int) -> GatewayConfig:
    """The same gateway, reached by its peers through another port of this machine."""
    return replace(config, listen=replace(config.listen, peers=replace(config.listen.peers, port=port)))
