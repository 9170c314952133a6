"""Real vLLM that tells a gateway what its KV cache holds: what is believed of a prompt is what the engine then finds of
it, also after evictions, a cleared cache, lost messages, a lost connection and a restart.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.core.features.kv_events.events import UnheardReason
from gateway.core.placement.engine_word import ENGINE_BLOCKS
from gateway.records.decisions import ExplainedPlacement, Explanation
from loadgen.engine.presets import LLAMA_31_8B_L4
from loadgen.engine.server import serve_engines
from loadgen.engine.server_config import EngineServerConfig
from tests.engines.calls import COMPLETIONS
from tests.engines.conftest import needs
from tests.engines.events_tap import EventsTap, repeated
from tests.engines.real import KV_BLOCK_TOKENS, ROOT, VLLM_FOLDER, Engine, free_port, telling
from tests.engines.regions import RealMesh, RealRegion, replicas
from tests.support.core import MODEL, US
from tests.support.gateways import counted, until
from tests.support.programs import nightside

pytestmark = pytest.mark.timeout(600)

REPLICA = "teller"
BATCHES, BLOCKS = 4_000, 64
"""Batches that the publisher of `vllm_publisher.py` keeps, and blocks that are held after them."""
SENTENCES = 90
"""Sentences of a document: more than a quarter of the engine's cache."""
OTHERS = 3
"""Further documents beside which the engine has no room for all of a first one."""


def document(sentences: int = SENTENCES) -> str:
    """Text that differs each time, with tokens spread evenly."""
    return " ".join(f"region {os.urandom(3).hex()} sleeps" for _ in range(sentences))


@dataclass(frozen=True, slots=True)
class TellingEngine:
    engine: Engine
    port: int
    replay_port: int

    async def held(self) -> set[object]:
        """Hashes of the blocks that the engine holds by all that it has told, read apart from the gateway's code."""
        blocks: set[object] = set()
        for batch in await repeated(self.replay_port):
            for event in msgspec.msgpack.decode(batch)[1]:
                if event["type"] == "BlockStored":
                    blocks.update(event["block_hashes"])
                elif event["type"] == "BlockRemoved":
                    blocks.difference_update(event["block_hashes"])
                else:
                    assert event["type"] == "AllBlocksCleared"
                    blocks.clear()
        return blocks


@pytest.fixture(scope="module")
def running_teller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TellingEngine]:
    needs(VLLM_FOLDER, request.config)
    teller = TellingEngine(*telling(tmp_path_factory.mktemp("teller") / "engine.log"))
    try:
        asyncio.run(teller.engine.be_up())
        yield teller
    finally:
        teller.engine.kill()


@pytest.fixture
async def teller(running_teller: TellingEngine) -> TellingEngine:
    await running_teller.engine.be_up()
    await running_teller.engine.until_holding(0)
    return running_teller


