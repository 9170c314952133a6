"""OpenAI's Uploads API over real sockets, with OpenAI's own client: a file in parts, which outlive their gateway."""

from __future__ import annotations

import asyncio
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
from gateway.features.batches.state import StoredFile, UploadStatus
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


async def test_parts_are_joined_in_the_order_told(gateway: GatewayHandle, client: openai.AsyncOpenAI) -> None:
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
    assert a not in str(book_of(gateway).uploads[upload_id]), "256 ids would take 20 KB for a day"


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


async def test_a_cancelled_upload_leaves_nothing(
    gateway: GatewayHandle, client: openai.AsyncOpenAI, config: GatewayConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_of(gateway).store, "delete_file", fail)  # rows of parts are deleted together
    upload_id = await begin(client)
    part_id, _ = await add(client, upload_id, DATA[:100], DATA[100:])
    assert (await client.uploads.cancel(upload_id)).status == "cancelled"
    assert (await client.uploads.cancel(upload_id)).status == "cancelled"
    assert (await refusal(client.uploads.complete(upload_id, part_ids=[part_id])))[1] == "upload_not_pending"
    await until(lambda: not stored_in(config))


async def test_an_abandoned_upload_expires_and_leaves_nothing(
    config: GatewayConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SettableClock()
    async with serving(config, clock) as gateway, hasty_client_of(gateway) as client:
        monkeypatch.setattr(book_of(gateway).store, "delete_file", fail)
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
        ({"expires_after": {"anchor": "last_active_at", "seconds": 7200}}, None),
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
        for size in (21, 100_000):
            assert await refusal(add(client, first, bytes(size))) == (400, "invalid_field", "data")
        await add(client, first, b"x" * 10, b"x" * 9)
        with pytest.raises(openai.BadRequestError, match="at most 1 bytes: 67108864 a part, 20 in all"):
            await add(client, first, b"xx")
        await add(client, first, b"x")
        with pytest.raises(openai.BadRequestError, match="an upload has at most 3 parts"):
            await add(client, first, b"")
        await begin(client, 10)
        with pytest.raises(openai.RateLimitError, match="2 uploads in parts are open") as refused:
            await begin(client, 10)
        assert 60 < int(refused.value.response.headers["retry-after"]) <= 3600, "the oldest ends then"
        book = book_of(gateway)
        with monkeypatch.context() as patched:
            patched.setattr(book.store, "delete_upload", fail)
            for _ in range(4):
                await client.uploads.cancel(first)
                first = await begin(client, 10)
        await until(lambda: len(book.uploads) == 2 + 1)


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
@pytest.mark.parametrize("is_away", [False, True])
async def test_a_completion_whose_storing_is_not_answered_leaves_one_file(
    gateway: GatewayHandle, client: openai.AsyncOpenAI, config: GatewayConfig, is_written: bool, is_away: bool
) -> None:
    upload_id, book = await begin(client), book_of(gateway)
    part_ids = await add(client, upload_id, DATA)
    before, store = stored_in(config), book.store
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "put_file", fail_after(store.put_file) if is_written else fail)
        if is_away:
            patched.setattr(store, "has_file", fail)
        if is_written and not is_away:
            await client.uploads.complete(upload_id, part_ids=part_ids)
        else:
            assert (await refusal(client.uploads.complete(upload_id, part_ids=part_ids)))[0] == 503
            assert book.sizes.total == (2 if is_away else 1) * len(DATA), "what may be kept counts"
    if is_written:
        await until(lambda: book.uploads[upload_id].status is UploadStatus.COMPLETED)
    else:
        await until(lambda: stored_in(config) == before)
    done = await client.uploads.complete(upload_id, part_ids=part_ids)
    assert done.file is not None
    names = {done.file.id}
    assert (await client.files.content(done.file.id)).content == DATA
    await until(lambda: not book.parts)
    await until(lambda: stored_in(config) == names)
    assert book.sizes.total == len(DATA)


