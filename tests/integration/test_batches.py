"""Files and batches over real sockets, with OpenAI's own client: from the upload to the output file, over a crash."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from gateway.config.sections import GatewayConfig
from gateway.core.features.classes.config import BatchConfig, ClassesConfig
from gateway.core.kernel.events import DrainLifted
from gateway.features.batches import results as results_module
from gateway.features.batches import runner as runner_module
from gateway.features.batches import state as state_module
from gateway.features.batches.book import BatchBook
from gateway.features.batches.lines import LineRequest, LineResult, result_of
from gateway.features.batches.runner import BatchRunner
from gateway.features.batches.state import ClientBatch
from gateway.request.callers import KeyId
from gateway.security.keys_editing import add_key, remove_key
from mesh.clock import Clock
from tests.fakes.engine import GOOD_ANSWER, Exchange, FakeEngine, answer, hang
from tests.support.batches import (
    CHAT_PATH,
    SettableClock,
    answer_after,
    batches_config,
    batches_of,
    client_of,
    ended,
    fail_after,
    line_of,
    lines_of,
    results,
    serving,
    submit,
    until_status,
)
from tests.support.core import US
from tests.support.gateways import ENOUGH_S, counted, free_replicas, until
from tests.support.processes import gateway_process, region_file


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> GatewayConfig:
    return batches_config(tmp_path, engine)


async def echo(exchange: Exchange) -> None:
    """Script that refuses each question that ends in 3, and answers any other."""
    body = json.loads(exchange.received.body)
    text = body["messages"][0]["content"]
    if text.endswith("3"):
        refusal = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
        await answer(400, json.dumps(refusal).encode())(exchange)
    else:
        await answer(200, GOOD_ANSWER)(exchange)


async def test_a_drain_takes_back_lines_that_wait_and_they_run_once_it_is_lifted(
    config: GatewayConfig, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_TICK_S", 0.05)
    engine.plays(echo)
    async with serving(config) as gateway, client_of(gateway) as client:
        engine.waiting = 1
        await until(lambda: free_replicas(gateway) == 0)
        batch = await submit(client, lines_of(3))
        await until(lambda: len(gateway.core.requests) == 3)
        assert await gateway.drain(ENOUGH_S)
        assert engine.arrived.count == 0
        engine.waiting = 0
        gateway.driver.submit(DrainLifted())
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 3)


async def test_each_line_has_one_result(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(echo)
    async with serving(config) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(10))
        assert (batch.status, batch.completion_window, batch.endpoint) == ("validating", "24h", CHAT_PATH)
        done = await ended(client, batch.id)
        assert (done.status, done.errors) == ("completed", None)
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (10, 9, 1)
        told = await results(client, done.output_file_id)
        assert {each["custom_id"] for each in told} == {f"line-{number}" for number in range(10) if number != 3}
        assert {each["response"]["status_code"] for each in told} == {200}
        assert told[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
        (refused,) = await results(client, done.error_file_id)
        assert (refused["custom_id"], refused["response"]["status_code"]) == ("line-3", 400)
        assert refused["response"]["body"]["error"]["message"] == "no"
        assert counted(gateway, "batch_lines_total", result="completed") == 9
        assert [each.id async for each in client.batches.list()] == [batch.id]
        names = sorted([each.filename async for each in client.files.list()])
        assert names == [f"{batch.id}_error.jsonl", f"{batch.id}_output.jsonl", "in.jsonl"]
        assert (await client.files.delete(done.input_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(done.input_file_id)


async def test_faults_of_lines_are_told_by_number(config: GatewayConfig) -> None:
    async with serving(config) as gateway, client_of(gateway) as client:
        data = line_of(0) + b"{not JSON\n" + line_of(0) + line_of(1, url="/v1/embeddings")
        done = await ended(client, (await submit(client, data)).id)
        assert done.status == "failed"
        assert [(each.line, each.code) for each in done.errors.data] == [
            (2, "invalid_json_line"),
            (3, "duplicate_custom_id"),
            (4, "invalid_url"),
        ]


async def test_one_replica_runs_several_lines_at_once(config: GatewayConfig, engine: FakeEngine) -> None:
    """No line is answered before all have come, and none is promoted to another class because it waits."""
    engine.plays(hang)
    unpromoted = replace(config.core, classes=ClassesConfig(batch=BatchConfig(promotion_ns=None)))
    async with serving(replace(config, core=unpromoted)) as gateway, client_of(gateway) as client:
        await submit(client, lines_of(4))
        await engine.arrived.reaches(4)


async def test_a_cancelled_batch_says_so_for_each_line_that_did_not_run(
    config: GatewayConfig, engine: FakeEngine
) -> None:
    engine.plays(hang)
    async with serving(config) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(50))
        await engine.arrived.reaches(1)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        done = await ended(client, batch.id)
        assert (done.status, done.output_file_id, done.request_counts.failed) == ("cancelled", None, 50)
        told = await results(client, done.error_file_id)
        assert {each["error"]["code"] for each in told} == {"batch_cancelled"}
        assert len({each["custom_id"] for each in told}) == 50
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)


async def test_a_batch_goes_on_after_a_restart(config: GatewayConfig, engine: FakeEngine) -> None:
    asked: list[str] = []

    async def first_few(exchange: Exchange) -> None:
        asked.append(json.loads(exchange.received.body)["messages"][0]["content"])
        if len(asked) > 5:
            await asyncio.Event().wait()
        await answer(200, GOOD_ANSWER)(exchange)

    engine.plays(first_few)
    async with serving(config) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(20))
        await until_status(client, batch.id, lambda each: each.request_counts.completed == 5)
    done_before = set(asked[:5])
    asked.clear()
    engine.plays(echo_all(asked))
    async with serving(config) as gateway, client_of(gateway) as client:
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 20)
        told = await results(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in told) == sorted(f"line-{number}" for number in range(20))
    assert not done_before & set(asked)
    assert len(asked) == 15


def echo_all(asked: list[str]) -> Callable[[Exchange], Any]:
    async def script(exchange: Exchange) -> None:
        asked.append(json.loads(exchange.received.body)["messages"][0]["content"])
        await answer(200, GOOD_ANSWER)(exchange)

    return script


async def test_tenants_see_their_own_only(config: GatewayConfig, tmp_path: Path, engine: FakeEngine) -> None:
    engine.plays(echo)
    path = tmp_path / "keys.yaml"
    now_ns = Clock().wall_ns()
    keys = [add_key(path, name, {"tenant": name}, now_ns, may_be_missing=True).key for name in ("acme", "zenith")]
    async with serving(replace(config, keys_file=path)) as gateway:
        async with client_of(gateway, keys[0]) as acme, client_of(gateway, keys[1]) as zenith:
            batch = await submit(acme, lines_of(1))
            assert (await ended(acme, batch.id)).status == "completed"
            for ask in (
                zenith.batches.retrieve(batch.id),
                zenith.files.retrieve(batch.input_file_id),
                zenith.files.content(batch.input_file_id),
                zenith.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT_PATH, completion_window="24h"),
            ):
                with pytest.raises(openai.NotFoundError):
                    await ask
            assert [each async for each in zenith.batches.list()] == []


async def test_uploads_have_limits(config: GatewayConfig) -> None:
    small = replace(config.batches, file_max_bytes=1000)
    async with serving(replace(config, batches=small)) as gateway, client_of(gateway) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=("in.jsonl", io.BytesIO(bytes(100_000))), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")
        with pytest.raises(openai.BadRequestError):
            await client.files.create(file=("in.jsonl", io.BytesIO(b"x")), purpose="assistants")
        assert [each async for each in client.files.list()] == []
    assert list((small.folder or Path()).glob("files/*")) == []


@pytest.mark.parametrize(
    "told",
    [
        *({"seconds": each} for each in ("000000360099999999", "3599", "99999999999999999999", "x")),
        {"anchor": "last_active_at", "seconds": "7200"},
    ],
)
async def test_a_file_is_kept_no_longer_than_the_limit(config: GatewayConfig, told: dict[str, str]) -> None:
    async with serving(config) as gateway, client_of(gateway) as client:
        with pytest.raises(openai.BadRequestError):
            await client.files.create(
                file=("in.jsonl", io.BytesIO(b"x")),
                purpose="batch",
                extra_body={f"expires_after[{name}]": value for name, value in told.items()},
            )
        assert [each async for each in client.files.list()] == []
    assert list((config.batches.folder or Path()).glob("files/*")) == []


@pytest.mark.parametrize("asked", ["&" * 40, "limit=0000015000", "limit=000001" + "9" * 4_500, "limit=0", "limit=-1"])
async def test_what_is_asked_of_a_list_is_refused_in_words_beyond_its_limits(config: GatewayConfig, asked: str) -> None:
    async with serving(config) as gateway, aiohttp.ClientSession() as client:
        async with client.get(f"http://{gateway.http_address}/v1/files?{asked}") as response:
            assert (response.status, (await response.json())["error"]["type"]) == (400, "invalid_request_error")


async def test_an_upload_that_stops_leaves_nothing(config: GatewayConfig) -> None:
    async with serving(config) as gateway:
        reader, writer = await asyncio.open_connection(gateway.http_address.host, gateway.http_address.port)
        head = "POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=e\r\n"
        part = '--e\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        writer.write((head + "content-length: 100000\r\n\r\n" + part).encode() + bytes(50_000))
        files = (config.batches.folder or Path()) / "files"
        try:
            await until(lambda: any(each.stat().st_size for each in files.glob("*.part")))
        finally:
            writer.close()
        await until(lambda: not list(files.iterdir()))
        assert await reader.read() == b""


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("what", ["append", "add_part"])
async def test_a_store_that_fails_loses_and_doubles_nothing(
    config: GatewayConfig, engine: FakeEngine, what: str, is_written: bool
) -> None:
    gate = asyncio.Event()

    engine.plays(answer_after(gate))
    async with serving(config) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(5))
        await engine.arrived.reaches(1)
        store = opened_book(gateway).store
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, what, fail_after(getattr(store, what)) if is_written else fail)
            gate.set()
            await until(lambda: "results cannot be written" in gateway_note(gateway))
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 5)
        told = await results(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in told) == [f"line-{number}" for number in range(5)]
        assert gateway_note(gateway) == ""


async def test_results_of_several_parts_are_one_file(
    config: GatewayConfig, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "_PART_BYTES", 1_000)
    engine.plays(answer(200, GOOD_ANSWER))
    few = replace(config, batches=replace(config.batches, requests_max=2))  # no more results are written together
    async with serving(few) as gateway, client_of(gateway) as client:
        done = await ended(client, (await submit(client, lines_of(40))).id)
        parts = opened_book(gateway).files[done.output_file_id].parts
        assert len(parts) > 3
        told = await results(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in told) == sorted(f"line-{number}" for number in range(40))
        assert (await client.files.delete(done.output_file_id)).deleted
        assert [each.name for each in ((config.batches.folder or Path()) / "files").iterdir()] == [done.input_file_id]


def opened_book(gateway: GatewayHandle) -> BatchBook:
    book = batches_of(gateway)._book
    assert book is not None
    return book


def gateway_note(gateway: GatewayHandle) -> str:
    return gateway._observed.notes().get("batches", "")


async def test_a_window_that_ends_says_so_for_each_line_that_did_not_run(
    config: GatewayConfig, engine: FakeEngine
) -> None:
    engine.plays(answer(200, GOOD_ANSWER), answer(200, GOOD_ANSWER), hang)
    clock = SettableClock()
    async with serving(config, clock) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(20))
        await engine.arrived.reaches(3)
        await until_status(client, batch.id, lambda each: each.request_counts.completed == 2)
        clock.ahead_s = 24 * 3600
        done = await ended(client, batch.id)
        counts = done.request_counts
        assert (done.status, counts.total, counts.completed, counts.failed) == ("expired", 20, 2, 18)
        told = await results(client, done.error_file_id)
        assert {each["error"]["code"] for each in told} == {"batch_expired"}
        assert len({each["custom_id"] for each in told}) == 18


async def test_killed_in_the_middle_it_loses_and_doubles_nothing(tmp_path: Path, engine: FakeEngine) -> None:
    lines = 60
    engine.plays(answer(200, GOOD_ANSWER))
    file = region_file(tmp_path, "us-1", US, engine, batches={"folder": str(tmp_path / "batches")})
    batch_id = ""
    for killed_at in (5, 20, 40):
        async with gateway_process(file) as gateway, client_of(gateway) as client:
            batch_id = batch_id or (await submit(client, lines_of(lines))).id
            await until_status(client, batch_id, lambda each, at=killed_at: each.request_counts.completed >= at)  # type: ignore[misc]
            gateway.process.kill()
            await gateway.process.wait()
    async with gateway_process(file) as gateway, client_of(gateway) as client:
        done = await ended(client, batch_id)
        assert (done.status, done.request_counts.completed, done.error_file_id) == ("completed", lines, None)
        told = await results(client, done.output_file_id)
        assert sorted(each["custom_id"] for each in told) == sorted(f"line-{number}" for number in range(lines))
    assert len(engine.received) < lines + 3 * 40, "what was done is not done again"


async def test_a_removed_key_runs_no_further_line(config: GatewayConfig, tmp_path: Path, engine: FakeEngine) -> None:
    path = tmp_path / "keys.yaml"
    now_ns = Clock().wall_ns()
    first, second = (
        add_key(path, name, {"tenant": "acme"}, now_ns, may_be_missing=True).key for name in ("first", "second")
    )
    engine.plays(hang)
    keyed = replace(config, keys_file=path)
    async with serving(keyed) as gateway, client_of(gateway, first) as client:
        batch = await submit(client, lines_of(3))
        await engine.arrived.reaches(1)
    remove_key(path, "first")
    engine.plays(answer(200, GOOD_ANSWER))
    async with serving(keyed) as gateway, client_of(gateway, second) as client:
        done = await ended(client, batch.id)
        assert (done.status, done.output_file_id) == ("completed", None)
        told = await results(client, done.error_file_id)
        assert [each["response"]["body"]["error"]["code"] for each in told] == ["invalid_api_key"] * 3


async def test_a_key_that_moves_to_another_tenant_runs_no_further_line(
    config: GatewayConfig, tmp_path: Path, engine: FakeEngine
) -> None:
    path = tmp_path / "keys.yaml"
    now_ns = Clock().wall_ns()
    keys = [add_key(path, name, {"tenant": "acme"}, now_ns, may_be_missing=True).key for name in ("moved", "other")]
    engine.plays(hang)
    keyed = replace(config, keys_file=path)
    async with serving(keyed) as gateway, client_of(gateway, keys[0]) as client:
        batch = await submit(client, lines_of(3))
        await engine.arrived.reaches(1)
    path.write_text(path.read_text().replace("acme", "zenith", 1))
    engine.plays(answer(200, GOOD_ANSWER))
    async with serving(keyed) as gateway, client_of(gateway, keys[1]) as client:
        done = await ended(client, batch.id)
        assert (done.status, done.output_file_id, done.request_counts.failed) == ("completed", None, 3)


async def test_a_batch_whose_input_was_removed_from_the_disk_fails(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(hang)
    async with serving(config) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(3))
        await engine.arrived.reaches(1)
    ((config.batches.folder or Path()) / "files" / batch.input_file_id).unlink()
    async with serving(config) as gateway, client_of(gateway) as client:
        done = await ended(client, batch.id)
        assert (done.status, [each.code for each in done.errors.data]) == ("failed", ["input_file_lost"])


@pytest.mark.parametrize("is_checked", [False, True])
async def test_an_input_file_that_cannot_be_read_stops_its_batch_and_no_other(
    config: GatewayConfig, engine: FakeEngine, is_checked: bool
) -> None:
    engine.plays(hang)
    none_runs = replace(config, batches=replace(config.batches, tenant_batches_max=0))
    async with serving(none_runs) as gateway, client_of(gateway) as client:
        file = await client.files.create(file=("in.jsonl", io.BytesIO(lines_of(3))), purpose="batch")
        path = (config.batches.folder or Path()) / "files" / file.id
        if not is_checked:
            unreadable(path)
        bad = await client.batches.create(input_file_id=file.id, endpoint=CHAT_PATH, completion_window="24h")
        if is_checked:
            await until_status(client, bad.id, lambda each: each.status == "in_progress")
            unreadable(path)
    engine.plays(answer(200, GOOD_ANSWER))
    async with serving(config) as gateway, client_of(gateway) as client:
        runner = batches_of(gateway)._runner
        assert runner is not None
        await until(lambda: bad.id in runner._stops)
        good = await submit(client, lines_of(3))
        assert (await ended(client, good.id)).status == "completed"


def unreadable(path: Path) -> None:
    """Have each read of a file fail, for root as well."""
    path.unlink()
    path.mkdir()


@asynccontextmanager
async def stopped_batch(config: GatewayConfig) -> AsyncIterator[tuple[openai.AsyncOpenAI, BatchRunner, str]]:
    """Client, runner and id of a batch that was stopped by a defect, which is gone since."""
    async with serving(config) as gateway, client_of(gateway) as client:
        runner = batches_of(gateway)._runner
        assert runner is not None
        api, runner._api = runner._api, None  # a batch that begins now meets an assertion
        broken = await submit(client, lines_of(3))
        await until(lambda: broken.id in runner._stops)
        runner._api = api
        yield client, runner, broken.id


async def test_a_defect_stops_one_batch_and_no_other(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    async with stopped_batch(config) as (client, runner, broken_id):
        good = await submit(client, lines_of(3))
        assert (await ended(client, good.id)).status == "completed"
        assert runner._stops.keys() == {broken_id}


async def test_a_stopped_batch_is_tried_again(
    config: GatewayConfig, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    monkeypatch.setattr(state_module, "_WAIT_MIN_S", 0.0)
    async with stopped_batch(config) as (client, runner, batch_id):
        assert (await ended(client, batch_id)).request_counts.completed == 3
        await until(lambda: not runner._stops)


async def test_a_stopped_batch_can_be_cancelled(config: GatewayConfig) -> None:
    async with stopped_batch(config) as (client, runner, batch_id):
        await client.batches.cancel(batch_id)
        done = await ended(client, batch_id)
        assert (done.status, done.request_counts.failed) == ("cancelled", 3)
        await until(lambda: not runner._stops)


async def test_a_batch_that_runs_again_is_not_stopped(
    config: GatewayConfig, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    engine.plays(answer(200, GOOD_ANSWER), answer_after(gate))
    monkeypatch.setattr(state_module, "_WAIT_MIN_S", 0.0)
    async with serving(config) as gateway, client_of(gateway) as client:
        runner = batches_of(gateway)._runner
        assert runner is not None
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(BatchRunner, "_ask", meet_defect)
            batch = await submit(client, lines_of(3))
            await until(lambda: runner.stopped == 1)
        await until_status(client, batch.id, lambda each: each.request_counts.completed == 1)
        assert (batch.id in runner._tasks, runner.stopped) == (True, 0)
        gate.set()
        assert (await ended(client, batch.id)).request_counts.completed == 3
        await until(lambda: not runner._stops)


async def meet_defect(*_: object) -> None:
    raise ValueError("defect")


@pytest.mark.parametrize(("torn", "results_written"), [(b"", 5), (b'{"custom_id"\n', None)])
async def test_a_batch_that_cannot_be_ended_fails_after_its_window(
    config: GatewayConfig, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, torn: bytes, results_written: int | None
) -> None:
    engine.plays(hang)
    none_runs = replace(config, batches=replace(config.batches, tenant_batches_max=0))
    async with serving(none_runs) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(8))
        await until_status(client, batch.id, lambda each: each.status == "in_progress")
        ((config.batches.folder or Path()) / "files" / batch.input_file_id).write_bytes(lines_of(5) + torn)
    monkeypatch.setattr(state_module, "_WAIT_MIN_S", 0.0)
    clock = SettableClock()
    clock.ahead_s = 24 * 3600
    async with serving(config, clock) as gateway, client_of(gateway) as client:
        done = await ended(client, batch.id)
        assert (done.status, [each.code for each in done.errors.data]) == ("failed", ["internal_error"])
        if results_written is not None:
            assert len(await results(client, done.error_file_id)) == done.request_counts.failed == results_written
        assert (await client.files.delete(batch.input_file_id)).deleted


async def test_a_cancel_that_cannot_be_stored_is_not_carried_out(config: GatewayConfig, engine: FakeEngine) -> None:
    gate = asyncio.Event()

    engine.plays(answer_after(gate))
    async with serving(config) as gateway, client_of(gateway) as client:
        batch = await submit(client, lines_of(3))
        await engine.arrived.reaches(1)
        book = opened_book(gateway)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(book.store, "put_batch", fail)
            with pytest.raises(openai.InternalServerError):
                await client.with_options(max_retries=0).batches.cancel(batch.id)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        gate.set()
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 3)


def fail(*_: object) -> None:
    raise OSError("the disk fails")


async def test_results_count_against_limits_while_their_batch_runs(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(answer(200, GOOD_ANSWER), hang)
    data = lines_of(2)
    small = replace(config, batches=replace(config.batches, tenant_max_bytes=2 * len(data), requests_max=1))
    async with serving(small) as gateway, client_of(gateway) as client:
        batch = await submit(client, data)
        await until_status(client, batch.id, lambda each: each.request_counts.completed == 1)
        book = opened_book(gateway)
        ((_, _, results_bytes),) = await book.do(book.store.result_sizes)
        assert book.sizes.total == results_bytes + len(data) > len(data)
        with pytest.raises(openai.APIStatusError) as refused:
            await client.with_options(max_retries=0).files.create(file=("in", io.BytesIO(data)), purpose="batch")
        assert refused.value.code == "files_full"
    none_runs = replace(small, batches=replace(small.batches, tenant_batches_max=0))
    async with serving(none_runs) as gateway:
        assert opened_book(gateway).sizes.total > len(data), "a restart counts them as well"


async def test_a_file_without_results_is_not_left(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    async with serving(config) as gateway, client_of(gateway) as client:
        done = await ended(client, (await submit(client, lines_of(3))).id)
        files = (config.batches.folder or Path()) / "files"
        book = opened_book(gateway)
        stored = [book.files[each].stored_names for each in (done.input_file_id, done.output_file_id)]
        assert sorted(each.name for each in files.iterdir()) == sorted([*stored[0], *stored[1]])
        await until(lambda: book.sizes.total == sum(each.stat().st_size for each in files.iterdir()))


async def test_batches_that_ended_first_make_room_for_those_that_end(config: GatewayConfig, engine: FakeEngine) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    few = replace(config, batches=replace(config.batches, tenant_ended_max=2))
    async with serving(few) as gateway, client_of(gateway) as client:
        book = opened_book(gateway)
        done = []
        for _ in range(8):
            done.append(await ended(client, (await submit(client, lines_of(1))).id))
            await until(lambda: len(book.batches) <= 2)
        assert len(book.batches) == 2
        assert done[-1].id in book.batches
        for each in done:
            assert (await results(client, each.output_file_id))[0]["custom_id"] == "line-0"


async def test_uploads_have_a_share_per_tenant(config: GatewayConfig, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    keys = [add_key(path, name, {"tenant": name}, Clock().wall_ns(), may_be_missing=True).key for name in ("a", "z")]
    one = replace(config, keys_file=path, batches=replace(config.batches, tenant_uploads_max=1))
    async with serving(one) as gateway:
        reader, writer = await asyncio.open_connection(gateway.http_address.host, gateway.http_address.port)
        head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {keys[0]}\r\n"
        form = "content-type: multipart/form-data; boundary=e\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
        writer.write((head + form).encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        async with client_of(gateway, keys[0]) as acme, client_of(gateway, keys[1]) as zenith:
            with pytest.raises(openai.RateLimitError):
                await acme.with_options(max_retries=0).files.create(file=("in", io.BytesIO(b"x")), purpose="batch")
            assert (await zenith.files.create(file=("in", io.BytesIO(b"x")), purpose="batch")).bytes == 1
            writer.close()
            assert (await acme.files.create(file=("in", io.BytesIO(b"x")), purpose="batch")).bytes == 1


async def test_a_line_that_waits_for_its_retry_keeps_no_place(
    config: GatewayConfig, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    path = tmp_path / "keys.yaml"
    now_ns = Clock().wall_ns()
    keys = [add_key(path, name, {"tenant": name}, now_ns, may_be_missing=True).key for name in ("acme", "zenith")]
    refused = asyncio.Event()
    ask = BatchRunner._ask

    async def refuse_acme(
        runner: BatchRunner, batch: ClientBatch, line: LineRequest, tries: int
    ) -> tuple[LineResult, float | None]:
        if batch.tenant != "acme":
            return await ask(runner, batch, line, tries)
        refused.set()
        return result_of("r", line.custom_id, 429, "q", b"{}"), 3600.0

    monkeypatch.setattr(BatchRunner, "_ask", refuse_acme)
    one_place = replace(config, keys_file=path, batches=replace(config.batches, requests_max=1))
    async with serving(one_place) as gateway:
        async with client_of(gateway, keys[0]) as acme, client_of(gateway, keys[1]) as zenith:
            await submit(acme, lines_of(3))
            await refused.wait()
            batch = await submit(zenith, lines_of(3))
            assert (await ended(zenith, batch.id)).request_counts.completed == 3


async def test_few_batches_are_brought_to_their_end_at_once(
    config: GatewayConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    within: list[str] = []
    finish = BatchRunner._run_and_finish

    async def finish_after_gate(runner: BatchRunner, batch_id: str) -> None:
        within.append(batch_id)
        await gate.wait()
        await finish(runner, batch_id)

    monkeypatch.setattr(BatchRunner, "_run_and_finish", finish_after_gate)
    none_runs = replace(config, batches=replace(config.batches, tenant_batches_max=0))
    async with serving(none_runs) as gateway, client_of(gateway) as client:
        runner = batches_of(gateway)._runner
        assert runner is not None
        batches = [await submit(client, lines_of(1)) for _ in range(4)]
        for each in batches:
            await until_status(client, each.id, lambda batch: batch.status == "in_progress")
            await client.batches.cancel(each.id)
        await until(lambda: len(within) >= 2)
        assert (len(within), len(runner._tasks)) == (2, 2), "the others are held by no gateway"
        gate.set()
        assert {(await ended(client, each.id)).status for each in batches} == {"cancelled"}


@pytest.mark.parametrize("changes", [{"tenant_files_max": 1}, {"tenant_max_bytes": 100}, {"folder_max_bytes": 100}])
async def test_a_batch_is_refused_where_its_results_have_no_room(
    config: GatewayConfig, changes: dict[str, int]
) -> None:
    async with serving(config) as gateway, client_of(gateway) as client:
        file = await client.files.create(file=("in.jsonl", io.BytesIO(lines_of(3))), purpose="batch")
    async with serving(replace(config, batches=replace(config.batches, **changes))) as gateway:
        async with client_of(gateway) as client:
            with pytest.raises(openai.APIStatusError) as refused:
                await client.with_options(max_retries=0).batches.create(
                    input_file_id=file.id, endpoint=CHAT_PATH, completion_window="24h"
                )
            assert refused.value.status_code == 507


async def test_a_key_that_is_removed_while_its_client_sends_an_order_hands_in_no_batch(
    config: GatewayConfig, tmp_path: Path
) -> None:
    path = tmp_path / "keys.yaml"
    made = add_key(path, "first", {"tenant": "acme"}, Clock().wall_ns(), may_be_missing=True)
    add_key(path, "second", {"tenant": "acme"}, Clock().wall_ns())
    async with serving(replace(config, keys_file=path)) as gateway:
        async with client_of(gateway, made.key) as client:
            file = await client.files.create(file=("in.jsonl", io.BytesIO(lines_of(1))), purpose="batch")
        order = {"input_file_id": file.id, "endpoint": CHAT_PATH, "completion_window": "24h"}
        body = json.dumps(order).encode()
        reader, writer = await asyncio.open_connection(gateway.http_address.host, gateway.http_address.port)
        head = f"POST /v1/batches HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {made.key}\r\n"
        writer.write(f"{head}expect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        remove_key(path, "first")
        find = batches_of(gateway)._runner._key_in_force  # type: ignore[union-attr]
        assert find is not None
        await until(lambda: find(KeyId("first")) is None)
        writer.write(body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
        writer.close()
        assert not batches_of(gateway)._book.batches  # type: ignore[union-attr]
