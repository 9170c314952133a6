"""Journals that live gateways wrote under a mixed load replay, offline, to the very same effects."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from click.testing import CliRunner
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig, JournalConfig
from gateway.core.vocabulary import Place
from gateway.records.journal import replay
from gateway.records.journal_cli import replay as replay_command
from loadgen.engine.faults import EngineFault, FaultMode
from loadgen.engine.presets import PRESETS
from loadgen.engine.server import EngineServer, serve_engines
from loadgen.engine.server_config import EngineServerConfig
from tests.support.core import EU, MODEL, US
from tests.support.gateways import ask, knowing, region_config, until, usable_peers, write_policy

REQUESTS = 80


def journaled(config: GatewayConfig, folder: Path) -> GatewayConfig:
    return replace(config, journal=JournalConfig(folder=folder))


async def client(session: aiohttp.ClientSession, url: str, number: int, rng: random.Random) -> str:
    """One of many users: some stream, some do not, some leave early."""
    text = f"application {number % 3} " * 20 + f"user {number % 7} " * 20
    messages = [{"role": "user", "content": text}]
    leaves = rng.random() < 0.15
    try:
        async with asyncio.timeout(0.02 if leaves else None):
            async with ask(session, url, messages=messages, stream=rng.random() < 0.7, max_tokens=20) as answer:
                await answer.read()
                return str(answer.status)
    except TimeoutError:
        return "left"


async def mixed_load(gateways: list[GatewayHandle], engines: list[EngineServer]) -> list[str]:
    """Send most of the load to the first gateway, whose first engine fails in several ways meanwhile."""
    rng = random.Random(5)
    modes = [FaultMode.ERROR_500, FaultMode.ERROR_503, FaultMode.DIE_MIDSTREAM, FaultMode.EMPTY_STREAM]
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        clients = []
        for number in range(REQUESTS):
            if number % 10 == 0:
                engines[0].set_fault(EngineFault(modes[number // 10 % len(modes)], times=2))
            url = gateways[int(rng.random() < 0.1)].http_url
            clients.append(tasks.create_task(client(session, url, number, rng)))
            await asyncio.sleep(rng.random() * 0.02)
    return [task.result() for task in clients]


async def test_a_live_journal_replays_equal(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
    engine = dataclasses.replace(PRESETS["tiny"], sequences_max=2)
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(serve_engines([EngineServerConfig(MODEL, engine)] * 3))
        places: list[tuple[str, Place, list[str]]] = [
            ("gw-us", US, [engines[0].url]),
            ("gw-eu", EU, [engines[1].url, engines[2].url]),
        ]
        configs = [
            region_config(
                name,
                place,
                urls,
                policy_file=write_policy(tmp_path, place),
                peers_port=unused_tcp_port_factory(),
            )
            for name, place, urls in places
        ]
        us, eu = (journaled(config, tmp_path / config.gateway_id) for config in configs)
        gateways = [
            await stack.enter_async_context(serve_gateway(config)) for config in (knowing(us, eu), knowing(eu, us))
        ]
        await until(lambda: all(usable_peers(gateway) == 1 for gateway in gateways))
        results = await mixed_load(gateways, engines)
        await until(lambda: all(not gateway.core.requests for gateway in gateways))
    assert results.count("200") > REQUESTS / 2
    forwards = 0
    for config in (us, eu):
        files = sorted((tmp_path / config.gateway_id).iterdir())
        report = replay(files)
        assert report.divergence is None
        assert report.steps > REQUESTS
        forwards += sum(b"AcceptForward" in line for file in files for line in file.read_bytes().splitlines())
        assert CliRunner().invoke(replay_command, [str(file) for file in files]).exit_code == 0
    assert forwards > 3
