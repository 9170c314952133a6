"""Command `nightside batch` against a real gateway: its output, its files and its exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from gateway.config.sections import GatewayConfig
from gateway.features.batches import cli
from gateway.features.batches import client as client_module
from gateway.features.batches.cli import batch
from gateway.features.batches.cli_options import KEY_VARIABLE
from gateway.features.batches.client import batch_client
from gateway.features.batches.outlook import OUTLOOK_PATH
from gateway.features.batches.paces import REQUESTS_MIN
from gateway.security.keys_editing import add_key
from mesh.clock import Clock
from tests.fakes.engine import GOOD_ANSWER, Exchange, FakeEngine, answer, hang
from tests.support.batches import answer_after, batches_config, batches_of, line_of, lines_of, serving
from tests.support.core import MODEL, US


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> GatewayConfig:
    return batches_config(tmp_path, engine)


@pytest.fixture
def requests_file(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"\n" + lines_of(3))
    return path


async def run(gateway: GatewayHandle | str, name: str, *words: str | Path, key: str = "") -> Result:
    url = gateway if isinstance(gateway, str) else gateway.http_url
    line = [name, *map(str, words), "--url", url]
    return await asyncio.to_thread(CliRunner(env={KEY_VARIABLE: key}).invoke, batch, line)


async def refuse_the_last(exchange: Exchange) -> None:
    body = json.loads(exchange.received.body)
    status = 400 if body["messages"][0]["content"].endswith("2") else 200
    await answer(status, GOOD_ANSWER if status == 200 else b'{"error":{"message":"no"}}')(exchange)


async def test_a_file_goes_in_and_its_results_come_out(
    config: GatewayConfig, engine: FakeEngine, requests_file: Path, tmp_path: Path
) -> None:
    engine.plays(refuse_the_last)
    async with serving(config) as gateway:
        made = await run(gateway, "submit", requests_file)
        assert made.exit_code == 0
        batch_id = made.stdout.strip()
        watched = await run(gateway, "watch", batch_id, "--json")
        assert watched.exit_code == 1, "a line has failed"
        told = json.loads(watched.stdout)
        assert (told["status"], told["request_counts"]) == ("completed", {"total": 3, "completed": 2, "failed": 1})
        out, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
        fetched = await run(gateway, "fetch", batch_id, "-o", out, "--errors", errors)
        assert (fetched.exit_code, fetched.stdout) == (1, "")
        assert "2 of 3 lines succeeded, 1 failed" in fetched.stderr
        assert {json.loads(line)["custom_id"] for line in out.read_text().splitlines()} == {"line-0", "line-1"}
        assert [json.loads(line)["custom_id"] for line in errors.read_text().splitlines()] == ["line-2"]
        assert not hidden_in(tmp_path)
        to_stdout = await run(gateway, "fetch", batch_id)
        assert (to_stdout.exit_code, to_stdout.stdout) == (1, out.read_text()), to_stdout.exc_info
        assert "--errors FILE" in to_stdout.stderr
        listed = await run(gateway, "list")
        assert all(word in listed.stdout for word in (batch_id, "completed"))
        assert [each["id"] for each in json.loads((await run(gateway, "list", "--json")).stdout)] == [batch_id]


def hidden_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.name.startswith(".")]


async def test_a_batch_is_followed_from_its_upload_to_its_end(
    config: GatewayConfig, engine: FakeEngine, requests_file: Path
) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    async with serving(config) as gateway:
        done = await run(gateway, "submit", requests_file, "--watch")
        assert (done.exit_code, done.stdout.endswith("is completed: 3 of 3 lines succeeded, 0 failed\n")) == (0, True)
        assert "is completed" in done.stderr, "each status is told on the way"


@pytest.fixture
def faulty_file(requests_file: Path) -> Path:
    requests_file.write_bytes(line_of(0) + b"{not JSON\n")
    return requests_file


async def test_faults_of_lines_are_told(config: GatewayConfig, faulty_file: Path) -> None:
    async with serving(config) as gateway:
        done = await run(gateway, "submit", faulty_file, "--watch")
        assert done.exit_code == 1
        assert "line 2: This line is not parseable as valid JSON. (invalid_json_line)" in done.stdout


async def test_a_batch_is_cancelled_once(config: GatewayConfig, engine: FakeEngine, requests_file: Path) -> None:
    engine.plays(hang)
    async with serving(config) as gateway:
        batch_id = (await run(gateway, "submit", requests_file)).stdout.strip()
        await engine.arrived.reaches(1)
        early = await run(gateway, "fetch", batch_id)
        assert (early.exit_code, early.stderr) == (
            1,
            f"Error: {batch_id} is in_progress: results can be fetched once it has ended\n",
        )
        assert (await run(gateway, "cancel", batch_id, "--json")).exit_code == 0
        assert (await run(gateway, "watch", batch_id)).exit_code == 1
        again = await run(gateway, "cancel", batch_id)
        assert (again.exit_code, "(batch_not_cancellable)" in again.stderr) == (1, True)


async def test_keys_are_read_from_a_file_or_the_environment(
    config: GatewayConfig, requests_file: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "first", {"tenant": "acme"}, Clock().wall_ns(), may_be_missing=True).key
    key_file = tmp_path / "key"
    key_file.write_text(f"{key}\n")
    key_file.chmod(0o600)
    async with serving(replace(config, keys_file=keys)) as gateway:
        refused = await run(gateway, "list")
        assert (refused.exit_code, "api_key" in refused.stderr) == (1, True)
        assert (await run(gateway, "list", key=key)).exit_code == 0
        assert (await run(gateway, "submit", requests_file, "--key-file", key_file)).exit_code == 0
        missing = await run(gateway, "list", "--key-file", tmp_path / "nothing")
        assert (missing.exit_code, "--key-file" in missing.stderr) == (2, True)


async def test_files_of_an_earlier_batch_are_replaced(
    config: GatewayConfig, engine: FakeEngine, requests_file: Path, tmp_path: Path
) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    out, errors, linked = (tmp_path / name for name in ("out.jsonl", "errors.jsonl", "linked"))
    for each in (out, errors, linked):
        each.write_text("old")
    (tmp_path / "out.jsonl.part").symlink_to(linked)
    async with serving(config) as gateway:
        batch_id = json.loads((await run(gateway, "submit", requests_file, "--watch", "--json")).stdout)["id"]
        assert (await run(gateway, "fetch", batch_id, "-o", out, "--errors", errors)).exit_code == 0
    assert (len(out.read_text().splitlines()), errors.read_text(), linked.read_text()) == (3, "", "old")
    assert out.stat().st_mode & 0o077 == 0


async def test_an_order_that_is_refused_leaves_no_file(config: GatewayConfig, requests_file: Path) -> None:
    full = replace(config, batches=replace(config.batches, tenant_files_max=1))
    async with serving(full) as gateway:
        refused = await run(gateway, "submit", requests_file)
        assert (refused.exit_code, "(files_full)" in refused.stderr) == (1, True)
        book = batches_of(gateway)._book
        assert book is not None
        assert book.files == {}


@asynccontextmanager
async def odd_gateway(*answers: bytes) -> AsyncIterator[str]:
    """URL of a server that gives these answers by turns, and then the last one; None of its requests is read whole."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


