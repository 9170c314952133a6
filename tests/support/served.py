"""A gateway in front of emulated engines, or one without engines that forwards everything to the next region."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig
from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServer, EngineServerConfig, serve_engines
from loadgen.engine.tokens import PromptMessage, chat_prompt, continuation
from tests.support.core import EU, MODEL, US, unresumed
from tests.support.gateways import free_replicas, knowing, region_config, until, usable_peers, write_policy

Ports = Callable[[], int]

QUICK = EngineServerConfig(model=MODEL, engine=TINY, time_scale=0.05, ignore_eos=True, faults=True)
SLOW = dataclasses.replace(QUICK, time_scale=20.0)
"""Config of an engine that takes at least 90 ms for a token, so that its requests are still running when the test goes
on."""


@dataclass(frozen=True, slots=True)
class Served:
    gateway: GatewayHandle
    """Gateway that clients ask."""
    engines: list[EngineServer]
    """Engines that run the requests."""
    gateways: list[GatewayHandle]

    @property
    def url(self) -> str:
        return self.gateway.http_url

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    async def runs(self, requests: int) -> None:
        await until(lambda: sum(engine.load().running for engine in self.engines) == requests)


@asynccontextmanager
async def served(
    folder: Path,
    ports: Ports,
    *,
    across: bool = False,
    engine: EngineServerConfig = QUICK,
    engines: int = 1,
    home_engine_urls: tuple[str, ...] = (),
    change: Callable[[GatewayConfig], GatewayConfig] = lambda config: config,
    resumes: bool = True,
) -> AsyncIterator[Served]:
    """Serve gateways and engines. With `across`, the engines stand in another region, and the gateway that clients ask
    has only `home_engine_urls`. `change` applies to the latter gateway; without `resumes`, no gateway resumes a broken
    answer."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(serve_engines([engine] * engines))
        urls = [server.url for server in servers]
        at_home = home_engine_urls if across else urls
        us = region_config("us-1", US, at_home, policy_file=write_policy(folder, US), peers_port=ports())
        configs = [change(us)]
        if across:
            eu = region_config("eu-1", EU, urls, policy_file=write_policy(folder, EU), peers_port=ports())
            configs = [knowing(configs[0], eu), knowing(eu, configs[0])]
        if not resumes:
            configs = [replace(config, core=unresumed(config.core)) for config in configs]
        gateways = [await stack.enter_async_context(serve_gateway(config)) for config in configs]
        for gateway in gateways:
            await until(lambda gateway=gateway: usable_peers(gateway) == len(gateways) - 1)  # type: ignore[misc]
        await until(lambda: free_replicas(gateways[-1]) == engines)
        if across:
            await until(lambda: MODEL in gateways[0].core.peers.models())
        yield Served(gateways[0], servers, gateways)


def expected(*said: tuple[str, str], tokens: int = 6) -> str:
    """Answer of an emulated engine to this conversation."""
    return continuation(MODEL, chat_prompt(PromptMessage(*each) for each in said), tokens).decode()


HELLO: Any = [{"role": "user", "content": "hello"}]
HELLO_ANSWERED = expected(("user", "hello"))


async def in_thread(work: Callable[[], object]) -> None:
    """Run a blocking client in a thread, while gateway and engines go on in this thread's loop."""
    await asyncio.to_thread(work)
