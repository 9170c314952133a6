"""Engines die in the middle of answers, and clients notice only a pause. The official SDKs, unmodified."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import AuditConfig, GatewayConfig
from gateway.core.features.resume.config import ResumeConfig
from gateway.door.body_memory import BodyMemory
from loadgen.engine.faults import EngineFault, FaultMode
from loadgen.engine.tokens import continuation
from tests.fakes.engine import (
    DONE,
    ROLE,
    STOP,
    FakeEngine,
    cut_after,
    event,
    hang_up,
    stream,
    stream_and_cut,
    stream_and_hang,
    token,
)
from tests.support.core import EU, LAYERED, MODEL, US, under
from tests.support.gateways import ask, counted, free_replicas, region_config, until, write_policy
from tests.support.hostile import rooms
from tests.support.regions import Mesh, Region, busy_us_and_free_eu
from tests.support.served import HELLO, Ports, Served, expected, served

TOKENS = 12
DIES_ONCE = EngineFault(FaultMode.DIE_MIDSTREAM, after_tokens=5, times=1)
"""Fault of either of two engines: one breaks an answer, and the other its continuation."""
SAID = expected(("user", "hello"), tokens=TOKENS)


@pytest.fixture
async def up(tmp_path: Path, unused_tcp_port_factory: Ports, across: bool) -> AsyncIterator[Served]:
    """Two engines, each of which dies once; with `across`, they are in the region that gets the forwards."""
    async with served(tmp_path, unused_tcp_port_factory, across=across, engines=2) as made:
        for engine in made.engines:
            engine.set_fault(DIES_ONCE)
        yield made


@asynccontextmanager
async def openai_of(up: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=up.openai_url, api_key="client", max_retries=0) as client:
        yield client


class TestUnnoticed:
    async def test_chat(self, up: Served) -> None:
        async with openai_of(up) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=TOKENS, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        choices = [choice for chunk in chunks for choice in chunk.choices]
        assert "".join(choice.delta.content or "" for choice in choices) == SAID
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        assert [choice.delta.role for choice in choices].count("assistant") == 1
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
        usage = chunks[-1].usage
        assert usage is not None
        assert (usage.completion_tokens, usage.total_tokens) == (TOKENS, usage.prompt_tokens + TOKENS)
        assert counted(up.gateways[-1], "resumes_total", target="replica") == 2, "whose engine broke it"

    async def test_completions(self, up: Served) -> None:
        async with openai_of(up) as client:
            stream = await client.completions.create(model=MODEL, prompt="once upon", max_tokens=TOKENS, stream=True)
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) == continuation(MODEL, b"once upon", TOKENS).decode()
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1

    async def test_messages(self, up: Served) -> None:
        async with anthropic.AsyncAnthropic(base_url=up.url, api_key="client", max_retries=0) as client:
            async with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=TOKENS) as stream:
                kinds = [event.type async for event in stream if event.type != "text"]
                message = await stream.get_final_message()
        (block,) = message.content
        assert block.type == "text"
        assert (block.text, message.stop_reason, message.usage.output_tokens) == (SAID, "max_tokens", TOKENS)
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[2:-3] == ["content_block_delta"] * TOKENS
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]

    async def test_responses(self, up: Served) -> None:
        async with openai_of(up) as client:
            async with client.responses.stream(
                model=MODEL, input="hello", max_output_tokens=TOKENS, store=False
            ) as stream:
                events: list[Any] = [event async for event in stream]
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == SAID
        assert [event.sequence_number for event in events] == list(range(len(events)))
        last = events[-1].response
        assert (last.output_text, last.status, last.id) == (SAID, "incomplete", events[0].response.id)
        assert last.usage.output_tokens == TOKENS


def in_token_ids(config: GatewayConfig) -> GatewayConfig:
    return replace(config, core=replace(config.core, resume=ResumeConfig(token_ids=True)))


class TestTokenIds:
    async def test_are_asked_for_and_kept_from_the_client(self, engine: FakeEngine, tmp_path: Path) -> None:
        """Token ids that the client did not request are removed from its answer, and the continuation is a completion
        of exactly these ids.
        """
        dies = asyncio.Event()
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": MODEL}
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        said = {"index": 0, "delta": {"content": "Hello"}, "token_ids": [5, 6]}
        begun = event({**head, "choices": [role], "prompt_token_ids": [1, 2]}), event({**head, "choices": [said]})
        rest = event({"id": "cmpl-2", "choices": [{"index": 0, "text": " world", "finish_reason": "stop"}]})
        engine.plays(cut_after(dies, *begun), stream(rest, DONE))
        config = region_config("us-1", US, [engine.url], policy_file=write_policy(tmp_path, US))
        async with serve_gateway(in_token_ids(config)) as gateway, aiohttp.ClientSession() as session:
            await until(lambda: free_replicas(gateway) == 1)
            async with ask(session, gateway.http_url, max_tokens=20) as response:
                seen = await response.content.readuntil(b"Hello")
                dies.set()
                seen += await response.read()
        assert b"[" not in seen.replace(b'"choices":[', b"").replace(b"[DONE]", b""), "no ids"
        told = [json.loads(line[6:]) for line in seen.splitlines() if line.startswith(b"data: {")]
        assert [choice["delta"].get("content") for chunk in told for choice in chunk["choices"]] == [
            "",
            "Hello",
            " world",
        ]
        assert {chunk["id"] for chunk in told} == {"chatcmpl-1"}
        first, second = engine.received
        assert json.loads(first.body)["return_token_ids"] is True
        assert second.path == "/v1/completions"
        asked = json.loads(second.body)
        assert (asked["prompt"], asked["max_tokens"]) == ([1, 2, 5, 6], 18)

    async def test_an_answer_is_what_it_would_have_been(self, tmp_path: Path, unused_tcp_port_factory: Ports) -> None:
        async with served(tmp_path, unused_tcp_port_factory, engines=2, change=in_token_ids) as up:
            for each in up.engines:
                each.set_fault(DIES_ONCE)
            async with openai_of(up) as client:
                chunks = await client.chat.completions.create(
                    model=MODEL, messages=HELLO, max_tokens=TOKENS, stream=True
                )
                said = [choice.delta.content or "" async for chunk in chunks for choice in chunk.choices]
        assert "".join(said) == SAID


def resumes(region: Region) -> float:
    return sum(counted(region.gateway, "resumes_total", target=target) for target in ("replica", "peer"))


BEGUN = (ROLE, token("Hel"), token("lo"))
REST = (ROLE + token(" world"), STOP, DONE)
WENT_ON = token(" world") + STOP + b": nightside: went on elsewhere, resume 1, in us-east-1\n\n" + DONE


@asynccontextmanager
async def half_an_answer(mesh: Mesh, us: Region) -> AsyncIterator[aiohttp.ClientResponse]:
    """Half of a forwarded answer; from then on there is room at home."""
    async with ask(mesh.session, us.gateway.http_url, max_tokens=50) as response:
        await response.content.readuntil(token("lo"))
        await us.become_free()
        yield response


class TestForwards:
    """A broken forward is resumed in the peer's region, or at home."""

    async def test_what_cannot_go_on_there_goes_on_at_home(self, mesh: Mesh) -> None:
        us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
        for region in (us, eu):
            region.config = replace(region.config, core=under(LAYERED, region.config.core))
        eu.config = replace(eu.config, core=replace(eu.config.core, resume=ResumeConfig(enabled=False)))
        await mesh.start(us, eu)
        await us.become_busy()
        dies = asyncio.Event()
        eu.engine.plays(cut_after(dies, *BEGUN))
        us.engine.plays(stream(*REST))
        async with half_an_answer(mesh, us) as response:
            dies.set()
            assert await response.content.read() == WENT_ON
        (rest,) = us.engine.received
        asked = json.loads(rest.body)
        assert asked["messages"][1:] == [{"role": "assistant", "content": "Hello"}]
        limits = asked["max_tokens"], asked["continue_final_message"], asked["add_generation_prompt"]
        assert limits == (48, True, False)
        assert (resumes(us), resumes(eu)) == (1, 0)

    async def test_a_gateway_that_dies_is_gone_on_without(self, mesh: Mesh) -> None:
        us, eu = await busy_us_and_free_eu(mesh)
        eu.engine.plays(stream_and_hang(*BEGUN))
        us.engine.plays(stream(*REST))
        async with half_an_answer(mesh, us) as response:
            await eu.stop()
            assert await response.content.read() == WENT_ON
        assert resumes(us) == 1

    async def test_each_region_that_saw_it_is_on_record(self, mesh: Mesh, tmp_path: Path) -> None:
        """The resuming region has seen the prompt and the answer so far; no record contains their text."""
        folder = tmp_path / "audit"
        us, eu = await busy_us_and_free_eu(mesh, audit=AuditConfig(folder=folder))
        eu.engine.plays(stream_and_hang(*BEGUN))
        us.engine.plays(stream(*REST))
        async with half_an_answer(mesh, us) as response:
            request_id = response.headers["x-request-id"]
            await eu.stop()
            assert await response.content.read() == WENT_ON
        async with mesh.session.get(f"{us.gateway.admin_url}/admin/explain/{request_id}") as answered:
            placements = (await answered.json())["here"]["placements"]
        assert [(each["region"], each.get("resume")) for each in placements] == [(EU.region, None), (US.region, 1)]
        await us.stop()
        text = "".join(path.read_text() for path in folder.iterdir())
        lines = [json.loads(line) for line in text.splitlines()]
        (line,) = [line for line in lines if line["kind"] == "request" and line["gateway"] == "us-1"]
        attempts = [(each["region"], each["result"], each.get("resume")) for each in line["attempts"]]
        assert attempts == [(EU.region, "failed", None), (US.region, "completed", 1)]
        assert line["processed"]["region"] == US.region
        assert "hello" not in text
        assert "world" not in text

    async def test_poison_is_carried_no_further(self, mesh: Mesh) -> None:
        """Two engines in a row, or one that returned, died of the continuation before its first token."""
        us, eu = await busy_us_and_free_eu(mesh)
        dies = asyncio.Event()
        eu.engine.plays(cut_after(dies, *BEGUN), hang_up)
        async with half_an_answer(mesh, us) as response:
            dies.set()
            assert b"no further engine is tried" in await response.content.read()
        assert len(eu.engine.received) == 3
        assert not us.engine.received, "the origin was told to leave it"
        assert (resumes(us), resumes(eu)) == (0, 1)

    async def test_gateways_share_one_bound(self, mesh: Mesh) -> None:
        """The peer's resume counts: none is left for the origin."""
        us, eu = await mesh.region("us-1", US), await mesh.region("eu-1", EU)
        for region in (us, eu):
            core = replace(under(LAYERED, region.config.core), resume=ResumeConfig(resumes_max=1))
            region.config = replace(region.config, core=core)
        await mesh.start(us, eu)
        await us.become_busy()
        dies = asyncio.Event()
        eu.engine.plays(cut_after(dies, *BEGUN), stream_and_cut(REST[0]))
        us.engine.plays(stream(*REST))
        async with half_an_answer(mesh, us) as response:
            dies.set()
            told = await response.content.read()
        assert told.startswith(token(" world"))
        assert b"engine_failed_midstream" in told
        assert (resumes(us), resumes(eu)) == (0, 1)
        assert not us.engine.received

    async def test_a_drain_that_does_not_wait_sends_its_answers_elsewhere(self, mesh: Mesh) -> None:
        us, eu = await busy_us_and_free_eu(mesh)
        eu.engine.plays(stream_and_hang(*BEGUN))
        us.engine.plays(stream(*REST))
        async with half_an_answer(mesh, us) as response:
            assert await eu.gateway.drain(0.01) is False, "its time is over, and it has one left"
            await eu.stop()
            assert await response.content.read() == WENT_ON
        await eu.engine.aborted.reaches(1)
        assert (resumes(us), counted(us.gateway, "resumed_requests_total", outcome="completed")) == (1, 1)


