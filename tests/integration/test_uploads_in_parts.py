"""OpenAI's Uploads API over real sockets, with OpenAI's own client: a file in parts, which outlive their gateway."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from gateway.config.sections import GatewayConfig
from gateway.features.batches import upload_api
from gateway.features.batches.book import BatchBook
from gateway.security.keys_editing import add_key
from mesh.clock import Clock
from mesh.task_group import TaskGroup
from tests.fakes.engine import GOOD_ANSWER, FakeEngine, answer
from tests.support.batches import (
    CHAT_PATH,
    SettableClock,
    batches_config,
    batches_of,
    client_of,
    ended,
    fail_after,
    lines_of,
    serving,
)
from tests.support.core import US
from tests.support.gateways import until
from tests.support.processes import gateway_process, region_file

DATA = lines_of(40)


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> GatewayConfig:
    return batches_config(tmp_path, engine)


@pytest.fixture
async def gateway(config: GatewayConfig) -> AsyncIterator[GatewayHandle]:
    async with serving(config) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: GatewayHandle) -> AsyncIterator[openai.AsyncOpenAI]:
    async with hasty_client_of(gateway) as client:
        yield client


@asynccontextmanager
async def hasty_client_of(gateway: GatewayHandle) -> AsyncIterator[openai.AsyncOpenAI]:
    """Client that repeats no call."""
    async with client_of(gateway) as client:
        yield client.with_options(max_retries=0)


def book_of(gateway: GatewayHandle) -> BatchBook:
    book = batches_of(gateway)._book
    assert book is not None
    return book


def stored_in(config: GatewayConfig) -> set[str]:
    return {each.name for each in ((config.batches.folder or Path()) / "files").iterdir()}


async def begin(client: openai.AsyncOpenAI, size: int = len(DATA), **changes: Any) -> str:
    order = {"bytes": size, "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch", **changes}
    return (await client.uploads.create(**order)).id


async def add(client: openai.AsyncOpenAI, upload_id: str, *pieces: bytes) -> list[str]:
    """Ids of parts with these pieces."""
    return [(await client.uploads.parts.create(upload_id, data=io.BytesIO(each))).id for each in pieces]


async def refusal(call: Any) -> tuple[int, str | None, str | None]:
    """Status, code and `param` of an error."""
    with pytest.raises(openai.APIStatusError) as refused:
        await call
    return refused.value.status_code, refused.value.code, refused.value.param


async def test_a_file_is_uploaded_in_parts_and_run(
    gateway: GatewayHandle, client: openai.AsyncOpenAI, config: GatewayConfig, engine: FakeEngine
) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    done = await client.uploads.upload_file_chunked(
        file=DATA,
        filename="in.jsonl",
        bytes=len(DATA),
        mime_type="application/jsonl",
        purpose="batch",
        part_size=1_000,
        md5=hashlib.md5(DATA).hexdigest(),
    )
    assert (done.status, done.bytes, done.object) == ("completed", len(DATA), "upload")
    assert done.expires_at - done.created_at == 3600
    assert done.file is not None
    file = await client.files.retrieve(done.file.id)
    assert file == done.file
    assert (file.filename, file.bytes, file.purpose) == ("in.jsonl", len(DATA), "batch")
    assert (await client.files.content(file.id)).content == DATA
    await until(lambda: stored_in(config) == {file.id})
    assert book_of(gateway).sizes.total == len(DATA)
    batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT_PATH, completion_window="24h")
    assert (await ended(client, batch.id)).request_counts.completed == 40


async def test_parts_are_joined_in_the_order_told(client: openai.AsyncOpenAI) -> None:
    upload_id = await begin(client, 3, expires_after={"anchor": "created_at", "seconds": 7200})
    c, _, a, b = await add(client, upload_id, b"c", b"z", b"a", b"b")
    done = await client.uploads.complete(upload_id, part_ids=[a, b, c])
    assert done.file is not None
    assert (await client.files.content(done.file.id)).content == b"abc"
    assert done.file.expires_at is not None
    assert done.file.expires_at - done.file.created_at == 7200
    assert await client.uploads.complete(upload_id, part_ids=[a, b, c]) == done, "the same again"
    assert await refusal(client.uploads.complete(upload_id, part_ids=[a, b])) == (409, "upload_not_pending", None)
    assert await refusal(add(client, upload_id, b"x")) == (409, "upload_not_pending", None)
    assert await refusal(client.uploads.cancel(upload_id)) == (409, "upload_not_pending", None)
    await client.files.delete(done.file.id)
    assert await client.uploads.complete(upload_id, part_ids=[a, b, c]) == done


async def test_a_completion_that_does_not_fit_is_refused_and_changes_nothing(client: openai.AsyncOpenAI) -> None:
    upload_id, other_id = await begin(client, 3), await begin(client, 3)
    a, bc = await add(client, upload_id, b"a", b"bc")
    (others,) = await add(client, other_id, b"bc")
    for part_ids, md5, param in (
        ([a], None, "part_ids"),
        ([a, a, a], None, "part_ids"),
        ([a, others], None, "part_ids[1]"),
        ([a, bc], hashlib.md5(b"xyz").hexdigest(), "md5"),
    ):
        told: dict[str, Any] = {} if md5 is None else {"md5": md5}
        assert await refusal(client.uploads.complete(upload_id, part_ids=part_ids, **told)) == (
            400,
            "invalid_field",
            param,
        )
    assert (await client.uploads.complete(upload_id, part_ids=[a, bc])).status == "completed"
    assert len([each async for each in client.files.list()]) == 1


async def test_a_part_is_no_file(client: openai.AsyncOpenAI) -> None:
    upload_id = await begin(client)
    (part_id,) = await add(client, upload_id, DATA)
    file_id = part_id.replace("part_", "file-")
    assert [each async for each in client.files.list()] == []
    for call in (
        client.files.retrieve(file_id),
        client.files.content(file_id),
        client.files.delete(file_id),
        client.batches.create(input_file_id=file_id, endpoint=CHAT_PATH, completion_window="24h"),
    ):
        assert (await refusal(call))[:2] == (404, "file_not_found")


async def test_a_cancelled_upload_leaves_nothing(client: openai.AsyncOpenAI, config: GatewayConfig) -> None:
    upload_id = await begin(client)
    (part_id,) = await add(client, upload_id, DATA)
    assert (await client.uploads.cancel(upload_id)).status == "cancelled"
    assert (await client.uploads.cancel(upload_id)).status == "cancelled"
    assert (await refusal(client.uploads.complete(upload_id, part_ids=[part_id])))[1] == "upload_not_pending"
    await until(lambda: not stored_in(config))


async def test_an_abandoned_upload_expires_and_leaves_nothing(config: GatewayConfig) -> None:
    clock = SettableClock()
    async with serving(config, clock) as gateway, hasty_client_of(gateway) as client:
        upload_id = await begin(client)
        (part_id,) = await add(client, upload_id, DATA)
        clock.ahead_s = 3600
        await until(lambda: not stored_in(config))
        assert await refusal(add(client, upload_id, DATA)) == (409, "upload_not_pending", None)
        assert (await refusal(client.uploads.complete(upload_id, part_ids=[part_id])))[1] == "upload_not_pending"
        assert (await refusal(client.uploads.cancel(upload_id)))[1] == "upload_not_pending"
        clock.ahead_s = 25 * 3600
        await until(lambda: not book_of(gateway).uploads)
        assert (await refusal(client.uploads.cancel(upload_id)))[1] == "upload_not_found"


async def test_tenants_see_their_own_only(config: GatewayConfig, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    keys = [add_key(path, name, {"tenant": name}, Clock().wall_ns(), may_be_missing=True).key for name in ("a", "z")]
    async with serving(replace(config, keys_file=path)) as gateway:
        async with client_of(gateway, keys[0]) as acme, client_of(gateway, keys[1]) as zenith:
            upload_id = await begin(acme)
            part_ids = await add(acme, upload_id, DATA)
            for call in (
                add(zenith, upload_id, b"x"),
                zenith.uploads.complete(upload_id, part_ids=part_ids),
                zenith.uploads.cancel(upload_id),
            ):
                assert await refusal(call) == (404, "upload_not_found", None)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"size": 0}, "bytes"),
        ({"size": 201 << 20}, "bytes"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "expires_after.seconds"),
        ({"filename": 7}, None),
    ],
)
async def test_an_order_with_a_fault_is_refused(
    client: openai.AsyncOpenAI, changes: dict[str, Any], param: str | None
) -> None:
    assert await refusal(begin(client, **changes)) == (400, "invalid_field", param)


async def test_uploads_in_parts_have_limits(config: GatewayConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_api, "PARTS_MAX", 3)
    small = replace(config.batches, tenant_pending_uploads_max=2, tenant_max_bytes=100, tenant_ended_max=1)
    async with serving(replace(config, batches=small)) as gateway, hasty_client_of(gateway) as client:
        assert (await refusal(begin(client, 51)))[:2] == (507, "files_full"), (
            "its parts and the file need twice its size"
        )
        first = await begin(client, 10)
        assert (await refusal(add(client, first, bytes(21))))[:2] == (413, "body_too_large")
        await add(client, first, b"x" * 10, b"x" * 9)
        assert (await refusal(add(client, first, b"xx")))[:2] == (413, "body_too_large"), "a part is sent again once"
        await add(client, first, b"x")
        assert (await refusal(add(client, first, b"")))[:2] == (507, "files_full"), "there are three parts"
        await begin(client, 10)
        assert (await refusal(begin(client, 10)))[:2] == (429, "uploads_exceeded")
        for _ in range(4):
            await client.uploads.cancel(first)
            first = await begin(client, 10)
        assert len(book_of(gateway).uploads) <= 2 + 2


async def test_what_was_answered_outlives_the_gateway(tmp_path: Path, engine: FakeEngine) -> None:
    file = region_file(tmp_path, "us-1", US, engine, batches={"folder": str(tmp_path / "batches")})
    part_ids: list[str] = []
    upload_id = ""
    for piece in (DATA[:2_000], DATA[2_000:]):
        async with gateway_process(file) as gateway, client_of(gateway) as client:
            upload_id = upload_id or await begin(client)
            part_ids += await add(client, upload_id, piece)
            gateway.process.kill()
            await gateway.process.wait()
    async with gateway_process(file) as gateway, client_of(gateway) as client:
        done = await client.uploads.complete(upload_id, part_ids=part_ids, md5=hashlib.md5(DATA).hexdigest())
        gateway.process.kill()
        await gateway.process.wait()
    async with gateway_process(file) as gateway, client_of(gateway) as client:
        assert await client.uploads.complete(upload_id, part_ids=part_ids) == done
        assert done.file is not None
        assert (await client.files.content(done.file.id)).content == DATA


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_completion_whose_answer_is_lost_can_be_asked_for_again(
    gateway: GatewayHandle, client: openai.AsyncOpenAI, config: GatewayConfig, is_written: bool
) -> None:
    upload_id = await begin(client)
    part_ids = await add(client, upload_id, DATA)
    store = book_of(gateway).store
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "put_file", fail_after(store.put_file) if is_written else fail)
        assert (await refusal(client.uploads.complete(upload_id, part_ids=part_ids)))[0] == 503
    done = await client.uploads.complete(upload_id, part_ids=part_ids)
    assert done.file is not None
    assert (await client.files.content(done.file.id)).content == DATA
    await until(lambda: not book_of(gateway).parts)


async def test_a_completion_whose_parts_are_gone_says_why(
    config: GatewayConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SettableClock()
    async with serving(config, clock) as gateway, hasty_client_of(gateway) as client:
        upload_id = await begin(client)
        part_ids = await add(client, upload_id, DATA[:100], DATA[100:])
        files = (config.batches.folder or Path()) / "files"
        read, name = book_of(gateway).folder.read, part_ids[1].replace("part_", "file-")
        (files / name).unlink()
        assert await refusal(client.uploads.complete(upload_id, part_ids=part_ids)) == (
            503,
            "batches_unavailable",
            None,
        )

        def expire(*arguments: Any) -> Any:
            clock.ahead_s = 3600
            return read(*arguments)

        monkeypatch.setattr(book_of(gateway).folder, "read", expire)
        assert await refusal(client.uploads.complete(upload_id, part_ids=part_ids)) == (409, "upload_not_pending", None)


def fail(*_: object) -> None:
    raise OSError("no answer")


@pytest.mark.parametrize("other", ["complete", "cancel", "part"])
async def test_of_calls_at_once_one_decides(
    gateway: GatewayHandle, client: openai.AsyncOpenAI, config: GatewayConfig, other: str
) -> None:
    upload_id = await begin(client)
    part_ids = await add(client, upload_id, DATA)
    calls: dict[str, Callable[[], Any]] = {
        "complete": lambda: client.uploads.complete(upload_id, part_ids=part_ids),
        "cancel": lambda: client.uploads.cancel(upload_id),
        "part": lambda: add(client, upload_id, DATA),
    }

    async def outcome(name: str) -> Any:
        try:
            return await calls[name]()
        except openai.ConflictError:
            return None

    async with TaskGroup() as tasks:
        both = [tasks.create_task(outcome(name)) for name in ("complete", other)]
    first, second = (each.result() for each in both)
    assert first is not None or second is not None
    assert other != "complete" or first == second
    await until(lambda: not book_of(gateway).parts)
    files = [each.id async for each in client.files.list()]
    assert len(files) == (first is not None)
    await until(lambda: stored_in(config) == set(files))
