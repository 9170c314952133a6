"""`nightside gateway` as an operator runs it: a process with a region file, signals, and an exit status."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.app.commands import cli
from gateway.core.vocabulary import Place
from tests.fakes.engine import DONE, GOOD_STREAM, ROLE, STOP, FakeEngine, stream_until, token
from tests.support.core import EU, US
from tests.support.gateways import ask, write_policy
from tests.support.processes import Process, gateway_process, region_file
from tests.support.programs import ROOT, nightside


async def test_it_serves_says_so_and_logs_a_line_per_request(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    async with gateway_process(region_file(tmp_path, "us-1", US, engine), fresh=True) as gateway:
        async with ask(session, gateway.http_url) as response:
            assert await response.read() == b"".join(GOOD_STREAM)
        async with session.get(f"{gateway.admin_url}/metrics") as page:
            assert 'nightside_requests_total{model="llama",outcome="completed"} 1.0' in await page.text()
        async with session.get(f"{gateway.admin_url}/admin/state") as state:
            assert (await state.json())["gateway"] == "us-1"
        expected = {"outcome": "completed", "replica": "us-1-r0", "gateway": "us-1", "tenant": "default"}
        await gateway.until_logged("request", **expected, placed_by="local_explore", output_tokens=6)
        gateway.signal(signal.SIGTERM)
        assert await gateway.process.wait() == 0
    assert "hello" not in json.dumps(gateway.log_lines), "no content in any log line"


async def test_a_log_that_nobody_reads_holds_up_neither_requests_nor_the_end(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    unread = tmp_path / "stderr"
    os.mkfifo(unread)
    reader = os.open(unread, os.O_RDWR)
    into_it = ("sh", "-c", f'exec "$@" 2> {unread}', "sh")
    try:
        async with gateway_process(region_file(tmp_path, "us-1", US, engine), started_by=into_it) as gateway:
            for _ in range(300):  # a pipe holds the lines of a third of them
                async with ask(session, gateway.http_url) as response:
                    assert await response.read() == b"".join(GOOD_STREAM)
            gateway.signal(signal.SIGTERM)
            assert await gateway.process.wait() == 0
        assert len(os.read(reader, 1 << 20)) >= select.PIPE_BUF, "the pipe was full"
    finally:
        os.close(reader)


async def test_a_drain_finishes_what_runs_and_takes_nothing_new(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    go_on = asyncio.Event()
    engine.plays(stream_until(go_on, (ROLE, token("Hel")), (token("lo"), STOP, DONE)))
    async with gateway_process(region_file(tmp_path, "us-1", US, engine)) as gateway:
        async with ask(session, gateway.http_url) as response:
            await response.content.readany()
            gateway.signal(signal.SIGTERM)
            while await readiness(session, gateway) == 200:
                pass
            async with ask(session, gateway.http_url) as late:
                assert late.status == 503
                assert (await late.json())["error"]["code"] == "draining"
            assert gateway.process.returncode is None
            go_on.set()
            assert await response.content.read() == token("lo") + STOP + DONE
        assert await gateway.process.wait() == 0
    assert engine.aborted.count == 0


async def readiness(session: aiohttp.ClientSession, gateway: Process) -> int:
    async with session.get(f"{gateway.admin_url}/ready") as response:
        return response.status


@asynccontextmanager
async def cut_midway(
    folder: Path, engine: FakeEngine, session: aiohttp.ClientSession, *, drain: str
) -> AsyncIterator[Process]:
    """A gateway with a running stream; the block stops the gateway, which breaks the stream off."""
    engine.plays(stream_until(asyncio.Event(), (ROLE, token("Hel"))))
    async with gateway_process(region_file(folder, "us-1", US, engine, limits={"drain": drain})) as gateway:
        async with ask(session, gateway.http_url) as response:
            await response.content.readany()
            yield gateway
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert await gateway.process.wait() == 0
    await engine.aborted.reaches(1)


async def test_a_drain_that_takes_too_long_cuts_what_is_left(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    async with cut_midway(tmp_path, engine, session, drain="50ms") as gateway:
        gateway.signal(signal.SIGTERM)


async def test_a_second_signal_does_not_wait(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    async with cut_midway(tmp_path, engine, session, drain="1h") as gateway:
        gateway.signal(signal.SIGINT)
        while await readiness(session, gateway) == 200:
            pass
        gateway.signal(signal.SIGINT)


async def test_a_killed_peer_breaks_its_streams_and_no_other(
    tmp_path: Path, session: aiohttp.ClientSession, unused_tcp_port_factory: Callable[[], int]
) -> None:
    ports = {"us-1": unused_tcp_port_factory(), "eu-1": unused_tcp_port_factory()}

    def knowing(gateway_id: str, place: Place) -> dict[str, object]:
        address = f"127.0.0.1:{ports[gateway_id]}"
        return {"gateway": gateway_id, "region": place.region, "jurisdiction": place.jurisdiction, "address": address}

    def listening(gateway_id: str) -> dict[str, str]:
        return {"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "peers": f"127.0.0.1:{ports[gateway_id]}"}

    async with FakeEngine().serving() as us_engine, FakeEngine().serving() as eu_engine:
        eu_engine.plays(stream_until(asyncio.Event(), (ROLE, token("Hel"))))
        us_file = region_file(
            tmp_path,
            "us-1",
            US,
            us_engine,
            listen=listening("us-1"),
            peers=[knowing("eu-1", EU)],
            resume={"wait_max": "1s"},
        )
        eu_file = region_file(tmp_path, "eu-1", EU, eu_engine, listen=listening("eu-1"), peers=[knowing("us-1", US)])
        us_engine.waiting = 1
        async with gateway_process(us_file) as us, gateway_process(eu_file) as eu:
            async with ask(session, us.http_url) as response:
                assert response.headers["x-nightside-region"] == EU.region
                await response.content.readany()
                eu.process.kill()
                assert b'"code":"engine_failed_midstream"' in await response.read()
            await us.until_logged("peer_lost", peer="eu-1")
            us_engine.waiting = 0
            async with ask(session, us.http_url) as response:
                assert await response.read() == b"".join(GOOD_STREAM)
            us.signal(signal.SIGTERM)
            assert await us.process.wait() == 0


async def test_a_region_without_a_readable_policy_runs_closed_and_says_so(
    tmp_path: Path, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    file = region_file(tmp_path, "us-1", US, engine, policy=str(tmp_path / "missing.yaml"))
    async with gateway_process(file) as gateway:
        closed = "residency_policy_invalid"
        await gateway.until_logged(closed, level="error")
        async with ask(session, gateway.http_url) as response:
            assert await response.read() == b"".join(GOOD_STREAM)


def checked(file: Path, *options: str) -> Result:
    """Outcome of `nightside gateway check`, which needs no process of its own."""
    return CliRunner().invoke(cli, ["check", str(file), *options])


async def test_check_prints_the_effective_file(tmp_path: Path, engine: FakeEngine) -> None:
    first = checked(region_file(tmp_path, "us-1", US, engine, queue={"wait_max": "5s"}))
    assert first.exit_code == 0
    document = yaml.safe_load(first.stdout)
    assert (document["queue"]["wait_max"], document["queue"]["length_max"]) == ("5s", 10_000)
    (tmp_path / "effective.yaml").write_text(first.stdout)
    again = checked(tmp_path / "effective.yaml", "--json")
    assert (again.exit_code, again.stdout) == (0, json.dumps(document, indent=2) + "\n")
    assert re.fullmatch(r"effective\.yaml: memory: at most \S+ of \S+ with every limit reached: .+\n", again.stderr)


async def test_a_bad_file_is_told_in_words_and_status(tmp_path: Path, engine: FakeEngine) -> None:
    file = region_file(tmp_path, "us-1", US, engine, queue={"wait_max": 5})
    told = (1, "", "Error: us-1.yaml: line 13: queue.wait_max: 5 is not a duration such as 100ms or 2s\n")
    found = checked(file)
    assert (found.exit_code, found.stdout, found.stderr) == told
    assert await nightside("gateway", "run", file, fresh=True) == told


async def test_check_reads_the_policy_too(tmp_path: Path, engine: FakeEngine) -> None:
    file = region_file(tmp_path, "us-1", US, engine)
    write_policy(tmp_path, US).write_text("version: 1\n")
    found = checked(file)
    assert found.exit_code == 1
    assert found.stderr.startswith("Error: us-1.yaml: policy: ")


NOT_AT_THE_START = {
    "dns.asyncresolver": "replicas found by names",
    "gateway.discovery.kubernetes": "replicas found by labels",
    "joserfc": "tokens of issuers",
    "opentelemetry": "traces",
    "sklearn": "fitting predictors",
    "controller": "the other program",
    "loadgen": "what tries gateways out",
}
"""Modules that a start must not load unless configured, which would slow it down, and the feature that needs each."""

SERVE = """
import sys, uvloop
from pathlib import Path
from gateway.config.reading import read_region_file
from gateway.app.gateway import serve_gateway

async def serve(region):
    async with serve_gateway(region.as_config(), region=region):
        print(*sys.modules, sep="\\n", file=sys.stdout)

uvloop.run(serve(read_region_file(Path(sys.argv[1]))))
"""


async def test_a_gateway_begins_without_what_it_does_not_need(tmp_path: Path, engine: FakeEngine) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, region_file(tmp_path, "us-1", US, engine), stdout=-1, stderr=-1, cwd=ROOT
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    loaded = set(out.decode().split())
    assert "gateway.door.api" in loaded
    assert not loaded & NOT_AT_THE_START.keys()
