"""Whole gateways that tell each other what their replicas hold, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig
from gateway.core.config import CoreConfig
from gateway.core.features.cache_digests.config import CacheDigestsConfig
from gateway.core.features.cache_digests.feature import digests_of
from gateway.core.vocabulary import Place
from gateway.records.decisions import Explanation
from loadgen.engine.presets import LLAMA_31_8B_L4
from loadgen.engine.server import EngineServerConfig, serve_engines
from tests.support.core import EU, MODEL, US
from tests.support.gateways import (
    ask,
    counted,
    free_replicas,
    knowing,
    region_config,
    until,
    usable_peers,
    write_policy,
)
from tests.support.programs import nightside

ON = CoreConfig(cache_digests=CacheDigestsConfig(enabled=True))
ENGINE = EngineServerConfig(model=MODEL, engine=LLAMA_31_8B_L4, time_scale=0.01, ignore_eos=True)
DOCUMENT = [{"role": "user", "content": "a document of Europe " * 1_200}]
"""Prompt that takes a quarter of a second to read at the rate assumed at first."""
Ports = Callable[[], int]


@dataclass
class Two:
    us: GatewayHandle
    eu: GatewayHandle
    session: aiohttp.ClientSession

    async def region_of(self, gateway: GatewayHandle) -> tuple[str, str]:
        """Ask about the document. Return the region that answers, and the name of the decision."""
        async with ask(self.session, gateway.http_url, messages=DOCUMENT, max_tokens=2) as answer:
            await answer.read()
            assert answer.status == 200
            return answer.headers["x-nightside-region"], answer.headers["x-nightside-decision"]


@asynccontextmanager
async def two(
    folder: Path, ports: Ports, core: CoreConfig = ON, *, eu_process: tuple[Place, ...] = (US, EU)
) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        us_engine, eu_engine = await stack.enter_async_context(serve_engines([ENGINE, ENGINE]))
        us_policy, eu_policy = write_policy(folder, US), write_policy(folder, EU, process=eu_process)
        us = region_config("us-1", US, [us_engine.url], policy_file=us_policy, peers_port=ports())
        eu = region_config("eu-1", EU, [eu_engine.url], policy_file=eu_policy, peers_port=ports())

        def config(own: GatewayConfig, other: GatewayConfig) -> GatewayConfig:
            return replace(knowing(own, other), core=core)

        first = await stack.enter_async_context(serve_gateway(config(us, eu)))
        second = await stack.enter_async_context(serve_gateway(config(eu, us)))
        for each in (first, second):
            await until(lambda each=each: free_replicas(each) == 1 and usable_peers(each) == 1)  # type: ignore[misc]
        yield Two(first, second, await stack.enter_async_context(aiohttp.ClientSession()))


async def test_a_prompt_that_only_another_region_knows_goes_there(
    tmp_path: Path, unused_tcp_port_factory: Ports
) -> None:
    async with two(tmp_path, unused_tcp_port_factory) as both:
        assert (await both.region_of(both.eu))[0] == EU.region
        held = counted(both.eu, "cache_digest_held")
        assert held > 20
        await until(lambda: counted(both.us, "cache_digest_told", peer="eu-1") == held)
        region, decision = await both.region_of(both.us)
        assert region == EU.region
        async with both.session.get(f"{both.us.admin_url}/admin/explain/{decision}") as answer:
            explained = msgspec.json.decode(await answer.read(), type=Explanation)
        (placement,) = explained.here.placements
        assert placement.reason == "remote_prefix"
        status, out, _ = await nightside("explain", decision, "--admin", both.us.admin_url)
        assert status == 0
        assert f"by the peers' cache digests: {placement.matched_blocks} blocks at eu-1" in " ".join(out.split())
        assert counted(both.eu, "cache_digest_sent_bytes_total") > 8 * held
        assert counted(both.us, "cache_digest_refused_total", peer="eu-1") == 0
        assert counted(both.us, "cache_digest_age_seconds", peer="eu-1") >= 0


async def test_it_is_read_at_home_while_digests_are_off(tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
    async with two(tmp_path, unused_tcp_port_factory, CoreConfig()) as both:
        await both.region_of(both.eu)
        assert (await both.region_of(both.us))[0] == US.region
        assert counted(both.eu, "cache_digest_held") == counted(both.eu, "cache_digest_sent_bytes_total") == 0


async def test_a_region_that_must_not_process_it_is_told_nothing(
    tmp_path: Path, unused_tcp_port_factory: Ports
) -> None:
    async with two(tmp_path, unused_tcp_port_factory, eu_process=(EU,)) as both:
        await both.region_of(both.us)
        await both.region_of(both.eu)
        await until(lambda: counted(both.eu, "cache_digest_told", peer="us-1") > 0)
        heard = parts_heard(both.us)
        await until(lambda: parts_heard(both.us) > heard + 1)
        assert counted(both.us, "cache_digest_told", peer="eu-1") == 0


def parts_heard(gateway: GatewayHandle) -> int:
    """Number of the last part that the other gateway has told this one."""
    return sum(told.version for _, told in digests_of(gateway.core).told())
