"""`nightside load` as a process, against emulated engines on real sockets: reports, stalls, signals, dead endpoints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen.engine.presets import PRESETS
from loadgen.engine.server import serve_engines
from loadgen.engine.server_config import EngineServerConfig
from tests.support.programs import AnyProcess, started
from tests.support.scenarios import small_document

MODEL = "any-model"
SCENARIO = small_document(
    duration="2s",
    drain="10s",
    sample="200ms",
    model=MODEL,
    workloads={
        "chat": {
            "conversations": {
                "output_tokens": {"median": 4, "sigma": 0, "minimum": 4, "maximum": 4},
                "turns": {"median": 1, "sigma": 0, "minimum": 1, "maximum": 1},
                "think_s": {"median": 0.01, "sigma": 0, "minimum": 0.01, "maximum": 0.01},
                "system_prompt_words": 10,
            }
        }
    },
    clients=[
        {"region": "us", "workload": "chat", "arrivals": {"rate": 10, "variation": 0}},
        {"region": "eu", "workload": "chat", "clients": 1},
    ],
)


@asynccontextmanager
async def two_engines() -> AsyncIterator[list[str]]:
    config = EngineServerConfig(model=MODEL, engine=PRESETS["tiny"], port=0, ignore_eos=True)
    async with serve_engines([config, config]) as servers:
        yield [server.url for server in servers]


@asynccontextmanager
async def loading(tmp_path: Path, urls: list[str], *options: str, **changes: Any) -> AsyncIterator[AnyProcess]:
    """The running command; killed if it does not end."""
    scenario = tmp_path / "small.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO | changes))
    where = [part for region, url in zip(("us", "eu"), urls, strict=True) for part in ("--url", f"{region}={url}")]
    async with started("load", scenario, *where, "-o", tmp_path / "out", *options) as process:
        yield process


async def its_end(process: AnyProcess, tmp_path: Path) -> tuple[int | None, str, dict[str, Any]]:
    """Exit code, all output, and the one run in the results."""
    out, err = await process.communicate()
    said = out.decode() + err.decode()
    (run,) = json.loads((tmp_path / "out/results.json").read_text())["runs"]
    return process.returncode, said, run


async def until_asked(requests: int, urls: list[str]) -> None:
    """Wait until the endpoint has answered that many requests."""
    import aiohttp  # noqa: PLC0415 - only here

    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{urls[0]}/metrics") as response:
                lines = (await response.text()).splitlines()
            counts = [line for line in lines if line.startswith("vllm:request_success_total")]
            if sum(float(line.rpartition(" ")[2]) for line in counts) >= requests:
                return
            await asyncio.sleep(0.02)


async def test_both_loops_are_driven_and_reported_region_by_region(tmp_path: Path) -> None:
    async with two_engines() as urls, loading(tmp_path, urls, "--json") as process:
        code, said, run = await its_end(process, tmp_path)
    assert code == 0, said
    assert json.loads(said)["runs"] == [run]
    us, eu = run["regions"]["us"], run["regions"]["eu"]
    assert us["requests"] == us["completed"] == 19
    assert eu["completed"] >= 1
    assert run["total"]["failed"] == 0
    assert run["total"]["cached_share"] is not None
    assert "</html>" in (tmp_path / "out/report.html").read_text()


async def test_a_loader_that_was_stalled_counts_what_its_clients_waited(tmp_path: Path) -> None:
    async with two_engines() as urls, loading(tmp_path, urls, duration="4s") as process:
        await until_asked(5, urls)
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(1.0)
        os.kill(process.pid, signal.SIGCONT)
        code, said, run = await its_end(process, tmp_path)
    assert code == 0, said
    assert run["regions"]["us"]["requests"] == 39
    assert run["regions"]["us"]["ttft_ms"]["p99"] > 500
    assert run["lag_ms"]["p99"] > 500
    assert "after they were due" in said


async def test_an_interrupted_run_tells_what_it_has_measured(tmp_path: Path) -> None:
    async with two_engines() as urls, loading(tmp_path, urls, duration="10m") as process:
        await until_asked(5, urls)
        process.send_signal(signal.SIGINT)
        code, said, run = await its_end(process, tmp_path)
    assert code == 130, said
    assert run["partial"]
    assert run["total"]["completed"] >= 4
    assert run["load_s"] < 600
    assert "Stopped after" in said


async def test_an_endpoint_that_is_not_there_gives_failures_and_no_crash(tmp_path: Path) -> None:
    async with two_engines() as urls:
        pass
    async with loading(tmp_path, urls, duration="1s") as process:
        code, said, run = await its_end(process, tmp_path)
    assert code == 1, said
    assert run["total"]["completed"] == 0
    assert run["regions"]["us"]["failed"] == 9
    assert any("Cannot connect" in failure for failure in run["total"]["failures"])
    assert "requests was answered; " in said
    assert "Traceback" not in said


async def test_a_run_in_which_nobody_asks_says_so(tmp_path: Path) -> None:
    late = [{"region": name, "workload": "chat", "arrivals": {"rate": 0.01, "variation": 0}} for name in ("us", "eu")]
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:1"]
    async with loading(tmp_path, urls, "--json", duration="500ms", clients=late) as process:
        code, said, run = await its_end(process, tmp_path)
    assert (code, run["all_requests"]) == (1, 0)
    assert "Nothing was sent: no user was due to ask" in said


@pytest.mark.parametrize(("url", "code"), [("us=ftp://nowhere", 1), ("mars=http://127.0.0.1:1", 1)])
async def test_wrong_use_is_told_before_anything_is_sent(tmp_path: Path, url: str, code: int) -> None:
    async with loading(tmp_path, ["http://127.0.0.1:1", "http://127.0.0.1:1"], "--url", url) as process:
        _, err = await process.communicate()
    assert process.returncode == code
    assert url in err.decode()
