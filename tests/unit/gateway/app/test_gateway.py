from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, run_gateway, serve_gateway
from gateway.config.sections import GatewayConfig, JournalConfig
from gateway.core.kernel.events import PolicyApplied
from gateway.core.kernel.residency import closed_policy
from gateway.records.journal import read_journal
from tests.fakes.engine import GOOD_STREAM, ROLE, FakeEngine, stream_until, token
from tests.support.core import EU, US
from tests.support.gateways import ask, region_config, until, write_policy


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine().serving() as fake:
        yield fake


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> GatewayConfig:
    return region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))


async def test_leaving_the_context_cuts_what_still_runs(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(stream_until(asyncio.Event(), (ROLE, token("Hel"))))
    async with aiohttp.ClientSession() as session:
        async with serve_gateway(config) as gateway:
            response = await ask(session, gateway.http_url)
            await response.content.readany()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await engine.aborted.reaches(1)
    assert gateway.driver.open_requests == 0


async def test_a_failure_inside_the_context_is_not_wrapped(config: GatewayConfig) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with serve_gateway(config):
            raise ValueError("mine")


async def test_a_gateway_can_be_started_again_at_once_on_its_old_address(config: GatewayConfig) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with serve_gateway(config) as gateway:
                async with ask(session, gateway.http_url) as response:
                    assert await response.read() == b"".join(GOOD_STREAM)
                listen = replace(config.listen, http=gateway.http_address, peers=gateway.peers_address)
                config = replace(config, listen=listen)


async def test_a_failed_core_answers_whoever_waits_and_ends_the_process(
    config: GatewayConfig, engine: FakeEngine, tmp_path: Path
) -> None:
    config = replace(config, journal=JournalConfig(folder=tmp_path / "journal"))
    engine.waiting = 1
    started: asyncio.Queue[GatewayHandle] = asyncio.Queue()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_gateway(config, stop=asyncio.Event(), ready=started.put_nowait))
        gateway = await started.get()

        async def client() -> tuple[int, str]:
            async with ask(session, gateway.http_url) as response:
                return response.status, (await response.json())["error"]["code"]

        waiting = tasks.create_task(client())
        await until(lambda: gateway.driver.open_requests == 1)
        gateway.driver.submit(PolicyApplied(closed_policy(EU, "of another place")))
    assert running.result() == 1
    assert waiting.result() == (502, "engine_failed")
    (crash,) = (tmp_path / "journal").glob("*.crash")
    header, steps = read_journal(crash)
    assert header.tail
    *_, last = steps
    assert isinstance(last.event, PolicyApplied)
    assert last.effects is None


async def test_a_journal_is_kept_while_the_gateway_runs(config: GatewayConfig, tmp_path: Path) -> None:
    config = replace(config, journal=JournalConfig(folder=tmp_path / "journal"))
    async with serve_gateway(config) as gateway, aiohttp.ClientSession() as session:
        async with ask(session, gateway.http_url) as response:
            await response.read()
    (journal,) = (tmp_path / "journal").glob("*.journal")
    header, steps = read_journal(journal)
    assert header.seed == config.seed
    events = [type(step.event).__name__ for step in steps]
    assert events[:3] == ["ConfigApplied", "PolicyApplied", "AssignmentApplied"]
    assert "RequestArrived" in events
    assert "hello" not in journal.read_text()