def answer_of(status: int, body: bytes, further: str = "") -> bytes:
    return f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{further}\r\n".encode() + body


async def test_a_redirect_is_not_followed() -> None:
    async with odd_gateway(answer_of(200, b'{"data": []}')) as other:
        async with odd_gateway(answer_of(307, b"", f"location: {other}/v1/batches\r\n")) as url:
            done = await run(url, "list")
            assert (done.exit_code, "the answer has status 307" in done.stderr) == (1, True)


@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_that_is_no_text_is_told(status: int) -> None:
    async with odd_gateway(answer_of(status, b'{"\xff": 1}')) as url:
        done = await run(url, "list")
        assert (done.exit_code, "reached" in done.stderr, done.stderr.startswith("Error: ")) == (1, False, True)


async def test_a_busy_gateway_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_LOOK_MIN_S", 0.0)
    monkeypatch.setattr(cli, "_UNREACHED_S", 0.0)
    counts = {"completed": 1, "failed": 0, "total": 1}
    found = json.dumps({"id": "batch_1", "status": "completed", "request_counts": counts}).encode()
    async with odd_gateway(*[answer_of(429, b"{}")] * 3, answer_of(200, found)) as url:
        assert (await run(url, "watch", "batch_1")).exit_code == 0
    async with odd_gateway(answer_of(503, b"{}")) as url:
        assert (await run(url, "watch", "batch_1")).exit_code == 1