@asynccontextmanager
async def in_front_of(
    engine: FakeEngine,
    folder: Path,
    replicas: int = 1,
    change: Callable[[GatewayConfig], GatewayConfig] = lambda config: config,
) -> AsyncIterator[tuple[GatewayHandle, aiohttp.ClientSession]]:
    """A gateway whose replicas are all one engine; its scripts are played in the order of its requests."""
    config = region_config("us-1", US, [engine.url] * replicas, policy_file=write_policy(folder, US))
    async with serve_gateway(change(config)) as gateway, aiohttp.ClientSession() as session:
        await until(lambda: free_replicas(gateway) == replicas)
        yield gateway, session


def room_beside(others: list[BodyMemory]) -> BodyMemory:
    """The newest counter of held bytes: that of the gateway under test."""
    (room,) = (each for each in rooms() if each not in others)
    return room


class TestThePause:
    async def test_a_client_that_leaves_in_it_leaves_nothing_behind(self, engine: FakeEngine, tmp_path: Path) -> None:
        dies = asyncio.Event()
        engine.plays(cut_after(dies, *BEGUN), stream(*REST))
        others = rooms()
        async with in_front_of(engine, tmp_path) as (gateway, session):
            room = room_beside(others)
            async with ask(session, gateway.http_url) as response:
                await response.content.readuntil(token("lo"))
                engine.waiting = 1  # no replica is free to resume
                await until(lambda: free_replicas(gateway) == 0)
                assert room.bytes > 0, "of its body, and of what it was told"
                dies.set()
                await until(lambda: len(gateway.core.waiting) == 1)
            await until(lambda: gateway.driver.open_requests == 0)
            assert not gateway.core.requests
            assert (room.bytes, room.requests) == (0, 0)
            assert counted(gateway, "answers_broken_total", target="replica", result="failed", continuable="yes") == 1
            assert counted(gateway, "resumes_total", target="replica") == 0
        assert len(engine.received) == 1