async def complete_elsewhere(book: BatchBook, upload_id: str) -> StoredFile:
    """Complete an upload, and delete its parts, as another gateway does: the one of the book does not hear of it."""
    whole, parts = book.uploads[upload_id], book.parts[upload_id]
    first = next(iter(parts.values()))
    file = replace(first, id=f"file-{'f' * 24}", upload="", size=whole.size, expires_s=first.created_s + 3600)
    digest = upload_api._digest_of(list(parts))
    done = replace(whole, status=UploadStatus.COMPLETED, file=file, parts_digest=digest)
    await book.do(book.store.put_file, file, done)
    await book.do(book.store.delete_parts, [each.id for each in parts.values()])
    for each in parts.values():
        await book.in_files(book.folder.delete, each.id)
    return file


async def test_a_completion_that_another_gateway_has_answered_is_answered_alike(
    gateway: GatewayHandle, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, book = await begin(client), book_of(gateway)
    part_ids = await add(client, upload_id, DATA[:100], DATA[100:])
    find_parts = book.find_parts

    async def look_first(*arguments: Any) -> Any:  # gateways that share the store do so for a part that is not known
        await book.look()
        return await find_parts(*arguments)

    monkeypatch.setattr(book, "find_parts", look_first)
    file = await complete_elsewhere(book, upload_id)
    done = await client.uploads.complete(upload_id, part_ids=part_ids)
    assert (done.status, done.file and done.file.id) == ("completed", file.id)


class _Unreadable(io.BytesIO):
    """File of which no byte can be read."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def read(self, *_: object) -> bytes:
        raise self._error


@pytest.mark.parametrize("error", [FileNotFoundError("no such key"), OSError("slow down")])
async def test_a_completion_whose_parts_go_while_they_are_read_gets_the_other_ones_answer(
    gateway: GatewayHandle,
    client: openai.AsyncOpenAI,
    config: GatewayConfig,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
) -> None:
    upload_id, book, loop = await begin(client), book_of(gateway), asyncio.get_running_loop()
    part_ids = await add(client, upload_id, DATA)

    def read(_: str) -> _Unreadable:
        asyncio.run_coroutine_threadsafe(complete_elsewhere(book, upload_id), loop).result()
        return _Unreadable(error)

    monkeypatch.setattr(book.folder, "read", read)
    done = await client.uploads.complete(upload_id, part_ids=part_ids)
    assert (done.status, done.file and done.file.id) == ("completed", f"file-{'f' * 24}")
    await until(lambda: not stored_in(config))


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


_ORDERS = ["complete, complete", "complete, cancel", "complete, part", "cancel, complete", "cancel, part"]


@pytest.mark.parametrize("order", _ORDERS)
async def test_of_calls_at_once_the_first_that_is_stored_decides(
    gateway: GatewayHandle,
    client: openai.AsyncOpenAI,
    config: GatewayConfig,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
) -> None:
    first, second = order.split(", ")
    upload_id, book = await begin(client), book_of(gateway)
    part_ids = await add(client, upload_id, DATA)
    calls: dict[str, Callable[[], Any]] = {
        "complete": lambda: client.uploads.complete(upload_id, part_ids=part_ids),
        "cancel": lambda: client.uploads.cancel(upload_id),
        "part": lambda: add(client, upload_id, DATA),
    }
    step = "put_upload" if second == "cancel" else "keep_file"
    store, came, may_go_on = getattr(book, step), asyncio.Event(), asyncio.Event()

    async def wait_once(*arguments: Any) -> None:
        monkeypatch.setattr(book, step, store)
        came.set()
        await may_go_on.wait()
        await store(*arguments)

    async def outcome() -> Any:
        try:
            return await calls[second]()
        except openai.ConflictError as error:
            return str(error)

    monkeypatch.setattr(book, step, wait_once)
    async with TaskGroup() as tasks:
        late = tasks.create_task(outcome())
        await until(came.is_set)
        decided = await calls[first]()
        may_go_on.set()
    if first == second:
        assert late.result() == decided
    else:
        assert f"it is {decided.status}" in late.result()
    await until(lambda: not book.parts)
    files = [each.id async for each in client.files.list()]
    assert len(files) == (first == "complete")
    await until(lambda: stored_in(config) == set(files))