@dataclass(frozen=True, slots=True)
class AnsweredPrompt:
    """Answer of the engine, and what the gateway had believed when it sent the prompt."""

    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that the engine found in its cache."""
    placement: ExplainedPlacement
    decision: str

    @property
    def told_blocks(self) -> float:
        """Blocks of the prompt's text that the engine had said it holds."""
        costs = self.placement.considered[0].costs
        figures = {} if costs is msgspec.UNSET or costs.further is msgspec.UNSET else costs.further
        told = figures.get(ENGINE_BLOCKS)
        return 0.0 if told is None or told.amount is None else told.amount

    @property
    def told_share(self) -> float:
        return self.told_blocks / self.placement.prompt_blocks

    @property
    def believed_share(self) -> float:
        return self.placement.matched_blocks / self.placement.prompt_blocks

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def grain(self) -> float:
        """Share of the prompt by which the two may differ: a block of text, and two of tokens."""
        return 1 / self.placement.prompt_blocks + 2 * KV_BLOCK_TOKENS / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class FollowedEngine:
    """Region whose gateway follows the events of one real engine."""

    region: RealRegion
    teller: TellingEngine
    tap: EventsTap
    session: aiohttp.ClientSession

    async def ask(self, prompt: str) -> AnsweredPrompt:
        status, used, headers = await self._post(self.region.url, prompt)
        assert status == 200
        decision = headers["x-nightside-decision"]
        async with self.session.get(f"{self.region.gateway.admin_url}/admin/explain/{decision}") as answer:
            explained = msgspec.json.decode(await answer.read(), type=Explanation)
        (placement,) = explained.here.placements
        cached = (used["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        return AnsweredPrompt(used["prompt_tokens"], cached, placement, decision)

    async def ask_and_tie(self, prompt: str) -> AnsweredPrompt:
        before = self.counted("answers_total", result="tied")
        answered = await self.ask(prompt)
        await self.until_counted("answers_total", before + 1, result="tied")
        return answered

    async def fill_by_others(self, documents: int = OTHERS) -> None:
        """Have another client of the engine, which no gateway knows, take room in its cache."""
        for _ in range(documents):
            status, _, _ = await self._post(self.teller.engine.url, document())
            assert status == 200

    async def _post(self, url: str, prompt: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "min_tokens": 4, "ignore_eos": True}
        async with self.session.post(f"{url}{COMPLETIONS}", json={**body, "temperature": 0}) as answer:
            return answer.status, (await answer.json())["usage"], dict(answer.headers)

    def counted(self, name: str, **labels: str) -> float:
        return counted(self.region.gateway, f"kv_events_{name}", **labels)

    async def until_counted(self, name: str, least: float, **labels: str) -> None:
        await until(lambda: self.counted(name, **labels) >= least)

    async def until_followed(self) -> None:
        await self.until_counted("followed", 1, replica=REPLICA)

    async def state(self) -> dict[str, Any]:
        async with self.session.get(f"{self.region.gateway.admin_url}/admin/state") as answer:
            state: dict[str, Any] = (await answer.json())["kv_events"][REPLICA]
            return state

    async def until_in_step(self) -> dict[str, Any]:
        """Wait until the gateway knows as many blocks as the engine holds; returns the gateway's state."""
        async with asyncio.timeout(60):
            while (state := await self.state()).get("blocks") != len(await self.teller.held()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return state


@asynccontextmanager
async def followed(
    mesh: RealMesh, teller: TellingEngine, session: aiohttp.ClientSession
) -> AsyncIterator[FollowedEngine]:
    async with EventsTap(teller.port).serving() as tap:
        (member,) = replicas({REPLICA: teller.engine.url})
        member.update(kv_events_port=tap.port, kv_events_replay_port=teller.replay_port)
        us = mesh.add("us-1", US, {}, replicas=[member], prefix_block="64B")
        async with mesh.running():
            await us.until_free(1)
            one = FollowedEngine(us, teller, tap, session)
            await one.until_followed()
            await one.until_in_step()
            yield one


@pytest.fixture
async def one(mesh: RealMesh, teller: TellingEngine, session: aiohttp.ClientSession) -> AsyncIterator[FollowedEngine]:
    async with followed(mesh, teller, session) as made:
        yield made


def assert_is_true(answered: AnsweredPrompt) -> None:
    """Assert that the engine found what it had said it holds, and that placement went by that."""
    assert answered.told_share == pytest.approx(answered.cached_share, abs=answered.grain)
    assert answered.believed_share == pytest.approx(answered.cached_share, abs=answered.grain)


async def test_what_is_believed_of_a_prompt_is_what_the_engine_finds_of_it(one: FollowedEngine) -> None:
    prompt = document()
    first = await one.ask_and_tie(prompt)
    assert (first.told_share, first.cached_tokens) == (0, 0)
    again = await one.ask(prompt)
    assert again.cached_share > 0.9
    assert_is_true(again)
    status, out, _ = await nightside("explain", again.decision, "--admin", one.region.gateway.admin_url)
    assert status == 0
    assert f"by the engines' own word: {again.told_blocks:.0f} blocks at {REPLICA}" in " ".join(out.split())
    state = await one.until_in_step()
    assert (state["is_followed"], state["is_heard"], state["fault"], state["unplaced"]) == (True, True, "", 0)
    assert state["tied"] == again.prompt_tokens // KV_BLOCK_TOKENS


async def test_blocks_that_another_clients_prompts_evict_are_not_believed_any_more(one: FollowedEngine) -> None:
    prompt = document()
    await one.ask_and_tie(prompt)
    await one.fill_by_others()
    await one.until_counted("shortened_total", 1)
    await one.until_in_step()
    after = await one.ask_and_tie(prompt)
    assert 0 < after.cached_share < 0.9, "the engine evicted a part of it"
    assert_is_true(after)
    again = await one.ask(prompt)
    assert again.cached_share > 0.9, "the engine has read that part again"
    assert_is_true(again)


async def test_a_conversation_grows_and_is_known_by_its_turns(one: FollowedEngine) -> None:
    turn = document(SENTENCES // 4)
    await one.ask_and_tie(turn)
    for _ in range(2):
        turn = f"{turn} {document(SENTENCES // 4)}"
        answered = await one.ask_and_tie(turn)
        assert 0.3 < answered.cached_share < 0.9
        assert_is_true(answered)


async def test_a_cleared_cache_is_believed_empty_as_soon_as_the_engine_says_so(one: FollowedEngine) -> None:
    prompt = document()
    await one.ask_and_tie(prompt)
    async with one.session.post(f"{one.teller.engine.url}/reset_prefix_cache") as answer:
        assert answer.status == 200
    await one.ask(document(1))
    await one.until_in_step()
    after = await one.ask(prompt)
    assert after.cached_tokens == 0
    assert (after.told_share, after.believed_share) == (0, 0)


async def test_lost_messages_are_repeated_and_nothing_is_forgotten(one: FollowedEngine) -> None:
    kept, prompt = document(), document()
    await one.ask_and_tie(kept)
    one.tap.is_losing = True
    await one.ask(prompt)
    one.tap.is_losing = False
    assert one.tap.lost > 0
    await one.ask_and_tie(document(SENTENCES // 2))
    await one.until_in_step()
    assert one.counted("repeated_total", replica=REPLICA) >= one.tap.lost
    assert one.counted("unheard_total", reason="gap") == 0
    for text in (kept, prompt):
        again = await one.ask(text)
        assert again.cached_share > 0.9
        assert_is_true(again)


async def test_what_was_evicted_while_no_connection_stood_is_learnt_afterwards(one: FollowedEngine) -> None:
    prompt = document()
    await one.ask_and_tie(prompt)
    one.tap.cut()
    await until(lambda: not one.counted("followed", replica=REPLICA))
    await one.fill_by_others()
    one.tap.is_cut = False
    await one.until_followed()
    await one.until_in_step()
    assert one.counted("shortened_total") >= 1
    after = await one.ask(prompt)
    assert 0 < after.cached_share < 0.9
    assert_is_true(after)


async def test_a_restarted_engine_holds_nothing_and_is_followed_anew(one: FollowedEngine) -> None:
    prompt = document()
    await one.ask_and_tie(prompt)
    one.teller.engine.kill()
    await until(lambda: not one.counted("followed", replica=REPLICA))
    one.teller.engine.start()
    await one.teller.engine.until_ready()
    await one.region.until_free(1)
    await one.until_followed()
    assert (await one.until_in_step())["blocks"] == 0
    after = await one.ask_and_tie(prompt)
    assert after.cached_tokens == 0
    assert (after.told_share, after.believed_share) == (0, 0)
    again = await one.ask(prompt)
    assert again.cached_share > 0.9
    assert_is_true(again)


async def test_a_long_history_is_repeated_whole(
    request: pytest.FixtureRequest, mesh: RealMesh, session: aiohttp.ClientSession
) -> None:
    """Thousands of batches: vLLM sends them without a pause and drops what its queue has no room for, and the gateway
    may take only so many bytes a second.
    """
    needs(VLLM_FOLDER, request.config)
    ports = (free_port(), free_port())
    script = ROOT / "tests/engines/vllm_publisher.py"
    command = [str(each) for each in (VLLM_FOLDER / "bin/python", script, *ports)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        assert b"ready" in await process.stdout.readuntil(b"ready\n")
        async with serve_engines([EngineServerConfig(model=MODEL, engine=LLAMA_31_8B_L4)]) as (engine,):
            (member,) = replicas({REPLICA: engine.url})
            member.update(kv_events_port=ports[0], kv_events_replay_port=ports[1])
            us = mesh.add("us-1", US, {}, replicas=[member])
            async with mesh.running():
                await until(lambda: counted(us.gateway, "kv_events_followed", replica=REPLICA) == 1)
                repeated_batches = counted(us.gateway, "kv_events_repeated_total", replica=REPLICA)
                async with session.get(f"{us.gateway.admin_url}/admin/state") as answer:
                    state = (await answer.json())["kv_events"][REPLICA]
                unheard = {
                    reason: counted(us.gateway, "kv_events_unheard_total", reason=reason) for reason in UnheardReason
                }
        assert repeated_batches >= BATCHES
        assert (state["is_heard"], state["blocks"], state["unplaced"]) == (True, BLOCKS, 0)
        assert set(unheard.values()) == {0}
    finally:
        process.kill()
        await process.wait()
