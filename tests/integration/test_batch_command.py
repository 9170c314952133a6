"""Command `nightside batch` against a real gateway: its output, its files and its exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from gateway.app.gateway import GatewayHandle
from gateway.config.sections import GatewayConfig
from gateway.features.batches.cli import KEY_VARIABLE, batch
from gateway.security.keys_editing import add_key
from mesh.clock import Clock
from tests.fakes.engine import GOOD_ANSWER, Exchange, FakeEngine, answer, hang
from tests.support.batches import batches_config, line_of, lines_of, serving


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> GatewayConfig:
    return batches_config(tmp_path, engine)


@pytest.fixture
def requests_file(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(lines_of(3))
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
        assert not out.with_name("out.jsonl.part").exists()
        to_stdout = await run(gateway, "fetch", batch_id)
        assert (to_stdout.exit_code, to_stdout.stdout) == (1, out.read_text()), to_stdout.exc_info
        assert "--errors FILE" in to_stdout.stderr
        listed = await run(gateway, "list")
        assert all(word in listed.stdout for word in (batch_id, "completed"))
        assert [each["id"] for each in json.loads((await run(gateway, "list", "--json")).stdout)] == [batch_id]


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


@pytest.mark.parametrize("line", [b"", b"nonsense\n", b'{"url": "/v1/images"}\n'])
def test_a_file_without_an_api_is_wrong_use(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line)
    assert CliRunner().invoke(batch, ["submit", str(path)]).exit_code == 2


async def test_a_gateway_that_does_not_answer_is_named(requests_file: Path) -> None:
    for words in (["list"], ["submit", requests_file], ["cancel", "batch_1"]):
        done = await run("http://127.0.0.1:1", str(words[0]), *words[1:])
        assert (done.exit_code, "http://127.0.0.1:1 cannot be reached" in done.stderr) == (1, True)