async def test_an_upload_that_is_not_taken_ends(requests_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_UPLOAD_PAUSE_S", 0.01)
    async with silent_gateway() as url:
        done = await run(url, "submit", requests_file)
        assert (done.exit_code, f"{url} cannot be reached: TimeoutError" in done.stderr) == (1, True)


@asynccontextmanager
async def silent_gateway() -> AsyncIterator[str]:
    """URL of a server that takes connections, and neither reads nor answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"http://{host}:{port}"


async def test_a_gateway_that_does_not_answer_is_named(requests_file: Path) -> None:
    for words in (["list"], ["submit", requests_file], ["cancel", "batch_1"]):
        done = await run("http://127.0.0.1:1", str(words[0]), *words[1:])
        assert (done.exit_code, "http://127.0.0.1:1 cannot be reached" in done.stderr) == (1, True)


PRICES = """
version: 1
currency: EUR
regions:
  us-east-1: {replica_hour: 3600}
"""


async def test_a_plan_tells_the_end_and_the_costs_and_hands_nothing_in(
    config: GatewayConfig, engine: FakeEngine, requests_file: Path, tmp_path: Path
) -> None:
    engine.plays(answer(200, GOOD_ANSWER))
    prices, many = tmp_path / "prices.yaml", tmp_path / "many.jsonl"
    prices.write_text(PRICES)
    many.write_bytes(lines_of(REQUESTS_MIN))
    async with serving(config) as gateway:
        early = await run(gateway, "plan", requests_file)
        assert early.exit_code == 4, "too few requests have told the model's pace"
        assert "not known: the pace of the model" in early.stdout
        assert (await run(gateway, "submit", many, "--watch")).exit_code == 0
        arrived = engine.arrived.count
        told = await run(gateway, "plan", requests_file, "--json", "--prices", prices)
        assert (told.exit_code, told.stderr) == (0, "")
        document = json.loads(told.stdout)
        counts = document["counts"]
        assert (counts["lines"], counts["unstated"], counts["output_tokens_max"]) == (3, 3, 3 * 1_024)
        plan = document["plan"]
        assert (plan["answer"], plan["not_known"], document["currency"]) == ("kept", [], "EUR")
        (region,) = plan["regions"]
        assert (region["region"], plan["cheapest"]) == ("us-east-1", "us-east-1")
        assert 0 < plan["finish_s"] == region["finish_s"] <= plan["latest_finish_s"]
        assert region["money"] > region["adds"] == 0, "replicas are paid for anyway"
        assert document["unshared"] == ["us-east-1"]
        shown = await run(gateway, "plan", requests_file, "--prices", prices)
        words = ("within the window of 24.0 h", "us-east-1: no requests_per_replica", "keeps the window: us-east-1")
        assert all(word in shown.stdout for word in words)
        wrong = await run(gateway, "plan", requests_file, "--window", "1ms")
        assert (wrong.exit_code, "--window" in wrong.stderr) == (2, True)
        batches_of(gateway)._paces.add(MODEL, US.region, 1, 1, 10**15)
        missed = await run(gateway, "plan", requests_file, "--window", "90m")
        assert (missed.exit_code, "misses the window of 90.0 min" in missed.stdout) == (3, True), missed.stdout
        late = json.loads((await run(gateway, "plan", requests_file, "--window", "90m", "--json")).stdout)["plan"]
        assert 5_400 < late["finish_s"] < late["latest_finish_s"], (
            "answers of 1,024 tokens are longer than those of late"
        )
        assert engine.arrived.count == arrived
        assert len(json.loads((await run(gateway, "list", "--json")).stdout)) == 1


NOT_FOUND = {"model": "nothing", "messages": []}
REFUSED = {"model": MODEL, "messages": [], "kv_transfer_params": {}}


@pytest.mark.parametrize(
    ("data", "fault", "has_plan"),
    [
        (line_of(0) + b"nonsense\n", "invalid_json_line", False),
        (line_of(0, body=NOT_FOUND), "model_not_found", False),
        (line_of(0) + line_of(1, body=REFUSED), None, True),
        (line_of(1, body=REFUSED), None, False),
    ],
)
async def test_a_plan_tells_faults_and_refusals_as_the_gateway_would(
    config: GatewayConfig, tmp_path: Path, data: bytes, fault: str | None, has_plan: bool
) -> None:
    path = tmp_path / "strange.jsonl"
    path.write_bytes(data)
    async with serving(config) as gateway:
        told = await run(gateway, "plan", path, "--json")
        document = json.loads(told.stdout)
        assert [each["code"] for each in document["faults"]] == ([] if fault is None else [fault])
        assert document["refusals"] == (fault is None)
        assert (told.exit_code, document["plan"] is not None) == (5, has_plan)
        shown = await run(gateway, "plan", path)
        assert shown.exit_code == 5
        assert ("would be refused when it runs" if fault is None else f"({fault})") in shown.stdout


async def test_a_plan_counts_the_batches_before_it_and_tells_that_no_more_are_taken(
    config: GatewayConfig, engine: FakeEngine, requests_file: Path
) -> None:
    config = replace(config, batches=replace(config.batches, batches_max=1, tenant_unfinished_max=1))
    gate = asyncio.Event()
    engine.plays(answer_after(gate))
    async with serving(config) as gateway:
        for _ in range(REQUESTS_MIN):
            batches_of(gateway)._paces.add(MODEL, US.region, 10, 10, 10**9)
        assert (await run(gateway, "submit", requests_file)).exit_code == 0
        await engine.arrived.reaches(1)
        refused = await run(gateway, "plan", requests_file)
        assert (refused.exit_code, "(batches_exceeded)" in refused.stdout) == (5, True)
        asked = {"model": MODEL}
        async with batch_client(gateway.http_url, "", None) as client:
            told = await client.ask("GET", f"{OUTLOOK_PATH}?{urlencode(asked)}")
        assert [each["places"] for each in told["shares"]] == [0, 1]
        assert not told["waits_for_unknown"]
        gate.set()
