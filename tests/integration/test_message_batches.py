"""Message batches with Anthropic's own client, over the store and runner of OpenAI's batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from gateway.config.sections import GatewayConfig
from gateway.security.keys_editing import add_key
from mesh.clock import Clock
from tests.fakes.engine import Exchange, FakeEngine, answer, hang
from tests.support.batches import (
    GOOD_MESSAGE,
    SettableClock,
    batches_config,
    batches_of,
    client_of,
    lines_of,
    serving,
    submit,
)
from tests.support.core import MODEL
from tests.support.gateways import ENOUGH_S, until


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> GatewayConfig:
    return batches_config(tmp_path, engine)


@asynccontextmanager
async def messages_client(gateway: GatewayHandle, key: str = "none") -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.http_url, api_key=key, max_retries=0) as client:
        yield client


def requests_of(count: int, **changes: object) -> list[Any]:
    def params(number: int) -> dict[str, object]:
        said = [{"role": "user", "content": f"question {number}"}]
        return {"model": MODEL, "max_tokens": 8, "messages": said, **changes}

    return [{"custom_id": f"r-{number}", "params": params(number)} for number in range(count)]


async def refuse_one(exchange: Exchange) -> None:
    """Script that refuses the question that ends in 1, and answers any other."""
    text = json.loads(exchange.received.body)["messages"][0]["content"]
    if text.endswith("1"):
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
        await answer(400, json.dumps(error).encode())(exchange)
    else:
        await answer(200, GOOD_MESSAGE)(exchange)


async def ended(client: anthropic.AsyncAnthropic, batch_id: str) -> Any:
    async with asyncio.timeout(ENOUGH_S):
        while True:
            batch = await client.messages.batches.retrieve(batch_id)
            if batch.processing_status == "ended":
                return batch
            await asyncio.sleep(0.01)


async def results_of(client: anthropic.AsyncAnthropic, batch_id: str) -> dict[str, Any]:
    return {each.custom_id: each.result async for each in await client.messages.batches.results(batch_id)}


async def test_each_request_has_one_result(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(refuse_one)
    async with serving(config) as gateway, messages_client(gateway) as client:
        made = await client.messages.batches.create(requests=requests_of(3))
        assert (made.processing_status, made.request_counts.processing) == ("in_progress", 3)
        done = await ended(client, made.id)
        counts = done.request_counts
        assert (counts.succeeded, counts.errored, counts.processing) == (2, 1, 0)
        assert done.ended_at >= done.created_at
        results = await results_of(client, made.id)
        assert sorted(results) == ["r-0", "r-1", "r-2"]
        assert results["r-0"].message.content[0].text == "Hello"
        assert (results["r-1"].type, results["r-1"].error.error.message) == ("errored", "no")
        with pytest.raises(anthropic.ConflictError):
            await client.messages.batches.cancel(made.id)


def files_left(config: GatewayConfig) -> list[str]:
    return [each.name for each in ((config.batches.folder or Path()) / "files").iterdir()]


async def test_a_batch_is_cancelled_and_deleted(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(hang)
    async with serving(config) as gateway, messages_client(gateway) as client:
        made = await client.messages.batches.create(requests=requests_of(4))
        await engine.arrived.reaches(1)
        with pytest.raises(anthropic.ConflictError):
            await client.messages.batches.delete(made.id)
        with pytest.raises(anthropic.AnthropicError, match="results_url"):
            await client.messages.batches.results(made.id)
        assert (await client.messages.batches.cancel(made.id)).processing_status == "canceling"
        assert (await ended(client, made.id)).request_counts.canceled == 4
        assert {each.type for each in (await results_of(client, made.id)).values()} == {"canceled"}
        assert (await client.messages.batches.delete(made.id)).id == made.id
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(made.id)
        book = batches_of(gateway)._book
        assert book is not None
        await until(lambda: (book.files, book.sizes.total) == ({}, 0))
    assert files_left(config) == []


async def test_a_window_that_ends_expires_what_did_not_run(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(answer(200, GOOD_MESSAGE), hang)
    clock = SettableClock()
    async with serving(config, clock) as gateway, messages_client(gateway) as client:
        made = await client.messages.batches.create(requests=requests_of(4))
        book = batches_of(gateway)._book
        assert book is not None
        await until(lambda: book.batches[made.id].completed == 1)
        clock.ahead_s = 24 * 3600
        counts = (await ended(client, made.id)).request_counts
        assert (counts.succeeded, counts.expired, counts.errored) == (1, 3, 0)


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        (requests_of(2)[:1] * 2, "requests.1"),
        (requests_of(1, stream=True), "requests.0"),
        ([{"custom_id": "", "params": {"model": MODEL}}], "custom_id"),
        ([], "no request"),
        ([{"custom_id": "a"}], "params"),
    ],
)
async def test_a_fault_is_told_at_once_and_leaves_nothing(
    config: GatewayConfig, requests: list[Any], words: str
) -> None:
    async with serving(config) as gateway, messages_client(gateway) as client:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.batches.create(requests=requests)
        assert words in str(refused.value)
        book = batches_of(gateway)._book
        assert book is not None
        assert (book.batches, book.files, book.sizes.total) == ({}, {}, 0)
    assert files_left(config) == []


async def test_a_body_beyond_the_limit_is_refused(config: GatewayConfig) -> None:
    small = replace(config, batches=replace(config.batches, inline_max_bytes=1000))
    async with serving(small) as gateway, messages_client(gateway) as client:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await client.messages.batches.create(requests=requests_of(50))
        assert refused.value.status_code == 413


async def test_batches_are_listed_in_pages_and_apart_from_openai_s(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(hang)
    async with serving(config) as gateway, messages_client(gateway) as client, client_of(gateway) as other:
        made = {(await client.messages.batches.create(requests=requests_of(1))).id for _ in range(5)}
        theirs = (await submit(other, lines_of(1))).id
        listed = [each.id async for each in client.messages.batches.list(limit=2)]
        assert (len(listed), set(listed)) == (5, made)
        before = await client.messages.batches.list(limit=2, before_id=listed[3])
        assert [each.id for each in before.data] == listed[1:3]
        assert before.has_more
        assert [each.id async for each in other.batches.list()] == [theirs]
        with pytest.raises(openai.NotFoundError):
            await other.batches.retrieve(listed[0])
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(theirs)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.batches.list(after_id=theirs)


async def test_a_tenant_sees_its_own_only(config: GatewayConfig, engine: FakeEngine, tmp_path: Path) -> None:
    engine.plays(answer(200, GOOD_MESSAGE))
    path = tmp_path / "keys.yaml"
    keys = [add_key(path, name, {"tenant": name}, Clock().wall_ns(), may_be_missing=True).key for name in ("a", "z")]
    async with serving(replace(config, keys_file=path)) as gateway:
        async with messages_client(gateway, keys[0]) as client, messages_client(gateway, keys[1]) as other:
            made = await client.messages.batches.create(requests=requests_of(1))
            assert (await ended(client, made.id)).request_counts.succeeded == 1
            for ask in (
                other.messages.batches.retrieve(made.id),
                other.messages.batches.results(made.id),
                other.messages.batches.delete(made.id),
            ):
                with pytest.raises(anthropic.NotFoundError):
                    await ask
