"""Whole gateways and engines that tell them what their KV caches hold, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace as with_fields

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.core.config import CoreConfig
from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.core.features.kv_events.feature import kv_events_of
from gateway.records.decisions import Explanation
from loadgen.engine.presets import LLAMA_31_8B_L4
from loadgen.engine.server import EngineServer, EngineServerConfig, serve_engines
from tests.support.core import MODEL, US
from tests.support.gateways import ask, counted, free_replicas, region_config, until, write_policy
from tests.support.programs import nightside

SMALL = replace(LLAMA_31_8B_L4, kv_blocks=520, context_tokens_max=8_192)
"""Cache of 8,320 tokens: two documents do not fit."""
ENGINE = EngineServerConfig(model=MODEL, engine=SMALL, time_scale=0.01, ignore_eos=True, kv_events_ports=(0, 0))
MEBIBYTE = 2**20
DEFAULT = KvEventsConfig()


def document(name: str) -> list[dict[str, str]]:
    """Prompt whose length tells it apart from those with other names."""
    return [
        {
            "role": "user",
            "content": f"the document {name} of many words " * 600 + f"more of {name} " * 10 * (ord(name) - 96),
        }
    ]


@dataclass
class Told:
    """Gateway that follows the events of one engine."""

    gateway: GatewayHandle
    session: aiohttp.ClientSession

    async def read(self, name: str) -> str:
        """Ask about a document. Return the name of the decision."""
        async with ask(self.session, self.gateway.http_url, messages=document(name), max_tokens=2) as answer:
            await answer.read()
            assert answer.status == 200
            return answer.headers["x-nightside-decision"]

    async def explained(self, decision: str) -> Explanation:
        async with self.session.get(f"{self.gateway.admin_url}/admin/explain/{decision}") as answer:
            return msgspec.json.decode(await answer.read(), type=Explanation)

    async def until_counted(self, name: str, least: float, **labels: str) -> None:
        await until(lambda: counted(self.gateway, f"kv_events_{name}", **labels) >= least)

    async def until_tied(self, count: int = 1) -> None:
        await self.until_counted("answers_total", count, result="tied")

    async def state(self) -> dict[str, dict[str, object]]:
        async with self.session.get(f"{self.gateway.admin_url}/admin/state") as answer:
            return msgspec.json.decode(await answer.read())["kv_events"]  # type: ignore[no-any-return]

    @property
    def records(self) -> int:
        return self.gateway.core.placer.replica_index.records


@asynccontextmanager
async def told_by(engine: EngineServer, folder: Path, bounds: KvEventsConfig = DEFAULT) -> AsyncIterator[Told]:
    made = region_config("us-1", US, [engine.url], policy_file=write_policy(folder, US))
    port, replay_port = engine.kv_events_ports
    (replica,) = made.replicas
    telling = with_fields(
        replica,
        spec=with_fields(replica.spec, tells_cache=True),
        kv_events_port=port,
        kv_events_replay_port=replay_port,
    )
    config = with_fields(made, replicas=(telling,), core=CoreConfig(kv_events=bounds))
    async with serve_gateway(config) as gateway, aiohttp.ClientSession() as session:
        told = Told(gateway, session)
        await until(lambda: free_replicas(gateway) == 1)
        await told.until_counted("followed", 1, replica="us-1-r0")
        yield told


async def test_what_an_engine_removes_is_not_believed_any_more(tmp_path: Path) -> None:
    async with serve_engines([ENGINE]) as (engine,), told_by(engine, tmp_path) as told:
        await told.read("a")
        await told.until_tied()
        told_before = (await told.explained(await told.read("a"))).here.placements[0]
        assert told_before.matched_blocks > 50
        await told.read("b")
        await told.until_counted("shortened_total", 1)
        decision = await told.read("a")
        (after,) = (await told.explained(decision)).here.placements
        assert 0 < after.matched_blocks < told_before.matched_blocks
        status, out, _ = await nightside("explain", decision, "--admin", told.gateway.admin_url)
        assert status == 0
        assert f"by the engines' own word: {after.matched_blocks} blocks at us-1-r0" in " ".join(out.split())
        assert counted(told.gateway, "kv_events_blocks", replica="us-1-r0", tie="tied") > 0
        assert (await told.state())["us-1-r0"]["is_heard"] is True


async def test_an_engine_that_was_started_again_holds_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with serve_engines([ENGINE]) as (engine,):
            told = await stack.enter_async_context(told_by(engine, tmp_path))
            await told.read("a")
            await told.until_tied()
            assert told.records
            port = int(engine.url.rsplit(":", 1)[1])
            again = replace(ENGINE, port=port, kv_events_ports=engine.kv_events_ports)
        async with serve_engines([again]):
            await until(lambda: told.records == 0)
            await told.until_counted("followed", 1, replica="us-1-r0")


async def test_lost_messages_are_repeated(tmp_path: Path) -> None:
    async with serve_engines([ENGINE]) as (engine,), told_by(engine, tmp_path) as told:
        (publisher,) = engine.kv_publishers
        publish, publisher.publish_payload = publisher.publish_payload, publisher.lose  # type: ignore[method-assign, assignment]
        await told.read("a")
        publisher.publish_payload = publish  # type: ignore[method-assign]
        assert publisher.next > 0
        await told.read("b")
        await told.until_tied(2)
        assert counted(told.gateway, "kv_events_repeated_total", replica="us-1-r0") > 0


async def test_a_flood_is_cut_off_and_the_estimate_stays(tmp_path: Path) -> None:
    bounds = KvEventsConfig(rate_max_bytes=MEBIBYTE, message_max_bytes=MEBIBYTE)
    async with serve_engines([ENGINE]) as (engine,), told_by(engine, tmp_path, bounds) as told:
        await told.read("a")
        await told.until_tied()
        records = told.records
        (publisher,) = engine.kv_publishers
        for _ in range(40):
            publisher.publish_payload(msgspec.msgpack.encode([0.0, [{"type": "New", "text": "x" * (MEBIBYTE // 2)}]]))
            await until(lambda: publisher.subscribers == 0 or publisher.unsent_bytes == 0)
        await told.until_counted("unheard_total", 1, reason="flood")
        assert not kv_events_of(told.gateway.core).hears(told.gateway.config.replicas[0].spec.replica_id)
        assert counted(told.gateway, "kv_events_followed", replica="us-1-r0") == 0
        assert told.records == records
        await told.read("a")
