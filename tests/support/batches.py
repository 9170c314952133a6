"""Batches in tests: files of requests, a gateway that runs them, and a client that follows them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import openai
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle, serve_gateway
from gateway.config.sections import GatewayConfig
from gateway.core.vocabulary import GatewayId, TenantName
from gateway.features.batches.book import BatchBook
from gateway.features.batches.config import BatchesConfig
from gateway.features.batches.extension import BatchesExtension
from gateway.features.batches.files import FolderFiles
from gateway.features.batches.sqlite import SqliteDatabase
from gateway.features.batches.state import ENDED, WINDOW_S, ClientBatch, StoredFile
from gateway.features.batches.store import BatchStore
from mesh.clock import Clock
from tests.fakes.engine import GOOD_ANSWER, Exchange, FakeEngine, answer
from tests.support.core import MODEL, US
from tests.support.gateways import ENOUGH_S, free_replicas, region_config, until, write_policy
from tests.support.processes import Process

_MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
GOOD_MESSAGE = json.dumps(_MESSAGE).encode()
"""Answer of an engine to a request of Anthropic's API."""
CHAT_PATH: Final = "/v1/chat/completions"


class SettableClock(Clock):
    """Clock whose wall time, and time since the machine's start, can be set ahead."""

    ahead_s = 0

    def wall_ns(self) -> int:
        return Clock.wall_ns() + self.ahead_s * 1_000_000_000

    def boot_ns(self) -> int:
        return super().boot_ns() + self.ahead_s * 1_000_000_000


def book_in(folder: Path, clock: Clock | None = None) -> BatchBook:
    """Book of batches in a folder, which is not open yet."""
    database = SqliteDatabase(folder / "batches.sqlite", lambda: Clock.wall_ns() // 1_000_000)
    return BatchBook(BatchStore(database), FolderFiles(folder), BatchesConfig().lease_ns, clock or Clock())


def line_of(number: int, **changes: object) -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"question {number}"}]}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT_PATH, "body": body, **changes}
    return json.dumps(line).encode() + b"\n"


def lines_of(count: int) -> bytes:
    return b"".join(map(line_of, range(count)))


def batches_config(folder: Path, engine: FakeEngine) -> GatewayConfig:
    """Config of a gateway with one engine, which takes batches."""
    made = region_config("us-1", US, [engine.url], policy_file=write_policy(folder, US))
    return replace(made, gateway_id=GatewayId("us-1"), batches=BatchesConfig(folder=folder / "batches"))


def answer_after(gate: asyncio.Event) -> Callable[[Exchange], Awaitable[None]]:
    """Script that answers once the gate is open."""

    async def script(exchange: Exchange) -> None:
        await gate.wait()
        await answer(200, GOOD_ANSWER)(exchange)

    return script


def client_batch(batch_id: str = "batch_1", tenant: str = "acme", created_s: int = 0) -> ClientBatch:
    """Batch that was just handed in, for a day."""
    return ClientBatch(
        id=batch_id,
        tenant=TenantName(tenant),
        key=None,
        is_token=False,
        endpoint=CHAT_PATH,
        input_file_id="file-in",
        output_file_id="file-out",
        error_file_id="file-errors",
        created_s=created_s,
        expires_s=created_s + WINDOW_S,
    )


async def keep_input(book: BatchBook, batch: ClientBatch | None = None) -> None:
    """Keep an empty input file of a batch."""
    batch = batch or client_batch()
    file = StoredFile(
        id=batch.input_file_id,
        tenant=batch.tenant,
        filename="in.jsonl",
        purpose="batch",
        size=0,
        created_s=batch.created_s,
        expires_s=batch.expires_s,
    )
    await book.keep_file(await book.in_files(book.folder.begin, file.id), file)


def fail_after(work: Callable[..., None]) -> Callable[..., None]:
    """Work that is done, and whose answer is lost."""

    def done_and_failed(*arguments: object) -> None:
        work(*arguments)
        raise OSError("no answer")

    return done_and_failed


def batches_of(gateway: GatewayHandle) -> BatchesExtension:
    (batches,) = [each for each in gateway._observed.features if isinstance(each, BatchesExtension)]
    return batches


@asynccontextmanager
async def serving(config: GatewayConfig, clock: Clock | None = None) -> AsyncIterator[GatewayHandle]:
    async with serve_gateway(config, clock=clock) as gateway:
        book = batches_of(gateway)._book
        await until(lambda: free_replicas(gateway) == 1 and book is not None and book.is_open)
        yield gateway


@asynccontextmanager
async def client_of(gateway: GatewayHandle | Process, key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.http_url}/v1", api_key=key) as client:
        yield client


async def submit(client: openai.AsyncOpenAI, data: bytes) -> Any:
    file = await client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    assert (file.bytes, file.purpose, file.filename) == (len(data), "batch", "in.jsonl")
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT_PATH, completion_window="24h")


async def until_status(client: openai.AsyncOpenAI, batch_id: str, holds: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(ENOUGH_S):
        while not holds(batch := await client.batches.retrieve(batch_id)):  # noqa: ASYNC110 - the API has no event
            await asyncio.sleep(0.01)
    return batch


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    return await until_status(client, batch_id, lambda batch: batch.status in ENDED)


async def results(client: openai.AsyncOpenAI, file_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await client.files.content(file_id)).content.splitlines()]
