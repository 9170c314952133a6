from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from loadgen.engine.main import main
from tests.support.programs import killed_at_the_end

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3000, "stream": True}


@asynccontextmanager
async def engines(*options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = ("-c", "from loadgen.engine.main import main; main()", "--model", "m", "--port", "0", *options)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    async with killed_at_the_end(process):
        yield process


async def announced(process: asyncio.subprocess.Process) -> list[dict[str, object]]:
    assert process.stdout is not None
    engines: list[dict[str, object]] = json.loads(await process.stdout.readline())["engines"]
    return engines


async def test_engines_announce_themselves_and_serve() -> None:
    async with engines("--count", "2", "--adapter", "tuned", "--json") as process, aiohttp.ClientSession() as session:
        ready = await announced(process)
        for engine in ready:
            async with session.get(f"{engine['url']}/v1/models") as response:
                assert [model["id"] for model in (await response.json())["data"]] == ["m", "tuned"]

    ports = {int(str(engine["url"]).rpartition(":")[2]) for engine in ready}
    assert len(ports) == 2
    assert min(ports) >= 1024
    assert [(engine["model"], engine["adapters"]) for engine in ready] == [("m", ["tuned"])] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_streams_with_abort_and_the_process_with_success(number: signal.Signals) -> None:
    async with engines("--json", "--ignore-eos") as process, aiohttp.ClientSession() as session:
        (engine,) = await announced(process)
        async with session.post(f"{engine['url']}/v1/chat/completions", json=CHAT) as response:
            begun = await response.content.readuntil(b"\n\n")
            process.send_signal(number)
            rest = await response.content.read()
        assert await process.wait() == 0

    assert begun.startswith(b"data: ")
    assert b'"finish_reason":"abort"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


def test_a_taken_port_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(main, ["--model", "m", "--port", str(taken.getsockname()[1])])

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "address already in use" in result.output


def test_help_names_the_presets() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "llama-3.1-8b-l4" in result.output


@pytest.mark.parametrize(
    "options", [["--preset", "huge"], ["--count", "0"], ["--time-scale", "0"], ["--port", "65536"]]
)
def test_impossible_options_are_refused(options: list[str]) -> None:
    assert CliRunner().invoke(main, ["--model", "m", *options]).exit_code == 2


async def test_an_engine_that_dies_takes_its_process_with_it() -> None:
    async with engines("--role", "decode", "--json") as process, aiohttp.ClientSession() as session:
        (engine,) = await announced(process)
        with pytest.raises(aiohttp.ClientError):
            await session.post(
                f"{engine['url']}/v1/chat/completions", json=CHAT | {"kv_transfer_params": {"do_remote_prefill": True}}
            )
        assert await process.wait() == 1


def lengths_of(folder: Path) -> list[int]:
    return [len(path.read_text().splitlines()) for path in folder.iterdir()]


async def test_ranks_leave_a_trace_of_their_steps(tmp_path: Path) -> None:
    options = ("--ranks", "2", "--kv-token-ns", "100", "--step-trace", str(tmp_path), "--time-scale", "0.05")
    async with engines("--json", *options) as process, aiohttp.ClientSession() as session:
        (engine,) = await announced(process)
        body = CHAT | {"max_tokens": 5, "stream": False}
        async with session.post(f"{engine['url']}/v1/chat/completions", json=body) as response:
            assert response.status == 200
        process.terminate()
        assert await process.wait() == 0

    assert min(lengths_of(tmp_path)) > 5


def test_a_trace_needs_ranks_that_wait_for_each_other() -> None:
    result = CliRunner().invoke(main, ["--model", "m", "--port", "0", "--step-trace", "steps"])

    assert result.exit_code == 2
    assert "--ranks" in result.output
