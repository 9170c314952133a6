"""A gateway in front of emulated engines that take requests of different lengths, one of which takes less than
configured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from msgspec.structs import replace

from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.vocabulary import PoolName, PoolSpec, ReplicaId, ReplicaSpec
from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServerConfig, serve_engines
from tests.support.core import MODEL, US
from tests.support.gateways import counted, free_replicas, until
from tests.support.regions import Mesh, Region

SHORT, LONG = PoolName("short"), PoolName("long")
ENGINE = EngineServerConfig(model=MODEL, engine=TINY, time_scale=0.01, ignore_eos=True)


@dataclass
class Pools:
    region: Region
    session: aiohttp.ClientSession

    async def ask(self, tokens: int, *, stream: bool = False, output_tokens: int = 4) -> tuple[int, str]:
        """Status and body."""
        asked = {"model": MODEL, "prompt": "w" * 4 * tokens, "max_tokens": output_tokens, "stream": stream}
        async with self.session.post(f"{self.region.gateway.http_url}/v1/completions", json=asked) as response:
            return response.status, await response.text()

    async def pools_asked(self, tokens: int, *, output_tokens: int = 4) -> list[PoolName]:
        """Pools that a request is sent to until it is answered."""
        before = {pool: self._placed_in(pool) for pool in (SHORT, LONG)}
        status, _ = await self.ask(tokens, output_tokens=output_tokens)
        assert status == 200
        return [pool for pool, count in before.items() if self._placed_in(pool) > count]

    def _placed_in(self, pool: PoolName) -> float:
        return self.count("pool_placements_total", pool=pool, step="preferred")

    def count(self, name: str, **labels: str) -> float:
        return counted(self.region.gateway, name, model=MODEL, **labels)


def pool_of(name: PoolName, replica: str, url: str) -> ReplicaConfig:
    return ReplicaConfig(ReplicaSpec(ReplicaId(replica), US, (MODEL,), name), url, Dialect.VLLM)


@asynccontextmanager
async def two_pools(mesh: Mesh, *, short_takes: int = 512) -> AsyncIterator[Pools]:
    """Two pools, configured to take 512 and 2,048 tokens."""
    long = dataclasses.replace(ENGINE, engine=dataclasses.replace(TINY, context_tokens_max=2048))
    short = dataclasses.replace(ENGINE, engine=dataclasses.replace(TINY, context_tokens_max=short_takes))
    async with serve_engines([short, long]) as (short_engine, long_engine):
        us = await mesh.region("us-1", US)
        us.config = replace(
            us.config,
            replicas=(pool_of(SHORT, "s", short_engine.url), pool_of(LONG, "l", long_engine.url)),
            pools=(
                PoolSpec(SHORT, context_tokens_max=512, threshold_tokens=512),
                PoolSpec(LONG, context_tokens_max=2048),
            ),
        )
        await mesh.start(us)
        await until(lambda: free_replicas(us.gateway) == 2)
        yield Pools(us, mesh.session)


async def test_each_goes_to_the_pool_that_it_is_meant_for(mesh: Mesh) -> None:
    async with two_pools(mesh) as pools:
        assert await pools.pools_asked(20) == [SHORT]
        assert await pools.pools_asked(700) == [LONG]
        assert await pools.pools_asked(20, output_tokens=600) == [LONG], "a short prompt with a long answer"
        status, body = await pools.ask(20_000)
        assert status == 400
        assert '"context_length_exceeded"' in body


async def test_what_its_engine_refuses_for_its_length_is_had_from_a_longer_one(mesh: Mesh) -> None:
    async with two_pools(mesh, short_takes=128) as pools:
        status, body = await pools.ask(200, stream=True)
        assert status == 200
        assert body.endswith("data: [DONE]\n\n")
        assert '"usage":{' not in body
        assert pools.count("pool_misroutes_total", pool=SHORT, how="refused") == 1
        assert await pools.pools_asked(200) == [LONG], "it is known now"
        assert await pools.pools_asked(50) == [SHORT]
